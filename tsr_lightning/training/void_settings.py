"""Refuses settings that have no effect because a plan gives the objective nothing to compare."""

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.search.plan import Plan


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


def _compares_anything(objective: Objective, plan: Plan) -> bool:
    traits = [
        entry.strategy.traits for epoch in range(plan.constant_from + 1) for entry in plan.entries(epoch) if entry.count
    ]
    return any(objective.compares(each.origin) or (objective.needs.tree and each.branches) for each in traits)
