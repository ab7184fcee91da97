"""Argument checks that objectives share."""

from tsr_lightning.errors import require
from tsr_lightning.objectives.terms import PolicyLossArguments


def require_policy_loss_arguments(objective: PolicyLossArguments) -> None:
    """Checks the arguments of `policy_loss`."""
    name = type(objective).__name__
    for argument, clip, example in (("clip_high", objective.clip_high, 0.28), ("clip_low", objective.clip_low, 0.2)):
        remedy = f"a clip is a positive width around a ratio of 1; use e.g. {example}"
        require(clip > 0, f"{name}.{argument}", clip, remedy)
    require_coefficient(f"{name}.entropy_coefficient", objective.entropy_coefficient)
    require_coefficient(f"{name}.kl_coefficient", objective.kl_coefficient)


def require_coefficient(key: str, value: float) -> None:
    require(0 <= value < float("inf"), key, value, "a coefficient is not negative; use 0 to leave the term out")


def require_fraction(key: str, value: float) -> None:
    require(0 <= value <= 1, key, value, "it lies between 0 and 1; use e.g. 1.0")
