"""Searches that branch off their path for tree credit: pruned prefixes of a beam, further candidates along a plain
trajectory, plain samples from the last states of a success."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tsr_lightning.errors import require
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.strategies import Beam, CommitMode, Sample, Strategy, committed
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Request, Search, best, distinct, ended, flat, live
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class ContrastBeam(Strategy):
    """Beam search that keeps the worst prefixes beside the best, and plays some of the pruned ones out to their end.

    Beam leaves all that it prunes with a score, which may be wrong, and shows nothing of how to get out of a bad state.
    Without contrast and rollouts this is Beam.

    It stops at the first success as Beam does: a second one costs tokens and teaches imitation nothing new. All others
    are pruned then, so the rollouts of that turn are drawn from all of them; the score of a candidate that was as good
    as the winner would stay below a success. Rollouts are drawn with equal chances: a score does not show where it is
    wrong, and choosing by it would bring its errors into the comparison.

    Args:
        width: best prefixes kept per turn (B).
        candidates: responses proposed per kept prefix and turn (M).
        contrast: how many of the worst live prefixes are kept beside them.
        rollouts: how many of the live ones that each turn prunes are played out, each by one plain sample.
        scorer: scores the prefixes (S).
        commit: keep or resample, as in Beam. Under resample every plan has rollouts of its own.
    """

    width: int = 2
    candidates: int = 4
    contrast: int = 1
    rollouts: int = 1
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        require(self.width >= 1, "ContrastBeam.width", self.width, "give 1 or more")
        require(self.contrast >= 0, "ContrastBeam.contrast", self.contrast, "give 0 or more")
        require(self.rollouts >= 0, "ContrastBeam.rollouts", self.rollouts, "give 0 or more")
        least = max(2, self.width + self.contrast)
        remedy = f"give {least} or more, so that the first turn has prefixes for width and contrast"
        require(self.candidates >= least, "ContrastBeam.candidates", self.candidates, remedy)

    def __call__(self, root: Node) -> Search:
        return committed(self.plan, root, self.commit)

    def plan(self, root: Node) -> Search:
        frontier, drawn = [root], list[Node]()
        while live(frontier) and not frontier[0].succeeded:
            pool = distinct(flat((yield Expand(live(frontier), self.candidates))) + ended(frontier))
            ranked = best(len(pool), pool)
            width, contrast = (1, 0) if ranked[0].succeeded else (self.width, self.contrast)
            others = live(ranked[width:])
            last = max(0, len(others) - contrast)  # where the worst begin
            frontier = ranked[:width] + others[last:]
            drawn += sorted(others[:last], key=Node.uniform)[: self.rollouts]
        yield from play_out(drawn, 1)
        return frontier[0]

    @property
    def traits(self) -> Traits:
        return Traits(
            origin=Origin.SEARCHED,
            branches=True,
            independent_siblings=True,
            monte_carlo_rollouts=False,
            scored_by=self.scorer,
        )


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


def play_out(nodes: Sequence[Node], count: int) -> Generator[Request, Any, list[Node]]:
    """Plays each live node to its end by `count` plain samples, all side by side.

    Returns their leaves, and the nodes that had ended before.
    """
    leaves, times = list(nodes), count
    while live(leaves):
        leaves = ended(leaves) + flat((yield Expand(live(leaves), times)))
        times = 1
    return leaves
