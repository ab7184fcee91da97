"""Formats the help of a key, for `--help` and as the comment above it in `--print_config=comments`."""

import re
from argparse import Action

from jsonargparse import DefaultHelpFormatter


class ShortHelp(DefaultHelpFormatter):
    """jsonargparse's formatter, with the names of classes as a configuration may write them."""

    def _expand_help(self, action: Action) -> str:
        return shortened(super()._expand_help(action))


def shortened(text: str) -> str:
    """The text with classes by name instead of by path, and without reStructuredText's marks."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "`")
    text = re.sub(r"<class '([^']*)'>", r"\1", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Z]\w*)", r"\1", text)
