"""PATR: a tree of plain samples that branches where a process score promises most."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tsr_lightning.errors import require
from tsr_lightning.search.process_score import ProcessScore
from tsr_lightning.search.scorers import Scorer
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, best, ended, flat, live
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class AdaptiveTree(Strategy):
    """Plain trajectories of which some are given up on the way and others branch, by a process score: the adaptive tree
    rollout of PATR (https://arxiv.org/abs/2607.15610). The best of all that ended is the result.

    After every so many turns the live prefixes are compared. One whose score is more than `margin` below their median,
    or that has repeated its action, is given up; the `expanded` best of the others get `children` responses each, and
    all others go on with one.

    Departs from the paper: where all would be given up the best is not, so that every tree has an end; and one that is
    given up has no outcome, so under tree credit its score stands for that, where the paper trains on it as a failure.

    Args:
        samples: prefixes from the root (the paper's B_0).
        every: turns between comparisons (K; in the paper 5 of FrozenLake and 13 of SWE-bench, in longer episodes).
        expanded: prefixes that branch in each (k).
        children: responses of one that branches (M).
        margin: below the median, at which a prefix is given up (alpha).
        repeats: equal actions in a row at which it is (Theta).
        scorer: of prefixes; learned from the run's own outcomes if none is given.
    """

    samples: int = 4
    every: int = 2
    expanded: int = 2
    children: int = 2
    margin: float = 0.5
    repeats: int = 6
    scorer: Scorer = field(default_factory=ProcessScore)

    def __post_init__(self) -> None:
        require(self.samples >= 1, "AdaptiveTree.samples", self.samples, "give 1 or more")
        require(self.every >= 1, "AdaptiveTree.every", self.every, "give 1 or more turns between comparisons")
        require(self.expanded >= 1, "AdaptiveTree.expanded", self.expanded, "give 1 or more; without, use BestOfN")
        require(self.children >= 2, "AdaptiveTree.children", self.children, "give 2 or more; without, use BestOfN")
        require(self.margin >= 0, "AdaptiveTree.margin", self.margin, "give 0 or more, such as 0.5")
        require(self.repeats >= 2, "AdaptiveTree.repeats", self.repeats, "give 2 or more")

    def __call__(self, root: Node) -> Search:
        [paths] = yield Expand([root], self.samples)
        leaves, turns = ended(paths), 1
        while paths := live(paths):
            branching = list[Node]()
            if turns % self.every == 0:
                paths = self.kept(paths)
                branching = best(self.expanded, paths)
            others = [path for path in paths if path not in branching]
            paths = flat((yield Expand(branching, self.children))) if branching else []
            paths += flat((yield Expand(others, 1))) if others else []
            leaves, turns = leaves + ended(paths), turns + 1
        return max(leaves, key=lambda leaf: (leaf.episode_return, leaf.tie))

    def kept(self, paths: Sequence[Node]) -> list[Node]:
        """Those that are not given up."""
        least = median(path.score for path in paths) - self.margin
        return [path for path in paths if path.score >= least and not self.is_stuck(path)] or best(1, paths)

    def is_stuck(self, path: Node) -> bool:
        last = [turn.action for turn in path.turns[-self.repeats :]]
        return len(last) == self.repeats and len(set(last)) == 1

    @property
    def traits(self) -> Traits:
        return Traits(
            origin=Origin.SEARCHED,
            branches=True,
            independent_siblings=True,
            monte_carlo_rollouts=False,
            scored_by=self.scorer,
        )
