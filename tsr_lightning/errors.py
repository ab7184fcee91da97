"""The error that bad input raises: one sentence that names the key, the value and the remedy."""


class ConfigError(ValueError):
    """Bad input, explained in one sentence; `tsr` prints it without a traceback."""


def require(valid: bool, key: str, value: object, remedy: str) -> None:
    """Raises a ConfigError unless `valid`. Write `valid` so that NaN fails it: `x > 0`, not `not x <= 0`.

    Args:
        valid: whether the value can be used.
        key: as a user finds it: `ClassName.argument`, or the whole dotted key such as `data.instances`.
        value: what was given.
        remedy: what to give instead.
    """
    if not valid:
        raise ConfigError(f"{key} is {value!r}: {remedy}")
