"""Credit on the graph of states: the responses drawn in equal states are compared, wherever they were drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tsr_lightning.errors import require_coefficient
from tsr_lightning.objectives.backups import Backup, MeanBackup, found_success
from tsr_lightning.objectives.base import Needs
from tsr_lightning.objectives.searched import CreditOverride, SearchedCredit, beside_comparisons
from tsr_lightning.objectives.state_graph import StateGraph
from tsr_lightning.objectives.tree_credit import require_size_power, varies
from tsr_lightning.trajectory import Comparison, Group, Member, Origin, State, Trajectory, TreePath


@dataclass(frozen=True)
class GraphCredit(SearchedCredit):
    """All states of an instance's rollout are one graph, pruned candidates and plain samples included: nodes by state
    key, edges by action. The responses drawn in a state are compared by the values of their edges, which backward
    passes find, whatever path led there and whatever budget was left.

    Related: GraphGPO (https://arxiv.org/abs/2605.26684), G2PO (https://arxiv.org/abs/2606.22995) and RTMC
    (https://arxiv.org/abs/2604.11037), on plain samples; a search has far more edges. `TreeCredit` compares within the
    states that a search expanded, and tells them apart by depth and budget. Here a response of a plain sample is
    compared too, with those of other samples that met its state. Where a state key says all that decides how an episode
    goes on, budgets never bind, and nothing was selected, the values are consistent estimates of the policy's; a state
    in which one response was drawn teaches nothing, so in small groups states weigh by how often samples meet there
    (docs/gradients.md). A world with chance needs `MeanBackup`: a maximum would be luck.

    Args:
        backup: the values of edges: `MeanBackup`, or `MaxBackup` where no chance is.
        imitation: advantage of every token of a searched success, imitated beside it; 0 imitates none.
        size_power: each visit of a state weighs n^-size_power, where n visits of its instance are compared.
        drop_uniform: leave out states whose responses are all worth the same; never under a critic.
    """

    backup: Backup = field(default_factory=lambda: MeanBackup(discount=0.95))
    imitation: float = 0.0
    size_power: float = 1.0
    drop_uniform: bool = True

    def __post_init__(self) -> None:
        require_coefficient("GraphCredit.imitation", self.imitation)
        require_size_power("GraphCredit.size_power", self.size_power)

    def needs_with(self, needs: Needs) -> Needs:
        takes_best, takes_scores = self.backup.takes_best, self.backup.takes_scores_for_returns
        return replace(
            needs,
            tree=True,
            state_keys=True,
            merges_states=True,
            best_of_tree=takes_best,
            scores_of_tree=takes_scores,
        )

    def compares(self, origin: Origin) -> bool:
        return origin is Origin.SAMPLED

    def override(self, member: Member) -> CreditOverride | None:
        return beside_comparisons(member, self.imitation)

    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        """The trajectories that are imitated as a whole, and the comparison of each state with responses enough."""
        whole = tuple(each for each in group.trajectories if self.imitates(each) or each.origin is Origin.DEMONSTRATED)
        played = [each for each in group.trajectories if each.origin.is_sampled]
        states = [state for state in self._states(played) if len(state.members) >= minimum_compared]
        if self.drop_uniform and minimum_compared > 1:
            states = [state for state in states if varies(state.members)]
        visits = sum(state.weight * len(state.members) for state in states)
        return [
            *([replace(group, trajectories=whole)] if whole else []),
            *(replace(state, weight=state.weight * visits**-self.size_power) for state in states),
        ]

    def _states(self, trajectories: Sequence[Trajectory]) -> list[Comparison]:
        """The responses drawn in each state, of which every visit weighs 1."""
        graph = StateGraph.of(trajectories, self.backup.takes_best)
        values = self.backup(graph.trees, graph.backed_up)
        successes = found_success(graph.trees, graph.backed_up)

        def response(key: str, i: int, j: int) -> TreePath:
            candidate = graph.trees[i][j]
            # Neither turns nor budget tell states apart, so neither do they tell what is trained once.
            place = State(1, key, 0)
            return TreePath((candidate.turn,), (place,), values[i][j], successes[i][j], candidate.overlong)

        def compared(key: str, places: Sequence[tuple[int, int]]) -> Comparison:
            visits = len({(i, graph.trees[i][j].parent) for i, j in places})
            return Comparison(tuple(response(key, *place) for place in places), visits / len(places))

        return [compared(key, places) for key, places in graph.drawn.items()]
