"""Credit from the tree of a search: every expanded state is a comparison of the responses proposed there."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import pstdev

from tsr_lightning.errors import require
from tsr_lightning.objectives.backups import Backup, MaxBackup, State, found_success, proposed_in
from tsr_lightning.objectives.checks import require_coefficient
from tsr_lightning.objectives.searched import LEFT_OUT, CreditOverride, SearchedCredit
from tsr_lightning.objectives.signal import MINIMUM_STD
from tsr_lightning.trajectory import Candidate, Group, Origin, Trajectory


@dataclass(frozen=True)
class TreeCredit(SearchedCredit):
    """The responses proposed in one state are compared with one another by what came of them, instead of whole
    trajectories: the objective's group is a state, its members are episodes of one turn, and their return is the value
    of a response.

    The responses are draws of the policy in that state, so none is selected, and failures teach as well as successes;
    one search an instance is enough, and none has to succeed. What is searched is which states are seen, and what a
    response is worth. Plain trajectories of the group are compared as ever.

    Related: TreeRL (https://arxiv.org/abs/2506.11902) and Tree-GRPO (https://arxiv.org/abs/2509.21240), which credit
    the leaves of trees of whole responses; VinePPO (https://arxiv.org/abs/2410.01679), whose values are those of the
    policy, as by the strategy `MonteCarlo` and `MeanBackup`.

    Args:
        backup: the values.
        imitation: advantage of every token of a searched success, imitated beside it; 0 imitates none.
        size_power: a state weighs n^-size_power, where n states of its instance are compared: 1 makes instances equal,
            so that a large tree does not drown a small one; 0 makes states equal; TreeRL has 0.5.
        drop_uniform: leave out states whose responses are all worth the same. A critic may learn from them.
    """

    backup: Backup = field(default_factory=MaxBackup)
    imitation: float = 0.0
    size_power: float = 1.0
    drop_uniform: bool = True

    needs_tree = True

    def __post_init__(self) -> None:
        require_coefficient("TreeCredit.imitation", self.imitation)
        remedy = "1 makes instances equal, 0 makes states equal; use a number from 0 to 1"
        require(0 <= self.size_power <= 1, "TreeCredit.size_power", self.size_power, remedy)

    def compares(self, origin: Origin) -> bool:
        return origin is Origin.SAMPLED

    def override(self, trajectory: Trajectory) -> CreditOverride | None:
        if self.compares(trajectory.origin):
            return None
        imitated = trajectory.origin is Origin.SEARCHED and trajectory.succeeded and self.imitation > 0
        return CreditOverride(self.imitation, 1.0) if imitated else LEFT_OUT

    def comparisons(self, group: Group) -> list[Group]:
        """The trajectories that are compared or imitated as a whole, and a group of one-turn episodes per state."""
        whole = tuple(trajectory for trajectory in group.trajectories if self._is_whole(trajectory))
        branching = [trajectory for trajectory in group.trajectories if branches(trajectory.tree)]
        states = [state for state in self._states(branching) if not self.drop_uniform or _varies(state)]
        weight = len(states) ** -self.size_power if states else 1.0
        return [
            *([replace(group, trajectories=whole)] if whole else []),
            *(Group(group.instance, state, group.env, weight / len(state), is_state=True) for state in states),
        ]

    def _is_whole(self, trajectory: Trajectory) -> bool:
        match trajectory.origin:
            case Origin.SAMPLED:
                return not branches(trajectory.tree)
            case Origin.SEARCHED:
                return self.imitates(trajectory)
            case Origin.DEMONSTRATED:
                return True

    def _states(self, branching: Sequence[Trajectory]) -> list[tuple[Trajectory, ...]]:
        """The responses drawn in each state where there were two or more, as one-turn episodes."""
        trees = [trajectory.tree for trajectory in branching]
        values, successes = self.backup(trees), found_success(trees)
        return [
            tuple(
                _episode(branching[i], trees[i][j], member, values[i][j], successes[i][j])
                for member, (i, j) in enumerate(places)
            )
            for places in siblings(trees)
        ]


def siblings(trees: Sequence[Sequence[Candidate]]) -> list[list[tuple[int, int]]]:
    """The responses drawn in each state where there were two or more, as places [i][j] in `trees`, which are of one
    instance. States with different contexts, as where these show the past, are different."""
    drawn: dict[tuple[State, tuple[int, ...]], list[tuple[int, int]]] = defaultdict(list)
    for i, tree in enumerate(trees):
        for j, (candidate, state) in enumerate(zip(tree, proposed_in(tree), strict=True)):
            if candidate.drawn:
                drawn[state, candidate.turn.prompt].append((i, j))
    return [places for places in drawn.values() if len(places) > 1]


def branches(tree: Sequence[Candidate]) -> bool:
    """Whether two or more responses were drawn in some state."""
    drawn = [candidate.parent for candidate in tree if candidate.drawn]
    return len(set(drawn)) < len(drawn)


def _episode(trajectory: Trajectory, candidate: Candidate, member: int, value: float, succeeded: bool) -> Trajectory:
    """A response as an episode of one turn, whose return is its value."""
    return Trajectory(
        instance=trajectory.instance,
        member=member,
        strategy=trajectory.strategy,
        origin=Origin.SAMPLED,
        turns=(replace(candidate.turn, reward=value),),
        succeeded=succeeded,
        truncated=False,
        final_prompt=(),
        final_messages=(),
        env=trajectory.env,
        out_of_tokens=candidate.out_of_tokens,
    )


def _varies(state: Sequence[Trajectory]) -> bool:
    return pstdev(episode.episode_return for episode in state) > MINIMUM_STD
