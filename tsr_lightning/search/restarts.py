"""Plain continuations from the last states of a success."""

from dataclasses import dataclass, field, replace

from tsr_lightning.errors import require
from tsr_lightning.search.playouts import play_out
from tsr_lightning.search.strategies import Beam, Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Node, Search
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class SuffixRestarts(Strategy):
    """Where a search succeeds, plain samples from the last states of its path, stepping back from the end.

    Near the end of a success the policy succeeds by itself some of the time, though from the root it never might; there
    its samples differ in their outcomes, which tree credit needs. Stepping back ends where all samples of a
    state fail, since earlier states are harder still. Reverse curricula (arXiv 1707.05300; arXiv 1812.03381; of
    language models arXiv 2402.05808) move the start of training back over many updates; here every search finds the
    place anew, so that there is no schedule to tune.

    Args:
        strategy: searches, from the root. Its trajectory is the result.
        points: the most states restarted from, the last of the path first.
        rollouts: plain samples from each.
    """

    strategy: Strategy = field(default_factory=Beam)
    points: int = 3
    rollouts: int = 4

    def __post_init__(self) -> None:
        require(self.points >= 1, "SuffixRestarts.points", self.points, "give 1 or more")
        require(self.rollouts >= 2, "SuffixRestarts.rollouts", self.rollouts, "give 2 or more, which can be compared")
        name = type(self.strategy).__name__
        remedy = "a demonstration has no tree, so nothing would be learned of its restarts; give a search"
        require(self.strategy.traits.origin is not Origin.DEMONSTRATED, "SuffixRestarts.strategy", name, remedy)

    def __call__(self, root: Node) -> Search:
        leaf = yield from self.strategy(root)
        if leaf.succeeded:
            for state in leaf.path[-2 : -2 - self.points : -1]:
                ends = yield from play_out([state], self.rollouts)
                if not any(end.succeeded for end in ends):
                    break
        return leaf

    @property
    def traits(self) -> Traits:
        """The search's: the samples are candidates of its tree, and none becomes the trajectory."""
        return replace(self.strategy.traits, branches=True, monte_carlo_rollouts=True)
