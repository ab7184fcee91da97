"""A progress line for rollouts, beside Lightning's own progress bar."""

import sys
from abc import ABC, abstractmethod

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from rich.progress import Progress

from tsr_lightning.training.hooks import TRAINING_ROLLOUT, RolloutProgress
from tsr_lightning.training.lightning_compat import epochs_at_rollout


class RolloutProgressBar(Callback):
    """On a terminal one live line per rollout; elsewhere one line per part of a training rollout, with the cost so far.
    A rollout has several parts where failed groups are searched, or where dynamic sampling draws more instances."""

    def __init__(self) -> None:
        super().__init__()
        self._line: _Line | None = None

    def on_rollout_wave(self, trainer: Trainer, progress: RolloutProgress) -> None:
        if not trainer.is_global_zero:
            return
        ended = progress.done >= progress.total
        if sys.stderr.isatty():
            self._line = _line_beside(trainer.progress_bar_callback, self._line)
            self._line.show(progress)
            if ended:
                self._line.hide()
        elif ended and progress.phase == TRAINING_ROLLOUT:
            print(f"epoch {epochs_at_rollout(trainer)}: {describe(progress)}", file=sys.stderr, flush=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end()

    def _end(self) -> None:
        if self._line is not None:
            self._line.hide()
            self._line = None


def describe(progress: RolloutProgress) -> str:
    beside = f" ({progress.hidden_seconds:.1f} s beside updates)" if progress.hidden_seconds > 0 else ""
    seconds = f"{progress.seconds:.1f} s{beside}"
    return f"{progress.phase} of {progress.total} searches in {seconds}: {describe_costs(progress)}"


def describe_costs(progress: RolloutProgress) -> str:
    rate = progress.costs.tokens_generated / progress.seconds if progress.seconds > 0 else 0.0
    return f"{progress.costs.tokens_generated:,} tokens ({rate:,.0f}/s), {progress.costs.env_steps:,} env steps"


class _Line(ABC):
    @abstractmethod
    def show(self, progress: RolloutProgress) -> None: ...

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

    def show(self, progress: RolloutProgress) -> None:
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

    def __init__(self, display: Progress) -> None:
        self.display = display
        self._task = display.add_task("rollout", visible=False)

    def show(self, progress: RolloutProgress) -> None:
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
