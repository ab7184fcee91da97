"""A progress line for rollouts, beside Lightning's own progress bar, and lines for a log where there is no terminal."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from rich.progress import Progress as RichDisplay

from callbacks.log_lines import INTERVAL, Interval, Rate, epoch_ended, evaluation_ended, under_way
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.search.progress import Progress
from tsr_lightning.training.lightning_compat import (
    epoch_limit,
    epochs_at_rollout,
    is_fitting,
    position_at_validation,
)


class RolloutProgressBar(Callback):
    """On a terminal one live line per rollout. Elsewhere, as in the log of a job, a line per part of a training rollout
    with the cost so far; every 30 seconds one of what is under way, evaluations included, with its rate and the time
    left; one per evaluation with its success; and after an epoch, at most every 30 seconds, one with the rollout's
    success and the time that the run still takes. A rollout has several parts where failed groups are searched, or
    where dynamic sampling draws more instances. Under several ranks the lines are of the first one's share."""

    def __init__(self) -> None:
        super().__init__()
        self._line: _Line | None = None
        self._interval = Interval()
        self._success: dict[str, float] = {}  # of the epoch's rollout, by origin
        self._evaluated: dict[str, Rate] = {}  # by protocol
        self._epochs: list[float] = []  # seconds of each in this process
        self._began = 0.0  # the epoch
        self._said = -INTERVAL  # when an epoch's line was written last

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None:
        if not trainer.is_global_zero:
            return
        ended = progress.done >= progress.total
        if sys.stderr.isatty():
            self._line = _line_beside(trainer.progress_bar_callback, self._line)
            self._line.show(progress)
            if ended:
                self._line.hide()
            return
        is_due = self._interval.is_due(progress)
        prefix = f"epoch {epochs_at_rollout(trainer)}: " if progress.phase == TRAINING_ROLLOUT else "evaluation "
        if ended and progress.phase == TRAINING_ROLLOUT:
            _write(f"{prefix}{describe(progress)}")
        elif is_due and not ended:
            _write(f"{prefix}{under_way(progress)}")

    # Lines without a terminal

    def on_rollout_metrics(self, trainer: Trainer, metrics: Mapping[str, float], epochs: int) -> None:
        keys = {origin: f"rollout/{origin}/success_rate" for origin in ("sampled", "searched")}
        self._success = {origin: metrics[key] for origin, key in keys.items() if key in metrics}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs, self._began, self._said = [], monotonic(), -INTERVAL

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = monotonic()  # the first rollout comes before `on_train_start`

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = monotonic()
        self._epochs.append(now - self._began)
        self._began = now
        epochs, limit = epochs_at_rollout(trainer), epoch_limit(trainer)
        if _is_logged(trainer) and (now - self._said >= INTERVAL or epochs == limit):
            _write(epoch_ended(epochs, limit, self._success, self._epochs))
            self._said = now
        self._success = {}  # the next epoch may have no rollout

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluated = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not isinstance(outputs, EvalResult):
            return
        rate = self._evaluated.setdefault(outputs.protocol.name, Rate())
        trajectories = [trajectory for group in outputs.groups for trajectory in group.trajectories]
        rate.successes += sum(trajectory.succeeded for trajectory in trajectories)
        rate.episodes += len(trajectories)
        rate.seconds += outputs.seconds

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._evaluated and _is_logged(trainer) and is_fitting(trainer):  # `validate` prints all figures
            _write(evaluation_ended(position_at_validation(trainer, None).epochs, self._evaluated))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end()

    def _end(self) -> None:
        if self._line is not None:
            self._line.hide()
            self._line = None


def describe(progress: Progress) -> str:
    beside = f" ({progress.overlapped_seconds:.1f} s beside updates)" if progress.overlapped_seconds > 0 else ""
    seconds = f"{progress.seconds:.1f} s{beside}"
    return f"{progress.phase} of {progress.total} searches in {seconds}: {describe_costs(progress)}"


def describe_costs(progress: Progress) -> str:
    rate = progress.costs.tokens_generated / progress.seconds if progress.seconds > 0 else 0.0
    return f"{progress.costs.tokens_generated:,} tokens ({rate:,.0f}/s), {progress.costs.env_steps:,} env steps"


def _is_logged(trainer: Trainer) -> bool:
    return trainer.is_global_zero and not sys.stderr.isatty()


def _write(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Line(ABC):
    @abstractmethod
    def show(self, progress: Progress) -> None: ...

    @abstractmethod
    def hide(self) -> None: ...


def _line_beside(theirs: ProgressBar | None, ours: _Line | None) -> _Line:
    """Our line, made if needed. Rich redraws the terminal by itself and would print every state of a foreign bar, so
    beside Lightning's rich bar ours is a task of the same display.
    """
    if isinstance(theirs, RichProgressBar) and theirs.progress is not None:
        return ours if isinstance(ours, _RichLine) and ours.display is theirs.progress else _RichLine(theirs.progress)
    return ours if isinstance(ours, _TqdmLine) else _TqdmLine()


class _TqdmLine(_Line):
    """Below Lightning's tqdm bar if there is one."""

    def __init__(self) -> None:
        self._tqdm: Tqdm | None = None

    def show(self, progress: Progress) -> None:
        if self._tqdm is None:
            self._tqdm = Tqdm(
                desc=progress.phase,
                total=progress.total,
                unit="search",
                leave=False,
                dynamic_ncols=True,
                file=sys.stderr,
            )
        self._tqdm.total = progress.total
        self._tqdm.n = progress.done
        self._tqdm.set_description(progress.phase, refresh=False)
        self._tqdm.set_postfix_str(describe_costs(progress), refresh=True)

    def hide(self) -> None:
        if self._tqdm is not None:
            self._tqdm.close()
            self._tqdm = None


class _RichLine(_Line):
    """One task for all rollouts, hidden and never removed: Lightning finds its own tasks by position."""

    def __init__(self, display: RichDisplay) -> None:
        self.display = display
        self._task = display.add_task("rollout", visible=False)

    def show(self, progress: Progress) -> None:
        self.display.update(
            self._task,
            total=progress.total,
            completed=progress.done,
            description=f"{progress.phase}: {describe_costs(progress)}",
            visible=True,
        )
        self.display.refresh()

    def hide(self) -> None:
        self.display.reset(self._task, visible=False)
        self.display.refresh()
