"""A user's environment that holds something until it is closed."""

import threading
from typing import Any

import gymnasium

from tests.corridor import Corridor

OPEN: list["Connected"] = []
MADE: list["Connected"] = []
STEPS: list[str] = []


class Connected(Corridor):
    """It holds a connection until it is closed, and counts as open with it.

    Args:
        is_lost: whether the connection is lost with the first step, so that it cannot be closed.
        fails_after: so many steps of all of them; null for never.
    """

    def __init__(self, is_lost: bool = False, fails_after: int | None = None) -> None:
        super().__init__()
        self.is_lost, self.fails_after = is_lost, fails_after
        self.made_in = threading.current_thread()
        OPEN.append(self)
        MADE.append(self)

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        assert self in OPEN
        return super().reset(**arguments)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert self in OPEN
        STEPS.append(action)
        if self.fails_after is not None and len(STEPS) > self.fails_after:
            raise RuntimeError("the server is gone")
        return super().step(action)

    def close(self) -> None:
        OPEN.remove(self)
        if self.is_lost and self.turn:
            raise RuntimeError("the connection was lost")


gymnasium.register("Connected-v0", Connected)
