"""How a participant in a process of its own is spoken to: a lap is asked for, figures are answered, a JSON a line.

Knows no torch.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Line:
    """The participant's end. Iterating over it waits for the next lap, until there are no more.

    Args:
        asks: where laps come from.
        answers: where figures go to.
    """

    def __init__(self, asks: TextIO, answers: TextIO) -> None:
        self._asks = asks
        self._answers = answers

    @classmethod
    def of_this_process(cls) -> "Line":
        """Standard input and output; whatever a library prints goes to standard error from here on."""
        answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(sys.stdin, answers)

    def __iter__(self) -> Iterator[int]:
        for ask in self._asks:
            yield int(ask)

    def ready(self, settings: str) -> None:
        """Loaded, tuned and warm."""
        self.answer({"settings": settings})

    def answer(self, figures: dict[str, Any]) -> None:
        self._answers.write(json.dumps(figures) + "\n")
        self._answers.flush()
