"""Evaluates a policy on held-out instances, by a protocol."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from tsr_lightning import statistics
from tsr_lightning.costs import Costs
from tsr_lightning.errors import require
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.probe import check_packing
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer, vocabulary_digest
from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor, ActorSpec
from tsr_lightning.rollout.environments import EnvFactory, Environments
from tsr_lightning.rollout.faults import Faults
from tsr_lightning.rollout.groups import run_groups
from tsr_lightning.rollout.instances import HeldOut, Instance, Instances
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.progress import Progress, Report, unreported
from tsr_lightning.search.retry import Retrying
from tsr_lightning.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The episodes of some held-out instances, one group per instance."""

    protocol: EvalProtocol
    groups: tuple[Group, ...]
    costs: Costs
    seconds: float

    @property
    def episodes(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def success_rate(self) -> float:
        """The share of the episodes that succeeded; nan without episodes."""
        return _mean([float(episode.succeeded) for episode in self.episodes])

    @property
    def mean_return(self) -> float:
        """The mean of the episodes' undiscounted returns; nan without episodes."""
        return _mean([episode.episode_return for episode in self.episodes])

    @property
    def valid_actions(self) -> float:
        """The share of the responses that are valid actions; nan without episodes."""
        return _mean([float(turn.valid) for episode in self.episodes for turn in episode.turns])

    @property
    def success(self) -> statistics.Estimate:
        """The success rate with its 95% interval over instances."""
        return statistics.success_estimate(self._outcomes)

    def pass_at(self, k: int) -> float:
        """The chance that one of k episodes of an instance succeeds. Instances that lost episodes to failures of the
        environment, and have fewer than k, are left out.

        Raises:
            ConfigError: k is not from 1 to the protocol's samples, or no instance has as many.
        """
        outcomes = self._outcomes
        is_known = 1 <= k <= statistics.most_episodes(outcomes)
        require(is_known, "k", k, f"give 1 to {self.protocol.samples}, the protocol's samples")
        return statistics.mean_pass_at_k(outcomes, k)

    @property
    def _outcomes(self) -> statistics.Outcomes:
        return {
            (group.env, group.instance): (sum(one.succeeded for one in group.trajectories), len(group.trajectories))
            for group in self.groups
        }

    def __str__(self) -> str:
        rate, low, high, _ = self.success
        return (
            f"{self.protocol.name}: success rate {rate:.3f} [{low:.3f}, {high:.3f}], return {self.mean_return:.3f}, "
            f"valid actions {self.valid_actions:.3f} in {len(self.episodes)} episodes of {len(self.groups)} instances"
        )


def evaluate(
    policy: Policy | str,
    env: EnvFactory | str,
    protocol: EvalProtocol = EvalProtocol(),  # noqa: B008  (frozen)
    *,
    held_out: HeldOut = HeldOut(),  # noqa: B008  (frozen)
    actor: ActorSpec = ActorSpec(),  # noqa: B008  (frozen)
) -> EvalResult:
    """Plays a policy on the held-out instances of an environment, and returns the episodes.

    The instances and draws are those of the validations of a fit, and so are the figures.

    Args:
        policy: a policy; or the folder or name of a model, which is loaded, to a GPU where there is one.
        env: gymnasium id, or a dotted path such as `package.module:Env-v0`; `EnvFactory.of` takes arguments too.
        protocol: temperature, episodes per instance and search.
        held_out: the instances.
        actor: engine, context, and token limits of responses.

    Raises:
        ConfigError: the protocol searches by a scorer that learns from training rollouts, nothing is held out, or the
            policy is a new model with the vocabulary of another environment.
        RunError: failures of the environment cost more episodes than `Faults` tolerates.

    Examples:
        `evaluate("my_policy", "tsr/Sokoban-v0", EvalProtocol(samples=4)).success_rate`
    """
    protocol.check()
    require(held_out.instances >= 1, "HeldOut.instances", held_out.instances, "give 1 or more, which are played")
    factory = EnvFactory.of(env) if isinstance(env, str) else env
    spec = policy.spec if isinstance(policy, Policy) else PolicySpec(policy)
    tokenizer = load_tokenizer(spec, factory.texts())
    if not isinstance(policy, Policy):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        policy = Policy(spec, tokenizer, critic=False, device=device)
        check_packing(policy, policy.causal_lm.device)
    require(
        policy.vocabulary == vocabulary_digest(tokenizer),
        "env",
        ", ".join(map(str, factory.mixture)),
        "the policy was trained with another vocabulary, so for a new model give the environment's arguments of that "
        "run, or the folder of the exported policy, which has its own tokenizer",
    )
    environments, retry = Environments(factory), Retrying(factory.retries)
    player = Actor(policy, tokenizer, actor, environments, retry)
    try:
        instances = Instances(environments.envs, Key(0), held_out, retry=retry).held_out
        result = evaluate_actor(player, instances, protocol, seed=held_out.seed)
    finally:
        player.close()
    wanted = len(instances) * protocol.samples
    Faults().check(result.costs.trajectories_lost, wanted, f"the evaluation {protocol.name}", retry.last)
    return result


def evaluate_actor(
    actor: Actor,
    instances: Sequence[Instance],
    protocol: EvalProtocol,
    *,
    seed: int,
    places: Sequence[int] | None = None,
    max_lost: int | None = None,
    report: Report = unreported,
    record: bool = False,
) -> EvalResult:
    """Plays held-out instances with the actor's policy as it is now, and returns the episodes.

    Args:
        actor: plays them.
        instances: held out, such as `Instances.held_out`.
        protocol: temperature, episodes per instance and search.
        seed: names the draws: that of the held-out set, so that every policy is evaluated with the same.
        places: of the instances in the held-out set, which name their draws too; None where they are the whole set.
        max_lost: episodes that failures of the environment may cost, past which the rest is given up; None for all.
            Lost episodes are left out.
        report: called after every wave.
        record: keep every turn of every search, in `Trajectory.record`.
    """
    started = time.perf_counter()
    actor.sync()
    driver = actor.driver(protocol.temperature, record=record)
    numbered = list(zip(range(len(instances)) if places is None else places, instances, strict=True))
    begun = Progress(protocol.name)
    groups = run_groups(driver, protocol.tasks(numbered, seed), report, begun, max_lost)
    seconds = time.perf_counter() - started
    return EvalResult(protocol, tuple(group for group in groups if group.trajectories), driver.costs, seconds)


def _mean(figures: Sequence[float]) -> float:
    return fmean(figures) if figures else float("nan")
