"""What a run says of itself: its costs, what TensorBoard shows first, and that hardly a response can be read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from callback_support import trajectory, turn
from commands import QUICK, TINY, tsr
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tsr_lightning.errors import RunError
from tsr_lightning.rollout.answer_notice import AnswerForm, ended_by_tokens, few_valid_actions, longer_than_allowed
from tsr_lightning.trajectory import Ended, Group, Origin, Turn

MEASURED = ("--trainer.callbacks", '[{"class_path": "callbacks.Evaluation"}]', "--trainer.check_val_every_n_epoch", "1")
DEMONSTRATED = ("--config", "search/expert.yaml", "--config", "objective/sft.yaml")
LOOKAHEAD = (
    *("--config", "search/lookahead.yaml", "--config", "credit/imitate.yaml"),
    "--data.plan.init_args.strategy.init_args.commit",
)
READ = "are valid actions: "


def written(folder: Path) -> EventAccumulator:
    [file] = folder.rglob("events.out.tfevents*")
    return EventAccumulator(str(file)).Reload()


def as_tensorboard_sorts(tag: str) -> list[tuple[bool, str]]:
    """TensorBoard's compareTagNames, where no number is in the tags: "/" before all, else by ASCII."""
    return [(character != "/", character) for character in tag]


@pytest.mark.parametrize(
    "search",
    [pytest.param((*LOOKAHEAD, "keep"), marks=pytest.mark.exhaustive), (*LOOKAHEAD, "resample"), DEMONSTRATED],
    ids=" ".join,
)
def test_the_cost_of_a_run_is_that_of_its_rollouts(search: tuple[str, ...], tiny_model, empty_folder: Path):
    model = ("--model.policy.model", tiny_model("sokoban"))
    tsr("fit", "--config", "sokoban.yaml", *search, *QUICK, *model, *MEASURED, "--data.concurrency", "8")
    events = written(empty_folder)
    rollouts = {
        name: sum(e.value for e in events.Scalars(f"cost/{name}")) for name in ("env_steps", "tokens_generated")
    }
    assert rollouts["env_steps"] > 0
    assert events.Scalars("final/sampled/success_rate")[0].value == events.Scalars("val/sampled/success_rate")[-1].value
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    [measured] = empty_folder.rglob("evaluation.json")
    cost = json.loads(measured.read_text())["run"]
    assert {name: cost[name] for name in rollouts} == rollouts
    groups = [tag.partition("/")[0] for tag in sorted(events.Tags()["scalars"], key=as_tensorboard_sorts)]
    assert list(dict.fromkeys(groups))[:3] == ["Held-out return", "Held-out success", "cost"]


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
        assert line.startswith("rollout: 0 of ")
        assert "\n" not in line

    def test_in_an_evaluation_and_not_in_every_trial(self, said):
        [line] = said("validate", "--model.policy.model", TINY)
        assert line.startswith("sampled: 0 of ")

    def test_a_run_stops_before_it_trains_on_them_where_that_is_asked_for(self, said, empty_folder: Path):
        flags = ("fit", "--model.policy.model", TINY, "--data.evaluations", "[]")
        said(*flags, "--data.min_valid", "0")
        assert list(empty_folder.rglob("*.ckpt"))
        shutil.rmtree(empty_folder / "runs")
        with pytest.raises(RunError, match=r"since data\.min_valid is 0\.1: 0 of \d+ responses") as stopped:
            said(*flags, "--data.min_valid", "0.1")
        assert "configs/warm_start" in str(stopped.value)
        assert str(stopped.value).endswith("or train from here with --data.min_valid 0")
        assert not list(empty_folder.rglob("*.ckpt"))

    def test_by_the_wrong_wording(self, said, tiny_model):
        """Which a policy that knows another answers with something else."""
        model = ("--model.policy.model", tiny_model("sokoban"), "--data.held_out.instances", "8")
        assert said("validate", *model) == []
        [line] = said("validate", *model, "--data.env_kwargs.prompt_style", "paper")
        assert "while '<think></think><answer>" in line
        assert "its data.env_kwargs.prompt_style is paper: give the one that the model was trained with, a pre" in line


def form(style: str | None = "bare") -> Callable[[int], AnswerForm]:
    return lambda env: AnswerForm(f"tsr/Task{env}-v0", style, style != "bare", "<answer>Up</answer>")


def reason(*turns: Turn, style: str | None = "bare") -> str | None:
    groups = [Group(1, (trajectory(1, 0, *turns),), env=3)]
    return few_valid_actions(groups, max_response_tokens=12, form=form(style))


def test_why_they_cannot_be_read():
    odd, cut = turn(valid=False, text="I push\nthe box" * 9), turn(valid=False, finished=False, text="Well")
    assert reason(turn(), *[odd] * 19) is None  # 5% can
    whole = repr("I push\nthe box" * 9)
    assert reason(turn(), *[odd] * 20) == (
        f"1 of 21 responses (4.8%) are valid actions: tsr/Task3-v0 was answered with {whole} (ended by itself), while "
        "'<answer>Up</answer>' would be one; its data.env_kwargs.prompt_style is bare, for policies that were trained "
        "with it: give a pretrained model instruct, or begin with configs/warm_start"
    )
    line = reason(*[cut] * 3, *[odd] * 2, style="instruct")
    assert line is not None
    assert line.startswith("0 of 5 responses (0.0%) are valid actions: tsr/Task3-v0 was answered with 'Well' (cut off)")
    assert "60% were cut off at data.sampling.max_response_tokens = 12, so raise it" in line
    assert line.endswith("the model has to learn to keep to it: begin with configs/warm_start/form.yaml")
    assert few_valid_actions([], 12, form()) is None


def test_a_task_without_a_list_of_actions_needs_demonstrations():
    """`warm_start/form.yaml` would be refused there."""
    groups = [Group(1, (trajectory(1, 0, turn(valid=False)),))]
    line = few_valid_actions(groups, 12, lambda _: AnswerForm("my:Task-v0", None, False, None))
    assert line is not None
    assert line.endswith(
        "; begin with demonstrations (data.demonstrations, or configs/search/expert.yaml with an oracle)"
    )


def test_demonstrations_that_the_policy_cannot_say():
    long = replace(turn(), response=(5,) * 30, behaviour_logprobs=(0.0,) * 30)
    shown = replace(trajectory(1, 0, turn(), long), origin=Origin.DEMONSTRATED)
    groups = [Group(1, (shown, trajectory(1, 0, long)))]  # what the policy said itself does not count
    assert longer_than_allowed(groups, 30) is None
    line = longer_than_allowed(groups, 24)
    assert line is not None
    assert line.startswith("1 of 2 demonstrated responses have more than data.sampling.max_response_tokens = 24, so")
    assert line.endswith("give 30 or more")


def test_episodes_that_a_token_limit_ended():
    ended = replace(trajectory(1, 0, turn()), ended=Ended.TOKEN_LIMIT)
    groups = [Group(1, (trajectory(1, 0, turn()), ended, trajectory(1, 2, turn())))]
    assert ended_by_tokens([Group(1, (trajectory(1, 0, turn()),))], 512, None) is None
    line = ended_by_tokens(groups, 512, None)
    assert line is not None
    assert line.startswith("1 of 3 episodes were ended by a token limit (data.context_tokens = 512), which left")
    line = ended_by_tokens(groups, 4096, 600)
    assert line is not None
    assert "(data.context_tokens = 4,096 or data.episode_tokens = 600)" in line
