"""Checks of `state_key`: equal for states that go on the same, and only for them. Search prunes by it.

States of one episode with equal keys are compared, whatever budget is left. The same responses under the same reseed
must give the same rewards, ends, flags of info, legal actions and keys, up to a truncation. Observations may show the
history and are not compared; neither are scores where budgets or the returns so far differ, which a score may count.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tsr_lightning.envs.checker.recording import (
    UNREADABLE,
    StateRecord,
    StepRecord,
    outcome,
    outcome_difference,
)
from tsr_lightning.envs.checker.reported import FLAGS
from tsr_lightning.envs.checker.snapshots import Snapshot

BRANCHING = (6, 3)  # legal responses tried at the snapshot, and after each of them
PAIRS = 3  # compared among the states of one key
SCRIPTS, LENGTH = 2, 3  # random responses that both states of a pair play
LONG_SCRIPTS = 4  # as long as an episode, of a pair with histories of many turns
KEYS = 16  # that distinguish a difference from noise


@dataclass(frozen=True)
class _Reached:
    """A state that was reached from a snapshot."""

    path: tuple[str, ...]
    state: Any
    record: StateRecord
    gained: float  # the return since the snapshot
    observation: str  # the last one


def check_state_keys(snapshot: Snapshot) -> None:
    """Fails if a step without effect changes the key or one with effect does not, or if states with equal keys go on
    differently."""
    by_key: dict[Hashable, list[_Reached]] = {}
    by_key_and_budget: dict[tuple[Hashable, int], list[_Reached]] = {}
    states, steps = _reached(snapshot)
    for reached in states:
        key, budget = reached.record.state_key, reached.record.remaining
        by_key.setdefault(key, []).append(reached)
        by_key_and_budget.setdefault((key, budget), []).append(reached)
    for first, *others in by_key_and_budget.values():
        # another observation makes a difference likely
        for other in sorted(others, key=lambda reached: reached.observation == first.observation)[:PAIRS]:
            _compare(snapshot, first, other)
    for first, *others in by_key.values():
        later = [other for other in others if other.record.remaining != first.record.remaining]
        for other in later[:PAIRS]:
            _compare(snapshot, first, other)
    _check_effects(snapshot, steps)  # last, since an incomplete key looks alike


def check_revisits(snapshot: Snapshot) -> None:
    """Fails if an episode without noise comes back to a key and its state goes on differently, to the end: what was
    done many turns ago may show only many turns later."""
    by_key: dict[Hashable, list[_Reached]] = {}
    for visited in _visited(snapshot):
        by_key.setdefault(visited.record.state_key, []).append(visited)
    for first, *others in by_key.values():
        for other in others[-PAIRS:]:  # those with the most history
            _compare(snapshot, first, other, LONG_SCRIPTS, snapshot.recorder.turns)


def _visited(snapshot: Snapshot) -> list[_Reached]:
    """The snapshot and the states of the real episode after it, without its end."""
    visited = [_Reached((), snapshot.state, snapshot.record, 0.0, "")]
    for response in snapshot.responses:
        last = visited[-1]
        (step,) = snapshot.branch(state=last.state, responses=[response])
        if step.done:
            break
        path, gained = (*last.path, response), last.gained + step.reward
        visited.append(_Reached(path, snapshot.recorder.env.get_state(), step.after, gained, step.observation))
    return visited


def effect_problem(before: StateRecord, step: StepRecord) -> tuple[str, str] | None:
    """A step without effect leaves the key as it is, and a response that cannot be read has none."""
    after, effective = step.after.state_key, step.info["action_is_effective"]
    if effective and not step.info["action_is_valid"]:
        return "contract", f"info calls {step.response!r} effective and not valid: what cannot be read changes nothing"
    if effective or after == before.state_key:
        return None
    return "state_key", (
        f"it went from {before.state_key!r} to {after!r} at {step.response!r}, which info calls not effective: leave "
        "the turn and the budget out of it"
    )


def _check_effects(snapshot: Snapshot, steps: Sequence[tuple[StateRecord, StepRecord]]) -> None:
    """A single action that has an effect changes the key. Several in one response may lead back to where they began."""
    for before, step in steps:
        effective, key = step.info.get("action_is_effective"), step.after.state_key
        if effective and key == before.state_key and step.response in before.legal:
            snapshot.fail(
                "contract",
                f"info calls {step.response!r} effective, and state_key() is {key!r} before and after it: say "
                "effective where the state changed, or add to the key what did",
            )


def _reached(snapshot: Snapshot) -> tuple[list[_Reached], list[tuple[StateRecord, StepRecord]]]:
    """The snapshot and the states one and two responses after it, all under one key, without ended episodes; and the
    steps to them and to ended episodes, each after the state that it began in."""
    frontier = [_Reached((), snapshot.state, snapshot.record, 0.0, "")]
    reached, steps = list(frontier), list[tuple[StateRecord, StepRecord]]()
    for depth, count in enumerate(BRANCHING):
        following = list[_Reached]()
        for node in frontier:
            choices = node.record.legal or snapshot.recorder.responses
            start = int(snapshot.key("answers", depth).uniform() * max(1, len(choices)))
            stride = max(1, len(choices) // count)
            for response in (*(choices[start:] + choices[:start])[::stride][:count], UNREADABLE):
                (step,) = snapshot.branch(snapshot.key("reach", depth), state=node.state, responses=[response])
                steps.append((node.record, step))
                if all(name in step.info for name in FLAGS) and (problem := effect_problem(node.record, step)):
                    snapshot.fail(*problem)
                if not step.done:
                    state, gained = snapshot.recorder.env.get_state(), node.gained + step.reward
                    path = (*node.path, response)
                    following.append(_Reached(path, state, step.after, gained, step.observation))
        reached += following
        frontier = following
    return reached, steps


def _compare(snapshot: Snapshot, one: _Reached, other: _Reached, scripts: int = SCRIPTS, length: int = LENGTH) -> None:
    def fail(difference: str) -> None:
        snapshot.fail(
            "state_key",
            f"it is equal after {list(one.path)} and after {list(other.path)}, and {difference}: add to it what makes "
            "them differ, unless it is noise, which reseed should replace",
        )

    if set(one.record.legal) != set(other.record.legal):
        fail("the legal actions differ")
    is_alike = one.record.remaining == other.record.remaining and math.isclose(one.gained, other.gained, abs_tol=1e-9)
    if one.record.score != other.record.score and is_alike:
        fail(f"the score is {one.record.score} and {other.record.score}")
    for script in range(scripts):
        snapshot.recorder.restore(one.state, snapshot.key("onward", 0))
        steps = snapshot.recorder.play_randomly(snapshot.key("script", script), length)
        responses = [step.response for step in steps]
        difference = _first_difference(snapshot, one, other, responses)
        if difference and not _is_noise(snapshot, one, other, responses):
            fail(f"{difference}, when {responses} are played from there under one key")


def _first_difference(snapshot: Snapshot, one: _Reached, other: _Reached, responses: Sequence[str]) -> str:
    """Names the first difference, "" if none. After a truncation the budget decides, so nothing is compared."""
    key = snapshot.key("onward", 0)
    futures = [snapshot.branch(key, state=reached.state, responses=responses) for reached in (one, other)]
    for mine, theirs in zip(*futures, strict=False):
        if mine.truncated or theirs.truncated:
            break
        if difference := outcome_difference(mine, theirs):
            return difference
    return ""


def _is_noise(snapshot: Snapshot, one: _Reached, other: _Reached, responses: Sequence[str]) -> bool:
    """True if both states have several outcomes, one of them in common: they use their noise in different ways."""
    outcomes = [
        {
            tuple(map(outcome, snapshot.branch(snapshot.key("onward", key), state=node.state, responses=responses)))
            for key in range(KEYS)
        }
        for node in (one, other)
    ]
    return all(len(found) > 1 for found in outcomes) and bool(outcomes[0] & outcomes[1])
