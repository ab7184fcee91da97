"""Finds scores in observations."""

import re
from collections.abc import Iterable

from tsr_lightning.envs.checker.recording import StepRecord

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?!\.?\d)")
CERTAIN = 8  # decimals that never agree by chance


def leaked_score(records: Iterable[StepRecord]) -> float | None:
    """A score that observations contain, or None.

    Short numbers such as 0.5 may mean something else, and so may a reward. A number of three decimals may agree by
    chance: at least two scores must be in their own observations, and in no observation of another score.
    """
    numbers = [
        (record.after.score, _NUMBER.findall(record.observation))
        for record in records
        if record.after.score not in (round(record.after.score, 2), record.reward)
    ]
    leaked = set[float]()
    for score, found in numbers:
        matching = [number for number in found if _is(number, score)]
        if matching and not any(_is(number, score) for other, there in numbers if other != score for number in there):
            leaked.add(score)
            if len(leaked) > 1 or any(len(number.partition(".")[2]) >= CERTAIN for number in matching):
                return score
    return None


def _is(number: str, score: float) -> bool:
    """Whether a number is the score, rounded to as many decimals."""
    value, decimals = float(number), len(number.partition(".")[2])
    return value == score or value == round(score, decimals)
