"""What a run's evaluations leave, where the run went on with other settings, and how it ended."""

import json
from pathlib import Path
from typing import Any

import callback_support as support
import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import Evaluation
from callbacks.costs import RunCosts
from callbacks.history import History
from callbacks.measurement import Measurement
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.signals import Terminated


def measurement(samples: int, outcomes: dict[Instance, tuple[int, int]]) -> Measurement:
    return Measurement({"samples": samples}, 0, 0, outcomes, {"success_rate": 0.5})


def test_an_evaluation_by_more_samples_keeps_its_own_episodes():
    history = History()
    history.add(RunCosts(epochs=0), training={}, measured={"sampled": measurement(2, {(0, 7): (1, 2), (0, 5): (0, 2)})})
    resumed = History()
    resumed.load(history.plain())
    resumed.add(RunCosts(epochs=4), training={}, measured={"sampled": measurement(4, {(0, 7): (3, 4), (0, 5): (1, 4)})})
    resumed.add(RunCosts(epochs=8), training={}, measured={"sampled": measurement(2, {(0, 7): (2, 2), (0, 5): (1, 2)})})
    plain = resumed.plain()
    assert plain["instances"] == [[0, 5], [0, 7]]
    assert plain["protocols"] == {"sampled": {"settings": {"samples": 2}, "episodes": [2, 2]}}
    assert [one["successes"]["sampled"] for one in plain["evaluations"]] == [[0, 1], [1, 3], [1, 2]]
    own = [one.get("protocols") for one in plain["evaluations"]]
    assert own == [None, {"sampled": {"settings": {"samples": 4}, "episodes": [4, 4]}}, None]


def test_several_evaluations_of_an_epoch_are_kept_and_one_that_is_repeated_is_not():
    history = History()
    for updates in (2, 4, 4):
        history.add(RunCosts(epochs=1, updates=updates), {"sampled": measurement(2, {(0, 5): (updates // 2, 2)})}, {})
    plain = history.plain()
    assert [one["costs"]["updates"] for one in plain["evaluations"]] == [2, 4]
    assert [one["successes"]["sampled"] for one in plain["evaluations"]] == [[1], [2]]


def test_instances_that_are_new_were_not_played_before():
    history = History()
    history.add(RunCosts(epochs=0), training={}, measured={"sampled": measurement(2, {(0, 5): (1, 2)})})
    history.add(RunCosts(epochs=4), training={}, measured={"sampled": measurement(2, {(0, 5): (2, 2), (0, 3): (1, 2)})})
    plain = history.plain()
    assert plain["instances"] == [[0, 5], [0, 3]]
    assert plain["protocols"]["sampled"]["episodes"] == [2, 0]
    assert [one["successes"]["sampled"] for one in plain["evaluations"]] == [[1, 0], [2, 1]]
    assert plain["evaluations"][1]["protocols"]["sampled"]["episodes"] == [2, 2]


class Ends(Callback):
    """Ends the training in its second epoch: `early` asks for the end, `killed` as SIGTERM does."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            trainer.should_stop = self.how == "early"
            if self.how == "killed":
                raise Terminated


@pytest.mark.parametrize(
    ("how", "max_steps", "end"),
    [
        ("early", -1, {"epochs": 2, "stopped_by": "a callback"}),
        ("never", 2, {"epochs": 2, "stopped_by": "trainer.max_steps"}),
        ("never", -1, {"epochs": 3, "stopped_by": None}),
        ("killed", -1, None),
    ],
)
def test_the_history_says_what_ended_the_training(how: str, max_steps: int, end: dict[str, Any] | None, tmp_path: Path):
    played = support.fixed(support.eval_result(support.SAMPLED, support.outcomes(1, 1)))
    trainer = support.trainer(tmp_path, Ends(how), Evaluation(), max_epochs=3, max_steps=max_steps)
    try:
        trainer.fit(support.Agent(), support.Data([[played]]))
    except Terminated:
        assert how == "killed"
    history = json.loads((tmp_path / "logs" / "evaluation.history.json").read_text())
    assert history.get("end") == end
