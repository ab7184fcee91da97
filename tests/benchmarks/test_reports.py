"""What a run says of itself: its costs, what TensorBoard shows first, and that hardly a response can be read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from callback_support import trajectory, turn
from commands import QUICK, TINY, tsr
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tsr_lightning.training.monitor import few_valid_actions
from tsr_lightning.trajectory import Group, Turn

MEASURED = ("--trainer.callbacks", '[{"class_path": "callbacks.Evaluation"}]', "--trainer.check_val_every_n_epoch", "1")
DEMONSTRATED = ("--config", "search/expert.yaml", "--config", "objective/sft.yaml")
LOOKAHEAD = ("--config", "search/lookahead.yaml", "--data.plan.init_args.strategy.init_args.commit")
READ = "responses are valid actions"


def written(folder: Path) -> EventAccumulator:
    [file] = folder.rglob("events.out.tfevents*")
    return EventAccumulator(str(file)).Reload()


def as_tensorboard_sorts(tag: str) -> list[tuple[bool, str]]:
    """TensorBoard's compareTagNames, where no number is in the tags: "/" before all, else by ASCII."""
    return [(character != "/", character) for character in tag]


@pytest.mark.parametrize("search", [(*LOOKAHEAD, "keep"), (*LOOKAHEAD, "resample"), DEMONSTRATED], ids=" ".join)
def test_the_cost_of_a_run_is_that_of_its_rollouts(search: tuple[str, ...], tiny_model, empty_folder: Path):
    model = ("--model.policy.model", tiny_model("sokoban"))
    tsr("fit", "--config", "sokoban.yaml", *search, *QUICK, *model, *MEASURED, "--data.concurrency", "8")
    events = written(empty_folder)
    rollouts = {
        name: sum(e.value for e in events.Scalars(f"cost/{name}")) for name in ("env_steps", "tokens_generated")
    }
    assert rollouts["env_steps"] > 0
    [measured] = empty_folder.rglob("evaluation.json")
    cost = json.loads(measured.read_text())["run"]
    assert {name: cost[name] for name in rollouts} == rollouts
    groups = [tag.partition("/")[0] for tag in sorted(events.Tags()["scalars"], key=as_tensorboard_sorts)]
    assert list(dict.fromkeys(groups))[:2] == ["Held-out success", "cost"]


class TestHardlyAResponseCanBeRead:
    """Said once, by whatever plays first."""

    @pytest.fixture
    def said(self, empty_folder: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
        def run(subcommand: str, *args: object) -> list[str]:
            caplog.clear()
            caplog.set_level("INFO")
            tsr(subcommand, "--config", "sokoban.yaml", *QUICK, *args)
            return [record.getMessage() for record in caplog.records if READ in record.getMessage()]

        return run

    def test_in_a_rollout_and_not_in_every_epoch(self, said):
        [line] = said("fit", "--model.policy.model", TINY, "--data.evaluations", "[]")
        assert line.startswith("rollout: 0.0% of ")
        assert "\n" not in line

    def test_in_an_evaluation_and_not_in_every_trial(self, said):
        [line] = said("validate", "--model.policy.model", TINY)
        assert line.startswith("sampled: 0.0% of ")

    def test_by_the_wrong_wording(self, said, tiny_model):
        """Which a policy that knows another answers with something else."""
        model = ("--model.policy.model", tiny_model("sokoban"), "--data.held_out.instances", "8")
        assert said("validate", *model) == []
        [line] = said("validate", *model, "--data.env_kwargs.prompt_style", "paper")
        assert "give data.env_kwargs (such as prompt_style) as it was trained with" in line


def reason(*turns: Turn) -> str | None:
    return few_valid_actions([Group(1, (trajectory(1, 0, *turns),))], max_response_tokens=12)


def test_why_they_cannot_be_read():
    odd, cut = turn(valid=False, text="I push\nthe box"), turn(valid=False, finished=False)
    assert reason(turn(), *[odd] * 19) is None  # 5% can
    line = reason(turn(), *[odd] * 20)
    assert line is not None
    assert line.startswith(
        r"4.8% of 21 responses are valid actions, unlike 'I push\nthe box'; the policy was not taught"
    )
    line = reason(*[odd] * 2, *[cut] * 3)
    assert line is not None
    assert line.startswith("0.0% of 5 responses")
    assert "60% were cut off at data.sampling.max_response_tokens = 12" in line
    assert few_valid_actions([], max_response_tokens=12) is None
