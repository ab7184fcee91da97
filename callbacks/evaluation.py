"""Figures of the policy on held-out instances, and at the end what training changed. Runs no episodes itself."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import summary
from callbacks.costs import RolloutCostMeter, RunCosts, with_failures
from callbacks.episodes import EpisodeMetric
from callbacks.history import History
from callbacks.layout import write_layout
from callbacks.measurement import GAPS, Measurement, TellsTraining, figure_names, measure, search_gap, since_start
from callbacks.stages import of_stage
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.files import write_whole
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.progress import Progress
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.lightning_compat import (
    Position,
    callbacks,
    datamodule,
    epochs_at_rollout,
    is_fitting,
    log_figures,
    position_at_validation,
    run_folder,
    stopped_by,
)

# Groups of the success rates and returns again: TensorBoard sorts groups by name, capitals first
HEADLINES = {"Held-out success": "success_rate", "Held-out return": "return"}


class Evaluation(Callback):
    """Computes the figures of each evaluation protocol whenever Lightning validates, from its `EvalResult`.

    Per protocol it logs `val/<protocol>/` success_rate, pass@k, return, turns, valid_actions and effective_actions (of
    all turns), response_tokens_per_turn, response_tokens_per_episode, and the cost: tokens_generated, env_steps and
    seconds; of a mixture `success_rate/<name or id of an environment>` too; of plain samples the policy's entropy; of a
    protocol with search the gap to plain samples; after the start what is newly solved. docs/diagnostics.md defines
    them. Loggers get the success rates and returns as `Held-out success/<protocol>` and `Held-out return/<protocol>`
    too, which TensorBoard shows before all else; its custom scalars have them, rollouts, updates and costs in order.
    The abscissa is the number of epochs trained; the values are in `trainer.callback_metrics` too, for a
    ModelCheckpoint to monitor (not for its file name: the "/" would make a folder).

    `num_sanity_val_steps: -1` measures the start, at abscissa 0. The end of `fit` then prints before, after and their
    difference, with 95% intervals; `validate` prints its figures. `<name>.json` in the run's folder holds the figures
    and every instance's successes (`<name>.validate.json` after `validate`), and is rewritten after every validation. A
    protocol that a validation leaves out keeps its latest figures there, with their epoch. `<name>.history.json` holds
    every evaluation so far with what the run had cost by then (`History`).

    Args:
        pass_at: the ks of pass@k; null: the powers of two up to a protocol's samples. A larger k is left out.
        name: names the file and, in a checkpoint, the state; two Evaluations in one run need two names.
    """

    def __init__(self, pass_at: list[int] | None = None, name: str = "evaluation") -> None:
        super().__init__()
        require(
            all(k >= 1 for k in pass_at or []), "Evaluation.pass_at", pass_at, "give ks of 1 or more, such as [1, 4]"
        )
        require(
            name != "" and name == Path(name).name,
            "Evaluation.name",
            name,
            "give a plain file name, without folder or ending",
        )
        self.pass_at = pass_at
        self.name = name
        self._reset()

    def _reset(self) -> None:
        self._before: dict[str, Measurement] = {}  # by protocol, as are the next four
        self._latest: dict[str, Measurement] = {}
        self._measured: dict[str, Measurement] = {}  # by the last validation since `setup`
        self._protocols: dict[str, EvalProtocol] = {}
        self._episodes: dict[str, EpisodeMetric] = {}
        self._rollouts = RolloutCostMeter()  # of this rank, since this process began
        self._earlier = RunCosts()  # of the run that this one resumes
        self._costs = RunCosts()
        self._history = History()
        self._started = monotonic()
        self._loaded: Position | None = None

    # State: a resumed run keeps the start and the costs

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "before": _plain(self._before),
            "latest": _plain(self._latest),
            "costs": asdict(self._costs),
            "history": self._history.plain(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = {name: Measurement.from_plain(plain) for name, plain in state_dict["before"].items()}
        self._latest = {name: Measurement.from_plain(plain) for name, plain in state_dict["latest"].items()}
        self._earlier = self._costs = RunCosts(**state_dict["costs"])
        if "history" in state_dict:  # which earlier versions did not keep
            self._history.load(state_dict["history"])

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = Position.in_checkpoint(checkpoint)

    def metric_names(self, evaluations: Sequence[EvalProtocol], environments: Sequence[str]) -> frozenset[str]:
        """The names of the figures that it adds to `trainer.callback_metrics`; see `NamesMetrics`."""
        figures = {each.name: figure_names(each, pass_at=self.pass_at, envs=environments) for each in evaluations}
        return frozenset(f"val/{name}/{figure}" for name, own in figures.items() for figure in own)

    # Collecting

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._measured = {}
        if not epochs_at_rollout(trainer):  # a run of its own; a checkpoint is loaded after this
            self._reset()
        elif stage == "fit":  # the Trainer fits on
            self._earlier, self._rollouts, self._started = self._costs, RolloutCostMeter(), monotonic()
            self._history.go_on()

    def on_rollout_wave(self, trainer: Trainer, progress: Progress) -> None:
        self._rollouts.update(progress)

    def on_rollout_metrics(self, trainer: Trainer, metrics: Mapping[str, float], epochs: int) -> None:
        """Logs how far the searched trajectories of a rollout are above what the same policy did without search on the
        held-out instances, where it was evaluated: these are other instances, of the same distribution. Counts what
        failures of the environment cost the run."""
        self._costs = with_failures(self._costs, metrics)
        data = datamodule(trainer)
        if not isinstance(data, RolloutDataModule) or data.replay is not None:  # another policy's rollouts
            return
        if len(data.mixture) > 1:  # whose weights evaluation ignores
            return
        if "rollout/sampled/success_rate" in metrics:  # then `rollout/search_gap` compares on the same instances
            return
        temperature = data.sampling.temperature
        for plain in [*self._latest.values(), *self._before.values()]:
            if plain.is_plain and plain.epochs == epochs and plain.protocol["temperature"] == temperature:
                searched = {key: metrics.get(f"rollout/searched/{key}") for key in GAPS}
                gaps = {key: value - plain.figures[key] for key, value in searched.items() if value is not None}
                log_figures(trainer, {f"rollout/search_gap_held_out/{key}": gap for key, gap in gaps.items()}, epochs)
                return

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._protocols, self._episodes = {}, {}

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
            raise TypeError(f"Evaluation expects validation_step to return an EvalResult, not {type(outputs).__name__}")
        protocol = outputs.protocol
        self._protocols = _merged([self._protocols, {protocol.name: protocol}])
        if protocol.name not in self._episodes:
            self._episodes[protocol.name] = _empty_metric(trainer, pl_module)
        self._episodes[protocol.name].update(outputs)

    # Measuring

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        position = position_at_validation(trainer, self._loaded)
        # Lightning's own Trainer makes a sanity check of a resumed run too
        is_start = trainer.sanity_checking and position.epochs == 0
        measured = self._measure(trainer, pl_module, position)
        start = {} if is_start else self._before
        measured = {
            name: replace(one, figures=one.figures | search_gap(measured, name) | since_start(start.get(name), one))
            for name, one in measured.items()
        }
        figures = {f"val/{name}/{key}": value for name, one in measured.items() for key, value in one.figures.items()}
        headlines = {
            f"{group}/{name}": one.figures[key] for group, key in HEADLINES.items() for name, one in measured.items()
        }
        log_figures(trainer, headlines | figures, epochs=position.epochs)
        if not trainer.sanity_checking:  # whose metrics Lightning discards
            pl_module.log_dict(figures, logger=False, sync_dist=True)  # for callback_metrics alone
        self._measured = measured
        if is_start:
            self._before = measured
        else:
            self._latest = {**(self._latest if is_fitting(trainer) else {}), **measured}
        self._record(trainer, pl_module)

    def _measure(self, trainer: Trainer, pl_module: LightningModule, position: Position) -> dict[str, Measurement]:
        """The episodes of all ranks as figures, by protocol. Called on all ranks at once."""
        data = datamodule(trainer)
        envs = [entry.label for entry in data.mixture] if isinstance(data, RolloutDataModule) else []
        measured: dict[str, Measurement] = {}
        # a rank without a batch of some protocol takes part in gathering it too, and in the same order
        for name, protocol in _merged(ProcessGroup.of(trainer).gather([self._protocols])).items():
            if name not in self._episodes:
                self._episodes[name] = _empty_metric(trainer, pl_module)
            episodes = self._episodes[name].gather()
            if isinstance(data, RolloutDataModule):
                total = len(episodes.episodes) + episodes.lost
                data.faults.check(episodes.lost, total, f"evaluation {name!r}", data.retry.last)
            measurement = measure(protocol, episodes, position, pass_at=self.pass_at, envs=envs)
            if measurement is not None:
                measured[name] = measurement
        return measured

    def _record(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds the validation to the costs and the history, and writes the files."""
        seconds = sum(one.figures["seconds"] for one in self._measured.values())
        kept = self._costs, self._history
        if not is_fitting(trainer):
            self._history = History()  # not that of the run whose checkpoint was loaded
        self._update_costs(trainer, pl_module, evaluation_seconds=seconds)
        self._history.add(self._costs, self._measured, _of_training(trainer))
        self._write(trainer)
        if not is_fitting(trainer):
            self._costs, self._history = kept  # with which the Trainer may fit on

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._update_costs(trainer, pl_module)  # for a checkpoint that is written without a validation

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._update_costs(trainer, pl_module)
        self._history.end(self._costs.epochs, stopped_by(trainer))
        self._write(trainer)

    # Printing

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            summary.print_changes(self._before, self._latest, self._costs)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "validate" and trainer.is_global_zero:
            summary.print_figures(self._measured)

    # Bookkeeping

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        write_layout(trainer)  # not in a run that is finished

    def _update_costs(self, trainer: Trainer, pl_module: LightningModule, evaluation_seconds: float = 0.0) -> None:
        """Called on all ranks at once."""
        own = self._rollouts.total
        counts = torch.tensor([own.tokens_generated, own.env_steps], device=pl_module.device)
        tokens, steps = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        position = position_at_validation(trainer, self._loaded)
        self._costs = RunCosts(
            epochs=position.epochs,
            updates=position.updates,
            seconds=self._earlier.seconds + monotonic() - self._started,
            evaluation_seconds=self._costs.evaluation_seconds + evaluation_seconds,
            tokens_generated=self._earlier.tokens_generated + tokens,
            env_steps=self._earlier.env_steps + steps,
            env_failures=self._costs.env_failures,
            trajectories_lost=self._costs.trajectories_lost,
        )

    def _write(self, trainer: Trainer) -> None:
        folder = run_folder(trainer)  # read on every rank, because rank 0 broadcasts it
        if not trainer.is_global_zero or folder is None:
            return
        fitting = is_fitting(trainer)
        contents = summary.to_plain(self._before if fitting else {}, self._latest, self._costs if fitting else None)
        stem = of_stage(trainer, self.name)
        write_whole(folder / f"{stem}.json", json.dumps(contents, indent=1, allow_nan=False) + "\n")
        write_whole(folder / f"{stem}.history.json", self._history.to_json())


def _of_training(trainer: Trainer) -> dict[str, float]:
    """Collects the figures of the last rollout and its updates from other callbacks."""
    tells = [each for each in callbacks(trainer) if isinstance(each, TellsTraining)]
    return {name: value for each in tells for name, value in each.of_training().items()}


def _plain(measured: Mapping[str, Measurement]) -> dict[str, Any]:
    return {name: measurement.to_plain() for name, measurement in measured.items()}


def _merged(several: list[dict[str, EvalProtocol]]) -> dict[str, EvalProtocol]:
    """Protocols by name, in the order of their first occurrence."""
    protocols: dict[str, EvalProtocol] = {}
    for some in several:
        for name, protocol in some.items():
            if protocols.setdefault(name, protocol) != protocol:
                raise ConfigError(f"data.evaluations has two protocols named {name!r}: rename either")
    return protocols


def _empty_metric(trainer: Trainer, pl_module: LightningModule) -> EpisodeMetric:
    metric = EpisodeMetric()
    if trainer.world_size > 1:  # one process stays on the CPU, since not every device has float64
        metric.to(pl_module.device)
    metric.update(None)
    return metric
