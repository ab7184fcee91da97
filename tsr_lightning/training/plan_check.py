"""Checks that an objective can learn from all that a plan rolls out."""

from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.search.plan import Plan
from tsr_lightning.trajectory import Origin


def check_plan(objective: Objective, plan: Plan) -> None:
    """Refuses a plan that in some epoch rolls out what the objective cannot learn from.

    A trajectory whose return is compared needs others of its group for that. One that is imitated needs none, so groups
    of one search are allowed where successes are imitated.
    """
    name, least = type(objective).__name__, objective.minimum_compared
    for strategy in plan.strategies:
        require(
            strategy.origin is not Origin.DEMONSTRATED or objective.takes_demonstrations,
            "data.plan",
            type(plan).__name__,
            f"the demonstrations of {type(strategy).__name__} are no samples of the policy, and {name} learns from "
            "samples; train on them with the objective SFT, before or instead",
        )
    for epoch in range(plan.constant_from + 1):
        compared = sum(entry.count for entry in plan.entries(epoch) if objective.compares(entry.strategy.origin))
        require(
            compared == 0 or compared >= least,
            "data.plan",
            type(plan).__name__,
            f"it makes groups of {plan.group_size}, of which {name} compares {compared} in epoch {epoch}; without "
            f"others there is no baseline, so let it compare at least {least}, or none (searched ones under "
            "ImitateSuccesses are imitated and need no group), or use PPO",
        )
