"""Detects that a policy has collapsed; warns, stops or restores the best checkpoint."""

from collections.abc import Collection, Iterable
from math import inf
from statistics import fmean
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from callbacks.best_policy import BestCheckpoint
from callbacks.entropy import EntropyWatch
from callbacks.instance_filter import InstanceFilter
from callbacks.levels import Level, Pairs
from callbacks.on_collapse import OnCollapse, Warn
from callbacks.rates import EVALUATION, ROLLOUT, RateWatch
from tsr_lightning.batching.schedule import Batch
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Group, Origin, Trajectory

_AT_THE_END = "; the final figures are those of the collapsed policy, and tsr validate measures the restored one"
ENTROPY, WEIGHT = "train/entropy", "train/policy_weight"  # sums over an update


class CollapseGuard(Callback):
    """Watches the policy's success and valid actions for a fall far below their best, and its entropy both ways.

    Watched are the sampled trajectories of the last `window` rollouts, each evaluation without search (searched and
    demonstrated trajectories would hide a collapse), and the entropy of the epochs' updates. A rate has collapsed where
    the upper end of its 95% interval lies below (1 - drop) times the lower end of the best's: by more than the drop,
    and by more than the sampling error over instances. Rewards, and their noise, play no part.

    The entropy is judged with success beside it. Its fall is healthy while success rises, as in a warm start. It has
    collapsed where it fell by more than `entropy_drop` or rose by more than `entropy_rise` while success or valid
    actions, in the last rollout or evaluation alone, are below their best by more than chance; and where it rose by
    more than 1 nat a token, whatever they are: a policy that diverges does so before success shows it.

    Where a rollout draws from other environments than the one before it, as after a step of a curriculum, or has no
    sampled trajectories, earlier rollouts are forgotten: harder levels are no collapse, and a figure that is no longer
    observed says nothing. Rollouts of `data.replay` are another policy's and are not watched.

    At each rollout, evaluation and epoch's end it logs a rate's fraction of its best, as `<figure>_of_best`, and the
    entropy's of its highest and lowest. It reacts to a collapse at the epoch's end, before ModelCheckpoint saves. It
    must stand before InstanceFilter, which removes trajectories.

    Under `Restore` the policy with the best success so far is kept in `best_policy.ckpt` in the run's folder: a
    checkpoint like any other. Policies are ranked by the lower end of their success in one evaluation by the first such
    protocol or, before there is an evaluation, in their one rollout: the others in the window are of other policies.

    Args:
        on_collapse: Warn, Stop or Restore.
        success_drop: the fraction of the best success rate that may be lost; null does not watch it.
        valid_drop: the same of the rate of valid actions.
        entropy_drop: the fraction of the highest entropy that may be lost while success has fallen; null does not
            watch it.
        entropy_rise: the fraction of the lowest entropy that may be gained while success has fallen; null watches no
            rise.
        window: rollouts and epochs that are taken together for the alarm; an evaluation is taken alone.

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
        entropy_rise: float | None = 0.5,
        window: int = 5,
    ) -> None:
        super().__init__()
        drops = {"success_drop": success_drop, "valid_drop": valid_drop, "entropy_drop": entropy_drop}
        for name, drop in drops.items():
            valid = drop is None or 0 < drop < 1
            require(valid, f"CollapseGuard.{name}", drop, "give a fraction between 0 and 1, or null not to watch it")
        remedy = "give a positive fraction of the lowest entropy, such as 0.5, or null not to watch it"
        require(entropy_rise is None or 0 < entropy_rise < inf, "CollapseGuard.entropy_rise", entropy_rise, remedy)
        require(window >= 2, "CollapseGuard.window", window, "give 2 or more, because one rollout is too noisy")
        self.on_collapse = on_collapse
        self.success_drop = success_drop
        self.valid_drop = valid_drop
        self.entropy_drop = entropy_drop
        self.entropy_rise = entropy_rise
        self.window = window
        self._reset()

    def _reset(self) -> None:
        self._rates = RateWatch(self.window, self.success_drop, self.valid_drop)
        self._entropy = EntropyWatch(self.window, self.entropy_drop, self.entropy_rise)
        self._collapsed: list[str] = []  # figures that were collapsed at the last epoch's end
        self._restores = 0
        self._best = BestCheckpoint()
        self._protocol: str | None = None  # whose success ranks policies
        self._counts: dict[str, dict[Instance, list[int]]] = {}  # by protocol and instance, in the running validation
        self._success: Level | None = None  # of that protocol, until the epoch's end
        self._entropies: list[float] = []  # of the epoch's updates, on rank 0
        self._envs: list[int] | None = None  # indices of the environments that the last rollout drew from

    # State

    def state_dict(self) -> dict[str, Any]:
        return {
            "histories": self._rates.state_dict(),
            "entropy": self._entropy.state_dict(),
            "collapsed": list(self._collapsed),
            "restores": self._restores,
            "best": self._best.state_dict(),
            "protocol": self._protocol,
            "envs": self._envs,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rates.load_state_dict(state_dict["histories"])
        self._entropy.load_state_dict(state_dict["entropy"])
        self._collapsed = list(state_dict["collapsed"])
        self._restores = state_dict["restores"]
        self._best.load_state_dict(state_dict["best"])
        self._protocol = state_dict["protocol"]
        self._envs = state_dict.get("envs")  # not of a checkpoint of an earlier version

    # Setup

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not compat.epochs_at_rollout(trainer):  # a run of its own; a checkpoint is loaded after this
            self._reset()
        if stage != "fit":
            return
        callbacks = compat.callbacks(trainer)
        if any(isinstance(callback, InstanceFilter) for callback in callbacks[: callbacks.index(self)]):
            raise ConfigError(
                "trainer.callbacks has CollapseGuard after InstanceFilter, which removes trajectories: list "
                "CollapseGuard first"
            )
        if not self.on_collapse.needs_best:
            return
        data, reaction = compat.datamodule(trainer), type(self.on_collapse).__name__
        require(
            not isinstance(data, RolloutDataModule) or _ranks_policies(data),
            "CollapseGuard.on_collapse",
            reaction,
            "no success rate tells which policy is the best, because no strategy of data.plan samples (or, under "
            "data.staleness and data.replay, samples other policies) and no protocol of data.evaluations goes without "
            "search; add such a protocol, or use Warn or Stop",
        )
        require(
            self.success_drop is not None,
            "CollapseGuard.success_drop",
            self.success_drop,
            f"{reaction} needs the success rate to tell which policy is the best; give success_drop, such as 0.5, or "
            "use Warn or Stop",
        )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = compat.datamodule(trainer)
        if isinstance(data, RolloutDataModule):
            self._forget_protocols({protocol.name for protocol in data.evaluations if protocol.search is None})
        self._best.find(trainer)

    def of_training(self) -> dict[str, float]:
        """As of `measurement.TellsTraining`: the entropy of the epoch's updates so far, on rank 0."""
        return {"update_entropy": fmean(self._entropies)} if self._entropies else {}

    # Observing

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        if _replays(trainer):
            return groups
        epochs, envs_before = compat.epochs_at_rollout(trainer), self._envs
        self._envs = _envs_in(trainer, epochs)
        sampled = [[t for t in group.trajectories if t.origin is Origin.SAMPLED] for group in groups]
        samples = [_counts(trajectories) for trajectories in sampled if trajectories]
        if (groups and not samples) or envs_before not in (None, self._envs):
            self._forget_rollouts()
        if samples:
            success = self._observe(trainer, f"{ROLLOUT}/success_rate", epochs, [(c[0], c[1]) for c in samples])
            self._observe(trainer, f"{ROLLOUT}/valid", epochs, [(c[2], c[3]) for c in samples])
            if self._protocol is None and not _is_stale(trainer):
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
        self._counts = {}

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
            instances = self._counts.setdefault(outputs.protocol.name, {})
            for group in outputs.groups:
                instances[group.env, group.instance] = _counts(group.trajectories)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = compat.position_at_validation(trainer, None).epochs
        if not compat.is_fitting(trainer) or (trainer.sanity_checking and epochs > 0):  # resumed: the policy is known
            return
        evaluations: dict[str, dict[Instance, list[int]]] = {}
        for counts in ProcessGroup.of(trainer).gather([self._counts]):
            for name, instances in counts.items():
                evaluations.setdefault(name, {}).update(instances)
        for name, instances in evaluations.items():
            figure, samples = f"{EVALUATION}{name}", list(instances.values())
            success = self._observe(trainer, f"{figure}/success_rate", epochs, [(c[0], c[1]) for c in samples])
            self._observe(trainer, f"{figure}/valid_actions", epochs, [(c[2], c[3]) for c in samples])
            self._protocol = self._protocol or name
            if name == self._protocol:
                self._success = success
        if trainer.sanity_checking:  # at the start, where no epoch's end follows
            self._keep_evaluated(trainer, epochs)

    def _observe(self, trainer: Trainer, name: str, epochs: int, pairs: Pairs) -> Level | None:
        """Returns the level of this observation alone."""
        figure = self._rates.observe(name, epochs, pairs)
        if figure.drop is not None and figure.fraction_of_best is not None:
            compat.log_figures(trainer, {f"{name}_of_best": figure.fraction_of_best}, epochs=epochs)
        return figure.latest

    def _forget_rollouts(self) -> None:
        """Forgets rates of rollouts. The best policy by them is one of other levels, so the next takes its place."""
        self._rates.forget_rollouts()
        self._best.forget_success(held_out=False)

    def _forget_protocols(self, kept: Collection[str]) -> None:
        """Forgets protocols that the run no longer has, and the best policy's success where one of them measured it."""
        self._rates.forget_protocols(kept)
        if self._protocol is not None and self._protocol not in kept:
            self._protocol = None
            self._best.forget_success(held_out=True)

    def _observe_entropy(self, trainer: Trainer, epochs: int, nats: float) -> None:
        self._entropy.observe(epochs, nats)
        now = self._entropy.now
        if now is not None and now.lowest > 0:
            shares = {"highest": now.mean / now.highest, "lowest": now.latest / now.lowest}
            compat.log_figures(trainer, {f"{ENTROPY}_of_{name}": s for name, s in shares.items()}, epochs=epochs)

    def _alarms(self) -> dict[str, str]:
        """What has collapsed, by figure, in words."""
        alarms, fallen = self._rates.collapsed, self._rates.fallen
        entropy = self._entropy.alarm(is_failing=bool(fallen))
        if entropy is not None:
            beside = [words for name, words in fallen.items() if name not in alarms]
            alarms[ENTROPY] = ", while ".join([f"{ENTROPY} {entropy}", *beside[:1]])
        return alarms

    # Keeping the best policy

    def _keep_evaluated(self, trainer: Trainer, epochs: int) -> None:
        if self._success is not None:
            self._keep_if_best(trainer, epochs, self._success, held_out=True)
        self._success = None

    def _keep_if_best(self, trainer: Trainer, epochs: int, success: Level | None, *, held_out: bool) -> None:
        """Saves the policy as it is now, which is the measured one: no update came in between."""
        if success is not None and self.on_collapse.needs_best:
            self._best.keep(trainer, epochs, success, held_out=held_out)

    # Reacting

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = compat.epochs_at_rollout(trainer)
        self._keep_evaluated(trainer, epochs)
        entropies: list[float] = trainer.strategy.broadcast(self._entropies)  # the agent logs them on rank 0 alone
        self._entropies = []
        if entropies:
            self._observe_entropy(trainer, epochs, fmean(entropies))
        alarms = self._alarms()
        is_new = any(name not in self._collapsed for name in alarms)
        self._collapsed = list(alarms)
        if not is_new:
            return
        reaction = self.on_collapse.act(trainer, pl_module, self._best.policy, self._restores)
        if reaction.restored:
            self._restores += 1
            self._collapsed = []
            self._rates.forget_recent()
            self._entropy.forget_recent()
            compat.log_figures(trainer, {"rollout/restores": self._restores}, epochs=epochs)
        note = _AT_THE_END if reaction.restored and epochs == compat.epoch_limit(trainer) else ""
        rank_zero_warn(
            f"the policy has collapsed after {epochs} epochs ({'; '.join(alarms.values())}): {reaction.message}{note}"
        )


