"""Finds scores in observations."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?!\.?\d)")
CERTAIN = 8  # decimals that never agree by chance


class ScoredObservation(NamedTuple):
    score: float
    reward: float
    observation: str


def leaked_score(steps: Iterable[ScoredObservation]) -> float | None:
    """A score that observations contain, or None.

    Short numbers such as 0.5 may mean something else, and so may a reward. A number of three decimals may agree by
    chance: at least two scores must be in their own observations, and in no observation of another score.
    """
    long = [step for step in steps if step.score not in (round(step.score, 2), step.reward)]
    numbers = [_NUMBER.findall(step.observation) for step in long]
    leaked = set[float]()
    for step, found in zip(long, numbers, strict=True):
        matching = [number for number in found if _is(number, step.score)]
        elsewhere = any(
            _is(number, step.score)
            for other, others in zip(long, numbers, strict=True)
            if other.score != step.score
            for number in others
        )
        if matching and not elsewhere:
            leaked.add(step.score)
            if len(leaked) > 1 or any(len(number.partition(".")[2]) >= CERTAIN for number in matching):
                return step.score
    return None


def _is(number: str, score: float) -> bool:
    """Whether a number is the score, rounded to as many decimals."""
    value, decimals = float(number), len(number.partition(".")[2])
    return value == score or value == round(score, decimals)
