"""How an objective refuses a bad argument: one sentence that names the key, the value and the remedy."""

from tsr_lightning.errors import ConfigError


def require(valid: bool, key: str, value: object, remedy: str) -> None:
    """Write `valid` so that NaN fails it: `x > 0`, not `not x <= 0`."""
    if not valid:
        raise ConfigError(f"objective.{key} is {value}: {remedy}")


def require_clip(key: str, value: float, example: float) -> None:
    require(value > 0, key, value, f"a clip is a positive width around a ratio of 1; use e.g. {example}")


def require_coefficient(key: str, value: float) -> None:
    require(0 <= value < float("inf"), key, value, "a coefficient is not negative; use 0 to leave the term out")


def require_fraction(key: str, value: float) -> None:
    require(0 <= value <= 1, key, value, "a discount lies between 0 and 1; use e.g. 1.0")
