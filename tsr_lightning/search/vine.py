"""Monte-Carlo values along plain trajectories."""

from dataclasses import dataclass

from tsr_lightning.errors import require
from tsr_lightning.search.playouts import play_out
from tsr_lightning.search.strategies import Sample, Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, flat
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class Vine(Strategy):
    """A plain trajectory, with further candidates in its states, each played out to its end by plain samples.

    The name is that of TRPO's sampling scheme (arXiv 1502.05477, section 5.2); VinePPO (arXiv 2410.01679) and SPO
    (arXiv 2505.23564) estimate advantages of language models so. With the mean over candidates as a state's value, what
    a candidate gains over its siblings is an unbiased estimate of its advantage: nothing is selected. Hence every state
    branches with the same probability, by a draw of its own. A fixed number of a trajectory's states would branch more
    densely on short trajectories, which are those that succeeded, and so select by the outcome.

    Args:
        candidates: responses compared in a state, that of the trajectory included.
        share: probability that a state of the trajectory branches; 1 branches all.
        rollouts: plain continuations of each further candidate; the trajectory continues its own. With 2 or more, the
            states after those candidates are compared by tree credit too, which is then no longer unbiased.
    """

    candidates: int = 4
    share: float = 1.0
    rollouts: int = 1
    traits = Traits(origin=Origin.SAMPLED, branches=True, independent_siblings=True, monte_carlo_rollouts=True)

    def __post_init__(self) -> None:
        require(self.candidates >= 2, "Vine.candidates", self.candidates, "give 2 or more; for 1 use Sample")
        require(0 < self.share <= 1, "Vine.share", self.share, "give a probability above 0 and up to 1")
        require(self.rollouts >= 1, "Vine.rollouts", self.rollouts, "give 1 or more")

    def __call__(self, root: Node) -> Search:
        leaf = yield from Sample()(root)
        states = [state for state in leaf.path[:-1] if state.uniform() < self.share]
        if states:
            siblings = flat((yield Expand(states, self.candidates - 1)))
            yield from play_out(siblings, self.rollouts)
        return leaf
