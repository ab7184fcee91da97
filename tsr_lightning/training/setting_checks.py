"""Checks before a run that its objective, plan, updates, precision and staleness go together, and refuses settings that
have no effect where the plan gives the objective nothing to compare."""

from collections.abc import Iterable

from lightning.pytorch import Trainer

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import EngineSpec, Sampling
from tsr_lightning.envs.checker.merging import check_merging
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.rehearsal import rehearse as rehearse_objective
from tsr_lightning.policy.template import ChatTemplate
from tsr_lightning.rollout.collect import DynamicSampling
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.rollout.environments import Environments
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.rehearsal import rehearse
from tsr_lightning.search.strategies import Expert, RandomActions, Strategy
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.mismatch import check_updates
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.trajectory import Origin


def check_fit(
    objective: Objective,
    plan: Plan,
    demonstrations: Demonstrations | None,
    updates: Updates,
    dynamic_sampling: DynamicSampling | None,
) -> None:
    """Refuses what cannot be trained, or has no effect. Arguments as of the RolloutDataModule.

    Raises:
        ConfigError: it names the setting.
    """
    rehearse_objective(objective)
    for strategy in plan.strategies:
        rehearse(strategy)
    check_plan(objective, plan, demonstrations)
    check_updates(objective, updates)
    check_void(objective, plan, updates)
    if dynamic_sampling is not None:
        dynamic_sampling.check(plan)
    if demonstrations is not None:
        _ = demonstrations.conversations  # read here, so that a bad line is refused before a model loads


def check_temperature(of_training: float, sampling: Sampling) -> None:
    """Refuses to train responses at another temperature than that of their sampling."""
    require(
        of_training == sampling.temperature,
        "model.temperature",
        of_training,
        f"give {sampling.temperature}, which is data.sampling.temperature: responses are trained on at the temperature "
        "that they were sampled at",
    )


def check_environments(objective: Objective, strategies: Iterable[Strategy], environments: Environments) -> None:
    """Refuses environments that scorers, demonstrators or a credit by states cannot work with.

    Args:
        objective: of the run.
        strategies: of its rollouts and evaluations.
        environments: one of each entry.
    """
    of_entries = list(zip(environments.factory.mixture, environments.envs, strict=True))
    for strategy in strategies:
        scorer = strategy.traits.scored_by
        for entry, env in of_entries:
            if scorer is not None:
                scorer.check(env)
            if isinstance(strategy, Expert | RandomActions):
                strategy.demonstrator.check(env, entry.env)
    needs = objective.needs
    for _, env in of_entries if needs.merges_states else ():
        check_merging(env, objective.comparing_part, needs.best_of_tree)


def check_template(objective: Objective, template: ChatTemplate) -> None:
    """Refuses a term on observations under a template that changes earlier turns."""
    remedy = (
        "the chat template of model.policy.model changes earlier turns, so that no observation follows a response as "
        "it was sampled; set it to null, or use another model"
    )
    continues = template.is_prefix_preserving or not objective.needs.observations
    require(continues, "model.objective.init_args.observations", "ObservationLoss", remedy)


def check_trainer(trainer: Trainer) -> None:
    """Refuses arguments and callbacks of a Trainer that cut an optimizer step or join two: Lightning counts
    micro-batches."""
    remedy = (
        "it would end an epoch within an optimizer step; leave it out, and for a quick try give trainer.max_epochs 1, "
        "data.instances 4 and data.held_out.instances 4"
    )
    limits = compat.batch_limits(trainer)
    require(not limits.fast_dev_run, "trainer.fast_dev_run", limits.fast_dev_run, remedy)
    require(not limits.overfit_batches, "trainer.overfit_batches", limits.overfit_batches, remedy)
    share = limits.limit_train_batches
    is_whole = share == 0 or (isinstance(share, float) and share == 1)
    require(is_whole, "trainer.limit_train_batches", share, remedy)
    remedy = "it would evaluate within an epoch; leave it out, and give trainer.check_val_every_n_epoch"
    interval = limits.val_check_interval
    is_whole = isinstance(interval, float) and interval == 1
    require(is_whole, "trainer.val_check_interval", interval, remedy)
    if compat.ends_within_epochs(trainer):
        raise ConfigError(
            "trainer.max_time, or a Timer among trainer.callbacks, would end an epoch within an optimizer step: give "
            "lightning.pytorch.callbacks.Timer with interval: epoch, which ends the run after an epoch"
        )
    if compat.schedules_accumulation(trainer):
        raise ConfigError(
            "trainer.callbacks has GradientAccumulationScheduler, which would join optimizer steps of the first epoch "
            "and nothing later: give trainer.accumulate_grad_batches for the fewest micro-batches of a step, or "
            "data.updates.micro_batch_tokens for their size"
        )


