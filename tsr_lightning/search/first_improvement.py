"""First-choice hill climbing over turns."""

from dataclasses import dataclass, field

from tsr_lightning.errors import require
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.strategies import CommitMode, Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Commit, Expand, Node, Search, best
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class FirstImprovement(Strategy):
    """Proposes one response after the other, until one improves the score: first-choice hill climbing (Russell and
    Norvig, Artificial Intelligence, 4.1.1). Where none does, the best of them is played.

    A turn in which the policy makes progress by itself costs one response, as a plain sample does, and the candidates
    go where it does not; a beam pays for all of them everywhere. A response that ends the episode without a success is
    no improvement.

    Args:
        candidates: the most responses proposed per turn.
        scorer: scores the states.
        commit: keep: the turn as it was simulated. resample: play it in the real episode and go on from the outcome,
            which costs one step of the environment a turn, and no tokens.
        without_replacement: the responses to a state all differ. Of those with equal scores the likelier is kept.
    """

    candidates: int = 8
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"
    without_replacement: bool = True

    def __post_init__(self) -> None:
        require(self.candidates >= 1, "FirstImprovement.candidates", self.candidates, "give 1 or more")

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            chosen = yield from self.climb(node)
            node = chosen if self.commit == "keep" else (yield Commit(chosen))
        return node

    def climb(self, node: Node) -> Search:
        """The response to play in a state."""
        proposed: list[Node] = []
        while len(proposed) < self.candidates:
            [[child]] = yield Expand([node], 1, self.without_replacement)
            if _improves(child, node):
                return child
            proposed.append(child)
        if self.without_replacement:
            for child in proposed:
                child.tie = child.logprob
        return best(1, proposed)[0]

    @property
    def traits(self) -> Traits:
        branches = self.candidates > 1
        return Traits(
            origin=Origin.SEARCHED if branches else Origin.SAMPLED,
            branches=branches,
            independent_siblings=not branches,  # whether one is drawn depends on those before it
            monte_carlo_rollouts=False,
            scored_by=self.scorer,
            scores_every_node=True,
            without_replacement=self.without_replacement,
        )


def _improves(child: Node, node: Node) -> bool:
    return child.succeeded or (not child.done and child.score > node.score)
