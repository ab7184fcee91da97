"""The one error that a user's own input raises: a sentence that names the key, the value and the remedy."""


class ConfigError(ValueError):
    """Bad input, said in one sentence; `tsr` prints it without a traceback."""
