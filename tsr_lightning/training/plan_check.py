"""What a plan rolls out, held against what an objective learns from."""

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.base import Objective
from tsr_lightning.search.plan import Plan
from tsr_lightning.trajectory import Origin


def check_plan(objective: Objective, plan: Plan) -> None:
    """Refuses a plan that in some epoch rolls out what the objective cannot learn from.

    A trajectory whose return is compared needs others of its group to be compared with. One that is imitated needs
    none, so groups of one search are fine where successes are imitated.
    """
    name, least = type(objective).__name__, objective.minimum_compared
    demonstrating = [s for s in plan.strategies if s.origin is Origin.DEMONSTRATED]
    if demonstrating and not objective.takes_demonstrations:
        raise ConfigError(
            f"data.plan uses {type(demonstrating[0]).__name__}, whose demonstrations are no samples of the policy, and "
            f"{name} learns from samples: train on them with the objective SFT, before or instead"
        )
    for epoch in range(plan.constant_from + 1):
        compared = sum(s.count for s in plan.entries(epoch) if objective.compares(s.strategy.origin))
        if 0 < compared < least:
            raise ConfigError(
                f"data.plan makes groups of {plan.group_size}, of which {name} compares {compared} in epoch {epoch}: "
                f"without others there is no baseline, so let it compare at least {least}, or none (searched ones "
                "under ImitateSuccesses are imitated and need no group), or use PPO"
            )
