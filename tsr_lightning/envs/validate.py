"""What is said when an argument of an environment cannot be used."""

from tsr_lightning.errors import ConfigError


def whole(name: str, value: object, at_least: int = 1) -> None:
    """Raise unless `value` is a whole number, and not too small."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{name} is {value!r}: give a whole number of at least {at_least}.")


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the names."""
    if value not in known:
        raise ConfigError(f"{name} is {value!r}: take one of {', '.join(known)}.")


def share(name: str, value: object) -> None:
    """Raise unless `value` lies between 0 and 1."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}: give a number from 0 to 1.")
