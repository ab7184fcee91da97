"""Credit from the tree of a search: every expanded state is a comparison of the responses proposed there."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tsr_lightning.errors import require, require_coefficient
from tsr_lightning.objectives.backups import Backup, MaxBackup, found_success, have_estimates, proposed_in
from tsr_lightning.objectives.base import Needs
from tsr_lightning.objectives.searched import CreditOverride, SearchedCredit, beside_comparisons
from tsr_lightning.objectives.signal import MINIMUM_STD
from tsr_lightning.objectives.targets import CandidateTarget
from tsr_lightning.trajectory import Candidate, Comparison, Group, Member, Origin, State, Trajectory, TreePath


@dataclass(frozen=True)
class TreeCredit(SearchedCredit):
    """The responses proposed in one state are compared with one another by what came of them, instead of whole
    trajectories: every expanded state is a `Comparison`, whose members are single responses with their values.

    The responses are draws of the policy in that state, so none is selected, and failures teach as well as successes;
    one search an instance is enough, and none has to succeed. What is searched is which states are seen, and what a
    response is worth. Plain trajectories of the group are compared as ever.

    Related: TreeRL (https://arxiv.org/abs/2506.11902) and Tree-GRPO (https://arxiv.org/abs/2509.21240), which credit
    the leaves of trees of whole responses; VinePPO (https://arxiv.org/abs/2410.01679) and SPO
    (https://arxiv.org/abs/2505.23564), whose values are those of the policy.

    With the strategy `Vine` of 1 rollout, `MeanBackup`, `LeaveOneOut`, `Constant` and `size_power` 0 the gradient of a
    step of many searches is, up to a factor, an unbiased estimate of that of the expected return (docs/gradients.md):
    a state then weighs as often as the policy visits it. A step divides by the weight of its own states, so one of few
    searches is biased: with four vines by 2 to 6%, by task. Searches visit states that the policy would not, and select
    what they go on with.

    Args:
        backup: the values.
        imitation: advantage of every token of a searched success, imitated beside it; 0 imitates none.
        size_power: each expansion of a state weighs n^-size_power, where n expansions of its instance are compared: 1
            makes instances equal, so that a large tree does not drown a small one; 0 makes expansions equal; TreeRL has
            0.5.
        drop_uniform: leave out states whose responses are all worth the same, where the baseline is theirs. A critic's
            is not, so under PPO none is left out: it would be biased by those that are kept.
        target: what responses are compared by instead of their values: how far a distribution over them that these
            improve lies above the policy; null compares the values.
    """

    backup: Backup = field(default_factory=MaxBackup)
    imitation: float = 0.0
    size_power: float = 1.0
    drop_uniform: bool = True
    target: CandidateTarget | None = None

    def __post_init__(self) -> None:
        require_coefficient("TreeCredit.imitation", self.imitation)
        require_size_power("TreeCredit.size_power", self.size_power)

    def needs_with(self, needs: Needs) -> Needs:
        takes_best, takes_scores = self.backup.takes_best, self.backup.takes_scores_for_returns
        return replace(needs, tree=True, best_of_tree=takes_best, scores_of_tree=takes_scores)

    @property
    def has_target(self) -> bool:
        return self.target is not None

    def compares(self, origin: Origin) -> bool:
        return origin is Origin.SAMPLED

    def override(self, member: Member) -> CreditOverride | None:
        return beside_comparisons(member, self.imitation)

    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        """The trajectories that are compared or imitated as a whole, and the comparison of each expanded state."""
        whole = tuple(trajectory for trajectory in group.trajectories if self._is_whole(trajectory))
        drops_uniform = self.drop_uniform and minimum_compared > 1
        trees = [trajectory.tree for trajectory in group.trajectories if trajectory.tree]
        states = [each for each in self._states(trees) if not drops_uniform or varies(each[1])]
        count = sum(state.expansions for state, _ in states)
        return [
            *([replace(group, trajectories=whole)] if whole else []),
            *(Comparison(responses, state.weight * count**-self.size_power) for state, responses in states),
        ]

    def _is_whole(self, trajectory: Trajectory) -> bool:
        match trajectory.origin:
            case Origin.SAMPLED:
                return not trajectory.tree
            case Origin.SEARCHED:
                return self.imitates(trajectory)
            case Origin.DEMONSTRATED:
                return True
            case Origin.GREEDY:
                return False

    def _states(self, trees: Sequence[Sequence[Candidate]]) -> list[tuple["ExpandedState", tuple[TreePath, ...]]]:
        """The expanded states, each with the responses drawn there."""
        values, successes = self.backup(trees), found_success(trees)

        def response(state: State, i: int, j: int) -> TreePath:
            candidate = trees[i][j]
            return TreePath((candidate.turn,), (state,), values[i][j], successes[i][j], candidate.overlong)

        compared = [
            (each, tuple(response(each.state, *place) for place in each.drawn)) for each in expanded_states(trees)
        ]
        if self.target is None:
            return compared
        known = have_estimates(trees, self.backup.values_scores)
        return [
            (each, self.target.compared(responses, [known[i][j] for i, j in each.drawn]))
            for each, responses in compared
        ]


class ExpandedState(NamedTuple):
    """The responses drawn in a state."""

    state: State
    drawn: list[tuple[int, int]]  # places [i][j] in the trees
    expansions: int  # how often two or more of them were drawn from one node

    @property
    def weight(self) -> float:
        """Weight of one response, where every expansion weighs 1."""
        return self.expansions / len(self.drawn)


def expanded_states(trees: Sequence[Sequence[Candidate]]) -> list[ExpandedState]:
    """The states of which some node was expanded: two or more responses were drawn there, to be compared.

    Nodes in equal states with equal contexts are one comparison, which counts as often as they were expanded; single
    responses of other nodes in that state, as of a plain continuation, join it and add no weight. A state in which such
    responses met by chance is none: it would count more often than it is visited.

    Args:
        trees: of searches of one instance.
    """
    drawn: dict[tuple[State, tuple[int, ...]], list[tuple[int, int]]] = defaultdict(list)
    for i, tree in enumerate(trees):
        for j, (candidate, state) in enumerate(zip(tree, proposed_in(tree), strict=True)):
            if candidate.drawn:
                drawn[state, candidate.turn.prompt].append((i, j))
    states = [ExpandedState(state, places, _expansions(trees, places)) for (state, _), places in drawn.items()]
    return [state for state in states if state.expansions]


def _expansions(trees: Sequence[Sequence[Candidate]], places: Sequence[tuple[int, int]]) -> int:
    nodes = Counter((i, trees[i][j].parent) for i, j in places)
    return sum(count > 1 for count in nodes.values())


def require_size_power(key: str, power: float) -> None:
    require(0 <= power <= 1, key, power, "1 makes instances equal, 0 makes expansions equal; use a number from 0 to 1")


def varies(responses: Sequence[TreePath]) -> bool:
    """True if they are not all worth the same."""
    values = [response.value for response in responses]
    return max(values) - min(values) > MINIMUM_STD
