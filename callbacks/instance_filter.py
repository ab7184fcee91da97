"""Trains on the instances from which the objective has most to learn."""

from math import floor
from statistics import fmean, pstdev

from lightning.pytorch import Callback, Trainer

from callbacks.axis import epochs_at_rollout, log_figures
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.base import Objective
from tsr_lightning.training.agent import Agent
from tsr_lightning.trajectory import Group


class InstanceFilter(Callback):
    """Keeps the groups whose compared returns vary most, by the standard deviation within the group.

    U(u) = Std[R(τ)] of TSR (arXiv 2602.11767), over the trajectories whose returns the objective compares: all of them
    in the paper. A group is uniform, and ranks last, where these returns are all equal and no member is imitated. Among
    equals the spread of all returns decides, then the order. A group of which nothing is compared (searches alone,
    under `ImitateSuccesses`) takes no part in the ranking: it is kept where a member is imitated, and uniform
    otherwise, however its returns differ.

    It ranks on the outcome alone, never on what a search thought of it. All ranks see the groups of all and choose
    alike.

    Args:
        keep: share of the ranked groups that is kept, the top of the ranking, at least one; the paper's is 0.25, 1.0
            is off.
        drop_uniform: drop uniform groups even where the share would keep them. An epoch may then keep none.
        minimum_std: up to this standard deviation returns count as equal; above 0, since they may differ by rounding.
    """

    def __init__(self, keep: float = 0.25, drop_uniform: bool = True, minimum_std: float = 1e-6) -> None:
        super().__init__()
        if not 0 < keep <= 1:
            raise ConfigError(f"InstanceFilter.keep is {keep}: give a share above 0 and up to 1 (1.0 keeps all groups)")
        if not minimum_std >= 0:
            raise ConfigError(f"InstanceFilter.minimum_std is {minimum_std}: give 0 or more")
        self.keep = keep
        self.drop_uniform = drop_uniform
        self.minimum_std = minimum_std

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        kept = self.select(groups, agent.objective)
        if groups:
            log_figures(trainer, self.figures(groups, kept, agent.objective), epochs=epochs_at_rollout(trainer))
        return kept

    def select(self, groups: list[Group], objective: Objective) -> list[Group]:
        """The kept groups, in the order in which they came; among equals the earlier is kept."""
        uniform = [self.is_uniform(group, objective) for group in groups]
        compared, overall = [spread(group, objective) for group in groups], [pstdev(group.returns) for group in groups]
        unranked = {i for i, group in enumerate(groups) if not compared_returns(group, objective)}
        candidates = [i for i in range(len(groups)) if i not in unranked]
        quota = max(1, floor(self.keep * len(candidates) + 1e-9))  # 0.29 · 100 is 28.999… in floating point
        ranked = sorted(candidates, key=lambda i: (uniform[i], -compared[i], -overall[i], i))
        chosen = {i for i in [*unranked, *ranked[:quota]] if not (self.drop_uniform and uniform[i])}
        return [group for i, group in enumerate(groups) if i in chosen]

    def is_uniform(self, group: Group, objective: Objective) -> bool:
        """Whether the objective's policy terms have nothing to learn from a group."""
        imitated = any(objective.imitates(trajectory) for trajectory in group.trajectories)
        return not imitated and spread(group, objective) <= self.minimum_std

    def figures(self, groups: list[Group], kept: list[Group], objective: Objective) -> dict[str, float]:
        """What the filter saw and did; figures of the kept groups are left out where none was kept."""
        of_kept = (
            {
                "rollout/filter/in_group_std_kept": fmean(spread(group, objective) for group in kept),
                "rollout/filter/return_kept": fmean(total for group in kept for total in group.returns),
            }
            if kept
            else {}
        )
        return {
            "rollout/filter/kept_share": len(kept) / len(groups),
            "rollout/filter/uniform_share": fmean(self.is_uniform(group, objective) for group in groups),
            "rollout/filter/in_group_std": fmean(spread(group, objective) for group in groups),
            "rollout/filter/return": fmean(total for group in groups for total in group.returns),
            **of_kept,
        }


def compared_returns(group: Group, objective: Objective) -> list[float]:
    """The returns that the objective compares with one another."""
    return [trajectory.episode_return for trajectory in group.trajectories if objective.compares(trajectory.origin)]


def spread(group: Group, objective: Objective) -> float:
    """The population's standard deviation of the compared returns: 0 where there are fewer than two."""
    returns = compared_returns(group, objective)
    return pstdev(returns) if returns else 0.0
