"""A whole iteration by this project: Agent, RolloutDataModule and GRPO under Lightning, an epoch a lap."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger

from benchmarks.performance.line import Line
from benchmarks.performance.ours import engine_of, spec_of
from benchmarks.performance.workload import CLIP_NORM, LEARNING_RATE, MINIBATCHES, Workload
from benchmarks.performance.world import ID
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Sampling
from tsr_lightning.objectives import GRPO
from tsr_lightning.objectives.surrogates import Clipped
from tsr_lightning.policy.spec import LoRA
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.progress import Progress
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.mismatch import KL
from tsr_lightning.training.optimizer import Optimizer
from tsr_lightning.trajectory import Group


class LastFigures(DummyLogger):
    """A logger that keeps the last of each figure."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, float] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.last |= metrics


class Stopwatch(Callback):
    """Says what an epoch took, and of what.

    Args:
        ended: called with the figures of each epoch; whether another epoch is wanted.
        rolled_out: called when the rollout has ended and before the update begins.
    """

    def __init__(self, ended: Callable[[dict[str, Any]], bool], rolled_out: Callable[[], None] = lambda: None) -> None:
        self._ended = ended
        self._on_rolled_out = rolled_out
        self._started = 0.0
        self._rolled_out = 0.0
        self._cpu = 0.0
        self._costs = Costs()
        self.figures = LastFigures()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.perf_counter()

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None:
        self._costs = progress.costs

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self._rolled_out = time.perf_counter()
        self._cpu = time.process_time()
        self._on_rolled_out()
        return groups

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ended = time.perf_counter()
        figures = {
            "seconds": ended - self._started,
            "seconds_rollout": self._rolled_out - self._started,
            "seconds_update": ended - self._rolled_out,
            "cpu_update": time.process_time() - self._cpu,
            "tokens_per_second": self._costs.tokens_generated / (self._rolled_out - self._started),
            "kl": self.figures.last[KL],
            "optimizer_steps": trainer.global_step,
            "costs": asdict(self._costs),
        }
        if not self._ended(figures):
            trainer.should_stop = True
        self._started = time.perf_counter()


def data_of(work: Workload, *, staleness: int = 0, reuse_logprobs: bool = False) -> RolloutDataModule:
    return RolloutDataModule(
        env=ID,
        env_kwargs={"words": work.words, "turns": work.turns, "wait": work.wait},
        plan=Uniform(work.strategy, work.members),
        instances=work.groups,
        held_out=HeldOut(instances=1),
        evaluations=[],
        context=work.context,
        sampling=Sampling(1.0, work.response_tokens),
        context_tokens=work.longest,
        updates=Updates(epochs=1, minibatches=MINIBATCHES, reuse_logprobs=reuse_logprobs),
        staleness=staleness,
        engine=engine_of(work),
        concurrency=work.trajectories,
        env_workers=work.env_workers,
    )


def agent_of(work: Workload, folder: Path, adapter: LoRA | None = None) -> Agent:
    objective = GRPO(surrogate=Clipped(0.2, 0.2), entropy_coefficient=0.0)
    return Agent(replace(spec_of(work, folder), adapter=adapter), objective, Optimizer(learning_rate=LEARNING_RATE))


def trainer_of(watch: Stopwatch, device: str = "cpu") -> Trainer:
    return Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        logger=watch.figures,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=-1,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        gradient_clip_val=CLIP_NORM,
        callbacks=[watch],
    )


def take_part(line: Line, work: Workload, folder: Path) -> None:
    iterate(line, work, folder)


def iterate(line: Line, work: Workload, folder: Path, adapter: LoRA | None = None) -> None:
    """An epoch a lap, of an adapter or of all weights. The first makes everything warm and is not counted."""
    laps = iter(line)
    warm = False

    def ended(figures: dict[str, Any]) -> bool:
        nonlocal warm
        if warm:
            line.answer(figures)
        else:
            line.ready(f"{MINIBATCHES} optimizer steps")
        warm = True
        return next(laps, None) is not None

    trainer_of(Stopwatch(ended), work.device).fit(agent_of(work, folder, adapter), datamodule=data_of(work))
