"""The entropy of a policy's updates: hand-computed falls and rises, and in a run beside its success."""

from pathlib import Path

import pytest
from callback_support import Data, outcomes
from lightning.pytorch import LightningModule, Trainer
from test_collapse import fit

from callbacks import CollapseGuard
from callbacks.entropy import EntropyWatch
from callbacks.on_collapse import Stop
from tsr_lightning.trajectory import Group


def watched(*nats: float, window: int = 2) -> EntropyWatch:
    watch = EntropyWatch(window, drop=0.9, rise=0.5)
    for epochs, each in enumerate(nats, start=1):
        watch.observe(epochs, each)
    return watch


def test_a_fall_is_a_collapse_only_beside_a_fall_of_success():
    watch = watched(3.47, 1.0, 0.3, 0.3)  # means of two: 2.235, 0.65, 0.3, where the first alone has 3.47
    assert watch.alarm(is_failing=False) is None
    assert watch.alarm(is_failing=True) == "0.300, its highest 3.470"
    assert watched(3.47, 1.0, 0.3, 0.4).alarm(is_failing=True) is None  # 0.35 > 0.347


def test_a_rise_is_judged_by_the_last_epoch_and_success():
    """The lowest is 0.32; half as much again is 0.48, and 1 nat more 1.32."""
    assert watched(0.4, 0.32, 0.47).alarm(is_failing=True) is None
    assert watched(0.4, 0.32, 0.49).alarm(is_failing=True) == "0.490, its lowest 0.320"
    assert watched(0.4, 0.32, 1.31).alarm(is_failing=False) is None
    assert watched(0.4, 0.32, 1.33).alarm(is_failing=False) == "1.330, its lowest 0.320"


def test_shares_of_next_to_no_entropy_are_noise():
    assert watched(0.01, 0.055).alarm(is_failing=True) is None
    assert watched(0.01, 0.065).alarm(is_failing=True) is not None


def test_what_is_not_watched_gives_no_alarm():
    for watch, nats in ((EntropyWatch(2, None, 0.5), [3.0, 0.1, 0.1]), (EntropyWatch(2, 0.9, None), [0.3, 6.0])):
        for epochs, each in enumerate(nats):
            watch.observe(epochs, each)
        assert watch.alarm(is_failing=True) is None


def test_figures_that_are_not_finite_are_passed_over():
    watch = watched(float("nan"), 0.3, float("inf"), 0.3)
    assert watch.now == (0.3, 0.3, 0.3, 0.3)
    assert watched(float("nan")).alarm(is_failing=True) is None


def test_a_resumed_watch_judges_as_the_uninterrupted():
    first, whole = watched(3.0, 2.0), watched(3.0, 2.0, 0.1)
    again = EntropyWatch(2, drop=0.9, rise=0.5)
    again.load_state_dict(first.state_dict())
    again.observe(2, 2.0)  # repeated
    again.observe(3, 0.1)
    assert again.state_dict() == whole.state_dict()
    again.forget_recent()
    assert again.alarm(is_failing=True) is None


class Scripted(CollapseGuard):
    """Takes the entropies of its epochs from a list."""

    nats: tuple[float, ...] = ()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._entropies = [self.nats[trainer.current_epoch]]
        super().on_train_epoch_end(trainer, pl_module)


def test_it_tells_the_entropy_of_the_updates_so_far():
    guard = CollapseGuard()
    assert guard.of_training() == {}
    guard._entropies = [0.2, 0.4]
    assert guard.of_training() == {"update_entropy": pytest.approx(0.3)}


def scripted(folder: Path, nats: list[float], successes: list[int]) -> tuple[int, list[str]]:
    """Epochs and warnings of a run that a collapse would stop; successes are of 4 in each of 16 groups."""

    def rollout(epoch: int) -> list[Group]:
        return [outcomes(100 * epoch + i, *([1] * successes[epoch] + [0] * (4 - successes[epoch]))) for i in range(16)]

    guard = Scripted(Stop())
    guard.nats = tuple(nats)
    run, _, messages = fit(folder, guard, Data(rollout=rollout), len(nats))
    return run.current_epoch, messages


def test_a_healthy_warm_start_goes_on(tmp_path: Path):
    """The entropy of a real model's warm start, while it learns to succeed."""
    nats = [3.47, 1.2, 0.6, 0.4, *[0.3] * 8]
    assert scripted(tmp_path, nats, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]) == (12, [])


def test_a_policy_that_diverges_is_stopped_while_it_still_succeeds(tmp_path: Path):
    """As with a learning rate of 0.003 and an entropy bonus of 0.1; success alone warned of it in epoch 7."""
    epochs, [message] = scripted(tmp_path, [0.32, 0.39, 0.41, 0.63, 0.86, 1.27, 1.94], [3, 3, 2, 1, 0, 0, 0])
    assert epochs == 4
    assert "train/entropy 0.630, its lowest 0.320, while rollout/sampled/success_rate is 0.250 [0." in message


def test_a_policy_without_success_is_stopped_where_its_entropy_leaves_all_bounds(tmp_path: Path):
    """A pretrained model on groups without signal."""
    epochs, [message] = scripted(tmp_path, [3.86, 4.5, 5.1, 6.73], [0, 0, 0, 0])
    assert epochs == 3
    assert "after 3 epochs (train/entropy 5.100, its lowest 3.860)" in message


def test_success_is_looked_at_where_nobody_is_alarmed_by_it(tmp_path: Path):
    guard = Scripted(Stop(), success_drop=None, valid_drop=None)
    guard.nats = (3.0, 3.0, *[0.1] * 6)
    data = Data(rollout=lambda epoch: [outcomes(100 * epoch + i, *[int(epoch < 2)] * 4) for i in range(16)])
    run, _, [message] = fit(tmp_path, guard, data, 8)
    assert "train/entropy 0." in message
    assert run.current_epoch < 8
