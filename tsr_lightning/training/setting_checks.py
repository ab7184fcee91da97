"""Checks before a run that its objective, plan and updates go together."""

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.rehearsal import rehearse as rehearse_objective
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.rollout.dynamic_sampling import DynamicSampling
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.rehearsal import rehearse
from tsr_lightning.training.mismatch import check_updates
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.training.void_settings import check_void


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
