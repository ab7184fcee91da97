"""The rollout's progress line, on a fake terminal and without one."""

import io
import re
import sys

import pytest
from callback_support import SAMPLED, Agent, Data, eval_result, fixed, outcomes, trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

from callbacks import RolloutProgressBar
from callbacks.costs import RolloutCostMeter
from callbacks.log_lines import epoch_ended
from callbacks.progress import describe_costs
from tsr_lightning.costs import Costs
from tsr_lightning.search.progress import Progress
from tsr_lightning.training.hooks import OnRolloutWave
from tsr_lightning.training.lightning_compat import epochs_at_rollout

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch

WAVES = [Costs(tokens_generated=400 * wave, env_steps=10 * wave, waves=wave) for wave in (1, 2, 3)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(tmp_path, **settings):
    callbacks = [RolloutProgressBar(), *settings.pop("callbacks", [])]
    trainer(tmp_path, *callbacks, max_epochs=2, limit_val_batches=0, **settings).fit(Agent(), Data(waves=WAVES))


def test_without_a_terminal_a_rollout_is_one_line(tmp_path, capsys):
    run(tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if "searches" in line]
    line = "rollout of 3 searches in 6.0 s: 1,200 tokens (200/s), 30 env steps"
    assert lines == [f"epoch 0: {line}", f"epoch 1: {line}"]


def test_without_a_terminal_an_epoch_says_what_is_left_and_an_evaluation_its_success(tmp_path, capsys):
    played = fixed(eval_result(SAMPLED, outcomes(1, 1, 1, 0), outcomes(2, 1), seconds=3.0))
    progress = RolloutProgressBar()
    trainer(tmp_path, progress, max_epochs=2).fit(Agent(), Data([[played]], waves=WAVES))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("evaluation")] == [
        f"evaluation after {epochs} epochs: success sampled 0.750 (4 episodes in 3.0 s)" for epochs in (0, 1, 2)
    ]
    epochs = [re.sub(r"\d+\.\d s", "T", line) for line in lines if " of 2 epochs" in line]
    assert epochs == [
        "1 of 2 epochs; T an epoch, about T left",
        "2 of 2 epochs; T an epoch",
    ]


def test_an_epoch_without_a_rollout_is_not_told_with_the_success_of_an_earlier_one(tmp_path, capsys):
    """As in the last of `Phases` that ends with `NoRollout`."""
    progress = RolloutProgressBar()

    class OneRollout(Data):
        def __iter__(self):
            if epochs_at_rollout(self.trainer) == 0:
                progress.on_rollout_metrics(self.trainer, {"rollout/sampled/success_rate": 0.5}, 0)
            return super().__iter__()

    trainer(tmp_path, progress, max_epochs=2, limit_val_batches=0).fit(Agent(), OneRollout())
    lines = [line for line in capsys.readouterr().err.splitlines() if " of 2 epochs" in line]
    assert [line.partition(";")[0] for line in lines] == [
        "1 of 2 epochs: success sampled 0.500",
        "2 of 2 epochs",
    ]


def test_what_takes_long_is_told_every_30_seconds(tmp_path, capsys):
    progress, run = RolloutProgressBar(), trainer(tmp_path)
    for seconds in range(10, 101, 10):
        done, spent = (0, 0.0) if seconds < 50 else (8, 0.25)
        costs = Costs(tokens_generated=1000 * seconds)
        progress.on_rollout_wave(run, Progress("sampled", 7, done, 32, costs, float(seconds), spent))
    progress.on_rollout_wave(run, Progress("rollout", 8, 1, 4, Costs(tokens_generated=50), 40.0, 0.25))
    assert capsys.readouterr().err.splitlines() == [
        "evaluation sampled: 0 of 32 searches after 30.0 s, 30,000 tokens (1,000/s)",
        # a quarter took a minute
        "evaluation sampled: 8 of 32 searches after 1 min 0 s, 60,000 tokens (1,000/s), about 3 min 0 s left",
        "evaluation sampled: 8 of 32 searches after 1 min 30 s, 90,000 tokens (1,000/s), about 4 min 30 s left",
        "epoch 0: rollout: 1 of 4 searches after 40.0 s, 50 tokens (1/s), about 2 min 0 s left",
    ]


def test_the_time_left_is_that_of_the_epochs_so_far():
    line = epoch_ended(12, 32, {"sampled": 0.25, "searched": 0.5}, [50.0, 70.0])
    assert line == "12 of 32 epochs: success sampled 0.250, searched 0.500; 1 min 0 s an epoch, about 20 min 0 s left"
    assert epoch_ended(12, None, {}, [2.0]) == "12 epochs; 2.0 s an epoch"


def test_on_a_terminal_the_line_is_redrawn(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(tmp_path, callbacks=[TQDMProgressBar()], enable_progress_bar=True)
    written = terminal.getvalue()
    assert "rollout" in written
    assert "2/3" in written
    assert "800 tokens (200/s), 20 env steps" in written
    assert "searches" not in written


def test_beside_the_rich_bar_the_line_is_a_task_of_its_display(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    rich = RichProgressBar(console_kwargs={"file": terminal, "force_terminal": True, "width": 120})
    run(tmp_path, callbacks=[rich], enable_progress_bar=True)
    written = terminal.getvalue()
    assert "rollout: 800 tokens (200/s), 20 env steps" in written
    assert sys.stderr.getvalue().count("100%") == 1  # the first rollout, which comes before Lightning's display
    [ours] = [task for task in rich.progress.tasks if task.description.startswith("rollout")]
    assert not ours.visible  # one task for both rollouts


def test_a_rollout_of_zero_seconds_has_rate_zero():
    assert describe_costs(Progress("rollout", 1, 0, 1, Costs(), 0.0, 0.0)) == "0 tokens (0/s), 0 env steps"


def test_the_costs_of_rollouts_add_up_and_evaluations_are_left_out():
    costs = RolloutCostMeter()

    def wave(number, phase, waves, steps):
        costs.update(Progress(phase, number, 0, 1, Costs(waves=waves, env_steps=steps), 1.0, 0.0))

    wave(1, "rollout", 1, 10)
    wave(1, "rollout", 1, 20)  # a commit or a demonstration: steps without an engine call
    wave(1, "rollout", 2, 30)
    wave(2, "sampled", 1, 500)  # an evaluation's costs are not the rollouts'
    wave(3, "rollout", 1, 5)  # the second rollout
    wave(4, "rollout", 1, 7)  # the third, after a rollout of a single wave
    assert costs.total.env_steps == 30 + 5 + 7


def test_it_has_the_hook_of_the_data_module():
    assert isinstance(RolloutProgressBar(), OnRolloutWave)
