"""RolloutDataModule: an epoch is one rollout and all the updates on it.

    group plan -> search -> trajectories -> groups -> (callbacks) -> credit -> rows -> minibatches

`train_dataloader` returns an iterable that first runs the whole rollout and then yields the micro-batches; Lightning
reloads nothing between epochs, so a resumed run rolls out once, and an epoch without an update does not end training.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import TrainingSequence, training_sequences, with_credit
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Sampling
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.sample_texts import sample_texts
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.chat import Context, SingleTurn
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, ProgressFn, SearchTask
from tsr_lightning.search.plan import Plan, Uniform
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Sample, Strategy
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.distributed import gather, shard
from tsr_lightning.training.evaluation import EvalBatch, EvalProtocol
from tsr_lightning.training.hooks import OnRolloutEnd, OnRolloutWave, RolloutProgress
from tsr_lightning.training.instances import HeldOut, Instances
from tsr_lightning.training.memory import peak
from tsr_lightning.training.metrics import rollout_metrics, update_metrics
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.training.unreadable import unreadable
from tsr_lightning.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Rollout:
    """What came of an epoch's searches, on all ranks together."""

    groups: list[Group]
    costs: Costs
    seconds: float
    skipped: int  # draws of training instances that fell on a held-out state


def _without_final_value(groups: Sequence[Group], epoch: int) -> dict[str, float]:
    """How many truncated trajectories end in a context that the model does not see, so that 0 stands for its value."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    count = sum(trajectory.truncated and not trajectory.final_prompt for trajectory in trajectories)
    if count:
        rank_zero_info(
            f"epoch {epoch}: {count} of {len(trajectories)} trajectories were cut in a context longer than the model "
            "sees; objective.bootstrap_truncated continues them with a value of 0"
        )
    return {"rollout/truncated_without_value": count}


class Epochs:
    """The training data: iterating over it once plays one epoch."""

    def __init__(self, data: "RolloutDataModule") -> None:
        self._data = data

    def __iter__(self) -> Iterator[Batch | None]:
        return self._data.epoch()


class EvalBatches:
    """The validation data of one evaluation. Not a list, which Lightning would take for several loaders."""

    def __init__(self, exams: Sequence[EvalBatch]) -> None:
        self._exams = exams

    def __iter__(self) -> Iterator[EvalBatch]:
        return iter(self._exams)

    def __len__(self) -> int:
        return len(self._exams)


class RolloutDataModule(LightningDataModule):
    """Rolls out the group plan each epoch and yields the minibatches of its updates.

    Args:
        env: gymnasium id, or a dotted path such as `package.module:Env-v0` for an environment of one's own.
        env_kwargs: arguments of the environment; an overlay's are laid over these one by one, and one that names
            another environment starts without any.
        plan: which strategies roll out the trajectories of an instance.
        instances: training instances per epoch.
        held_out: the instances that are evaluated on and kept from training.
        evaluations: the protocols of evaluation.
        context: what of the episode the policy sees at each turn.
        sampling: temperature and token budget of a response.
        context_tokens: the longest prompt and response together; null takes the model's own limit.
        episode_tokens: the most tokens that the responses of an episode may say; null for no limit.
        updates: how a rollout is trained on.
        concurrency: searches that run side by side; changes speed and memory, and no draw.
        max_num_seqs: responses that the engine draws side by side; changes speed and memory, and no draw.
        kv_cache_mib: memory of the engine for keys and values, in MiB; what does not fit is computed again.
        env_workers: environments that step in threads of their own, while responses are drawn for the other half of
            the searches: for those that wait for something, such as a page, a tool or a program; 0 steps in turn.
        seed: names every draw of the run; set by `seed_everything`.
    """

    def __init__(
        self,
        env: str,
        env_kwargs: dict[str, Any] | None = None,
        plan: Plan = Uniform(),  # noqa: B008  (frozen)
        instances: int = 16,
        held_out: HeldOut = HeldOut(),  # noqa: B008  (frozen)
        evaluations: list[EvalProtocol] | None = None,
        context: Context = SingleTurn(),  # noqa: B008  (frozen)
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        context_tokens: int | None = None,
        episode_tokens: int | None = None,
        updates: Updates = Updates(),  # noqa: B008  (frozen)
        concurrency: int = 256,
        max_num_seqs: int = 512,
        kv_cache_mib: int = 4096,
        env_workers: int = 0,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # more ranks than held-out instances
        self.env_id = env
        self.env_kwargs = env_kwargs or {}
        self.plan = plan
        self.instances_per_epoch = instances
        self.held_out = held_out
        self.evaluations = [EvalProtocol()] if evaluations is None else evaluations
        self.context = context
        self.sampling = sampling
        self.context_tokens = context_tokens
        self.episode_tokens = episode_tokens
        self.updates = updates
        self.concurrency = concurrency
        self.max_num_seqs = max_num_seqs
        self.kv_cache_mib = kv_cache_mib
        self.env_workers = env_workers
        self.key = Key(0).fold_in("run", seed)
        self.seed = seed
        self._env: Branchable | None = None
        self._workers: list[Branchable] = []
        self._instances: Instances | None = None
        self._accumulation = 1  # micro-batches per step that the Trainer was asked for
        self._rollouts = 0  # begun in this process, those of evaluations included
        self._warned_unreadable = False

    def setup(self, stage: str) -> None:
        said = ", ".join(f"{name}={value!r}" for name, value in self.env_kwargs.items())
        rank_zero_info(f"environment: {self.env_id}({said})")  # what is left of all overlays
        self._warned_unreadable = False
        if stage == "fit":
            self._check_agent()
            self._accumulation = self._trainer.accumulate_grad_batches

    def _check_agent(self) -> None:
        """For those who come without `tsr`, which checks the plan before and sets the temperature."""
        check_plan(self.agent.objective, self.plan)
        if self.agent.temperature != self.sampling.temperature:
            raise ConfigError(
                f"model.temperature is {self.agent.temperature}, and data.sampling.temperature is "
                f"{self.sampling.temperature}: give both the same, since the log-probabilities that are trained on are "
                "those that were sampled from"
            )

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            rank_zero_info(self.instances.account)

    # -- environment ------------------------------------------------------------------------------------------------

    @property
    def env(self) -> Branchable:
        if self._env is None:
            self._env = make_env(self.env_id, **self.env_kwargs)
        return self._env

    @property
    def workers(self) -> list[Branchable]:
        """The environments that step beside generation."""
        while len(self._workers) < self.env_workers:
            self._workers.append(make_env(self.env_id, **self.env_kwargs))
        return self._workers

    def texts(self) -> Iterator[str]:
        """What the environment says and is told."""
        return sample_texts(make_env(self.env_id, **self.env_kwargs))

    @property
    def instances(self) -> Instances:
        if self._instances is None:
            self._instances = Instances(make_env(self.env_id, **self.env_kwargs), self.key, self.held_out)
        return self._instances

    @property
    def agent(self) -> Agent:
        agent = self._trainer.lightning_module
        if not isinstance(agent, Agent):
            raise ConfigError(f"model is {type(agent).__name__}: the RolloutDataModule trains an Agent")
        return agent

    @property
    def _trainer(self) -> Trainer:
        if self.trainer is None:
            raise RuntimeError("the RolloutDataModule has no trainer yet: it is given one by fit and validate")
        return self.trainer

    def driver(self, temperature: float) -> Driver:
        """Plays searches with the policy as it is now."""
        agent = self.agent
        own = agent.policy.context_length
        longest = min(own, self.context_tokens or own)
        return Driver(
            env=self.env,
            chat_format=agent.chat(self.context),
            engine=agent.engine(self.context, longest, self.kv_cache_mib, self.max_num_seqs),
            sampling=Sampling(temperature, self.sampling.max_response_tokens),
            limits=TokenLimits(longest, self.episode_tokens, own),
            concurrency=self.concurrency,
            workers=self.workers,
        )

    # -- training ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> Epochs:
        return Epochs(self)

    def epoch(self) -> Iterator[Batch | None]:
        """The rollout of the current epoch, then the micro-batches of its updates; where there are none a single None,
        which Lightning steps over, so that the epoch still validates and ends as any other."""
        trainer, agent = self._trainer, self.agent
        # `current_epoch` is stale on resume
        epoch = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        with peak(agent.device) as memory, trainer.precision_plugin.forward_context():  # the precision of updates
            rollout = self.roll_out(epoch)
        groups = rollout.groups
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, OnRolloutEnd):
                groups = callback.on_rollout_end(trainer, agent, groups)
        metrics = rollout_metrics(rollout.groups, groups, rollout.costs, rollout.seconds, rollout.skipped)
        self._log(epoch, {**metrics, "cost/rollout_peak_mib": memory.highest_mib})
        if agent.objective.needs.final_values:
            self._log(epoch, _without_final_value(groups, epoch))
        agent.begin_updates(epoch)
        rows = self.credited(groups)
        if not rows:
            rank_zero_info(
                f"epoch {epoch}: no update, because none of the {len(rollout.groups)} groups was left to train on"
            )
            warnings.filterwarnings("ignore", "train_dataloader yielded None")
            for callback in trainer.checkpoint_callbacks:
                if isinstance(callback, ModelCheckpoint):
                    callback._last_global_step_saved = -1  # it takes an epoch without a step for saved already
            yield None
            return
        steps = schedule(
            rows,
            self.updates,
            self.key.fold_in("epoch", epoch),
            rank=trainer.global_rank,
            ranks=trainer.world_size,
            at_least=self._accumulation,
        )
        self._log(epoch, update_metrics(steps))
        trainer.accumulate_grad_batches = len(steps[0])
        for step in steps:
            if agent.has_moved_past(self.updates.target_kl):
                rank_zero_info(f"epoch {epoch}: no further updates, the policy has moved past data.updates.target_kl")
                return
            yield from step

    def roll_out(self, epoch: int) -> Rollout:
        """The groups of an epoch, of all ranks, in the order of their instances."""
        trainer = self._trainer
        started = time.perf_counter()
        drawn = self.instances.training(epoch, self.instances_per_epoch)
        entries = self.plan.entries(epoch)
        tasks = [
            SearchTask(seed, member, strategy, self.key.fold_in("epoch", epoch, "instance", place, "member", member))
            for place, seed in enumerate(drawn.seeds)
            for member, strategy in enumerate(s.strategy for s in entries for _ in range(s.count))
        ]
        size = self.plan.group_size
        whole = [tasks[i : i + size] for i in range(0, len(tasks), size)]
        mine = [task for group in shard(whole, trainer.global_rank, trainer.world_size) for task in group]
        driver = self.driver(self.sampling.temperature)
        trajectories = driver.run(mine, self._begin("rollout"))
        played = [tuple(trajectories[i : i + size]) for i in range(0, len(trajectories), size)]
        groups = [Group(part[0].instance, part) for part in gather(played, trainer.world_size)]
        self._end("rollout", [trajectory for group in groups for trajectory in group.trajectories])
        costs = sum(gather([driver.costs], trainer.world_size), Costs())
        return Rollout(groups, costs, time.perf_counter() - started, drawn.skipped)

    def credited(self, groups: Sequence[Group]) -> list[TrainingSequence]:
        """The rows that are trained on, with credit; the same on every rank."""
        trainer, agent = self._trainer, self.agent
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        rows = [training_sequences(trajectory) for trajectory in trajectories]
        mine = shard(list(zip(trajectories, rows, strict=True)), trainer.global_rank, trainer.world_size)
        estimates = gather(agent.estimates(mine, self.updates.micro_batch_tokens), trainer.world_size)
        flat = iter(estimates)
        nested = [[next(flat) for _ in group.trajectories] for group in groups]
        credits = agent.objective.credit(groups, nested) if groups else []
        return [
            row
            for own, estimate, credit in zip(rows, estimates, (c for family in credits for c in family), strict=True)
            for row in with_credit(own, estimate, credit)
        ]

    # -- validation -------------------------------------------------------------------------------------------------

    def val_dataloader(self) -> list[EvalBatches]:
        """One loader per evaluation; under several ranks each plays its share of the instances."""
        return [EvalBatches(self._exams(protocol)) for protocol in self.evaluations]

    def _exams(self, protocol: EvalProtocol) -> list[EvalBatch]:
        trainer = self._trainer
        strategy: Strategy = protocol.search or Sample()
        key = Key(self.held_out.seed).fold_in("trial", protocol.name)
        seeds = shard(list(enumerate(self.instances.held_out)), trainer.global_rank, trainer.world_size)
        per_batch = max(1, self.concurrency // protocol.samples)
        driver = self.driver(protocol.temperature)
        return [
            EvalBatch(
                protocol,
                tuple(
                    SearchTask(seed, member, strategy, key.fold_in(place, member))
                    for place, seed in seeds[start : start + per_batch]
                    for member in range(protocol.samples)
                ),
                driver,
                partial(self._begin, protocol.name),
                partial(self._end, protocol.name),
            )
            for start in range(0, len(seeds), per_batch)
        ]

    # -- Lightning --------------------------------------------------------------------------------------------------

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device) if isinstance(batch, Batch) else batch

    def state_dict(self) -> dict[str, Any]:
        """With keyed draws the position is the epoch, which Lightning keeps; the seed is here to be compared."""
        return {"seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._trainer.state.fn == TrainerFn.FITTING:  # what is validated or exported may be of any run
            self.check_seed(state_dict)

    def check_seed(self, state_dict: dict[str, Any]) -> None:
        """Refuses to go on with another seed than the run that this state is of."""
        if state_dict["seed"] != self.seed:
            raise ConfigError(
                f"seed_everything is {self.seed}, but the checkpoint's run had {state_dict['seed']}: "
                "resume with the same seed, or start a new run"
            )

    def _begin(self, what: str) -> ProgressFn:
        """Begins a rollout for the callbacks that watch."""
        trainer = self._trainer
        self._rollouts += 1
        number, started = self._rollouts, time.perf_counter()
        watchers = [c for c in trainer.callbacks if isinstance(c, OnRolloutWave)]  # type: ignore[attr-defined]

        def watch(done: int, total: int, costs: Costs) -> None:
            for callback in watchers:
                progress = RolloutProgress(number, what, done, total, costs, time.perf_counter() - started)
                callback.on_rollout_wave(trainer, progress)

        return watch

    def _end(self, what: str, trajectories: Sequence[Trajectory]) -> None:
        """Says so, once in a run, where hardly a response could be read."""
        problem = None if self._warned_unreadable else unreadable(trajectories, self.sampling.max_response_tokens)
        if problem is not None:
            rank_zero_info(f"{what}: {problem}")
            self._warned_unreadable = True

    def _log(self, epoch: int, metrics: dict[str, float]) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(metrics, step=epoch)
