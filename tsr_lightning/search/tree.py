"""Nodes of a search tree, and the requests by which a strategy grows the tree.

A strategy is a generator of requests (strategies.py); the driver answers those of hundreds of searches at once
(driver.py). Nothing here knows a tokenizer or torch.
"""

import math
from collections.abc import Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tsr_lightning.engines.base import Response
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.demonstrators import Demonstrator
from tsr_lightning.trajectory import Ended, Message, Turn

DataT = TypeVar("DataT")  # of the data that a strategy keeps on its nodes


# What sets the score of a root and of another node
_UNSET = {
    True: "this is the root: Strategy.traits needs scores_every_node=True, or the strategy sets it",
    False: "Strategy.traits has to name the scorer (scored_by), and scores_every_node=True for committed turns",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the environment reports of one state."""

    state: Any  # what `Branchable.set_state` takes
    messages: tuple[Message, ...]  # that the next response answers
    state_key: Hashable  # equal for equal situations
    remaining: int  # the environment's own budget
    ended: Ended | None = None  # None where the episode goes on
    env_score: float | None = None  # the environment's score; None where the strategy has no scorer


@dataclass(eq=False, slots=True)
class DriverState:
    """The driver's own fields of a node. Strategies leave them alone."""

    key: Key  # names every draw made from the node
    prompt: tuple[int, ...] | None = None  # [P] the context of the next response, once it has been built
    generated_tokens: int = 0  # of the path's responses, those sampled from the policy rather than demonstrated
    children: int = 0  # proposed so far; the next child's key is derived from this number
    excluded: tuple[Response, ...] = ()  # sampled without replacement so far
    candidates: list["Node[Any]"] = field(default_factory=list)  # the children, where the driver keeps them
    committed: "Node[Any] | None" = None  # the simulated node whose response `Commit` played
    noise: Key | None = None  # of the environment, in the step that led here
    record: list[Any] | None = None  # of a root: all turns of its search, where they are recorded
    env: int = 0  # index of the environment
    instance: int = 0  # the seed of the initial state


@dataclass(eq=False, slots=True)
class Node(Generic[DataT]):
    """A state of an episode in the tree. A strategy may write `score`, `tie` and `data`, and read all but `driver`."""

    snapshot: Snapshot
    driver: DriverState = field(repr=False)

    parent: "Node[DataT] | None" = field(default=None, repr=False)
    turn: Turn | None = None  # that led here; None at the root
    depth: int = 0  # turns played
    episode_return: float = 0.0  # rewards so far

    _score: float | None = field(default=None, init=False, repr=False)
    tie: float = 0.0  # orders equals: a keyed draw, unless the strategy writes another figure
    data: DataT = field(init=False, repr=False)  # unset until the strategy sets it

    @property
    def done(self) -> bool:
        return self.snapshot.ended is not None

    @property
    def succeeded(self) -> bool:
        return self.snapshot.ended is Ended.SUCCEEDED

    @property
    def score(self) -> float:
        """By the strategy's scorer, or as the strategy wrote it.

        Raises:
            ValueError: it was not set.
        """
        if self._score is None:
            raise ValueError(f"Node.score was read and never set; {_UNSET[self.turn is None]}")
        return self._score

    @score.setter
    def score(self, value: float) -> None:
        if math.isnan(value):
            raise ValueError("Node.score was set to nan, which ranks nodes by their order")
        self._score = value

    @property
    def known_score(self) -> float | None:
        """The score; None where it is not set."""
        return self._score

    @property
    def env_score(self) -> float:
        """The environment's score of this state (the paper's S)."""
        score = self.snapshot.env_score
        if score is None:
            raise ValueError("the environment's score is not known: Strategy.traits has to name a scorer (scored_by)")
        return score

    @property
    def logprob(self) -> float:
        """Log-probability of the response that led here, under the policy that sampled it; 0 at the root."""
        return sum(self.turn.behaviour_logprobs) if self.turn is not None else 0.0

    @property
    def path(self) -> "list[Node[DataT]]":
        """The nodes from the root to this one; `path[depth]` is the one after `depth` turns."""
        nodes = [self]
        while (parent := nodes[-1].parent) is not None:
            nodes.append(parent)
        return nodes[::-1]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """From the root to here."""
        return tuple([node.turn for node in self.path if node.turn is not None])

    def uniform(self) -> float:
        """A keyed draw in [0, 1) by which a strategy chooses this node or not.

        It is the same at every call, and independent of `tie` and of what happens from here on.
        """
        return self.driver.key.fold_in(Stream.CHOICE).uniform()


@dataclass(frozen=True, slots=True)
class Expand:
    """Propose `count` responses of the policy from each node, at least 1. The answer is the children, grouped by
    parent: fewer where the environment failed, and at least one of each.

    Without replacement the responses to a node all differ, one sampled after the other, as long as the policy gives
    others any probability (`engines.base.Engine`); the first is a sample as any other. They differ from those of
    earlier requests without replacement too.

    Greedy responses have the likeliest token everywhere (temperature 0), so that all of a node are equal.

    Raises:
        ValueError: no node, one that is named twice, or no response.
    """

    nodes: Sequence[Node[Any]]
    count: int
    without_replacement: bool = False
    greedy: bool = False

    def __post_init__(self) -> None:
        if not self.nodes or self.count < 1:
            raise ValueError(f"Expand asks for {self.count} responses to each of {len(self.nodes)} nodes; at least 1")
        if len(set(map(id, self.nodes))) < len(self.nodes):
            raise ValueError("Expand names a node twice, whose responses would be equal; `count` asks for several")


@dataclass(frozen=True, slots=True)
class Commit:
    """Play the response that led to `node` in the real episode, with the real episode's noise.

    The answer is the resulting node; its parent is that of `node`.
    """

    node: Node[Any]


@dataclass(frozen=True, slots=True)
class Demonstrate:
    """Play one turn of a demonstrator, such as the environment's oracle, from `node`. The answer is the child."""

    node: Node[Any]
    demonstrator: Demonstrator


Request = Expand | Commit | Demonstrate
Search = Generator[Request, Any, Node[DataT]]  # returns the leaf of the chosen trajectory


def flat(groups: Iterable[Sequence[Node[DataT]]]) -> list[Node[DataT]]:
    return [node for group in groups for node in group]


def live(nodes: Iterable[Node[DataT]]) -> list[Node[DataT]]:
    return [node for node in nodes if not node.done]


def ended(nodes: Iterable[Node[DataT]]) -> list[Node[DataT]]:
    return [node for node in nodes if node.done]


def distinct(nodes: Iterable[Node[DataT]]) -> list[Node[DataT]]:
    """One node per situation: a success wins, then one whose episode goes on, then the higher return, then the larger
    remaining budget, then the first."""

    def rank(node: Node[DataT]) -> tuple[bool, bool, float, int]:
        return node.succeeded, not node.done, node.episode_return, node.snapshot.remaining

    kept: dict[Hashable, Node[DataT]] = {}
    for node in nodes:
        rival = kept.setdefault(node.snapshot.state_key, node)
        if rank(node) > rank(rival):
            kept[node.snapshot.state_key] = node
    return list(kept.values())


def best(count: int, nodes: Iterable[Node[DataT]]) -> list[Node[DataT]]:
    """The `count` best, best first: successes, then by score, then by return (an early success beats a late one), then
    by `tie`."""

    def rank(node: Node[DataT]) -> tuple[bool, float, float, float]:
        return node.succeeded, node.score, node.episode_return, node.tie

    return sorted(nodes, key=rank, reverse=True)[:count]
