"""Trajectories as text: in the event files of real runs, and unchanged by markdown."""

import dataclasses

import pytest
from callback_support import (
    GREEDY,
    SAMPLED,
    Agent,
    Data,
    Loader,
    eval_result,
    events,
    fixed,
    outcomes,
    texts,
    trainer,
    trajectory,
    turn,
)
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from callbacks import InstanceFilter, TrajectoryLog
from callbacks.trajectory_log import code_block, to_markdown
from tsr_lightning.errors import ConfigError
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.training.hooks import OnRolloutEnd
from tsr_lightning.training.lightning_compat import position_at_validation, validation_schedule
from tsr_lightning.trajectory import Group, Origin

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch


def groups(epoch):
    return [outcomes(10 * epoch + i, 0, 1) for i in range(3)]


def test_a_run_writes_the_first_trajectories(tmp_path):
    data = Data(
        [[fixed(eval_result(SAMPLED, outcomes(1, 1))), fixed(eval_result(SAMPLED, outcomes(2, 0), outcomes(3, 0)))]],
        groups,
    )
    trainer(tmp_path, TrajectoryLog(count=2), max_epochs=2).fit(Agent(), data)

    assert data.kept == [groups(0), groups(1)]  # it changes nothing
    tags = {tag.removesuffix("/text_summary") for tag in events(tmp_path).Tags()["tensors"]}
    assert tags == {f"{place}/trajectory_{n}" for place in ["rollout", "val/sampled"] for n in [1, 2]}
    assert set(events(tmp_path).Tags()["images"]) == {f"{tag}/boards" for tag in tags}
    rolled_out = texts(tmp_path, "rollout/trajectory_2")
    assert [epochs for epochs, _ in rolled_out] == [0, 1]
    assert "instance 1, member 0" in rolled_out[0][1]
    assert "instance 11, member 0" in rolled_out[1][1]
    validated = texts(tmp_path, "val/sampled/trajectory_2")  # the first of the second batch
    assert [epochs for epochs, _ in validated] == [0, 1, 2]
    assert all("**failure**" in text or "**stopped by a limit**" in text for _, text in validated)
    assert all("instance 2, member 0" in text for _, text in validated)
    assert "**success**" in texts(tmp_path, "val/sampled/trajectory_1")[0][1]


def test_it_writes_every_n_epochs(tmp_path):
    data = Data([[fixed(eval_result(GREEDY, outcomes(1, 1)))]], groups)
    trainer(tmp_path, TrajectoryLog(count=1, every_n_epochs=2), max_epochs=5).fit(Agent(), data)
    assert [epochs for epochs, _ in texts(tmp_path, "rollout/trajectory_1")] == [0, 2, 4]
    assert [epochs for epochs, _ in texts(tmp_path, "val/greedy/trajectory_1")] == [0, 2, 4, 5]  # and the last


