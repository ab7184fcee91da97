"""Messages between the program and a process that makes games, one JSON object a line."""

from typing import Any, TypedDict


class Order(TypedDict):
    """A game to make."""

    settings: dict[str, Any]  # of `GameKind.settings`
    seed: int
    path: str  # of its .z8; its .json goes beside it


class Outcome(TypedDict):
    """The answer to an order."""

    problem: str  # why there is no such game; "" if it is there
