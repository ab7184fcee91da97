"""Notices that a policy has collapsed, says so, and on request stops or goes back to the best checkpoint."""

from collections.abc import Iterable
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from callbacks.axis import epochs_at_rollout, log_figures, position_at_validation
from callbacks.instance_filter import InstanceFilter
from callbacks.levels import History, Level, Pairs, mean, share
from callbacks.on_collapse import Best, OnCollapse, Warn
from tsr_lightning.batching.schedule import Batch
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.distributed import gather
from tsr_lightning.training.evaluation import EvalResult
from tsr_lightning.trajectory import Group, Origin, Trajectory

ROLLOUT = "rollout/plain"
ENTROPY, WEIGHT = "train/entropy", "train/policy_weight"  # sums over an update


class CollapseGuard(Callback):
    """Watches the policy's own success, valid actions and entropy for a fall far below their best.

    Watched are the plain samples of the last `window` rollouts, each evaluation that plays without search (searched and
    demonstrated trajectories would hide a collapse), and the entropy of the last `window` epochs' updates. A figure has
    collapsed where the upper end of its 95% interval lies below (1 - drop) times the lower end of the best's: by more
    than the drop and by more than its instances' sampling error. The trained reward or its noise plays no part.

    At each rollout, evaluation and epoch's end it logs a figure's share of its best, as `<figure>_of_best`. A collapse
    is acted upon at the epoch's end, before ModelCheckpoint saves. It must stand before InstanceFilter, which leaves
    only a part of the samples.

    Under `Restore` the policy with the best success so far (of the first such protocol, or of rollouts before there is
    an evaluation) is kept in `best_policy.ckpt` in the run's folder: a checkpoint like any other.

    Args:
        on_collapse: Warn, Stop or Restore.
        success_drop: the share of the best success rate that may be lost; null does not watch it.
        valid_drop: the same of the share of valid actions.
        entropy_drop: the same of the policy's entropy, which falls in a healthy run too.
        window: rollouts and epochs that are taken together; an evaluation stands alone.

    Raises:
        ConfigError: for an argument out of its range; at the start, where it stands after InstanceFilter, or where
            Restore has no success to rank policies by.
    """

    def __init__(
        self,
        on_collapse: OnCollapse = Warn(),  # noqa: B008  (frozen)
        success_drop: float | None = 0.5,
        valid_drop: float | None = 0.2,
        entropy_drop: float | None = 0.9,
        window: int = 5,
    ) -> None:
        super().__init__()
        drops = {"success_drop": success_drop, "valid_drop": valid_drop, "entropy_drop": entropy_drop}
        for name, drop in drops.items():
            if drop is not None and not 0 < drop < 1:
                raise ConfigError(
                    f"CollapseGuard.{name} is {drop}: give a share between 0 and 1, or null not to watch it"
                )
        if window < 2:
            raise ConfigError(f"CollapseGuard.window is {window}: give 2 or more, since one rollout says too little")
        self.on_collapse = on_collapse
        self.success_drop = success_drop
        self.valid_drop = valid_drop
        self.entropy_drop = entropy_drop
        self.window = window
        self._forget()

    def _forget(self) -> None:
        self._histories: dict[str, History] = {}  # by figure
        self._collapsed: list[str] = []  # figures that the last message was about
        self._restores = 0
        self._best: Best | None = None
        self._wrote = False  # it, in this process
        self._protocol: str | None = None  # whose success ranks policies
        self._played: dict[str, dict[int, list[int]]] = {}  # by evaluation and instance, in the validation under way
        self._measured: Level | None = None  # the success of that evaluation, where no epoch has ended since
        self._entropies: list[float] = []  # of the epoch's updates, on rank 0

    # State

    def state_dict(self) -> dict[str, Any]:
        best = self._best
        return {
            "histories": {name: history.to_plain() for name, history in self._histories.items()},
            "collapsed": list(self._collapsed),
            "restores": self._restores,
            "best": None if best is None else [best.path, best.epochs, best.held_out, best.success],
            "trial": self._protocol,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, plain in state_dict["histories"].items():
            history = self._history(name)
            if history is not None:
                history.load_plain(plain)
        self._collapsed = list(state_dict["collapsed"])
        self._restores = state_dict["restores"]
        self._best = None if state_dict["best"] is None else Best(*state_dict["best"])
        self._protocol = state_dict["trial"]

    # Before the start

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._forget()  # a second `fit` of one process is a run of its own; a checkpoint is loaded after this
        if stage != "fit":
            return
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, InstanceFilter) for callback in callbacks[: callbacks.index(self)]):
            raise ConfigError(
                "trainer.callbacks has CollapseGuard after InstanceFilter, which leaves it a part of the samples: "
                "list CollapseGuard first"
            )
        data = trainer.datamodule  # type: ignore[attr-defined]
        if self.on_collapse.needs_best and isinstance(data, RolloutDataModule) and not _ranks_policies(data):
            raise ConfigError(
                f"CollapseGuard.on_collapse is {type(self.on_collapse).__name__}, but no success tells which policy is "
                "the best: no strategy of data.plan makes plain samples and no protocol of data.evaluations plays "
                "without search; add such a protocol, or use Warn or Stop"
            )
        if self.on_collapse.needs_best and self.success_drop is None:
            raise ConfigError(
                f"CollapseGuard.on_collapse is {type(self.on_collapse).__name__} and success_drop is null, so that no "
                "success tells which policy is the best: give success_drop, such as 0.5, or use Warn or Stop"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._best is not None and not trainer.strategy.broadcast(Path(self._best.path).is_file()):
            rank_zero_warn(f"CollapseGuard: {self._best.path} is gone, so the next best policy takes its place")
            self._best = None

    # Observing

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        sampled = [[t for t in group.trajectories if t.origin is Origin.SAMPLED] for group in groups]
        samples = [_counts(trajectories) for trajectories in sampled if trajectories]
        if samples:
            epochs = epochs_at_rollout(trainer)
            success = self._see(trainer, f"{ROLLOUT}/success_rate", epochs, [(c[0], c[1]) for c in samples])
            self._see(trainer, f"{ROLLOUT}/valid", epochs, [(c[2], c[3]) for c in samples])
            if self._protocol is None:
                self._keep_if_best(trainer, epochs, success, held_out=False)
        return groups

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        figures = trainer.callback_metrics
        updated = isinstance(batch, Batch) and batch.is_last_micro_batch
        if updated and {ENTROPY, WEIGHT} <= figures.keys() and figures[WEIGHT] > 0:
            self._entropies.append(float(figures[ENTROPY] / figures[WEIGHT]))

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._played = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if isinstance(outputs, EvalResult) and outputs.protocol.search is None:
            instances = self._played.setdefault(outputs.protocol.name, {})
            for group in outputs.groups:
                instances[group.instance] = _counts(group.trajectories)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = position_at_validation(trainer, None).epochs
        if trainer.state.fn != "fit" or (trainer.sanity_checking and epochs > 0):  # a resumed run's is of no new policy
            return
        evaluations: dict[str, dict[int, list[int]]] = {}
        for played in gather([self._played], trainer.world_size):
            for name, instances in played.items():
                evaluations.setdefault(name, {}).update(instances)
        for name, instances in evaluations.items():
            samples = list(instances.values())
            success = self._see(trainer, f"val/{name}/success_rate", epochs, [(c[0], c[1]) for c in samples])
            self._see(trainer, f"val/{name}/valid_actions", epochs, [(c[2], c[3]) for c in samples])
            self._protocol = self._protocol or name
            if name == self._protocol:
                self._measured = success
        if trainer.sanity_checking:  # of the start; any other validation is followed by the end of its epoch
            self._keep_measured(trainer, epochs)

    def _see(self, trainer: Trainer, name: str, epochs: int, pairs: Pairs) -> Level | None:
        history = self._history(name)
        if history is None:
            return None
        history.see(epochs, pairs)
        if history.of_best is not None:
            log_figures(trainer, {f"{name}_of_best": history.of_best}, epochs=epochs)
        return history.now

    def _history(self, name: str) -> History | None:
        """That of a figure; None where it is not watched."""
        drop = {
            "success_rate": self.success_drop,
            "valid": self.valid_drop,
            "valid_actions": self.valid_drop,
            "entropy": self.entropy_drop,
        }[name.rpartition("/")[2]]
        if drop is None:
            return None
        if name not in self._histories:
            window = 1 if name.startswith("val/") else self.window
            self._histories[name] = History(mean if name == ENTROPY else share, window, drop)
        return self._histories[name]

    # Keeping the best policy

    def _keep_measured(self, trainer: Trainer, epochs: int) -> None:
        if self._measured is not None:
            self._keep_if_best(trainer, epochs, self._measured, held_out=True)
        self._measured = None

    def _keep_if_best(self, trainer: Trainer, epochs: int, success: Level | None, *, held_out: bool) -> None:
        """Writes the policy as it is now, which is the one that was measured: no update came in between."""
        if success is None or not self.on_collapse.needs_best:
            return
        if self._best is not None and (self._best.held_out, self._best.success) >= (held_out, success.low):
            return
        path = self._best.path if self._best is not None and self._wrote else trainer.strategy.broadcast(_free(trainer))
        self._best = Best(path, epochs, held_out, success.low)
        self._wrote = True
        trainer.save_checkpoint(path)

    # Acting

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = epochs_at_rollout(trainer)
        self._keep_measured(trainer, epochs)
        entropies: list[float] = trainer.strategy.broadcast(self._entropies)  # the agent logs them on rank 0 alone
        self._entropies = []
        if entropies:
            self._see(trainer, ENTROPY, epochs, [(fmean(entropies), 1.0)])
        collapsed = [name for name, history in self._histories.items() if history.collapsed]
        news = [name for name in collapsed if name not in self._collapsed]
        self._collapsed = collapsed
        if not news:
            return
        found = "; ".join(in_words(name, self._histories[name]) for name in collapsed)
        done = self.on_collapse.act(trainer, pl_module, self._best, self._restores)
        if done.restored:
            self._restores += 1
            self._collapsed = []
            for history in self._histories.values():
                history.forget_recent()
            log_figures(trainer, {"rollout/restores": self._restores}, epochs=epochs)
        rank_zero_warn(f"the policy has collapsed after {epochs} epochs ({found}): {done.message}")


def in_words(name: str, history: History) -> str:
    return f"{name} {_interval(history.now)}, its best {_interval(history.best)}"


def _interval(level: Level | None) -> str:
    return "unknown" if level is None else f"{level.value:.3f} [{level.low:.3f}, {level.high:.3f}]"


def _counts(trajectories: Iterable[Trajectory]) -> list[int]:
    """Of one instance: successes, episodes, valid turns, turns."""
    episodes = list(trajectories)
    turns = [turn for trajectory in episodes for turn in trajectory.turns]
    return [sum(t.succeeded for t in episodes), len(episodes), sum(turn.valid for turn in turns), len(turns)]


def _ranks_policies(data: RolloutDataModule) -> bool:
    sampled = any(strategy.origin is Origin.SAMPLED for strategy in data.plan.strategies)
    return sampled or any(protocol.search is None for protocol in data.evaluations)


def _free(trainer: Trainer) -> str:
    """A path in the run's folder that no earlier run has written to."""
    folder = Path(trainer.log_dir or trainer.default_root_dir).absolute() / "checkpoints"  # a resume may run elsewhere
    names = ("best_policy.ckpt" if number == 0 else f"best_policy-v{number}.ckpt" for number in count())
    return str(next(folder / name for name in names if not (folder / name).exists()))
