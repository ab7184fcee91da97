"""A beam that proposes candidates where they differ."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tsr_lightning.errors import require
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.strategies import CommitMode, Strategy, committed
from tsr_lightning.search.tree import Expand, Node, Search, best, distinct, ended, flat, live


@dataclass(frozen=True)
class AdaptiveBeam(Strategy):
    """Beam search with candidates by need: two for each kept prefix, and the rest where those two differ most.

    Where the policy proposes the same twice, or two responses of equal score, more of them rarely differ, and there is
    nothing to choose or to compare. The further candidates go to a single prefix, in one more wave of the turn; none
    are proposed where no two scores differ, or where one of the first has succeeded.

    Args:
        width: prefixes kept per turn (B).
        budget: the most responses proposed per turn, for all kept prefixes together.
        scorer: scores the prefixes (S).
        commit: keep or resample, as in Beam.
    """

    width: int = 2
    budget: int = 8
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        require(self.width >= 1, "AdaptiveBeam.width", self.width, "give 1 or more")
        remedy = f"give {2 * self.width} or more: two for each of {self.width} prefixes (AdaptiveBeam.width)"
        require(self.budget >= 2 * self.width, "AdaptiveBeam.budget", self.budget, remedy)

    def __call__(self, root: Node) -> Search:
        return committed(self.plan, root, self.commit)

    def plan(self, root: Node) -> Search:
        frontier = [root]
        while live(frontier) and not frontier[0].succeeded:
            pairs = yield Expand(live(frontier), 2)
            children, left = flat(pairs), self.budget - 2 * len(pairs)
            widest = max(pairs, key=_spread)  # of equals that of the best prefix
            if left > 0 and _spread(widest) > 0 and not any(child.succeeded for child in children):
                children += flat((yield Expand([widest[0].parent], left)))
            frontier = best(self.width, distinct(children + ended(frontier)))
        return frontier[0]

    @property
    def scored_by(self) -> Scorer:
        return self.scorer


def _spread(children: Sequence[Node]) -> float:
    scores = [child.score for child in children]
    return max(scores) - min(scores)
