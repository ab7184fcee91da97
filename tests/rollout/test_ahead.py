"""Rollouts ahead of the updates, without a model: whose weights, in which thread, and how errors and stops go."""

import io
import threading
import time
from typing import Any

import pytest
import torch

from tsr_lightning.costs import Costs
from tsr_lightning.errors import ConfigError
from tsr_lightning.rollout.ahead import Ahead, Snapshot
from tsr_lightning.rollout.collect import Collected
from tsr_lightning.rollout.groups import Rollout
from tsr_lightning.search.progress import Progress, Report, unreported

WAVES = 3


class Collecting:
    """Stands for the data module: a rollout of three waves, which records what it was given.

    Args:
        seconds: of a wave.
        fails_at: the epoch whose rollout raises.
    """

    def __init__(self, seconds: float = 0.0, fails_at: int | None = None) -> None:
        self.seconds = seconds
        self.fails_at = fails_at
        self.error = RuntimeError("the page is gone")
        self.began: list[tuple[int, int, float]] = []  # epoch, its policy's epochs, its weight
        self.ended: list[int] = []

    def __call__(self, epoch: int, snapshot: Snapshot, report: Report) -> Collected:
        self.began.append((epoch, snapshot.epochs, float(snapshot.weights["w"])))
        begun = Progress("rollout")
        for wave in range(1, WAVES + 1):
            time.sleep(self.seconds)
            report(begun.after(wave, WAVES, Costs(waves=wave), wave / WAVES))
        if epoch == self.fails_at:
            raise self.error
        self.ended.append(epoch)
        return Collected(Rollout([], Costs()), snapshot.epochs, 0.0, 0.0, 0.0)


def snapshot(epochs: int) -> Snapshot:
    return Snapshot(epochs, {"w": torch.tensor(10.0 * epochs)})


def taken(ahead: Ahead, epoch: int, staleness: int, last: int) -> Collected:
    """What an epoch does before its updates."""
    ahead.begin(epoch, range(epoch, epoch + staleness + 1), lambda: snapshot(epoch), last + 1)
    return ahead.take(epoch, unreported)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rollouts"]


@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize(("of_wave", "of_updates"), [(0.0, 0.01), (0.005, 0.0)], ids=["slow updates", "slow rollouts"])
def test_a_rollout_has_the_weights_of_its_place(staleness: int, of_wave: float, of_updates: float) -> None:
    collecting, found = Collecting(of_wave), []
    ahead = Ahead(collecting)
    for epoch in range(6):
        found.append(taken(ahead, epoch, staleness, last=5).policy_epochs)
        time.sleep(of_updates)
    ahead.stop()
    expected = [max(0, epoch - staleness) for epoch in range(6)]
    assert found == expected
    assert collecting.began == [(epoch, of, 10.0 * of) for epoch, of in enumerate(expected)]


def test_the_next_rollout_is_collected_while_the_caller_does_something_else() -> None:
    collecting = Collecting()
    ahead = Ahead(collecting)
    taken(ahead, 0, staleness=1, last=9)
    deadline = time.monotonic() + 10
    while collecting.ended != [0, 1] and time.monotonic() < deadline:
        time.sleep(0.001)
    assert collecting.ended == [0, 1]
    ahead.stop()


def test_waves_are_reported_in_order_in_the_thread_that_waits() -> None:
    ahead = Ahead(Collecting())
    found: list[Any] = []

    def report(progress: Progress) -> None:
        found.append((threading.current_thread(), progress.done, progress.costs.waves))

    ahead.begin(0, range(2), lambda: snapshot(0))
    for epoch in range(2):
        ahead.take(epoch, report)
    here = threading.current_thread()
    assert found == 2 * [(here, wave, wave) for wave in range(1, WAVES + 1)]
    ahead.stop()


def test_overlapped_seconds_are_those_that_nobody_waited() -> None:
    ahead, found = Ahead(Collecting(seconds=0.05)), []
    ahead.begin(0, [0], lambda: snapshot(0))
    time.sleep(0.08)  # updates, which end in the second wave
    collected = ahead.take(0, found.append)
    assert 0.03 < collected.waited < 0.15
    last = found[-1]
    assert last.seconds >= 3 * 0.05
    assert last.overlapped_seconds == pytest.approx(last.seconds - collected.waited, abs=0.02)
    ahead.stop()


