"""Checks of whole episodes: a seed names one episode, budget, score and info are as the contract says, and observations
hold no score."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from tsr_lightning.envs.base import HasLegalActions, HasOracle
from tsr_lightning.envs.checker.factory import BranchabilityError
from tsr_lightning.envs.checker.recording import Recorder, StepRecord, differences, first_difference, listed
from tsr_lightning.envs.checker.reported import FLAGS, as_text
from tsr_lightning.envs.checker.state_keys import effect_problem
from tsr_lightning.rng import Key

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?!\.?\d)")
_PERCENTAGE = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?) ?%")
NOISE = 0.5  # of an oracle
CERTAIN = 8  # decimals that never agree by chance
LIKELY = 3  # decimals that hardly agree by chance twice; fewer hardly do so for this many scores


def check_episode(recorder: Recorder, seed: int) -> tuple[list[str], list[StepRecord]]:
    """Checks an episode of random responses and, where there is an oracle, one of the oracle.

    Returns the random responses, and the records of both episodes.
    """
    env, responses = recorder.env, list[str]()

    def fail(name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({recorder.factory.name}, seed {seed}, responses {responses})")

    def check_steps(steps: list[StepRecord]) -> None:
        for before, step in pairwise([begun, *steps]):
            if problem := _step_problem(before, step):
                fail(*problem)
        recorder.reset(seed)

    begun = recorder.reset(seed)
    if found := differences(begun, recorder.reset(seed)):
        fail("reset", f"a seed gave two initial states: {listed(found)}")
    start = begun.after
    if not start.legal and not recorder.responses:
        if not isinstance(env, HasLegalActions):
            fail(
                "responses",
                "nothing to play without legal_actions; give check-env --response, check_branchable `responses`",
            )
        fail("contract", "legal_actions() is empty in the initial state")
    if start.remaining <= 0:
        fail("budget", f"remaining() is {start.remaining} in the initial state")
    shown = list[StepRecord]()  # by the oracle
    if isinstance(env, HasOracle):
        _check_signature(env, fail)
        keys = (Key(seed).fold_in("oracle", turn) for turn in range(recorder.turns))
        shown = recorder.play(_ask_oracle(recorder, env, key, fail) for key in keys)
        check_steps(shown)
    steps = recorder.play_randomly(Key(seed).fold_in("episode"))
    responses = [step.response for step in steps]
    check_steps(steps)
    if found := first_difference(steps, recorder.replay(responses)):
        if _survives_reset(recorder, seed, responses):
            fail("reset", f"something of the last episode survives it, so a seed gave two episodes: {listed(found)}")
        fail("shared noise", f"a seed gave two episodes, so there is noise from elsewhere: {listed(found)}")
    # again without calling score(): the observations must not depend on it
    env.reset(seed=seed)
    if [as_text(env.step(response)[0]) for response in responses] != [step.observation for step in steps]:
        fail("score", "calling it, state_key(), remaining() or legal_actions() changes the observations")
    recorder.reset(seed)
    if found := first_difference(shown, recorder.replay(_without_oracle(recorder, shown))):
        responses = [step.response for step in shown]
        fail("oracle", f"calling it changes the steps after it: {listed(found)}")
    return responses, [begun, *shown, *steps]


def _check_signature(env: HasOracle, fail: Callable[[str, str], NoReturn]) -> None:
    try:
        inspect.signature(env.oracle).bind(NOISE, Key(0))
    except TypeError as error:
        fail("oracle", f"a run calls oracle(noise, key), which it does not take ({error}); give it both arguments")


def _ask_oracle(recorder: Recorder, env: HasOracle, key: Key, fail: Callable[[str, str], NoReturn]) -> str:
    """The oracle's response, whose call must leave the state as it is, and the noise to its key."""
    before = recorder.record_state()
    response: Any = env.oracle()  # an environment may break its own annotations
    if not isinstance(response, str):
        fail("oracle", f"it returns {response!r}; return the text of a response")
    noisy = [env.oracle(NOISE, key) for _ in range(2)]
    if noisy[0] != noisy[1]:
        fail("oracle", f"one key gave {noisy[0]!r} and {noisy[1]!r} in one state: draw its noise from the key")
    if found := differences(before, recorder.record_state()):
        fail("oracle", f"calling it changes the state: {listed(found)}")
    return response


