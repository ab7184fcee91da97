"""Checks of whole episodes: a seed names one episode, budget, score and info are as the contract says, and observations
hold no score."""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NoReturn

from tsr_lightning.envs.base import HasLegalActions, HasOracle
from tsr_lightning.envs.checker.factory import BranchabilityError
from tsr_lightning.envs.checker.recording import FLAGS, Recorder, StepRecord, differences, first_difference, listed
from tsr_lightning.envs.checker.state_keys import effect_problem
from tsr_lightning.rng import Key

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?!\.?\d)")
CERTAIN = 8  # decimals that never agree by chance


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
            fail("contract", "it has no legal_actions: add them, or give check_branchable the `responses` to play")
        fail("contract", "legal_actions() is empty in the initial state")
    if start.remaining <= 0:
        fail("budget", f"remaining() is {start.remaining} in the initial state")
    records = [begun]
    if isinstance(env, HasOracle):
        records += recorder.play(env.oracle() for _ in range(recorder.turns))
        check_steps(records[1:])
    steps = recorder.play_randomly(Key(seed).fold_in("episode"))
    responses = [step.response for step in steps]
    check_steps(steps)
    if found := first_difference(steps, recorder.replay(responses)):
        if _survives_reset(recorder, seed, responses):
            fail("reset", f"something of the last episode survives it, so a seed gave two episodes: {listed(found)}")
        fail("shared noise", f"a seed gave two episodes, so there is noise from elsewhere: {listed(found)}")
    # again without calling score(): the observations must not depend on it
    env.reset(seed=seed)
    if [env.step(response)[0] for response in responses] != [step.observation for step in steps]:
        fail("score", "calling it, state_key(), remaining() or legal_actions() changes the observations")
    return responses, records + steps


def _survives_reset(recorder: Recorder, seed: int, responses: list[str]) -> bool:
    """Whether new environments agree on an episode of which a used one gave two."""
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
    if missing := [name for name in FLAGS if not isinstance(step.info.get(name), bool)]:
        return "contract", f"info lacks {', '.join(missing)}, or it is no bool, at {response!r}"
    valid = step.info["action_is_valid"]
    if response in before.legal and not valid:
        return "contract", f"step() calls {response!r} invalid, which legal_actions() offers"
    if step.info["success"] and after.score != 1.0:
        return "score", f"it is {after.score}, not 1, in a success, at {response!r}"
    if after.remaining > before.remaining or (valid and after.remaining == before.remaining):
        return "budget", f"remaining() went from {before.remaining} to {after.remaining}, at {response!r}"
    if not step.done and after.remaining <= 0:
        return "budget", f"remaining() is {after.remaining} and the episode goes on, at {response!r}"
    return effect_problem(before, step)


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
