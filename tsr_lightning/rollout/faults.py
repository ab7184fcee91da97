"""Failures of environments: how many a run tolerates, and what they cost it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tsr_lightning.costs import Costs
from tsr_lightning.errors import RunError, require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.trajectory import Group


@dataclass(frozen=True)
class Faults:
    """Limits for an environment that hangs, dies, or raises EnvFault or OSError. None of that is a failure of the
    policy: what was lost is left out of training and of evaluation, and is not counted as a return of 0. Any other
    error is a mistake in the environment's program and ends the run at once.

    Args:
        step_timeout: seconds that a step or a reset may take; needs `data.env_processes`, since only a process can be
            ended. null for no limit.
        retries: how often a failed step or reset is tried again, with the same draws.
        max_share: of the trajectories of a rollout or an evaluation that may be lost; past it the run stops.
    """

    step_timeout: float | None = None
    retries: int = 1
    max_share: float = 0.1

    def __post_init__(self) -> None:
        remedy = "give the seconds that a step may take, above 0, or null for no limit"
        require(
            self.step_timeout is None or self.step_timeout > 0, "data.faults.step_timeout", self.step_timeout, remedy
        )
        require(self.retries >= 0, "data.faults.retries", self.retries, "give 0 or more")
        remedy = "give a share of the trajectories from 0, which bears no loss, to below 1"
        require(0 <= self.max_share < 1, "data.faults.max_share", self.max_share, remedy)

    def check_processes(self, env_processes: bool) -> None:
        """Refuses a time limit that could not be kept."""
        remedy = "a step that hangs can be ended in a process only; set data.env_processes to true, or use null"
        possible = self.step_timeout is None or env_processes
        require(possible, "data.faults.step_timeout", self.step_timeout, remedy)

    def max_lost(self, trajectories: int) -> int:
        """How many of so many trajectories may be lost."""
        return int(self.max_share * trajectories + 1e-9)  # 0.29 * 100 is 28.999... in floating point

    def check(self, lost: int, trajectories: int, phase: str, last: str) -> None:
        """Stops the run where too many were lost.

        Args:
            lost: trajectories, of all ranks; where a rank gave up, all that it had left are among them.
            trajectories: that there should have been.
            phase: in which, for the message.
            last: failure of the environment that this process saw; "" if it saw none.
        """
        allowed = self.max_lost(trajectories)
        if lost > allowed:
            reason = f": {last}" if last else ""
            raise RunError(
                f"{lost} of {trajectories} rollouts failed in {phase} (limit {allowed}){reason}. Fix the environment "
                f"(the log has the tracebacks), or raise data.faults.max_share, which is {self.max_share:g}."
            )


def describe_failures(costs: Costs) -> str:
    """How an environment failed, and what was lost by it, in words; "" where it did not."""
    if not costs.env_failures and not costs.trajectories_lost:
        return ""
    kinds = {"raised": costs.env_errors, "timed out": costs.env_timeouts, "died": costs.env_deaths}
    counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items() if count)
    return (
        f"calls of the environment failed {costs.env_failures:,} times ({counts}); trajectories left out: "
        f"{costs.trajectories_lost:,}, candidates of searches: {costs.candidates_lost:,}"
    )


def drop_single_members(groups: Sequence[Group], objective: Objective, size: int) -> list[Group]:
    """Groups without compared trajectories that lost the others which they would be compared with.

    Args:
        groups: of a rollout.
        objective: says what is compared. What has a tree is compared in its states; where states of all trajectories
            are merged, samples are compared in those too.
        size: of a group that lost nothing.
    """
    return [kept for group in groups if (kept := _without_single_member(group, objective, size)).trajectories]


def _without_single_member(group: Group, objective: Objective, size: int) -> Group:
    others = tuple(t for t in group.trajectories if t.tree or not objective.compares(t.origin))
    compared = len(group.trajectories) - len(others)
    has_states = objective.needs.merges_states and any(t.tree for t in others)
    if len(group.trajectories) == size or compared >= objective.minimum_compared or has_states:
        return group
    return replace(group, trajectories=others)
