"""Checks of whole episodes: a seed names one episode; budget, score and info are as the contract says."""

from typing import NoReturn

from tsr_lightning.envs.base import HasOracle
from tsr_lightning.envs.checker import state_keys
from tsr_lightning.envs.checker.factory import BranchabilityError, EnvFactory
from tsr_lightning.envs.checker.recording import (
    Recorder,
    StateRecord,
    StepRecord,
    differences,
    first_difference,
    listed,
)
from tsr_lightning.envs.checker.score_leaks import ScoredObservation
from tsr_lightning.rng import Key

INFO_KEYS = ("success", "action_is_valid", "action_is_effective")


def check_episode(factory: EnvFactory, recorder: Recorder, seed: int) -> tuple[list[str], list[ScoredObservation]]:
    """Checks an episode of random responses and, where there is an oracle, one of the oracle.

    Returns the random responses, and all scores with their observations.
    """
    responses: list[str] = []

    def fail(name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({factory.name}, seed {seed}, responses {responses})")

    first, _ = recorder.env.reset(seed=seed)
    start = recorder.record_state()
    again, _ = recorder.env.reset(seed=seed)
    if found := {"observation": again} if first != again else differences(start, recorder.record_state()):
        fail("reset", f"a seed gave two initial states: {listed(found)}")
    if not start.legal and not recorder.responses:
        if recorder.lists_actions is None:
            fail("contract", "it has no legal_actions: add them, or give check_branchable the `responses` to play")
        fail("contract", "legal_actions() is empty in the initial state")
    if start.remaining <= 0:
        fail("budget", f"remaining() is {start.remaining} in the initial state")
    scored = [ScoredObservation(start.score, 0.0, first)]

    def check_steps(played: list[str], steps: list[StepRecord]) -> None:
        for before, response, step in zip([start, *(step.after for step in steps)], played, steps, strict=False):
            if problem := _step_problem(before, response, step):
                fail(*problem)
        scored.extend(ScoredObservation(step.after.score, step.reward, step.observation) for step in steps)
        recorder.env.reset(seed=seed)
        recorder.record_state()

    if isinstance(recorder.env, HasOracle):
        check_steps(*recorder.play_oracle(recorder.env))
    responses, steps = recorder.play_randomly(Key(seed).fold_in("episode"))
    check_steps(responses, steps)
    if found := first_difference(steps, recorder.play(responses)):
        if _survives_reset(factory, recorder, seed, responses):
            fail("reset", f"something of the last episode survives it, so a seed gave two episodes: {listed(found)}")
        fail("shared noise", f"a seed gave two episodes, so there is noise from elsewhere: {listed(found)}")
    # again without calling score(): the observations must not depend on it
    recorder.env.reset(seed=seed)
    observations = [recorder.env.step(response)[0] for response in responses]
    if observations != [step.observation for step in steps]:
        fail("score", "calling it, state_key(), remaining() or legal_actions() changes the observations")
    return responses, scored


def _survives_reset(factory: EnvFactory, recorder: Recorder, seed: int, responses: list[str]) -> bool:
    """Whether new environments agree on an episode of which a used one gave two."""
    if factory.make is None:
        return False
    futures = list[list[StepRecord]]()
    for _ in range(4):
        new = recorder.like(factory.make())
        new.env.reset(seed=seed)
        futures.append(new.play(responses))
    return not any(first_difference(futures[0], other) for other in futures)


def _step_problem(before: StateRecord, response: str, step: StepRecord) -> tuple[str, str] | None:
    """The property that a step breaks, and how."""
    after = step.after
    if missing := [name for name in INFO_KEYS if not isinstance(step.info.get(name), bool)]:
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
    return state_keys.step_problem(before, response, step)
