"""Whether observations tell the score."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?!\.?\d)")
CERTAIN = 8  # decimals that agree by chance nowhere


class Shown(NamedTuple):
    score: float
    reward: float
    observation: str


def told_score(steps: Iterable[Shown]) -> float | None:
    """A score that observations tell, or None.

    Short numbers such as 0.5 may well stand there for something else, and so may a reward. A number of three decimals
    may stand there by chance: at least two scores must do so, each where it is the score and nowhere else.
    """
    long = [step for step in steps if step.score not in (round(step.score, 2), step.reward)]
    numbers = [_NUMBER.findall(step.observation) for step in long]
    telling = set[float]()
    for step, said in zip(long, numbers, strict=True):
        matching = [number for number in said if _is(number, step.score)]
        elsewhere = any(
            _is(number, step.score)
            for other, found in zip(long, numbers, strict=True)
            if other.score != step.score
            for number in found
        )
        if matching and not elsewhere:
            telling.add(step.score)
            if len(telling) > 1 or any(len(number.partition(".")[2]) >= CERTAIN for number in matching):
                return step.score
    return None


def _is(number: str, score: float) -> bool:
    """Whether a number is the score, rounded to as many decimals."""
    value, decimals = float(number), len(number.partition(".")[2])
    return value == score or value == round(score, decimals)
