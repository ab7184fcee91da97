"""A beam that also follows some of what it prunes."""

from dataclasses import dataclass, field

from tsr_lightning.errors import require
from tsr_lightning.search.playouts import play_out
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.strategies import CommitMode, Strategy, committed
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, best, distinct, ended, flat, live
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
