"""RolloutDataModule: an epoch is one rollout and all the updates on it.

    plan -> search -> trajectories -> groups -> (callbacks) -> credit -> training sequences -> micro-batches

`train_dataloader` returns an iterable that first runs the whole rollout and then yields the micro-batches. Lightning
reloads nothing between epochs, so that a resumed run rolls out once, and an epoch without an update does not end the
training.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.batching.schedule import Batch, Updates
from tsr_lightning.engines.base import EngineSpec, Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.base import Branchable
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.policy.chat import Context, SingleTurn
from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor, ActorSpec
from tsr_lightning.rollout.collect import DynamicSampling, RolloutSpec
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.rollout.environments import EnvFactory, Environments
from tsr_lightning.rollout.faults import Faults
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.rollout.learnability import Learnability
from tsr_lightning.rollout.mixture import MixtureEntry, mixture_of
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.plan import Plan, Uniform
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.learners import learners_state, load_learners
from tsr_lightning.training.notices import ResponseNotices
from tsr_lightning.training.number_checks import check_numbers
from tsr_lightning.training.rollouts import Rollouts, RolloutSource
from tsr_lightning.training.saved_rollouts import SavedRollouts
from tsr_lightning.training.setting_checks import (
    check_environments,
    check_fit,
    check_processes,
    check_ranks,
    check_staleness,
    check_temperature,
    check_template,
    check_trainer,
    says_nothing_is_compared,
)
from tsr_lightning.training.train_loader import EpochSpec, TrainLoader
from tsr_lightning.training.validation import EvalLoader, check_names, check_schedule


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
        learnability: draws a share of the instances again, those that are sometimes solved; null draws new ones alone.
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
        replay: a run's folder or a file of its episodes (callbacks.EpisodeLog), whose rollouts are trained on again
            instead of new ones; null plays them.
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
        learnability: Learnability | None = None,
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
        replay: str | None = None,
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
        self.learnability = learnability
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
        self.replay = replay
        self.demonstrations = demonstrations
        self.min_valid = min_valid
        self.seed = seed
        self.key = Key(0).fold_in("run", seed)
        self.retry = Retrying(faults.retries)
        self._rollout_retry = Retrying(faults.retries) if staleness else self.retry  # each counts what it is asked
        self._actor: Actor | None = None
        self._rollouts: RolloutSource | None = None  # of a fit
        self._ahead: dict[str, Any] = {}  # what the last fit had begun, for a Trainer that fits on
        self._notices = ResponseNotices()
        # the trainer's own accumulate_grad_batches and limit_val_batches, while a fit sets others
        self._of_trainer: tuple[int, int | float] | None = None

    def setup(self, stage: str) -> None:
        for entry in self.mixture:
            rank_zero_info(f"environment: {entry}")  # after all overlays
        if self._actor is not None or self._rollouts is not None:
            self.close()  # a run that ended in an error was not torn down
        self._give_back()
        self._notices = ResponseNotices()
        self.faults.check_processes(self.env_processes)
        check_names(self.evaluations)
        for protocol in self.evaluations:
            protocol.check()
        check_processes(self._trainer, together=True)
        check_ranks(self.engine, self._trainer.world_size)
        if stage != "fit":
            return
        trainer, agent = self._trainer, self.agent
        check_trainer(trainer)
        # For use without `tsr`, which checks the settings earlier and sets the temperature
        check_numbers(self)
        check_fit(agent.objective, self.plan, self.demonstrations, self.updates, self.dynamic_sampling)
        check_environments(agent.objective, self.strategies, self.environments)
        if self.learnability is not None:
            self.learnability.check(self.plan, self.instances_per_epoch, self.replay)
        if line := says_nothing_is_compared(agent.objective, self.plan):
            rank_zero_info(line)
        check_staleness(self.staleness, self.updates, trainer.world_size, trainer.precision)
        check_schedule(trainer, self.evaluations)
        check_temperature(agent.temperature, self.sampling)
        self._of_trainer = trainer.accumulate_grad_batches, trainer.limit_val_batches
        if not self.evaluations:
            trainer.limit_val_batches = 0  # Lightning warns of a list without loaders
        self._instance_envs.make()  # here, and not in a thread that collects ahead
        self._rollouts = self._source(trainer, agent)
        if not compat.epochs_at_rollout(trainer):  # a checkpoint is loaded after this
            self._forget_earlier_run()
        elif self._ahead:  # the Trainer fits on
            self._rollouts.load_state_dict(self._ahead)

    def _forget_earlier_run(self) -> None:
        """Clears what an earlier fit of this process has learned about instances and for its search."""
        self.instances.reset()
        for learner in self.plan.learners:
            learner.reset()

    def _source(self, trainer: Trainer, agent: Agent) -> RolloutSource:
        if self.replay is None:
            return Rollouts(trainer, agent, self.rollout_spec, self.staleness, self._rollout_retry)
        envs = [{"env": entry.env, "env_kwargs": entry.env_kwargs} for entry in self.mixture]
        return SavedRollouts(trainer, agent, self.rollout_spec, self.replay, envs, self.instances, self.context)

    def on_exception(self, exception: BaseException) -> None:
        if self._rollouts is not None:
            self._rollouts.stop()
        self._close_environments()
        self._give_back()

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._ahead = self._begun_ahead(compat.epochs_at_rollout(self._trainer))
            rank_zero_info(self.instances.summary)
        self.close()
        self._give_back()

    def _give_back(self) -> None:
        """Gives the trainer its own settings again."""
        if self._of_trainer is not None:
            self._trainer.accumulate_grad_batches, self._trainer.limit_val_batches = self._of_trainer
            self._of_trainer = None

    def close(self) -> None:
        """Closes the actors and the environments; a further use makes new ones."""
        if self._rollouts is not None:
            self._rollouts.close()
        if self._actor is not None:
            self._actor.close()
        self._rollouts = self._actor = None
        self._close_environments()

    def _close_environments(self) -> None:
        self.environments.close()
        self._instance_envs.close()

    # -- actor and environments -------------------------------------------------------------------------------------

    @property
    def strategies(self) -> list[Strategy]:
        """The strategies of the rollouts, then of the evaluations that search."""
        return [*self.plan.strategies, *(protocol.search for protocol in self.evaluations if protocol.search)]

    @cached_property
    def env_factory(self) -> EnvFactory:
        return EnvFactory(self.mixture, self.env_processes, self.faults.step_timeout, self.faults.retries)

    @cached_property
    def environments(self) -> Environments:
        """The environments of the actor, and of checks before there is one."""
        return Environments(self.env_factory, self.env_workers)

    @property
    def envs(self) -> Sequence[Branchable]:
        return self.environments.envs

    @cached_property
    def _instance_envs(self) -> Environments:
        return Environments(self.env_factory)

    @cached_property
    def instances(self) -> Instances:
        envs, retry = self._instance_envs.envs, self._rollout_retry
        return Instances(envs, self.key, self.held_out, self._env_weights, retry, self.learnability)

    def _env_weights(self, epoch: int) -> list[float]:
        return [entry.weight_in(epoch) for entry in self.mixture]

    def texts(self) -> Iterator[str]:
        """Text of the tasks, for the vocabulary of a new model."""
        yield from self._texts

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        """Played once, for the checks and for the model."""
        return tuple(self.env_factory.texts())

    @property
    def actor(self) -> Actor:
        """Plays with the policy that is trained; made on first use in a run, closed at the run's end."""
        if self._actor is None:
            spec = ActorSpec(
                self.engine, self.context, self.sampling, self.context_tokens, self.episode_tokens, self.concurrency
            )
            self._actor = Actor(self.agent.policy, self.agent.tokenizer, spec, self.environments, self.retry)
            if self._rollouts is not None:
                check_template(self.agent.objective, self._actor.chat.template)
        return self._actor

    @property
    def rollout_spec(self) -> RolloutSpec:
        """What is rolled out in every epoch."""
        return RolloutSpec(
            self.plan, self.instances, self.instances_per_epoch, self.key, self.dynamic_sampling, self.faults
        )

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

    # -- training ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> TrainLoader:
        if self._rollouts is None:
            raise RuntimeError("there is training data in a fit alone")
        spec = EpochSpec(
            self.rollout_spec,
            self.updates,
            self.staleness,
            self.replay is not None,
            self.demonstrations,
            self.min_valid,
            1 if self._of_trainer is None else self._of_trainer[0],
        )
        return TrainLoader(self._trainer, self.agent, self.actor, self._rollouts, spec, self._notices)

    def discard_pending(self) -> None:
        """Drops the rollouts that were begun ahead, because the weights have become other ones than by updates."""
        if self._rollouts is not None:
            self._rollouts.discard_pending()

    # -- validation -------------------------------------------------------------------------------------------------

    def val_dataloader(self) -> list[EvalLoader]:
        """One loader per protocol; under several ranks each evaluates its share of the instances."""
        if self._rollouts is not None and self._trainer.sanity_checking:
            self._rollouts.check(compat.epochs_at_rollout(self._trainer))
        held_out, seed = self.instances.held_out, self.held_out.seed
        return [
            EvalLoader(self._trainer, protocol, held_out, seed, self.actor, self._notices, self.faults)
            for protocol in self.evaluations
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
        state |= learners_state(self.plan, epochs)
        ahead = self._begun_ahead(epochs)
        return state | ({"ahead": ahead} if ahead else {})

    def _begun_ahead(self, epochs: int) -> dict[str, Any]:
        """The weights of rollouts that have begun ahead of the updates, where some may."""
        return self._rollouts.state_dict(epochs) if self._rollouts and self.staleness else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if compat.is_fitting(self._trainer):  # what is validated or exported may be of any run
            self.check_seed(state_dict)
            load_learners(self.plan, state_dict)
            self.instances.load_state_dict(state_dict["instances"])
            if self._rollouts is not None and "ahead" in state_dict:  # not of a run without staleness
                self._rollouts.load_state_dict(state_dict["ahead"])

    def check_seed(self, state_dict: dict[str, Any]) -> None:
        """Refuses to resume a run of another seed."""
        seed = state_dict["seed"]
        require(
            seed == self.seed,
            "seed_everything",
            self.seed,
            f"the checkpoint's run had {seed}: resume with the same seed, or start a new run",
        )