def test_the_last_evaluation_of_a_run_that_a_callback_ends_is_written(tmp_path):
    class Ends(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch == 2

    data = Data([[fixed(eval_result(GREEDY, outcomes(1, 1)))]], groups)
    trainer(tmp_path, TrajectoryLog(count=1, every_n_epochs=5), Ends(), max_epochs=20).fit(Agent(), data)
    assert [epochs for epochs, _ in texts(tmp_path, "val/greedy/trajectory_1")] == [0, 3]


def test_evaluations_between_the_multiples_are_written_too(tmp_path):
    """It evaluates after 0, 3, 6, 9 and 12 epochs, and writes the first of every five."""
    data = Data([[fixed(eval_result(GREEDY, outcomes(1, 1)))]], groups)
    log = TrajectoryLog(count=1, every_n_epochs=5)
    trainer(tmp_path, log, max_epochs=12, check_val_every_n_epoch=3).fit(Agent(), data)
    assert [epochs for epochs, _ in texts(tmp_path, "val/greedy/trajectory_1")] == [0, 6, 12]


class WhereDue(Data):
    """Evaluates protocols at the validations where they are due, as the real data module does."""

    def __init__(self, *protocols):
        super().__init__()
        self.protocols = protocols

    def val_dataloader(self):
        return [LoaderWhereDue(protocol, self.trainer) for protocol in self.protocols]


class LoaderWhereDue(Loader):
    def __init__(self, protocol, run):
        super().__init__([fixed(eval_result(protocol, outcomes(1, 1)))])
        self.protocol, self.run = protocol, run

    def __iter__(self):
        epochs = position_at_validation(self.run, None).epochs
        return super().__iter__() if self.protocol.is_due(epochs, validation_schedule(self.run)) else iter(())


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_protocol_is_written_by_its_own_evaluations_over_a_resume_too(tmp_path):
    """Every fourth validation is that after 0, 4, …, 32 epochs, of which the first of every ten and the last count."""
    fourth, ends = EvalProtocol("fourth", every_n_validations=4), EvalProtocol("ends", every_n_validations=None)

    def written(folder):
        tags = {name: f"val/{name}/trajectory_1" for name in ("fourth", "ends")}
        return {name: [epochs for epochs, _ in texts(folder, tag)] for name, tag in tags.items()}

    def fit(folder, **resumed):
        kept = {"every_n_epochs": 16, "save_top_k": -1, "save_on_train_epoch_end": True}
        saved = ModelCheckpoint(folder / "kept", "{epoch}", **kept)
        log = TrajectoryLog(count=1, every_n_epochs=10)
        run = trainer(folder, log, saved, max_epochs=32, enable_checkpointing=True)
        run.fit(Agent(), datamodule=WhereDue(fourth, ends), **resumed)

    fit(tmp_path / "whole")
    assert written(tmp_path / "whole") == {"fourth": [0, 12, 20, 32], "ends": [0, 32]}
    fit(tmp_path / "resumed", ckpt_path=tmp_path / "whole" / "kept" / "epoch=15.ckpt")
    assert written(tmp_path / "resumed") == {"fourth": [20, 32], "ends": [32]}


def test_without_a_start_the_first_evaluation_is_written(tmp_path):
    data = Data([[fixed(eval_result(GREEDY, outcomes(1, 1)))]], groups)
    log = TrajectoryLog(count=1, every_n_epochs=3)
    trainer(tmp_path, log, max_epochs=7, num_sanity_val_steps=0).fit(Agent(), data)
    assert [epochs for epochs, _ in texts(tmp_path, "val/greedy/trajectory_1")] == [1, 3, 6, 7]


def test_groups_that_earlier_callbacks_removed_are_not_written(tmp_path):
    data = Data(
        rollout=lambda epoch: [Group(0, (trajectory(0),)), Group(1, (trajectory(1), trajectory(1, 1, turn(1.0))))]
    )
    trainer(tmp_path, InstanceFilter(keep=0.5), TrajectoryLog(count=5), limit_val_batches=0).fit(Agent(), data)
    [(_, text)] = texts(tmp_path, "rollout/trajectory_1")
    assert "instance 1" in text


def test_without_a_logger_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = Data([[fixed(eval_result(SAMPLED, outcomes(1, 1)))]], groups)
    trainer(tmp_path, TrajectoryLog(), logger=False).fit(Agent(), data)
    assert list(tmp_path.iterdir()) == []


def test_a_trajectory_as_markdown():
    first = dataclasses.replace(turn(-0.1, valid=False, effective=False, text="<answer>Fly</answer>"), finished=False)
    whole = dataclasses.replace(
        trajectory(7, 2, first, turn(1.0), succeeded=True), strategy="beam", origin=Origin.SEARCHED
    )
    assert to_markdown(whole) == (
        "**success**, return 0.9, 2 turns, 6 response tokens; instance 7, member 2, strategy beam, searched\n\n"
        "**turn 1**\n\nuser:\n\n```\n####\n#P_#\n####\n```\n\n"
        "response: reward -0.1, invalid, without effect, cut off\n\n```\n<answer>Fly</answer>\n```\n\n"
        "**turn 2**\n\nuser:\n\n```\n####\n#P_#\n####\n```\n\n"
        "response: reward 1, valid, effective\n\n```\nUp\n```\n\n"
        "**end**\n\nuser:\n\n```\n####\n#_P#\n####\n```"
    )


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer:DeprecationWarning")
@pytest.mark.parametrize("text", ["#P_#\n  ##", "```\ncode\n```", "````", "<b>*bold*</b> & `x`", ""])
def test_tensorboard_shows_a_code_block_unchanged(text):
    """Through the renderer that TensorBoard's text plugin uses."""
    from html import unescape

    from tensorboard.plugin_util import markdown_to_safe_html

    html = markdown_to_safe_html(f"before\n\n{code_block(text)}\n\nafter")
    body = html.split("<pre><code>")[1].split("</code></pre>")[0]
    assert unescape(body).rstrip("\n") == text.rstrip("\n")
    assert "<p>after</p>" in html


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": -1}, "TrajectoryLog.count is -1"),
        ({"every_n_epochs": 0}, "TrajectoryLog.every_n_epochs is 0"),
    ],
)
def test_bad_arguments_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrajectoryLog(**settings)


def test_it_has_the_hook_of_the_data_module():
    assert isinstance(TrajectoryLog(), OnRolloutEnd)
