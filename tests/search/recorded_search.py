"""A strategy whose candidates are written down, those off the chosen path too."""

from dataclasses import dataclass, field

from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, flat


@dataclass(frozen=True)
class Recorded(Strategy):
    """Searches as another strategy does.

    Args:
        strategy: the other.
        candidates: all that it proposed, in order; of one search, so that each search needs a Recorded of its own.
    """

    strategy: Strategy
    candidates: list[Node] = field(default_factory=list)

    def __call__(self, root: Node) -> Search:
        search, answer = self.strategy(root), None
        while True:
            try:
                request = search.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield request
            if isinstance(request, Expand):
                self.candidates.extend(flat(answer))

    @property
    def traits(self) -> Traits:
        return self.strategy.traits
