"""A search in progress: what its strategy requests of the next wave, and what it is answered."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from tsr_lightning.engines.base import Response
from tsr_lightning.search.executors import EnvStep
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Commit, Demonstrate, Expand, Node, Request, Search, flat


@dataclass(slots=True)
class ActiveSearch:
    """A strategy's generator on one root. `advance(None)` begins it.

    An answer is what the generator is sent: to an `Expand` the children of each of its nodes, else one node.
    """

    index: int  # of its task
    strategy: Strategy
    root: Node
    generator: Search = field(init=False)
    request: Request = field(init=False)  # the generator's last
    leaf: Node = field(init=False)  # that the generator chose, once it has ended

    def __post_init__(self) -> None:
        self.generator = self.strategy(self.root)

    def advance(self, answer: Any) -> bool:
        """Sends the generator the answer to its request. Returns whether it goes on; else it has chosen its leaf."""
        try:
            self.request = self.generator.send(answer)
        except StopIteration as stop:
            self.leaf = stop.value
            return False
        return True

    def steps(self, responses: Iterator[Sequence[Response]]) -> list[EnvStep]:
        """The environment steps of the request; an `Expand` takes the responses to its nodes."""
        match self.request:
            case Expand(nodes):
                simulate = partial(TurnSimulator.simulate, scored=self.strategy.traits.scored_by is not None)
                return [
                    partial(simulate, node=node, number=_next_child(node), response=response)
                    for node in nodes
                    for response in next(responses)
                ]
            case Commit(node):
                scored = self.strategy.traits.scores_every_node
                return [partial(TurnSimulator.commit, root=self.root, simulated=node, scored=scored)]
            case Demonstrate(node, demonstrator):
                scored = self.strategy.traits.scores_every_node
                number = _next_child(node)
                play = partial(TurnSimulator.demonstrate, node=node, number=number, demonstrator=demonstrator)
                return [partial(play, scored=scored)]

    def answer(self, nodes: Iterator[Node | None]) -> Any:
        """The answer, from the nodes of the wave, where a failed step left None. None where the search is lost."""
        match self.request:
            case Expand(parents, count):
                groups = [[node for node in islice(nodes, count) if node is not None] for _ in parents]
                return groups if all(groups) else None
            case Commit() | Demonstrate():
                return next(nodes)

    def without(self, lost: Set[int], answer: Any) -> Any:
        """An answer without the nodes, by `id`, that could not be scored. None where the search is lost by that."""
        match self.request:
            case Expand():
                groups = [[node for node in group if id(node) not in lost] for group in answer]
                return groups if all(groups) else None
            case Commit() | Demonstrate():
                return None if id(answer) in lost else answer

    def nodes(self, answer: Any) -> Sequence[Node]:
        """The nodes of an answer."""
        return flat(answer) if isinstance(self.request, Expand) else [answer]

    def to_score(self, answer: Any) -> Sequence[Node]:
        """Those of them that the strategy's scorer scores."""
        scored = isinstance(self.request, Expand) or self.strategy.traits.scores_every_node
        return self.nodes(answer) if scored else []

    @property
    def requested(self) -> int:
        """How many nodes were requested."""
        match self.request:
            case Expand(parents, count):
                return len(parents) * count
            case Commit() | Demonstrate():
                return 1

    @property
    def spent(self) -> float:
        """The share of its environment's budget that the search has spent to where it is: one that rolls ahead and
        comes back has spent less."""
        match self.request:
            case Expand(nodes):
                node = nodes[0]
            case Commit(node) | Demonstrate(node):
                pass
        budget = self.root.snapshot.remaining
        return 1 - node.snapshot.remaining / budget if budget else 0.0


def _next_child(node: Node) -> int:
    """Takes the number of a node's next child."""
    node.driver.children += 1
    return node.driver.children - 1
