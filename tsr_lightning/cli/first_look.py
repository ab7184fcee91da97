"""Answers what needs no PyTorch, and so no second of waiting: help, versions, and most mistakes of a command line."""

import argparse
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from tsr_lightning.cli.config_files import read_config
from tsr_lightning.cli.order import Word, check_order, parts
from tsr_lightning.cli.subcommands import ALL, DESCRIPTION, RUNS
from tsr_lightning.cli.suggestions import suggestion
from tsr_lightning.errors import ConfigError

_LIBRARIES = ("torch", "lightning", "transformers", "peft", "jsonargparse")


def look(args: Sequence[str]) -> None:
    """Prints and exits for `--help` and `--version`.

    Raises:
        ConfigError: there is no such subcommand or file, or flags and files are in an order that means something else.
    """
    if args[:1] in (["--help"], ["-h"]):
        _parser().print_help()
        sys.exit(0)
    if args[:1] in (["--version"], ["-V"]):
        print(versions())
        sys.exit(0)
    start = next((place for place, given in enumerate(args) if given in ALL), None)
    if start is None:
        raise ConfigError(_no_subcommand(args))
    if args[start] in RUNS:
        check_run_flags(args[start], args[start + 1 :])


def versions() -> str:
    """This package's version and those of what it computes with, in one line."""
    own = [f"tsr {_version('tsr-lightning')}", f"Python {platform.python_version()}"]
    return ", ".join([*own, *(f"{name} {_version(name)}" for name in _LIBRARIES)])


def check_run_flags(subcommand: str, args: Sequence[str]) -> None:
    """Refuses words without dashes, files that cannot be read, and an order in which something is lost."""
    given = list(parts(args))
    for part in given:
        if isinstance(part, Word):
            raise ConfigError(_word(subcommand, part.text))
    check_order(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsr",
        description=DESCRIPTION,
        epilog="tsr SUBCOMMAND --help lists what a subcommand takes. Begin with: tsr fit --config quickstart.yaml",
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the versions of tsr and its libraries")
    subcommands = parser.add_subparsers(title="subcommands")
    for name, sentence in ALL.items():
        subcommands.add_parser(name, help=sentence)
    return parser


def _no_subcommand(args: Sequence[str]) -> str:
    word = next((part.text for part in parts(args) if isinstance(part, Word)), None)
    if word is None:
        return f"no subcommand was given: use {', '.join(f'tsr {name}' for name in ALL)}, or tsr --help"
    if _is_config(word):
        return f"{word} is no subcommand: did you mean tsr fit --config {word}?"
    return f"{word} is no subcommand: {suggestion(word, ALL) or 'choose from ' + ', '.join(ALL)}"


def _word(subcommand: str, text: str) -> str:
    key, is_key, _ = text.partition("=")
    if _is_config(text):
        return f"{text} stands without a flag: did you mean tsr {subcommand} --config {text}?"
    if is_key or "." in key:
        return f"{text} has no dashes: did you mean --{text}?"
    return f"{text} belongs to no flag: write --key value, as tsr {subcommand} --help lists them"


def _is_config(text: str) -> bool:
    if text.endswith((".yaml", ".yml")):
        return True
    try:
        return "=" not in text and "." not in text and bool(read_config(f"{text}.yaml"))
    except ConfigError:
        return False


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
