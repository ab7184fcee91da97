"""Trains on the instances from which the objective has most to learn."""

from collections.abc import Sequence
from math import floor
from statistics import fmean, pstdev

from lightning.pytorch import Callback, Trainer

from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import MINIMUM_STD, Compared
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.lightning_compat import epochs_at_rollout, log_figures
from tsr_lightning.trajectory import Group


class InstanceFilter(Callback):
    """Keeps the groups whose compared returns vary most, by the standard deviation within the group.

    U(u) = Std[R(τ)] of TSR (arXiv 2602.11767), over the trajectories whose returns the objective compares: all of them
    in the paper. Returns are those that the baseline compares: after reward shaping, or successes where it looks at
    those alone; a KL penalty on the rewards is not known yet, and a format penalty apart from the return is not in
    them. A group is uniform, and ranks last, where these returns are all equal and no member is imitated
    (`objectives/signal.py`). Under a critic or a rollout's mean it teaches all the same, and leaving it out biases that
    baseline; a lone trajectory, which has no spread, is not uniform there. Where the baseline is greedy play (ReMax),
    the spread is the root mean square of the differences from that, and a group is uniform if none differs. Ties are
    broken by the deviation of all returns, then by order. A group that teaches by imitation alone is not ranked, and is
    kept: a member is imitated (a searched success, under `ImitateSuccesses`), and the compared returns are all equal,
    or there are none. Without a success a group in which nothing is compared is uniform, however its returns differ.
    Under tree credit a group ranks by the state whose values vary most.

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
        compared = _compared(groups, agent.objective.at(epoch))
        kept = self._kept(compared)
        if groups:
            log_figures(trainer, self._figures(compared, kept), epochs=epoch)
        return [one.group for one in kept]

    def select(self, groups: Sequence[Group], objective: Objective) -> list[Group]:
        """The kept groups, in their order; of equals the earlier is kept."""
        return [one.group for one in self._kept(_compared(groups, objective))]

    def kept_at_most(self, groups: int) -> int:
        """The share of so many compared groups; at least one."""
        return max(1, floor(self.keep * groups + 1e-9))  # 0.29 · 100 is 28.999… in floating point

    def _kept(self, groups: Sequence[Compared]) -> list[Compared]:
        uniform = self._uniform(groups)
        std = [one.std for one in groups]
        overall = [pstdev(map(one.objective.return_of, one.group.trajectories)) for one in groups]
        unranked = {
            i for i, one in enumerate(groups) if not one.is_compared or (one.is_imitated and std[i] <= self.minimum_std)
        }
        candidates = [i for i in range(len(groups)) if i not in unranked]
        quota = self.kept_at_most(len(candidates))
        ranked = sorted(candidates, key=lambda i: (uniform[i], -std[i], -overall[i], i))
        chosen = {i for i in [*unranked, *ranked[:quota]] if not (self.drop_uniform and uniform[i])}
        return [one for i, one in enumerate(groups) if i in chosen]

    def _uniform(self, groups: Sequence[Compared]) -> list[bool]:
        return [one.is_uniform(self.minimum_std) for one in groups]

    def _figures(self, groups: Sequence[Compared], kept: Sequence[Compared]) -> dict[str, float]:
        """Figures of all groups, and of the kept ones where there are any."""
        of_kept = (
            {
                "rollout/filter/in_group_std_kept": fmean(one.std for one in kept),
                "rollout/filter/return_kept": fmean(value for one in kept for value in one.group.returns),
            }
            if kept
            else {}
        )
        return {
            "rollout/filter/kept_share": len(kept) / len(groups),
            "rollout/filter/uniform_share": fmean(self._uniform(groups)),
            "rollout/filter/in_group_std": fmean(one.std for one in groups),
            "rollout/filter/return": fmean(value for one in groups for value in one.group.returns),
            **of_kept,
        }


def _compared(groups: Sequence[Group], objective: Objective) -> list[Compared]:
    return [Compared.of(group, objective) for group in groups]