def test_an_error_reaches_the_thread_that_waits_as_it_is() -> None:
    collecting = Collecting(fails_at=1)
    ahead = Ahead(collecting)
    taken(ahead, 0, staleness=1, last=2)
    with pytest.raises(RuntimeError) as caught:
        taken(ahead, 1, staleness=1, last=2)
    assert caught.value is collecting.error
    ahead.stop()
    assert threads() == []


def test_stopping_ends_a_rollout_after_its_wave_and_begins_no_other() -> None:
    collecting = Collecting(seconds=0.02)
    ahead = Ahead(collecting)
    ahead.begin(0, range(3), lambda: snapshot(0))
    time.sleep(0.01)
    ahead.stop()
    assert threads() == []
    assert [epoch for epoch, *_ in collecting.began] == [0]
    assert collecting.ended == []


def test_stopping_ends_a_rollout_that_was_waited_for_when_the_run_was_interrupted() -> None:
    collecting = Collecting(seconds=0.02)
    ahead = Ahead(collecting)
    ahead.begin(0, [0], lambda: snapshot(0))

    def interrupted(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ahead.take(0, interrupted)
    ahead.stop()
    assert threads() == []
    assert collecting.ended == []


def test_a_resumed_run_with_less_staleness_keeps_its_bound() -> None:
    first = Ahead(Collecting())
    for epoch in range(4):
        taken(first, epoch, staleness=2, last=9)
    state = first.state_dict(4)
    first.stop()
    assert state["policy_of"] == {4: 2, 5: 3}
    second = Ahead(Collecting())
    second.load_state_dict(state, staleness=1)
    assert [taken(second, epoch, staleness=1, last=9).policy_epochs for epoch in (4, 5, 6)] == [4, 4, 5]
    second.stop()


def test_what_was_discarded_is_collected_again_with_the_weights_of_then() -> None:
    collecting = Collecting()
    ahead = Ahead(collecting)
    taken(ahead, 0, staleness=1, last=2)
    ahead.discard_pending()
    assert taken(ahead, 1, staleness=1, last=2).policy_epochs == 1
    assert taken(ahead, 2, staleness=1, last=2).policy_epochs == 1
    ahead.stop()


@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize("saved_after", [0, 1, 4])
@pytest.mark.parametrize("within", [False, True], ids=["at an epoch's end", "within the next"])
def test_ahead_that_goes_on_from_a_checkpoint_has_the_weights_of_the_first(
    staleness: int, saved_after: int, within: bool
) -> None:
    first = Ahead(Collecting())
    ends_after = saved_after + within - 1  # a run that was to end here goes on as one that was not
    for epoch in range(saved_after):
        taken(first, epoch, staleness, last=ends_after)
    if within:
        taken(first, saved_after, staleness, last=ends_after)
    file = io.BytesIO()
    torch.save(first.state_dict(saved_after), file)
    first.stop()

    file.seek(0)
    collecting = Collecting()
    second = Ahead(collecting)
    state = torch.load(file, weights_only=True)
    assert len(state["policies"]) <= staleness + within
    second.load_state_dict(state, staleness)
    for epoch in range(saved_after, 7):
        taken(second, epoch, staleness, last=6)
    second.stop()
    expected = [(epoch, max(0, epoch - staleness), 10.0 * max(0, epoch - staleness)) for epoch in range(7)]
    assert collecting.began == expected[saved_after:]


def test_ahead_that_was_never_used_stops() -> None:
    Ahead(Collecting()).stop()


def test_an_error_of_the_configuration_stays_one() -> None:
    collecting = Collecting(fails_at=0)
    collecting.error = ConfigError("data.faults.max_share is 0.1: allow more")
    ahead = Ahead(collecting)
    with pytest.raises(ConfigError, match="allow more"):
        taken(ahead, 0, staleness=1, last=2)
    ahead.stop()
