"""RolloutDataModule: an epoch is one rollout and all the updates on it.

    plan -> search -> trajectories -> groups -> (callbacks) -> credit -> training sequences -> micro-batches

`train_dataloader` returns an iterable that first runs the whole rollout and then yields the micro-batches. Lightning
reloads nothing between epochs, so that a resumed run rolls out once, and an epoch without an update does not end the
training.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import EngineSpec, Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.playing import valid_response
from tsr_lightning.envs.process import ProcessEnv
from tsr_lightning.envs.sample_texts import sample_texts
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.objectives.rehearsal import rehearse as rehearse_objective
from tsr_lightning.policy.chat import Context, SingleTurn
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, ProgressFn
from tsr_lightning.search.faults import Retrying
from tsr_lightning.search.plan import Plan, Uniform
from tsr_lightning.search.rehearsal import rehearse
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.answer_notice import AnswerForm, check_valid
from tsr_lightning.training.collect import Rollout, epoch_tasks, roll_out
from tsr_lightning.training.collector import Collected, Collector, Snapshot
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.demonstrations import Demonstrations
from tsr_lightning.training.distributed import Ranks
from tsr_lightning.training.dynamic_sampling import DynamicSampling, sample_dynamically, sampled_size
from tsr_lightning.training.evaluation import EvalBatch, EvalProtocol
from tsr_lightning.training.faults import Faults, describe_failures, without_lone
from tsr_lightning.training.hooks import TRAINING_ROLLOUT, OnRolloutEnd, OnRolloutMetrics
from tsr_lightning.training.instances import HeldOut, Instances
from tsr_lightning.training.memory import PeakMemory
from tsr_lightning.training.metrics import (
    rollout_metrics,
    signal_metrics,
    tree_metrics,
    truncated_without_value,
    update_metrics,
)
from tsr_lightning.training.mismatch import check_mismatch, check_updates, tolerance_of
from tsr_lightning.training.mixture import MixtureEntry, mixture_of
from tsr_lightning.training.monitor import RolloutMonitor, timed
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.training.sampler import Sampler
from tsr_lightning.training.staleness import check_staleness
from tsr_lightning.training.void_settings import check_void, says_nothing_is_compared
from tsr_lightning.trajectory import Comparison, Group


class TrainLoader:
    """The training data: iterating over it once runs one epoch."""

    def __init__(self, data: "RolloutDataModule") -> None:
        self._data = data

    def __iter__(self) -> Iterator[Batch | None]:
        return self._data.epoch()


class EvalLoader:
    """The validation data of one protocol, empty at a validation where it is not due. Not a list, which Lightning would
    take for several loaders."""

    def __init__(self, batches: Sequence[EvalBatch], is_due: Callable[[], bool]) -> None:
        self._batches = batches
        self._is_due = is_due

    def __iter__(self) -> Iterator[EvalBatch]:
        return iter(self._batches if self._is_due() else ())

    def __len__(self) -> int:
        """The most batches that a validation has: Lightning asks once. At least one, so that a rank without a held-out
        instance takes part too: Lightning would call none of its hooks, and the others wait for them."""
        return max(1, len(self._batches))


class RolloutDataModule(LightningDataModule):
    """Rolls out the plan each epoch and yields the micro-batches of its updates.

    Args:
        env: gymnasium id, or a dotted path such as `package.module:Env-v0` for a user's own environment; or the entries
            of a mixture.
        env_kwargs: arguments of the environment; an overlay's keys are merged into these, unless it names another
            environment.
        plan: which strategies roll out the trajectories of an instance.
        instances: training instances per epoch; with dynamic sampling, per round of it.
        dynamic_sampling: draws further rounds of instances until enough groups have signal; null draws one.
        held_out: the instances that are evaluated on and kept from training.
        evaluations: the protocols of evaluation.
        context: what of the episode the policy sees at each turn.
        sampling: temperature and token budget of a response.
        context_tokens: the most tokens of a prompt and its response together; null takes the model's own limit.
        episode_tokens: the most response tokens of an episode; null for no limit.
        updates: how a rollout is trained on.
        staleness: epochs that the policy of a rollout may lag behind. 0 collects a rollout before its updates; with
            more, the next ones are collected in a thread while the updates run, by a copy of the trained weights.
        engine: what generates responses, and with how much memory.
        concurrency: searches that run side by side; changes speed and memory, and no draw.
        env_workers: environments that step in threads of their own while responses are generated for the other half of
            the searches: for environments that wait, such as for a page, a tool or a program; 0 steps in turn.
        env_processes: whether every environment runs in a process of its own, which can be ended where it hangs; with
            `env_workers`, environments that compute in Python then step in parallel. Changes no draw.
        faults: limits for an environment that hangs, dies, or raises EnvFault or OSError.
        demonstrations: those of a file, trained on beside the rollout; null for none.
        min_valid: the share of a rollout's responses that have to be valid actions, or the run stops before it trains
            on them and says what to do; 0 never stops.
        seed: names every draw of the run; set by `seed_everything`.
    """

    def __init__(
        self,
        env: str | list[MixtureEntry],
        env_kwargs: dict[str, Any] | None = None,
        plan: Plan = Uniform(),  # noqa: B008  (frozen)
        instances: int = 16,
        dynamic_sampling: DynamicSampling | None = None,
        held_out: HeldOut = HeldOut(),  # noqa: B008  (frozen)
        evaluations: list[EvalProtocol] | None = None,
        context: Context = SingleTurn(),  # noqa: B008  (frozen)
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        context_tokens: int | None = None,
        episode_tokens: int | None = None,
        updates: Updates = Updates(),  # noqa: B008  (frozen)
        staleness: int = 0,
        engine: EngineSpec = Transformers(),  # noqa: B008  (frozen)
        concurrency: int = 256,
        env_workers: int = 0,
        env_processes: bool = False,
        faults: Faults = Faults(),  # noqa: B008  (frozen)
        demonstrations: Demonstrations | None = None,
        min_valid: float = 0.0,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # more ranks than held-out instances
        self.mixture = mixture_of(env, env_kwargs)
        self.plan = plan
        self.instances_per_epoch = instances
        self.dynamic_sampling = dynamic_sampling
        self.held_out = held_out
        self.evaluations = [EvalProtocol()] if evaluations is None else evaluations
        self.context = context
        self.sampling = sampling
        self.context_tokens = context_tokens
        self.episode_tokens = episode_tokens
        self.updates = updates
        self.staleness = staleness
        self.engine = engine
        self.concurrency = concurrency
        self.env_workers = env_workers
        self.env_processes = env_processes
        self.faults = faults
        self.demonstrations = demonstrations
        self.min_valid = min_valid
        self.seed = seed
        self.key = Key(0).fold_in("run", seed)
        self.guard = Retrying(faults.retries)
        self._rollout_guard = Retrying(faults.retries) if staleness else self.guard  # each counts what it is asked
        self._collector = Collector(self._collect_beside)
        self._processes: list[ProcessEnv] = []
        self._beside: Sampler | None = None
        self._monitor = self._new_monitor()
        self._micro_batches = 1  # per optimizer step, as trainer.accumulate_grad_batches asks for

    def setup(self, stage: str) -> None:
        for entry in self.mixture:
            rank_zero_info(f"environment: {entry}")  # after all overlays
        self._monitor = self._new_monitor()
        self.faults.check_processes(self.env_processes)
        if stage != "fit":
            return
        # For use without `tsr`, which checks the plan earlier and sets the temperature
        rehearse_objective(self.agent.objective)
        for strategy in self.plan.strategies:
            rehearse(strategy)
        check_plan(self.agent.objective, self.plan, self.demonstrations)
        check_updates(self.agent.objective, self.updates)
        check_void(self.agent.objective, self.plan, self.updates)
        if line := says_nothing_is_compared(self.agent.objective, self.plan):
            rank_zero_info(line)
        check_staleness(self.staleness, self.updates, Ranks.of(self._trainer), self._trainer.precision)
        self._collector, self._beside = Collector(self._collect_beside), None
        if self.dynamic_sampling is not None:
            self.dynamic_sampling.check(self.plan)
        if self.demonstrations is not None:
            _ = self.demonstrations.conversations  # read here, so that a bad line is refused before a model loads
        require(
            self.agent.temperature == self.sampling.temperature,
            "model.temperature",
            self.agent.temperature,
            f"give {self.sampling.temperature}, which is data.sampling.temperature: responses are trained on at the "
            "temperature that they were sampled at",
        )
        self._check_evaluations()
        self._micro_batches = self._trainer.accumulate_grad_batches

    def _check_evaluations(self) -> None:
        if compat.ValidationSchedule.of(self._trainer) is not None:
            return
        for protocol in self.evaluations:
            every = protocol.every_n_validations
            remedy = (
                "without trainer.check_val_every_n_epoch and trainer.max_epochs no validation is known to be the last; "
                "give both, or 1 to evaluate it at every validation"
            )
            require(every == 1, f"data.evaluations.{protocol.name}.every_n_validations", every, remedy)

    def on_exception(self, exception: BaseException) -> None:
        self._collector.stop()

    def teardown(self, stage: str) -> None:
        self._collector.stop()
        if self._beside is not None:
            self._beside.engine.close()
            self._beside = None
        if stage == "fit":
            self._trainer.accumulate_grad_batches = self._micro_batches
            rank_zero_info(self.instances.summary)
        for env in self._processes:
            env.close()

    # -- environment and driver -------------------------------------------------------------------------------------

    @cached_property
    def envs(self) -> list[Branchable]:
        return self._make_envs()

    @cached_property
    def workers(self) -> list[list[Branchable]]:
        """The environments that step beside generation."""
        return [self._make_envs() for _ in range(self.env_workers)]

    @cached_property
    def instances(self) -> Instances:
        return Instances(self._make_envs(), self.key, self.held_out, self._env_weights, self._rollout_guard)

    def _env_weights(self, epoch: int) -> list[float]:
        return [entry.weight_in(epoch) for entry in self.mixture]

    def texts(self) -> Iterator[str]:
        """Text of the tasks, for the vocabulary of a new model."""
        for entry in self.mixture:
            env = self.make_env(entry)
            yield from sample_texts(env, self.faults.retries)
            if isinstance(env, ProcessEnv):
                env.close()

    def make_env(self, entry: MixtureEntry) -> Branchable:
        """An environment of the mixture: in this process, or in one of its own with the time limit of a step."""
        return entry.make_process(self.faults.step_timeout) if self.env_processes else entry.make()

    def _new_monitor(self) -> RolloutMonitor:
        return RolloutMonitor(
            self.sampling.max_response_tokens, lambda: self._context_limit, self.episode_tokens, self._answer_form
        )

    def _answer_form(self, index: int) -> AnswerForm:
        """The form in which the environment with an index of the mixture wants to be answered."""
        entry = self.mixture[index]
        env = self.make_env(entry)
        style = entry.env_kwargs.get("prompt_style")
        form = AnswerForm(entry.env, None if style is None else str(style), valid_response(env))
        if isinstance(env, ProcessEnv):
            env.close()
        return form

    def _make_envs(self) -> list[Branchable]:
        envs = [self.make_env(entry) for entry in self.mixture]
        self._processes += [env for env in envs if isinstance(env, ProcessEnv)]
        return envs

    @property
    def agent(self) -> Agent:
        agent = self._trainer.lightning_module
        if not isinstance(agent, Agent):
            raise ConfigError(f"model is {type(agent).__name__}: the RolloutDataModule trains an Agent")
        return agent

    @property
    def _trainer(self) -> Trainer:
        if self.trainer is None:
            raise RuntimeError("the RolloutDataModule has no trainer yet: fit and validate give it theirs")
        return self.trainer

    @property
    def sampler(self) -> Sampler:
        """Plays with the policy that is trained, as it is now."""
        agent = self.agent
        engine = agent.engine(self.engine, self.context, self._context_limit)
        return Sampler(agent.policy, agent.chat(self.context), engine, self.envs, self.workers, self.guard)

    def _sampler_beside(self) -> Sampler:
        """Plays while the policy is trained, with the weights of an earlier epoch."""
        if self._beside is None:
            envs, workers = self._make_envs(), [self._make_envs() for _ in range(self.env_workers)]
            limit, guard = self._context_limit, self._rollout_guard
            self._beside = Sampler.beside(self.agent, self.engine, self.context, limit, envs, workers, guard)
        return self._beside

    def driver(
        self,
        temperature: float,
        *,
        sampler: Sampler | None = None,
        policy_epochs: int | None = None,
        keep_tree: bool = False,
        keep_state_keys: bool = False,
    ) -> Driver:
        """Runs searches: with the policy as it is now, or with a sampler's."""
        sampler = self.sampler if sampler is None else sampler
        return Driver(
            envs=sampler.envs,
            chat_format=sampler.chat,
            engine=sampler.engine,
            sampling=Sampling(temperature, self.sampling.max_response_tokens),
            limits=TokenLimits(self._context_limit, self.episode_tokens, sampler.policy.context_length),
            concurrency=self.concurrency,
            workers=sampler.workers,
            keep_tree=keep_tree,
            keep_state_keys=keep_state_keys,
            guard=sampler.guard,
            policy_epochs=policy_epochs,
        )

    @property
    def _context_limit(self) -> int:
        """The most tokens of a prompt and its response."""
        own = self.agent.policy.context_length
        return min(own, self.context_tokens or own)

    # -- training ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> TrainLoader:
        return TrainLoader(self)

    def epoch(self) -> Iterator[Batch | None]:
        """The rollout of the current epoch, then the micro-batches of its updates; a single None where nothing is left
        to train on, and nothing where the epoch will not be trained."""
        trainer, agent = self._trainer, self.agent
        if reason := compat.nothing_to_train(trainer):
            rank_zero_info(reason)
            return
        ranks, epoch = Ranks.of(trainer), compat.epochs_at_rollout(trainer)
        objective = agent.objective.at(epoch)
        if self.staleness:
            self._begin_rollouts(epoch)
        drawn, rolled_out = self._rollout(epoch) if self.plan.group_size(epoch) else (0, [])
        comparisons = rolled_out + [objective.comparisons(group) for group in self._demonstrated(epoch)]
        agent.begin_updates(epoch, self.updates.target_kl)
        estimate = partial(agent.estimates, micro_batch_tokens=self.updates.tokens_at_once)
        key = self.key.fold_in("epoch", epoch)
        sequences, credits, mismatch = credited_sequences(comparisons, objective, estimate, ranks, self.updates, key)
        if rolled_out:
            compat.log_figures(trainer, signal_metrics(credits[: len(rolled_out)]) | mismatch, epoch)
        temperature, precision = self.sampling.temperature, str(trainer.precision)
        tolerance = tolerance_of(self.updates, agent.spec, precision, self.staleness, temperature)
        check_mismatch(mismatch, self.updates, tolerance, is_updated=trainer.global_step > 0)
        if not sequences:
            rank_zero_info(f"epoch {epoch}: no update, because none of the {drawn} groups was left to train on")
            compat.prepare_empty_epoch(trainer)
            yield None
            return
        steps = schedule(
            sequences,
            self.updates,
            key,
            rank=ranks.rank,
            ranks=ranks.world_size,
            at_least=self._micro_batches,
        )
        compat.log_figures(trainer, update_metrics(steps), epoch)
        if not steps:
            rank_zero_info(
                f"epoch {epoch}: no update, because none of the {drawn} groups has signal: nothing is imitated, and "
                "all compared returns are equal"
            )
            compat.prepare_empty_epoch(trainer)
            yield None
            return
        trainer.accumulate_grad_batches = len(steps[0])
        for step in steps:
            if agent.has_moved_past:
                return
            yield from step

    def _demonstrated(self, epoch: int) -> list[Group]:
        """The groups of the file's demonstrations in an epoch; neither callbacks nor the rollout's figures see them."""
        if self.demonstrations is None:
            return []
        return self.demonstrations.groups(self.key, epoch, self.agent.chat(self.context), self._context_limit)

    def _rollout(self, epoch: int) -> tuple[int, list[list[Group | Comparison]]]:
        """How many groups were drawn in an epoch, by all ranks, and the comparisons of each that is trained on."""
        trainer, agent = self._trainer, self.agent
        objective = agent.objective.at(epoch)
        needs, sampling = objective.needs, self._dynamic_sampling(epoch)
        start_round = partial(self._monitor.start, trainer, TRAINING_ROLLOUT)
        if self.staleness:
            collected = self._collector.take(epoch, start_round)
        else:
            collected = self._collect(epoch, self._synced_sampler, epoch, lambda: timed(start_round()))
        rollout, groups = collected.rollout, collected.rollout.groups
        check_valid(groups, self.min_valid, self.sampling.max_response_tokens, self._answer_form)
        self._monitor.finish(TRAINING_ROLLOUT, groups)
        for callback in compat.callbacks(trainer):
            if isinstance(callback, OnRolloutEnd):
                groups = callback.on_rollout_end(trainer, agent, groups)
        figures: dict[str, float] = {}
        if sampling is not None:
            figures = sampling.figures(rollout)
            groups = sampling.select(groups, objective)
            if shortfall := sampling.shortfall(rollout):
                rank_zero_info(f"epoch {epoch}: {shortfall}")
        if failures := describe_failures(rollout.costs):
            rank_zero_info(f"epoch {epoch}: {failures}")
        groups = without_lone(groups, objective, self.plan.group_size(epoch))
        figures |= rollout_metrics(rollout.groups, groups, rollout.costs, collected.seconds, rollout.skipped)
        figures["rollout/staleness"] = epoch - collected.policy_epochs
        comparisons = [objective.comparisons(group) for group in groups]
        if needs.tree:
            figures |= tree_metrics(groups, comparisons, objective)
        if needs.final_values:
            missing = figures["rollout/truncated_without_value"] = truncated_without_value(groups)
            if missing:
                rank_zero_info(
                    f"epoch {epoch}: {missing} truncated trajectories end in a context longer than the model sees, so "
                    "bootstrap_truncated takes 0 for its value"
                )
        of_process = {"cost/rollout_peak_mib": collected.peak_mib, "cost/seconds_waiting": collected.waited}
        compat.log_figures(trainer, figures | of_process, epoch)
        for callback in compat.callbacks(trainer):
            if isinstance(callback, OnRolloutMetrics):
                callback.on_rollout_metrics(trainer, figures, collected.policy_epochs)
        return len(rollout.groups), comparisons

    def _dynamic_sampling(self, epoch: int) -> DynamicSampling | None:
        return self.dynamic_sampling if sampled_size(self.plan, epoch) else None

    # -- collecting: before the updates, or beside them -------------------------------------------------------------

    def _synced_sampler(self) -> Sampler:
        sampler = self.sampler
        self.agent.begin_rollout()
        return sampler

    def _begin_rollouts(self, epoch: int) -> None:
        """Begins those that may be collected with the policy as it is now, or could have been earlier."""
        _ = self.instances.held_out  # drawn here, since evaluation may need it at any time
        self._sampler_beside()
        ahead = [number for number in range(epoch, epoch + self.staleness + 1) if self.plan.group_size(number)]
        self._collector.begin(
            epoch, ahead, lambda: Snapshot(epoch, self.agent.policy.snapshot()), compat.epoch_limit(self._trainer)
        )

    def forget_rollouts(self) -> None:
        """Drops the rollouts that were begun ahead, because the weights have become other ones than by updates: those
        to come are collected with them."""
        self._collector.forget()

    def _collect_beside(self, epoch: int, snapshot: Snapshot, start_round: Callable[[], ProgressFn]) -> Collected:
        sampler = self._sampler_beside()

        def loaded() -> Sampler:
            sampler.load(snapshot.weights)
            return sampler

        with torch.cuda.device_of(next(sampler.policy.parameters())):  # a thread begins on the first; none on a CPU
            return self._collect(epoch, loaded, snapshot.epochs, start_round)

    def _collect(
        self,
        epoch: int,
        take_up: Callable[[], Sampler],
        policy_epochs: int,
        start_round: Callable[[], ProgressFn],
    ) -> Collected:
        """The rollout of an epoch. It calls no callback and changes nothing of the Trainer.

        Args:
            epoch: names its draws.
            take_up: a sampler that has the weights.
            policy_epochs: that the policy has been trained for.
            start_round: called at the start of each round, for what reports its waves.
        """
        objective, sampling = self.agent.objective.at(epoch), self._dynamic_sampling(epoch)
        started = time.perf_counter()
        with PeakMemory(self.agent.device) as memory, compat.training_precision(self._trainer):
            driver = self.driver(
                self.sampling.temperature,
                sampler=take_up(),
                policy_epochs=policy_epochs,
                keep_tree=objective.needs.tree,
                keep_state_keys=objective.needs.state_keys,
            )
            draw = partial(self._round, driver, epoch, start_round)
            rollout = draw(0) if sampling is None else sample_dynamically(draw, sampling, objective)
        seconds = time.perf_counter() - started
        return Collected(rollout, policy_epochs, seconds, memory.highest_mib, waited=seconds)

    def _round(self, driver: Driver, epoch: int, start_round: Callable[[], ProgressFn], number: int) -> Rollout:
        """The rollout of one round of an epoch's instances, of all ranks."""
        count, ranks = self.instances_per_epoch, Ranks.of(self._trainer)
        [instances, *_] = ranks.gather([self.instances.training(epoch, count, first=number * count)])  # rank 0's
        size = self.plan.group_size(epoch)
        tasks, fallback = (
            epoch_tasks(instances.instances, entries, self.key, epoch, number * count, first_member)
            for entries, first_member in ((self.plan.entries(epoch), 0), (self.plan.fallback(epoch), size))
        )
        without_root = instances.instances.count(None) * size
        followed_by = fallback if any(fallback) else ()
        rollout = roll_out(driver, tasks, start_round(), ranks, self.faults.max_lost, followed_by)
        costs, wanted = rollout.costs + Costs(trajectories_lost=without_root), rollout.searches + without_root
        self.faults.check(costs.trajectories_lost, wanted, f"epoch {epoch}", self._rollout_guard.last)
        return replace(rollout, costs=costs, skipped=instances.skipped)

    # -- validation -------------------------------------------------------------------------------------------------

    def val_dataloader(self) -> list[EvalLoader]:
        """One loader per protocol; under several ranks each evaluates its share of the instances."""
        return [EvalLoader(self._eval_batches(one), partial(self._is_due, one)) for one in self.evaluations]

    def _is_due(self, protocol: EvalProtocol) -> bool:
        schedule = compat.ValidationSchedule.of(self._trainer)
        if schedule is None or not compat.is_fitting(self._trainer):
            return True
        return protocol.is_due(compat.position_at_validation(self._trainer, None).epochs, schedule)

    def _eval_batches(self, protocol: EvalProtocol) -> list[EvalBatch]:
        numbered = Ranks.of(self._trainer).shard(list(enumerate(self.instances.held_out)))
        tasks = protocol.tasks(numbered, self.held_out.seed)
        driver = self.driver(protocol.temperature)
        size = max(1, self.concurrency // protocol.samples)
        max_lost = self.faults.max_lost(len(self.instances.held_out) * protocol.samples)
        return [
            EvalBatch(protocol, tuple(tasks[start : start + size]), driver, self._monitor, max_lost)
            for start in range(0, len(tasks), size)
        ]

    # -- Lightning --------------------------------------------------------------------------------------------------

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device) if isinstance(batch, Batch) else batch

    def state_dict(self) -> dict[str, Any]:
        """Draws depend on the seed and the epoch, which Lightning keeps; the seed is here to be compared, and what was
        drawn to be counted. Rollouts that are under way are not kept: with the weights that they began with, they are
        collected again."""
        epochs = compat.epochs_at_rollout(self._trainer)
        state = {"seed": self.seed, "instances": self.instances.state_dict(epochs)}
        return {**state, "ahead": self._collector.state_dict(epochs)} if self.staleness else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if compat.is_fitting(self._trainer):  # what is validated or exported may be of any run
            self.check_seed(state_dict)
            if "instances" in state_dict:  # which earlier versions did not keep
                self.instances.load_state_dict(state_dict["instances"])
            if self.staleness and "ahead" in state_dict:  # absent from a run that collected before its updates
                self._collector.load_state_dict(state_dict["ahead"], self.staleness)

    def check_seed(self, state_dict: dict[str, Any]) -> None:
        """Refuses to resume a run of another seed."""
        seed = state_dict["seed"]
        require(
            seed == self.seed,
            "seed_everything",
            self.seed,
            f"the checkpoint's run had {seed}: resume with the same seed, or start a new run",
        )
