"""How many responses a strategy asks for, by driving it through a tree in which no two states are equal."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tsr_lightning.rng import Key
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Commit, Demonstrate, DriverState, Expand, Node, Request, Snapshot


@dataclass(frozen=True)
class Level:
    """What one request of a search proposes after so many turns."""

    depth: int  # turns played before
    nodes: int  # whose prompts are needed
    new_nodes: int  # of these, those that no earlier request had
    responses: int


@dataclass(frozen=True)
class SearchSize:
    """One search: its requests in order, and the turns of its trajectory that the policy sampled."""

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
    sizes = [_drive(strategy, turns, succeeds) for succeeds in (False, True)]
    return max(sizes, key=lambda size: size.responses)


def _drive(strategy: Strategy, turns: int, succeeds: bool) -> SearchSize:
    numbers = count()
    seen: set[Hashable] = set()
    requests: list[tuple[Level, ...]] = []

    def child(parent: Node[Any], depth: int) -> Node[Any]:
        done, number = depth >= turns, next(numbers)
        state = Snapshot(None, (), number, turns - depth, done, done and succeeds, done and not succeeds, env_score=0.0)
        return Node(state, DriverState(Key(0).fold_in(number)), parent, depth=depth)

    root: Node[Any] = Node(Snapshot(None, (), next(numbers), turns, env_score=0.0), DriverState(Key(0)))
    search = strategy(root)
    demonstrated = 0
    answer: Any = None
    while True:
        try:
            request: Request = search.send(answer)
        except StopIteration as end:
            leaf: Node[Any] = end.value
            return SearchSize(tuple(requests), max(0, leaf.depth - demonstrated))
        match request:
            case Expand(nodes, number):
                requests.append(_levels(nodes, number, seen))
                answer = [[child(node, node.depth + 1) for _ in range(number)] for node in nodes]
            case Commit(node):
                assert node.parent is not None  # it was proposed
                answer = child(node.parent, node.depth)
            case Demonstrate(node):
                demonstrated += 1
                answer = child(node, node.depth + 1)


def _levels(nodes: Sequence[Node[Any]], number: int, seen: set[Hashable]) -> tuple[Level, ...]:
    depths = Counter(node.depth for node in nodes)
    new = Counter(node.depth for node in nodes if node.snapshot.state_key not in seen)
    seen.update(node.snapshot.state_key for node in nodes)
    return tuple(Level(depth, depths[depth], new[depth], depths[depth] * number) for depth in sorted(depths))
