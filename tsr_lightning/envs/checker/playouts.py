"""Checks of `play_randomly`: it gives one result under equal keys and leaves the state as it is."""

from numbers import Integral

from tsr_lightning.envs.base import HasRandomPlay
from tsr_lightning.envs.checker.recording import differences, listed
from tsr_lightning.envs.checker.snapshots import Snapshot

SEQUENCES, HORIZON = 4, 8
SINGLE = 8  # sequences of one action


def check_playouts(snapshot: Snapshot, noisy: bool) -> None:
    """Fails if random play breaks its promise, or if a single action succeeds in it alone.

    Args:
        snapshot: where it begins.
        noisy: whether the environment has noise, under which a success may be too rare to be seen again.
    """
    if not isinstance(snapshot.recorder.env, HasRandomPlay) or not snapshot.record.legal:
        return
    first, again = (_played(snapshot, SEQUENCES, HORIZON) for _ in range(2))
    if first != again:
        snapshot.fail("play_randomly", f"equal keys gave {first} and {again}: draw all chance from the keys")
    if noisy or 1 not in _played(snapshot, SINGLE, 1):
        return
    ends = [snapshot.branch(snapshot.key("single"), responses=[action])[0] for action in snapshot.record.legal]
    if not any(end.info.get("success") for end in ends):
        snapshot.fail("play_randomly", "it says that one action led to a success, and no legal action does")


def _played(snapshot: Snapshot, count: int, horizon: int) -> list[int | None]:
    """The results of `count` random sequences, of which each is checked to be None or a length."""
    recorder = snapshot.recorder
    assert isinstance(recorder.env, HasRandomPlay)
    snapshot.restore(snapshot.key("playouts"))
    before = recorder.record_state()
    found = recorder.env.play_randomly([snapshot.key("playouts", number) for number in range(count)], horizon)
    if len(found) != count or not all(_is_length(each, horizon) for each in found):
        remedy = f"give {count} results, each None or a number of actions from 1 to {horizon}"
        snapshot.fail("play_randomly", f"it returns {found!r}: {remedy}")
    if changed := differences(before, recorder.record_state()):
        snapshot.fail("play_randomly", f"calling it changes the state: {listed(changed)}")
    return list(found)


def _is_length(result: object, horizon: int) -> bool:
    return result is None or (isinstance(result, Integral) and 1 <= int(result) <= horizon)
