"""Plain continuations from any node of a tree."""

from collections.abc import Generator, Sequence
from typing import Any

from tsr_lightning.search.tree import Expand, Node, Request, ended, flat, live


def play_out(nodes: Sequence[Node], count: int) -> Generator[Request, Any, list[Node]]:
    """Plays each live node to its end by `count` plain samples, all side by side.

    Returns their leaves, and the nodes that had ended before.
    """
    leaves, times = list(nodes), count
    while live(leaves):
        leaves = ended(leaves) + flat((yield Expand(live(leaves), times)))
        times = 1
    return leaves
