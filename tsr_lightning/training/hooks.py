"""What a Lightning callback may implement to take part in a rollout. `tsr_lightning` knows callbacks by these alone."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lightning.pytorch import Trainer

from tsr_lightning.costs import Costs
from tsr_lightning.training.agent import Agent
from tsr_lightning.trajectory import Group


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """Where a rollout stands, on this rank."""

    number: int  # of the rollout in this process: another number is another rollout
    what: str  # "rollout" or the name of a protocol
    done: int  # searches ended
    total: int
    costs: Costs  # of this rollout so far
    seconds: float


@runtime_checkable
class OnRolloutEnd(Protocol):
    """Called between search and credit with the groups of all ranks; what it returns is trained on."""

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]: ...


@runtime_checkable
class OnRolloutWave(Protocol):
    """Called after every wave of every rollout, those of evaluations included."""

    def on_rollout_wave(self, trainer: Trainer, progress: RolloutProgress) -> None: ...