def _without_oracle(recorder: Recorder, shown: Iterable[StepRecord]) -> Iterator[str]:
    """The oracle's responses with all calls that came before them but its own."""
    for step in shown:
        recorder.record_state()
        recorder.record_state()
        yield step.response


def _survives_reset(recorder: Recorder, seed: int, responses: list[str]) -> bool:
    """True if new environments agree on an episode of which a used one gave two."""
    futures = list[list[StepRecord]]()
    for _ in range(4):
        if (twin := recorder.twin()) is None:
            return False
        twin.env.reset(seed=seed)
        futures.append(twin.replay(responses))
    return not any(first_difference(futures[0], other) for other in futures)


def _step_problem(last: StepRecord, step: StepRecord) -> tuple[str, str] | None:
    """The property that a step breaks, and how."""
    before, response, after = last.after, step.response, step.after
    if missing := [name for name in FLAGS if name not in step.info]:
        return "contract", f"info lacks {', '.join(missing)}, at {response!r}"
    valid = step.info["action_is_valid"]
    if response in before.legal and not valid:
        return "contract", f"step() calls {response!r} invalid, which legal_actions() offers"
    if step.info["success"] and after.score != 1.0:
        return "score", f"it is {after.score}, not 1, in a success, at {response!r}"
    if step.info["success"] and not step.done:
        remedy = "end it there with terminated=True, since a run takes what comes last for the outcome"
        return "contract", f"info['success'] is True and the episode goes on, at {response!r}: {remedy}"
    if step.done and not step.info["success"] and after.score == 1.0:
        return "score", f"it is 1 in an episode that ended without success, at {response!r}"
    if after.remaining > before.remaining or (valid and after.remaining == before.remaining):
        return "budget", f"remaining() went from {before.remaining} to {after.remaining}, at {response!r}"
    if not step.done and after.remaining <= 0:
        return "budget", f"remaining() is {after.remaining} and the episode goes on, at {response!r}"
    return effect_problem(before, step)


@dataclass(frozen=True, slots=True)
class _Mention:
    """A number of an observation that may be a score."""

    value: float
    decimals: int

    def may_be(self, score: float) -> bool:
        """True if it is the score, rounded or cut to as many decimals."""
        unit = 10.0**-self.decimals
        return abs(self.value - score) <= 0.5001 * unit or 0 <= score - self.value < unit


def leaked_score(records: Iterable[StepRecord]) -> float | None:
    """A score that observations contain, as a number or as a percentage, or None.

    Short numbers such as 0.5 may mean something else, and so may a reward. A number of three decimals may agree by
    chance: at least two scores must be in their own observations, and in no observation of another score. Of whole
    percentages it takes three.
    """
    numbers = [
        (record.after.score, _mentions(record)) for record in records if record.after.score not in (0, 1, record.reward)
    ]
    leaked: dict[float, int] = {}  # the most decimals by score
    for score, found in numbers:
        matching = [mention.decimals for mention in found if mention.may_be(score)]
        others = (mention for other, there in numbers if other != score for mention in there)
        if matching and not any(mention.may_be(score) for mention in others):
            leaked[score] = max(matching)
    long = [score for score, decimals in leaked.items() if decimals >= LIKELY]
    certain = [score for score, decimals in leaked.items() if decimals >= CERTAIN]
    if certain or len(long) > 1 or len(leaked) >= LIKELY:
        return next(iter(certain or long or leaked))
    return None


def _mentions(record: StepRecord) -> list[_Mention]:
    """Numbers of an observation in units of the score: long ones as they are and as percentages, and percentages."""
    long = [] if record.after.score == round(record.after.score, 2) else _NUMBER.findall(record.observation)
    hundredths = [*long, *_PERCENTAGE.findall(record.observation)]
    decimals = [(number, len(number.partition(".")[2])) for number in hundredths]
    return [
        *(_Mention(float(number), places) for number, places in decimals[: len(long)]),
        *(_Mention(float(number) / 100, places + 2) for number, places in decimals),
    ]
