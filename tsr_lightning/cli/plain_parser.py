"""A parser for the subcommands that configure no run: mistakes are one sentence, as everywhere in `tsr`."""

import argparse
from typing import NoReturn

from tsr_lightning.errors import ConfigError


class PlainParser(argparse.ArgumentParser):
    """argparse's, which raises a ConfigError where that would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; {self.prog} --help lists what it takes")


def at_least_one(text: str) -> int:
    """The type of a flag that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)