def _counts(trajectories: Iterable[Trajectory]) -> list[int]:
    """Counts an instance's successes, episodes, valid turns and turns."""
    episodes = list(trajectories)
    turns = [turn for trajectory in episodes for turn in trajectory.turns]
    return [sum(t.succeeded for t in episodes), len(episodes), sum(turn.valid for turn in turns), len(turns)]


def _replays(trainer: Trainer) -> bool:
    data = compat.datamodule(trainer)
    return isinstance(data, RolloutDataModule) and data.replay is not None


def _envs_in(trainer: Trainer, epoch: int) -> list[int]:
    """Indices of the environments that the rollout of an epoch draws from."""
    data = compat.datamodule(trainer)
    mixture = data.mixture if isinstance(data, RolloutDataModule) else []
    return [index for index, entry in enumerate(mixture) if entry.weight_in(epoch) > 0]


def _is_stale(trainer: Trainer) -> bool:
    """Whether rollouts are of an older policy than that in training."""
    data = compat.datamodule(trainer)
    return isinstance(data, RolloutDataModule) and data.staleness > 0


def _ranks_policies(data: RolloutDataModule) -> bool:
    is_current = data.staleness == 0 and data.replay is None
    sampled = is_current and any(strategy.traits.origin is Origin.SAMPLED for strategy in data.plan.strategies)
    return sampled or any(protocol.search is None for protocol in data.evaluations)
