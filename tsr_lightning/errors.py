"""Errors by who can mend them: the user's input, the run, or an environment that may work at the next try; and how an
error is told."""

import os
import sysconfig
import traceback
from pathlib import Path

_LIBRARIES = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).parent}{os.sep}",  # this package
    "<",  # code that was generated, such as a dataclass's
)


class ConfigError(ValueError):
    """Bad input, explained in one sentence; `tsr` prints it without a traceback."""


class RunError(RuntimeError):
    """What broke at run time, explained in one sentence; `tsr` prints it and ends with status 1.

    Args:
        sentence: what broke, where, and what to do about it.
        details: lines that are printed before it, such as the traceback of a user's own code.
    """

    def __init__(self, sentence: str, details: str = "") -> None:
        super().__init__(sentence, details)
        self.sentence = sentence
        self.details = details

    def __str__(self) -> str:
        return self.sentence


class EnvFault(Exception):
    """A failure of what an environment depends on, such as a page that does not load. Environments may raise it: the
    call is tried again with the same draws, and counted."""


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


def describe(error: BaseException) -> str:
    """The class and message of an error, and the line that raised it: the innermost one outside of libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f"{named(error)} at {_readable(own[-1].filename)}:{own[-1].lineno}" if own else named(error)


def named(error: BaseException) -> str:
    """The class and message of an error, for a log or a terminal."""
    return printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def printable(text: str) -> str:
    """A text whose control characters are escaped, all but line ends and tabs: a terminal obeys them, and errors repeat
    texts of web pages and of policies."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def _readable(file: str) -> str:
    """A path as seen from the working folder, where it lies below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def require_coefficient(key: str, value: float) -> None:
    require(0 <= value < float("inf"), key, value, "a coefficient is not negative; use 0 to leave the term out")


def require_fraction(key: str, value: float) -> None:
    require(0 <= value <= 1, key, value, "it lies between 0 and 1; use e.g. 1.0")
