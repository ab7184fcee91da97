"""Argument checks that objectives share."""

from tsr_lightning.errors import require


def require_coefficient(key: str, value: float) -> None:
    require(0 <= value < float("inf"), key, value, "a coefficient is not negative; use 0 to leave the term out")


def require_fraction(key: str, value: float) -> None:
    require(0 <= value <= 1, key, value, "it lies between 0 and 1; use e.g. 1.0")
