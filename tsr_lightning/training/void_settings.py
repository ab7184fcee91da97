"""Runs whose plan gives the objective nothing to compare: says so, and refuses settings that then have no effect."""

from collections.abc import Iterable

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.trajectory import Origin


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
