"""Measures the policy on held-out instances, and says at the end what training changed. Plays nothing itself."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import table
from callbacks.axis import Position, log_figures, position_at_validation
from callbacks.costs import RolloutCosts, RunCost
from callbacks.episodes import Episodes
from callbacks.measurement import Measurement, measure
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.evaluation import EvalProtocol, EvalResult
from tsr_lightning.training.hooks import RolloutProgress

HEADLINE = "Held-out success"  # group of the success rates again: TensorBoard sorts groups by name, capitals first
_NOTHING_PLAYED = (
    "Evaluation: nothing was measured, since no held-out instance was played (see trainer.limit_val_batches and the "
    "data module's evaluations)"
)


class Evaluation(Callback):
    """Measures each evaluation whenever Lightning validates; `validation_step` returns what was `EvalResult`.

    Per protocol it logs `val/<protocol>/` success_rate, pass@k, return, turns, valid_actions, effective_actions (shares
    of turns), response_tokens_per_turn, response_tokens_per_episode, and the cost: tokens_generated, env_steps, seconds.
    Loggers get the success rates as `Held-out success/<protocol>` too, which TensorBoard shows before all else.
    The abscissa is the number of epochs trained; the values are in `trainer.callback_metrics` too, for a
    ModelCheckpoint to monitor (not for its file name: the "/" would make a folder).

    `num_sanity_val_steps: -1` measures the start, at abscissa 0. The end of `fit` then prints before, after and their
    difference, with 95% intervals; `validate` prints what it measured. The figures, and every instance's successes,
    lie in `<log_dir>/<name>.json` (`<name>.validate.json` where `validate` ran), rewritten after every validation.

    Args:
        pass_at: the ks of pass@k; null: the powers of two up to a protocol's samples. A k above these is left out.
        name: names the file and, in a checkpoint, the state; two Evaluations in one run need two names.
    """

    def __init__(self, pass_at: list[int] | None = None, name: str = "evaluation") -> None:
        super().__init__()
        if pass_at is not None and not all(k >= 1 for k in pass_at):
            raise ConfigError(f"Evaluation.pass_at is {pass_at}: give ks of 1 or more, such as [1, 4]")
        if not name or name != Path(name).name:
            raise ConfigError(f"Evaluation.name is {name!r}: give a plain file name, without folder or ending")
        self.pass_at = pass_at
        self.name = name
        self._forget()

    def _forget(self) -> None:
        self._before: dict[str, Measurement] = {}  # by evaluation, as are all here
        self._latest: dict[str, Measurement] = {}
        self._evaluations: dict[str, EvalProtocol] = {}
        self._episodes: dict[str, Episodes] = {}
        self._rollouts = RolloutCosts()  # of this rank, since this process began
        self._earlier = RunCost()  # of the run that this one resumes
        self._cost = RunCost()
        self._started = monotonic()
        self._loaded: Position | None = None

    # State: the start and the costs outlive a resume

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        return {"before": _plain(self._before), "latest": _plain(self._latest), "cost": asdict(self._cost)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = {name: Measurement.from_plain(plain) for name, plain in state_dict["before"].items()}
        self._latest = {name: Measurement.from_plain(plain) for name, plain in state_dict["latest"].items()}
        self._earlier = self._cost = RunCost(**state_dict["cost"])

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = Position.in_checkpoint(checkpoint)

    # Collecting

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._forget()  # a second `fit` of one process is a run of its own; a checkpoint is loaded after this

    def on_rollout_wave(self, trainer: Trainer, progress: RolloutProgress) -> None:
        self._rollouts.see(progress)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluations, self._episodes = {}, {}

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
            raise TypeError(
                f"Evaluation measures what validation_step returns: an EvalResult, not {type(outputs).__name__}"
            )
        self._evaluations = _united([self._evaluations, {outputs.protocol.name: outputs.protocol}])
        if outputs.protocol.name not in self._episodes:
            self._episodes[outputs.protocol.name] = _empty(trainer, pl_module)
        self._episodes[outputs.protocol.name].update(outputs)

    # Measuring

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        position = position_at_validation(trainer, self._loaded)
        measured: dict[str, Measurement] = {}
        for name, protocol in self._trials_of_all_ranks(trainer).items():
            if name not in self._episodes:
                self._episodes[name] = _empty(trainer, pl_module)
            gathered = self._episodes[name].gather()
            found = measure(protocol, gathered, position, pass_at=self.pass_at)
            if found is not None:
                measured[name] = found
        figures = {f"val/{name}/{key}": value for name, one in measured.items() for key, value in one.figures.items()}
        headline = {f"{HEADLINE}/{name}": one.figures["success_rate"] for name, one in measured.items()}
        log_figures(trainer, headline | figures, epochs=position.epochs)
        if not trainer.sanity_checking:  # Lightning forgets what it is told during a sanity check
            # logger=False: they were written above, against epochs where Lightning would count updates
            pl_module.log_dict(figures, logger=False, sync_dist=True)
        if trainer.sanity_checking and position.epochs == 0:  # some resumed runs have a sanity check too
            self._before = measured
        else:
            self._latest = measured
        seconds = sum(one.figures["seconds"] for one in measured.values())
        self._account(trainer, pl_module, evaluation_seconds=seconds)
        self._write(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._account(trainer, pl_module)  # a checkpoint that is written without a validation holds the costs too

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._account(trainer, pl_module)
        self._write(trainer)

    # Saying

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._say_what_changed()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "validate" and trainer.is_global_zero:
            self._say_what_was_measured()

    def _say_what_changed(self) -> None:
        if not self._before and not self._latest:
            print(_NOTHING_PLAYED, flush=True)
            return
        notes = [table.INTERVALS, table.cost_in_words(self._cost)]
        if not self._latest:
            notes.append("no validation ran after training (see trainer.check_val_every_n_epoch)")
            table.show("Held-out instances before training", table.each(self._before), notes)
            return
        if not self._before:
            notes.append("the start was not measured: trainer.num_sanity_val_steps: -1 does that")
        table.show("Held-out instances before and after training", table.changes(self._before, self._latest), notes)

    def _say_what_was_measured(self) -> None:
        if not self._latest:
            print(_NOTHING_PLAYED, flush=True)
            return
        updates = next(iter(self._latest.values())).updates
        heading = f"Held-out instances, policy after {updates:,} updates"
        table.show(heading, table.each(self._latest), [table.INTERVALS])

    # Bookkeeping

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = monotonic()

    def _trials_of_all_ranks(self, trainer: Trainer) -> dict[str, EvalProtocol]:
        """A rank without a batch of some evaluation takes part in gathering it all the same, and in the same order."""
        if trainer.world_size == 1:
            return self._evaluations
        everyone: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(everyone, self._evaluations)
        return _united(everyone)

    def _account(self, trainer: Trainer, pl_module: LightningModule, evaluation_seconds: float = 0.0) -> None:
        """Brings the cost of the run up to date; on all ranks at once."""
        spent = self._rollouts.total
        ours = torch.tensor([spent.tokens_generated, spent.env_steps], device=pl_module.device)
        tokens, steps = trainer.strategy.reduce(ours, reduce_op="sum").tolist()
        position = position_at_validation(trainer, self._loaded)
        self._cost = RunCost(
            epochs=position.epochs,
            updates=position.updates,
            seconds=self._earlier.seconds + monotonic() - self._started,
            evaluation_seconds=self._cost.evaluation_seconds + evaluation_seconds,
            tokens_generated=self._earlier.tokens_generated + tokens,
            env_steps=self._earlier.env_steps + steps,
        )

    def _write(self, trainer: Trainer) -> None:
        folder = trainer.log_dir  # on every rank: it is broadcast
        if not trainer.is_global_zero or not trainer.loggers or folder is None:
            return
        fitting = trainer.state.fn == "fit"
        before = self._before if fitting else {}
        contents = {
            "run": asdict(self._cost) if fitting else None,
            "evaluations": {
                name: _report(before.get(name), self._latest.get(name)) for name in {**before, **self._latest}
            },
        }
        path = Path(folder) / (f"{self.name}.json" if fitting else f"{self.name}.validate.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(contents, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(partial, path)  # a killed run leaves the figures before or these, never half of them


def _report(before: Measurement | None, after: Measurement | None) -> dict[str, Any]:
    difference = table.paired(before, after) if before is not None and after is not None else None
    return {
        "before": None if before is None else before.to_plain(),
        "after": None if after is None else after.to_plain(),
        "difference": None if difference is None else {**difference._asdict(), "interval": list(difference.interval)},
    }


def _plain(measured: Mapping[str, Measurement]) -> dict[str, Any]:
    return {name: measurement.to_plain() for name, measurement in measured.items()}


def _united(several: list[dict[str, EvalProtocol]]) -> dict[str, EvalProtocol]:
    """Trials by name, in the order in which they are first met."""
    evaluations: dict[str, EvalProtocol] = {}
    for some in several:
        for name, protocol in some.items():
            if evaluations.setdefault(name, protocol) != protocol:
                raise ConfigError(f"two evaluations are named {name!r}, and their figures would be one: rename either")
    return evaluations


def _empty(trainer: Trainer, pl_module: LightningModule) -> Episodes:
    episodes = Episodes()
    if trainer.world_size > 1:  # where ranks can talk; alone it stays on the CPU, since not every device has float64
        episodes.to(pl_module.device)
    episodes.update(None)
    return episodes
