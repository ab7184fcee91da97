"""What a Lightning callback may implement to take part in a rollout. `tsr_lightning` knows callbacks by these alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lightning.pytorch import Trainer

from tsr_lightning.costs import Costs
from tsr_lightning.trajectory import Group

if TYPE_CHECKING:
    from tsr_lightning.training.agent import Agent  # which knows evaluations, and these report to the hooks
    from tsr_lightning.training.evaluation import EvalProtocol

TRAINING_ROLLOUT = "rollout"  # the phase of a rollout that is trained on; an evaluation's is the name of its protocol


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """How far a rollout is, on this rank."""

    number: int  # of the rollout, counted from 1 in this process
    phase: str  # TRAINING_ROLLOUT or the name of an evaluation protocol
    done: int  # searches that have ended
    total: int
    costs: Costs  # of this rollout so far
    seconds: float
    spent: float  # share of the budgets of all searches, ended ones counted whole: what is left takes at most as long
    hidden_seconds: float = 0.0  # of these, in which the updates did not wait for it


@runtime_checkable
class OnRolloutEnd(Protocol):
    """Called between search and credit with the groups of all ranks; the groups that it returns are trained on; of
    these, dynamic sampling, if any, takes the first with signal."""

    def on_rollout_end(self, trainer: Trainer, agent: "Agent", groups: list[Group]) -> list[Group]: ...


@runtime_checkable
class OnRolloutMetrics(Protocol):
    """Called on all ranks with the figures of a training rollout by tag, which are of all groups that were rolled out,
    and with the epochs that its policy had been trained for: those before it, less `data.staleness`."""

    def on_rollout_metrics(self, trainer: Trainer, metrics: Mapping[str, float], epochs: int) -> None: ...


@runtime_checkable
class OnRolloutWave(Protocol):
    """Called after every wave of every rollout, those of evaluations included."""

    def on_rollout_wave(self, trainer: Trainer, progress: RolloutProgress) -> None: ...


@runtime_checkable
class LimitsGroups(Protocol):
    """Says beforehand how many groups its `on_rollout_end` leaves at most, for estimates of what updates cost."""

    def kept_at_most(self, groups: int) -> int:
        """Of so many groups that are all compared."""
        ...


@runtime_checkable
class NamesMetrics(Protocol):
    """Says beforehand which figures it adds to `trainer.callback_metrics`, for others that monitor one of them."""

    def metric_names(self, evaluations: Sequence["EvalProtocol"], environments: Sequence[str]) -> frozenset[str]:
        """Of these protocols, on environments with these labels."""
        ...
