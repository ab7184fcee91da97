"""Trains on the instances from which there is most to learn: those whose trajectories' returns differ most."""

from math import floor
from statistics import fmean, pstdev

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.axis import epochs_at_rollout, log_figures
from tsr_lightning.errors import ConfigError
from tsr_lightning.trajectory import Group


class InstanceFilter(Callback):
    """Keeps the groups whose returns vary most, by the standard deviation within the group.

    U(u) = Std[R(τ)] of TSR (arXiv 2602.11767) ranks on the outcome alone, never on what a search thought of it. All
    ranks see the groups of all and choose alike. Uniform groups have no group-normalised advantage; under an objective
    that trains on the successes alone they still teach, so `keep: 1.0` with `drop_uniform: false` keeps everything.

    Args:
        keep: share of the groups that is kept, the top of the ranking, at least one; the paper's is 0.25, 1.0 is off.
        drop_uniform: drop groups without spread even where the share would keep them. An epoch may then keep none.
        minimum_std: up to this standard deviation a group counts as uniform; above 0, since equal returns may differ
            by rounding.
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

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        kept = self.select(groups)
        if groups:
            log_figures(trainer, self.figures(groups, kept), epochs=epochs_at_rollout(trainer))
        return kept

    def select(self, groups: list[Group]) -> list[Group]:
        """The kept groups, in the order in which they came; among equals the earlier is kept."""
        spread = [spread_of_returns(group) for group in groups]
        quota = max(1, floor(self.keep * len(groups) + 1e-9))  # 0.29 · 100 is 28.999… in floating point
        ranked = sorted(range(len(groups)), key=lambda i: (-spread[i], i))
        chosen = {i for i in ranked[:quota] if not self.drop_uniform or spread[i] > self.minimum_std}
        return [group for i, group in enumerate(groups) if i in chosen]

    def figures(self, groups: list[Group], kept: list[Group]) -> dict[str, float]:
        """What the filter saw and did; figures of the kept groups are left out where none was kept."""
        of_kept = (
            {
                "rollout/filter/in_group_std_kept": fmean(map(spread_of_returns, kept)),
                "rollout/filter/return_kept": fmean(total for group in kept for total in group.returns),
            }
            if kept
            else {}
        )
        return {
            "rollout/filter/kept_share": len(kept) / len(groups),
            "rollout/filter/uniform_share": fmean(spread_of_returns(g) <= self.minimum_std for g in groups),
            "rollout/filter/in_group_std": fmean(map(spread_of_returns, groups)),
            "rollout/filter/return": fmean(total for group in groups for total in group.returns),
            **of_kept,
        }


def spread_of_returns(group: Group) -> float:
    """The population's standard deviation: defined, and 0, for a group of one."""
    return pstdev(group.returns)
