"""Counts the responses that a strategy asks for, by driving it through a tree in which no two states are equal."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tsr_lightning.search.fake_tree import Outcome, Path, drive
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Expand, Node


@dataclass(frozen=True)
class Level:
    """Counts of one search request at one depth."""

    depth: int  # turns played before
    nodes: int  # whose prompts are needed
    new_nodes: int  # of these, those that no earlier request had
    responses: int


@dataclass(frozen=True)
class SearchSize:
    """A search: its requests in order, and the turns of its trajectory that the policy sampled."""

    requests: tuple[tuple[Level, ...], ...]
    turns: int

    @property
    def responses(self) -> int:
        return sum(level.responses for request in self.requests for level in request)


def search_size(strategy: Strategy, turns: int) -> SearchSize:
    """The most that a search asks for in episodes of so many turns.

    No state is equal to another, so nothing is merged. Searches end early at a success, and some do more after one: the
    larger of two searches is returned, of which one never succeeds and the other with its last turn.
    """
    sizes = [_size(strategy, turns, succeeds) for succeeds in (False, True)]
    return max(sizes, key=lambda size: size.responses)


def _size(strategy: Strategy, turns: int, succeeds: bool) -> SearchSize:
    def outcome(path: Path) -> Outcome:
        ends = len(path) >= turns
        return Outcome(ends, ends and succeeds)

    run = drive(strategy, outcome, turns, _score_all_equal, scores_every_node=True, most_requests=None)
    seen: set[Hashable] = set()
    requests = tuple(
        _levels(request.nodes, request.count, seen) for request in run.requests if isinstance(request, Expand)
    )
    return SearchSize(requests, max(0, len(run.leaf) - len(run.demonstrated)))


def _score_all_equal(nodes: Sequence[Node[Any]]) -> None:
    for node in nodes:
        node.score = 0.0


def _levels(nodes: Sequence[Node[Any]], number: int, seen: set[Hashable]) -> tuple[Level, ...]:
    depths = Counter(node.depth for node in nodes)
    new = Counter(node.depth for node in nodes if node.snapshot.state_key not in seen)
    seen.update(node.snapshot.state_key for node in nodes)
    return tuple(Level(depth, depths[depth], new[depth], depths[depth] * number) for depth in sorted(depths))
