"""Checks of `parsed_action`: responses with equal ones do the same in a state, since credit averages their outcomes."""

from collections.abc import Sequence

from tsr_lightning.envs.checker.recording import UNREADABLE, StepRecord, outcome_difference
from tsr_lightning.envs.checker.snapshots import Snapshot

TRIED = 6  # legal responses of a snapshot
OTHERWISE_SAID = ("{0} ", "I choose {0}", "{0}\n{0}")  # some environments read the same action in these


def check_actions(snapshot: Snapshot) -> None:
    """Fails if two responses with one `parsed_action` do not do the same in the state, under one key."""
    first: dict[str, StepRecord] = {}
    for response in _responses(snapshot.record.legal or snapshot.recorder.responses):
        (step,) = snapshot.branch(snapshot.key("action"), responses=[response])
        action = step.info.get("parsed_action")
        if action is None:
            continue
        other = first.setdefault(action, step)
        if difference := outcome_difference(other, step):
            snapshot.fail(
                "parsed_action",
                f"it is {action!r} after {other.response!r} and after {response!r}, and {difference}: add to it what "
                "makes them differ",
            )


def _responses(legal: Sequence[str]) -> list[str]:
    stride = max(1, len(legal) // TRIED)
    chosen = legal[::stride][:TRIED]
    return [UNREADABLE, "", *chosen, *(form.format(chosen[0]) for form in OTHERWISE_SAID if chosen)]
