"""Hand-made episodes and a tiny agent and data module for the tests of the callbacks. No tests in here."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tsr_lightning.costs import Costs
from tsr_lightning.objectives import PPO
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.progress import Progress
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.hooks import OnRolloutEnd, OnRolloutWave
from tsr_lightning.trajectory import Ended, Group, Message, Origin, Trajectory, Turn

SAMPLED = EvalProtocol("sampled", temperature=1.0, samples=1)
GREEDY = EvalProtocol("greedy", temperature=0.0, samples=1)


def turn(
    reward: float = 0.0,
    *,
    valid: bool = True,
    effective: bool = True,
    finished: bool = True,
    tokens: int = 3,
    text: str = "Up",
    logprob: float = 0.0,  # of each token
) -> Turn:
    return Turn(
        prompt=(1, 2),
        response=tuple(range(tokens)),
        behaviour_logprobs=(logprob,) * tokens,
        finished=finished,
        messages=(Message("user", "####\n#P_#\n####"),),
        text=text,
        reward=reward,
        valid=valid,
        effective=effective,
        action=text,
    )


def trajectory(instance: int, member: int = 0, *turns: Turn, succeeded: bool = False) -> Trajectory:
    return Trajectory(
        instance=instance,
        member=member,
        strategy="sample",
        origin=Origin.SAMPLED,
        turns=turns or (turn(),),
        ended=Ended.SUCCEEDED if succeeded else Ended.TURN_LIMIT,
        final_prompt=(1, 2, 3),
        final_messages=(Message("user", "####\n#_P#\n####"),),
    )


def returns(instance: int, *values: float) -> Group:
    """A group whose trajectories have these returns."""
    return Group(instance, tuple(trajectory(instance, i, turn(value)) for i, value in enumerate(values)))


def outcomes(instance: int, *succeeded: int) -> Group:
    """A group whose trajectories succeeded (1) or not (0)."""
    return Group(instance, tuple(trajectory(instance, i, succeeded=bool(s)) for i, s in enumerate(succeeded)))


def eval_result(
    protocol: EvalProtocol, *groups: Group, tokens: int = 0, steps: int = 0, seconds: float = 0.0
) -> EvalResult:
    return EvalResult(protocol, groups, Costs(tokens_generated=tokens, env_steps=steps), seconds)


class Agent(LightningModule):
    """One weight, one update per epoch; a validation batch is a function of the updates so far."""

    objective = PPO()

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.updates += 1
        return (self.weight - 1) ** 2

    def validation_step(self, batch: Callable[[int], Any], batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch(int(self.updates))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Loader:
    """The batches of one protocol. Not a list, which Lightning would take for several loaders."""

    def __init__(self, batches: Sequence[Callable[[int], Any]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Callable[[int], Any]]:
        return iter(self.batches)


def no_groups(epoch: int) -> list[Group]:
    return []


class Data(LightningDataModule):
    """Each epoch a rollout with the hooks of the real data module, then one batch.

    Args:
        loaders: per protocol the batches, each a function of the number of updates.
        rollout: the groups of an epoch.
        waves: the costs of an epoch's rollout up to each of its waves.
    """

    def __init__(
        self,
        loaders: Sequence[Sequence[Callable[[int], Any]]] = (),
        rollout: Callable[[int], list[Group]] = no_groups,
        waves: Sequence[Costs] = (),
    ) -> None:
        super().__init__()
        self.loaders = [list(batches) for batches in loaders]
        self.rollout = rollout
        self.waves = waves
        self.kept: list[list[Group]] = []  # by epoch

    def train_dataloader(self) -> "Data":
        return self

    def __iter__(self) -> Iterator[torch.Tensor]:
        assert self.trainer is not None
        callbacks = compat.callbacks(self.trainer)
        for done, costs in enumerate(self.waves, start=1):
            for callback in callbacks:
                if isinstance(callback, OnRolloutWave):
                    progress = Progress(
                        TRAINING_ROLLOUT,
                        began=len(self.kept),
                        done=done,
                        total=len(self.waves),
                        costs=costs,
                        seconds=2.0 * done,
                        spent=done / len(self.waves),
                    )
                    callback.on_rollout_wave(self.trainer, progress)
        groups = self.rollout(compat.epochs_at_rollout(self.trainer))
        for callback in callbacks:
            if isinstance(callback, OnRolloutEnd):
                groups = callback.on_rollout_end(self.trainer, self.trainer.lightning_module, groups)
        self.kept.append(groups)
        yield torch.zeros(1)

    def val_dataloader(self) -> list[Loader]:
        return [Loader(batches) for batches in self.loaders]


def fixed(batch: Any) -> Callable[[int], Any]:
    """A validation batch that does not depend on the updates."""
    return lambda updates: batch


def trainer(folder: Path, *callbacks: Any, **settings: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "num_sanity_val_steps": -1,
        "logger": TensorBoardLogger(folder, name="", version="logs", default_hp_metric=False),
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    return Trainer(callbacks=list(callbacks), **{**defaults, **settings})


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder / "logs"))
    accumulator.Reload()
    return accumulator


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    """(abscissa, value) of a scalar in the event file."""
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def texts(folder: Path, tag: str) -> list[tuple[int, str]]:
    found = events(folder).Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found]
