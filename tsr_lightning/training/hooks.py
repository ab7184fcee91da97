"""What a Lightning callback may implement to take part in a rollout. `tsr_lightning` knows callbacks by these alone."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from lightning.pytorch import Trainer

from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.progress import Progress
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.credit import CreditedPiece
from tsr_lightning.training.lightning_compat import callbacks
from tsr_lightning.trajectory import Group


@runtime_checkable
class OnRollout(Protocol):
    """Called on all ranks with the groups of all, before a callback drops any."""

    def on_rollout(self, trainer: Trainer, agent: Agent, groups: Sequence[Group]) -> None: ...


@runtime_checkable
class OnRolloutEnd(Protocol):
    """Called between search and credit with the groups of all ranks; the groups that it returns are trained on; of
    these, dynamic sampling, if any, takes the first with signal."""

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]: ...


@runtime_checkable
class OnRolloutMetrics(Protocol):
    """Called on all ranks with the figures of a training rollout by tag, which are of all groups that were rolled out,
    and with the epochs that its policy had been trained for: those before it, less `data.staleness`."""

    def on_rollout_metrics(self, trainer: Trainer, metrics: Mapping[str, float], epochs: int) -> None: ...


@runtime_checkable
class OnRolloutWave(Protocol):
    """Called after every wave of every rollout, those of evaluations included."""

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None: ...


@runtime_checkable
class RecordsTurns(Protocol):
    """Says which rollouts and evaluations keep every turn of every search, in `Trajectory.record`."""

    def records(self, phase: str, epoch: int) -> bool:
        """Of a rollout (`TRAINING_ROLLOUT`) or a protocol, by the policy after so many epochs; called in any thread."""
        ...


@runtime_checkable
class OnCredit(Protocol):
    """Called after `on_rollout_end`, with what is trained of a rollout and its credit, on all ranks."""

    def on_credit(self, trainer: Trainer, credited: Sequence[CreditedPiece]) -> None: ...


@runtime_checkable
class LimitsGroups(Protocol):
    """Says beforehand how many groups its `on_rollout_end` leaves at most, for estimates of what updates cost."""

    def kept_at_most(self, groups: int) -> int:
        """Returns the most groups that are left of so many, all compared."""
        ...


@runtime_checkable
class NamesMetrics(Protocol):
    """Says beforehand which figures it adds to `trainer.callback_metrics`, for others that monitor one of them."""

    def metric_names(self, evaluations: Sequence[EvalProtocol], environments: Sequence[str]) -> frozenset[str]:
        """Returns the figures' names for these protocols, on environments with these labels."""
        ...


def is_recorded(trainer: Trainer, phase: str, epoch: int) -> bool:
    """Whether some callback asks for every turn of a rollout or an evaluation."""
    return any(each.records(phase, epoch) for each in callbacks(trainer) if isinstance(each, RecordsTurns))


def report_wave(trainer: Trainer, progress: Progress) -> None:
    """Reports the progress of a rollout or an evaluation to the callbacks."""
    for callback in callbacks(trainer):
        if isinstance(callback, OnRolloutWave):
            callback.on_rollout_wave(trainer, progress)
