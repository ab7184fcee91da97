"""Takes a command line apart into files, flags and words, as the parser does, before the parser is there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONFIG = ("--config", "-c")


@dataclass(frozen=True)
class File:
    """`--config NAME`."""

    name: str


@dataclass(frozen=True)
class Flag:
    """`--key value` or `--key=value`; the value is None where none is given."""

    key: str
    value: str | None

    def __str__(self) -> str:
        return f"--{self.key}" if self.value is None else f"--{self.key} {self.value}"


@dataclass(frozen=True)
class Word:
    """What stands where a flag is expected."""

    text: str


def parts(args: Sequence[str]) -> Iterator[File | Flag | Word]:
    """The parts of what follows a subcommand, in their order."""
    waiting = list(reversed(args))
    while waiting:
        given = waiting.pop()
        if not given.startswith("-"):
            yield Word(given)
            continue
        flag, has_value, value = given.partition("=")
        if not has_value and waiting and not waiting[-1].startswith("--"):
            has_value, value = "=", waiting.pop()
        if flag in CONFIG and has_value:
            yield File(value)
        else:
            yield Flag(flag.lstrip("-"), value if has_value else None)
