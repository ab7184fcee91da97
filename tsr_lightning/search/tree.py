"""What a search is made of: nodes, and the requests by which a strategy asks for more of them.

A strategy is a generator over these (see strategies.py); the driver answers the requests of hundreds of searches at
once (see driver.py). Knows no tokenizer and no torch.
"""

from collections.abc import Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Turn


@dataclass(eq=False, slots=True)
class Node:
    """A moment of an episode: the state after some turns, and all that a strategy may choose by."""

    state: Any  # what the environment's `set_state` takes
    observation: str
    key: Key  # names every draw made from here
    state_key: Hashable
    remaining: int  # the environment's own budget
    depth: int = 0  # turns played
    episode_return: float = 0.0  # the return so far
    done: bool = False
    succeeded: bool = False
    truncated: bool = False
    parent: "Node | None" = None
    turn: Turn | None = None  # that led here; None at the root
    prompt: tuple[int, ...] = ()  # the context of the next response; built when it is first asked for
    response_tokens: int = 0  # tokens said in the episode
    generated: int = 0  # of these, the policy's own; the others are demonstrations
    env_score: float = 0.0  # the environment's score of this state
    score: float = 0.0  # by the strategy's scorer
    tie: float = 0.0  # a keyed draw that orders equals
    expanded: int = 0  # children proposed so far, so that each has a key of its own
    children: list["Node"] = field(default_factory=list)  # filled only where the tree is kept

    @property
    def turns(self) -> tuple[Turn, ...]:
        """From the root to here."""
        turns: list[Turn] = []
        node: Node | None = self
        while node is not None and node.turn is not None:
            turns.append(node.turn)
            node = node.parent
        return tuple(reversed(turns))

    def at_depth(self, depth: int) -> "Node":
        """This node or the ancestor of it that lies `depth` turns after the start."""
        node = self
        while node.depth > depth and node.parent is not None:
            node = node.parent
        return node


@dataclass(frozen=True, slots=True)
class Expand:
    """Propose `count` responses of the policy from each node; answered by the children, grouped by parent."""

    nodes: Sequence[Node]
    count: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Play the response that led to `node` in the real episode, with the real episode's noise; answered by the node
    that came of it, whose parent is `node`'s parent."""

    node: Node


@dataclass(frozen=True, slots=True)
class Demonstrate:
    """Play one turn of the environment's oracle from `node`, each action random with probability `noise`; answered by
    the child."""

    node: Node
    noise: float


Request = Expand | Commit | Demonstrate
Search = Generator[Request, Any, Node]  # ends by returning the leaf of the chosen trajectory


def flat(groups: Iterable[Sequence[Node]]) -> list[Node]:
    return [node for group in groups for node in group]


def live(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if not node.done]


def ended(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.done]


def distinct(nodes: Iterable[Node]) -> list[Node]:
    """One node per situation: the higher return, then the larger remaining budget, then the first."""
    kept: dict[Hashable, Node] = {}
    for node in nodes:
        rival = kept.get(node.state_key)
        if rival is None or (node.episode_return, node.remaining) > (rival.episode_return, rival.remaining):
            kept[node.state_key] = node
    return list(kept.values())


def best(count: int, nodes: Iterable[Node]) -> list[Node]:
    """The `count` best, best first: by score, among equals by return (an early success beats a late one), then by a
    keyed draw."""
    return sorted(nodes, key=lambda node: (node.score, node.episode_return, node.tie), reverse=True)[:count]