def check_processes(trainer: Trainer, *, together: bool) -> None:
    """Refuses processes of torchrun or srun that would not know of each other: Lightning takes no rank from them under
    the default of one device, and each would do the same work.

    Args:
        trainer: of this process.
        together: whether several processes can share the work, as of `fit` and `validate`.

    Raises:
        ConfigError: it names the key and what to give.
    """
    started = compat.processes_started(trainer)
    if started == 1 or (together and compat.are_ranks_of_one_run(trainer, started)):
        return
    told = f"{started} processes were started, as by torchrun or srun"
    if not together:
        raise ConfigError(f"{told}, and each would do the same work: start one process, without a launcher")
    devices, nodes = trainer.num_devices, trainer.num_nodes
    raise ConfigError(
        f"trainer.devices is {devices} and trainer.num_nodes {nodes}, but {told}, which then do not train together: "
        f"give --trainer.devices, the processes of a machine, and --trainer.num_nodes, whose product is {started}"
    )


_CONVERTING = {"bf16-true", "16-true", "transformer-engine", "transformer-engine-float16"}


def check_precision(trainer: Trainer) -> None:
    """Raises a ConfigError for a precision that turns the trained weights, adapters too, into 16 bits."""
    remedy = (
        "it turns trained weights and adapters into 16 bits, which AdamW hardly moves (2% of the movement asked for at "
        "a learning rate of 1e-6), so give bf16-mixed for speed, or 32-true"
    )
    require(trainer.precision not in _CONVERTING, "trainer.precision", trainer.precision, remedy)
    remedy = "nothing here needs it, and Lightning cannot convert what is trained on; give 32-true"
    require(trainer.precision != "64-true", "trainer.precision", trainer.precision, remedy)


_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # which set nothing for the whole process


def check_staleness(staleness: int, updates: Updates, world_size: int, precision: str) -> None:
    """Refuses a `data.staleness` that a run cannot have."""
    key, is_ahead = "data.staleness", staleness > 0
    require(staleness >= 0, key, staleness, "give 0 to collect before the updates, or the epochs that may lie between")
    remedy = (
        "data.updates.reuse_logprobs takes the sampler's log-probabilities for the trainer's, and a stale sampler's "
        "are others; set that to auto or false, or use 0"
    )
    require(not (is_ahead and updates.reuse_logprobs is True), key, staleness, remedy)
    tolerance = updates.mismatch_tolerance
    remedy = (
        f"data.updates.mismatch_tolerance {tolerance} would stop the run, since a stale sampler's log-probabilities "
        "are not the trainer's; set that to auto or null, or use 0"
    )
    require(not is_ahead or tolerance in ("auto", None), key, staleness, remedy)
    remedy = f"rollouts beside updates need a single process, and there are {world_size}; use 0, or one device"
    require(not is_ahead or world_size == 1, key, staleness, remedy)
    remedy = (
        f"trainer.precision {precision} sets a default type for the whole process, which rollouts and updates share; "
        f"use 0, or one of {', '.join(_PRECISIONS)}"
    )
    require(not is_ahead or precision in _PRECISIONS, key, staleness, remedy)


def check_ranks(engine: EngineSpec, world_size: int) -> None:
    """Refuses an engine that serves a single process in a run of several."""
    remedy = f"it serves a single process, and there are {world_size}; use Transformers, or one device"
    require(world_size == 1 or engine.serves_ranks, "data.engine", type(engine).__name__, remedy)


def check_void(objective: Objective, plan: Plan, updates: Updates) -> None:
    """Refuses what acts on compared trajectories alone where every trajectory of every epoch is imitated or left out.

    Args:
        objective: as configured.
        plan: of the rollouts.
        updates: the settings.
    """
    if _compares_anything(objective, plan):
        return
    name = type(objective).__name__
    remedy = (
        f"all that data.plan rolls out is imitated or left out, {name} compares none of it, and then it does nothing; "
        "leave it at the default, let the plan sample (--config search/sample.yaml), or use the credit Unchanged"
    )
    for key, value in objective.comparison_settings.items():
        require(False, f"{name}.{key}", value, remedy)
    correction = type(updates.correction).__name__
    require(updates.correction is None, "data.updates.correction", correction, remedy)


def says_nothing_is_compared(objective: Objective, plan: Plan) -> str | None:
    """A line for the start of a run in which no return is compared with another; None where one is."""
    strategies = plan.strategies
    if not strategies or _compares_anything(objective, plan):
        return None
    name = type(objective).__name__
    if all(strategy.traits.origin is Origin.DEMONSTRATED for strategy in strategies):
        return f"{name} compares nothing here: demonstrations are imitated (supervised learning)"
    if not objective.compares(Origin.SAMPLED):
        return f"{name} compares nothing: the trajectories that it imitates become more likely, others are left out"
    return (
        f"{name} compares nothing here: all trajectories are of searches ({', '.join(_names(strategies))}), whose "
        "successes are imitated and whose failures are left out (expert iteration)"
    )


def _names(strategies: Iterable[Strategy]) -> list[str]:
    return sorted({type(strategy).__name__ for strategy in strategies})


def _compares_anything(objective: Objective, plan: Plan) -> bool:
    traits = [
        entry.strategy.traits for epoch in range(plan.constant_from + 1) for entry in plan.entries(epoch) if entry.count
    ]
    return any(objective.compares(each.origin) or (objective.needs.tree and each.branches) for each in traits)
