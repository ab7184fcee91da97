"""Strategies and scorers with one mistake each, as a user would name them by module."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.scorers import Critic, Scorer
from tsr_lightning.search.strategies import Beam, BestOfN, Greedy, Sample, Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, flat
from tsr_lightning.trajectory import Origin

SEARCHES = Traits(origin=Origin.SEARCHED, branches=True, independent_siblings=True, monte_carlo_rollouts=False)
SAMPLES = replace(SEARCHES, origin=Origin.SAMPLED, branches=False)


@dataclass(frozen=True)
class Wrapper(Strategy):
    """Searches as another strategy does."""

    strategy: Strategy = field(default_factory=Beam)

    def __call__(self, root: Node) -> Search:
        return self.strategy(root)


@dataclass(frozen=True)
class NoTraits(Wrapper):
    pass


@dataclass(frozen=True)
class OtherTraits(Wrapper):
    traits = {"origin": "searched"}  # noqa: RUF012  (the mistake)


@dataclass(frozen=True)
class ForgetsScorer(Wrapper):
    traits = SEARCHES


@dataclass(frozen=True)
class ForgetsRoot(Wrapper):
    strategy: Strategy = field(default_factory=FirstImprovement)

    @property
    def traits(self) -> Traits:
        return replace(self.strategy.traits, scores_every_node=False)


@dataclass(frozen=True)
class ForgetsReplacement(Wrapper):
    strategy: Strategy = field(default_factory=lambda: Beam(without_replacement=True))

    @property
    def traits(self) -> Traits:
        return replace(self.strategy.traits, without_replacement=False)


@dataclass(frozen=True)
class DiffersAndIsIndependent(ForgetsReplacement):
    @property
    def traits(self) -> Traits:
        return replace(self.strategy.traits, independent_siblings=True)


@dataclass(frozen=True)
class StopsAtSuccess(Strategy):
    """Samples whole trajectories until one succeeds."""

    traits = SEARCHES

    def __call__(self, root: Node) -> Search:
        for _ in range(4):
            leaf = yield from Sample()(root)
            if leaf.succeeded:
                break
        return leaf


@dataclass(frozen=True)
class AddsAfterSuccess(Strategy):
    traits = SEARCHES

    def __call__(self, root: Node) -> Search:
        leaf = yield from Beam(1, 2)(root) if self.traits.scored_by else BestOfN(2)(root)
        if leaf.succeeded:
            yield Expand([root], 2)
        return leaf


@dataclass(frozen=True)
class ImprovesAndIsIndependent(FirstImprovement):
    without_replacement: bool = False

    @property
    def traits(self) -> Traits:
        return replace(super().traits, independent_siblings=True)


@dataclass(frozen=True)
class SelectsAndIsSampled(Wrapper):
    strategy: Strategy = field(default_factory=BestOfN)
    traits = replace(SEARCHES, origin=Origin.SAMPLED)


@dataclass(frozen=True)
class BranchesInSecret(Wrapper):
    strategy: Strategy = field(default_factory=BestOfN)
    traits = replace(SEARCHES, branches=False)


@dataclass(frozen=True)
class NoExpert(Wrapper):
    strategy: Strategy = field(default_factory=Sample)
    traits = replace(SAMPLES, origin=Origin.DEMONSTRATED)


@dataclass(frozen=True)
class GreedyInSecret(Wrapper):
    strategy: Strategy = field(default_factory=Greedy)
    traits = SAMPLES


@dataclass(frozen=True)
class SamplesAndIsGreedy(Wrapper):
    strategy: Strategy = field(default_factory=Sample)
    traits = replace(SAMPLES, origin=Origin.GREEDY)


@dataclass(frozen=True)
class NeverEnds(Strategy):
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        while not root.done:
            yield Expand([root], 1)
        return root


@dataclass(frozen=True)
class ExpandsNothing(Strategy):
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        leaf = yield from Sample()(root)
        yield Expand([], 1)
        return leaf


@dataclass(frozen=True)
class ExpandsTheEnded(Strategy):
    traits = SEARCHES

    def __call__(self, root: Node) -> Search:
        leaves = [root]
        while not all(leaf.done for leaf in leaves):
            leaves = flat((yield Expand(leaves, 2)))
        return leaves[0]


@dataclass(frozen=True)
class ReturnsNothing(Strategy):
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        yield from Sample()(root)
        return None  # type: ignore[return-value]


@dataclass(frozen=True)
class ReturnsEarly(Strategy):
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        [[node]] = yield Expand([root], 1)
        return node


@dataclass(frozen=True)
class Typo(Strategy):
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        node: Any = root
        while not node.is_done:
            [[node]] = yield Expand([node], 1)
        return node


@dataclass(frozen=True)
class YieldsNodes(Strategy):
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        yield [root]  # type: ignore[misc]
        return root


@dataclass(frozen=True)
class CountsOnAll(Strategy):
    traits = replace(SEARCHES, independent_siblings=False)

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            [[node, _]] = yield Expand([node], 2)
        return node


@dataclass(frozen=True)
class AsksCritic(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return critic(nodes)


@dataclass(frozen=True)
class CountsRewards(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.env_score + sum(turn.reward for turn in node.turns) for node in nodes]


@dataclass(frozen=True)
class GivesNan(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [float("nan") if node.done else node.env_score for node in nodes]


@dataclass(frozen=True)
class GivesTooFew(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.env_score for node in nodes if not node.done]


@dataclass(frozen=True)
class ScorerTypo(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.enviroment_score for node in nodes]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class RanksTheBatch(Scorer):
    """Scores relative to the batch, in which other searches have nodes too."""

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        best = max(node.env_score for node in nodes)
        return [node.env_score - best for node in nodes]


@dataclass(frozen=True)
class PrefersFailures(Scorer):
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [-node.env_score for node in nodes]


@dataclass(frozen=True)
class KeepsNodes(Strategy):
    """Goes on from a node of an earlier search."""

    kept: list[Node] = field(default_factory=list)
    traits = SAMPLES

    def __call__(self, root: Node) -> Search:
        self.kept.append(root)
        node = self.kept[0]
        while not node.done:
            [[node]] = yield Expand([node], 1)
        return node
