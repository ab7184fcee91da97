"""Trains on the instances from which the objective has most to learn."""

from math import floor
from statistics import fmean, pstdev

from lightning.pytorch import Callback, Trainer

from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import MINIMUM_STD, compared_returns, compared_std, has_signal
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.lightning_compat import epochs_at_rollout, log_figures
from tsr_lightning.trajectory import Group


class InstanceFilter(Callback):
    """Keeps the groups whose compared returns vary most, by the standard deviation within the group.

    U(u) = Std[R(τ)] of TSR (arXiv 2602.11767), over the trajectories whose returns the objective compares: all of them
    in the paper. Returns are those that the baseline compares: after reward shaping, or successes where it looks at
    those alone; a KL penalty on the rewards is not known yet, and a format penalty apart from the return is not in
    them. A group is uniform, and ranks last, where it has no signal (`objectives/signal.py`): these returns are all
    equal and no member is imitated. Ties are broken by the deviation of all returns, then by order. A group in which
    nothing is compared (searched members alone, under `ImitateSuccesses`) is not ranked: it is kept where a member is
    imitated, and uniform otherwise, however its returns differ. Under tree credit a group ranks by the state whose
    values vary most.

    It ranks by returns, never by a search's scores. All ranks get the groups of all, and choose alike.

    Args:
        keep: fraction of the ranked groups that is kept, at least one; 0.25 in the paper, 1.0 keeps all.
        drop_uniform: drop uniform groups even where `keep` would keep them. An epoch may then keep none.
        minimum_std: up to this standard deviation returns count as equal; above 0, since they may differ by rounding.
    """

    def __init__(self, keep: float = 0.25, drop_uniform: bool = True, minimum_std: float = MINIMUM_STD) -> None:
        super().__init__()
        require(0 < keep <= 1, "InstanceFilter.keep", keep, "give more than 0 and at most 1 (1.0 keeps all groups)")
        require(minimum_std >= 0, "InstanceFilter.minimum_std", minimum_std, "give 0 or more")
        self.keep = keep
        self.drop_uniform = drop_uniform
        self.minimum_std = minimum_std

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        epoch = epochs_at_rollout(trainer)
        objective = agent.objective.at(epoch)
        kept = self.select(groups, objective)
        if groups:
            log_figures(trainer, self.figures(groups, kept, objective), epochs=epoch)
        return kept

    def select(self, groups: list[Group], objective: Objective) -> list[Group]:
        """The kept groups, in their order; of equals the earlier is kept."""
        uniform = [self.is_uniform(group, objective) for group in groups]
        compared = [compared_std(group, objective) for group in groups]
        overall = [pstdev(map(objective.return_of, group.trajectories)) for group in groups]
        unranked = {i for i, group in enumerate(groups) if not self.is_compared(group, objective)}
        candidates = [i for i in range(len(groups)) if i not in unranked]
        quota = max(1, floor(self.keep * len(candidates) + 1e-9))  # 0.29 · 100 is 28.999… in floating point
        ranked = sorted(candidates, key=lambda i: (uniform[i], -compared[i], -overall[i], i))
        chosen = {i for i in [*unranked, *ranked[:quota]] if not (self.drop_uniform and uniform[i])}
        return [group for i, group in enumerate(groups) if i in chosen]

    def is_compared(self, group: Group, objective: Objective) -> bool:
        """Whether anything in it is compared: trajectories, or under tree credit the responses in a state."""
        return any(compared_returns(part, objective) for part in objective.comparisons(group))

    def is_uniform(self, group: Group, objective: Objective) -> bool:
        """Whether the objective's policy terms can learn nothing from a group."""
        return not has_signal(group, objective, self.minimum_std)

    def figures(self, groups: list[Group], kept: list[Group], objective: Objective) -> dict[str, float]:
        """Of all groups, and of the kept ones where there are any."""
        of_kept = (
            {
                "rollout/filter/in_group_std_kept": fmean(compared_std(group, objective) for group in kept),
                "rollout/filter/return_kept": fmean(value for group in kept for value in group.returns),
            }
            if kept
            else {}
        )
        return {
            "rollout/filter/kept_share": len(kept) / len(groups),
            "rollout/filter/uniform_share": fmean(self.is_uniform(group, objective) for group in groups),
            "rollout/filter/in_group_std": fmean(compared_std(group, objective) for group in groups),
            "rollout/filter/return": fmean(value for group in groups for value in group.returns),
            **of_kept,
        }
