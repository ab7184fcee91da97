"""Failures of an environment in a run: left out of training and evaluation, counted and shown, never a return of 0."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from callback_support import trajectory
from commands import QUICK, TINY, in_folder, tsr
from lightning.pytorch import Callback, Trainer

from tests.fakes import driver, tasks
from tests.search.test_lost_searches import misbehaving
from tsr_lightning.cli.command import main
from tsr_lightning.costs import Costs
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.objectives import GRPO, PPO, GraphCredit, ImitateSuccesses, TreeCredit
from tsr_lightning.rng import Key
from tsr_lightning.rollout.faults import Faults, describe_failures, drop_single_members
from tsr_lightning.rollout.groups import epoch_tasks, run_groups
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.search.branching import Vine
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.progress import unreported
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.strategies import Sample
from tsr_lightning.trajectory import Group, Origin, Trajectory


class Recorder(Callback):
    """Keeps the groups and figures of every rollout."""

    def __init__(self) -> None:
        self.groups: list[list[Group]] = []
        self.figures: list[dict[str, float]] = []

    def on_rollout_end(self, trainer: Trainer, agent: Any, groups: list[Group]) -> list[Group]:
        self.groups.append(groups)
        return groups

    def on_rollout_metrics(self, trainer: Trainer, metrics: Any, epochs: int) -> None:
        self.figures.append(dict(metrics))

    def total(self, name: str) -> float:
        return sum(figures[name] for figures in self.figures)


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., tuple[Trainer, Recorder]]:
    """Trains on a one-turn task from random weights."""

    def run(env_kwargs: dict[str, Any], **settings: Any) -> tuple[Trainer, Recorder]:
        values = {
            "model.policy.model": TINY,
            "model.optimizer.learning_rate": 0.005,
            "data.env": "tests.misbehaving:Misbehaving-v0",
            "data.env_kwargs": json.dumps({"env": "parity:Parity-v0", "after": 64, **env_kwargs}),  # 64: the vocabulary
            "data.instances": 16,
            "data.plan.init_args.count": 8,
            "data.sampling.max_response_tokens": 2,
            "data.held_out.instances": 64,
            "data.evaluations": '[{"name": "sampled", "temperature": 1.0, "samples": 2, "search": null}]',
            "trainer.accelerator": "cpu",
            "trainer.enable_progress_bar": "false",
            "trainer.callbacks": '[{"class_path": "callbacks.Evaluation"}, {"class_path": "test_faults.Recorder"}]',
            **settings,
        }
        flags = [f"--{key}={value}" for key, value in values.items()]
        overlays = ("--config", "search/sample.yaml", "--config", "objective/grpo.yaml")
        with in_folder(tmp_path):
            trainer = tsr("fit", "--config", "sokoban.yaml", *overlays, *flags).trainer
        [recorder] = [each for each in trainer.callbacks if type(each).__name__ == "Recorder"]
        return trainer, recorder

    return run


def by_place(groups: list[Group]) -> dict[tuple[int, int], Trajectory]:
    return {(one.instance, one.member): one for group in groups for one in group.trajectories}


def test_what_is_trained_on_is_what_a_run_without_failures_has_there(fit, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing stands in for the others."""
    once = {"trainer.max_epochs": 1, "trainer.check_val_every_n_epoch": 1}
    once |= {"data.faults.retries": 0, "data.faults.max_share": 0.3}
    _, undisturbed = fit({}, **once)
    capsys.readouterr()
    trainer, recorder = fit({"raises": 0.1}, **once)
    expected, found = by_place(undisturbed.groups[0]), by_place(recorder.groups[0])
    assert len(expected) == 128
    assert found == {place: expected[place] for place in found}
    [figures] = recorder.figures
    assert 5 < figures["cost/trajectories_lost"] == figures["cost/env_errors"] == 128 - len(found)
    won = sum(one.succeeded for one in found.values())
    assert figures["rollout/success_rate"] == pytest.approx(won / len(found))
    lost = trainer.callback_metrics["val/sampled/episodes_lost"]
    assert 3 < lost < 30
    printed = capsys.readouterr().out
    assert "episodes lost to failures of the environment, in no figure" in printed
    lost_in_training = int(figures["cost/trajectories_lost"])
    assert f"{lost_in_training} failed calls of the environment, {lost_in_training} trajectories left out" in printed


def test_an_evaluation_leaves_lost_episodes_out_of_its_rates(fit, tmp_path: Path) -> None:
    """Evaluated before training alone: rates are those of the surviving episodes."""
    fit({"raises": 0.1}, **{"trainer.max_epochs": 1, "data.faults.retries": 0, "data.faults.max_share": 0.3})
    [file] = tmp_path.rglob("evaluation.json")
    before = json.loads(file.read_text())["evaluations"]["sampled"]["before"]
    episodes = sum(row["episodes"] for row in before["instances"])
    assert episodes + before["figures"]["episodes_lost"] == 128
    rates = [row["successes"] / row["episodes"] for row in before["instances"]]
    assert before["figures"]["success_rate"] == pytest.approx(sum(rates) / len(rates))


def test_past_the_share_the_run_stops_with_one_sentence(fit) -> None:
    pattern = (
        r"\d+ of 128 rollouts failed in epoch 0 \(limit 12\): ConnectionError: the page is gone at .*misbehaving\.py:\d"
        r"+\. Fix the environment .* or raise data\.faults\.max_share, which is 0\.1\."
    )
    with pytest.raises(RunError, match=pattern):
        fit({"raises": 0.6}, **{"trainer.max_epochs": 1, "trainer.num_sanity_val_steps": 0})
    with pytest.raises(RunError, match=r"of 128 rollouts failed in evaluation 'sampled' \(limit 12\): Conn"):
        fit({"raises": 0.6}, **{"trainer.max_epochs": 1})


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "threads", "processes"])
def test_a_mistake_in_the_environment_ends_the_command(
    where: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment is right until the rollout begins; the lines that led to the error stand before the sentence."""
    flags = {"here": (), "threads": ("--data.env_workers", "2"), "processes": ("--data.env_processes", "true")}
    spoiled = ("--data.env", "tests.spoiled:Spoiled-v0", "--data.env_kwargs.mistake", "step raises")
    command = ("fit", "--config", "sokoban.yaml", *QUICK, "--data.held_out.instances", "2", *spoiled, *flags[where])
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 1
    *_, traceback, sentence = capsys.readouterr().err.splitlines()
    assert traceback == "KeyError: 'typo'"
    pattern = r"tsr: error: step of \S*Spoiled-v0 \(instance \d+, response '.*'\) raised KeyError: 'typo' at .*\.py:\d"
    assert re.match(pattern, sentence), sentence


def test_a_time_limit_needs_processes(fit) -> None:
    with pytest.raises(ConfigError, match=r"data\.faults\.step_timeout is 2\.0: .* set data\.env_processes to true"):
        fit({}, **{"data.faults.step_timeout": 2.0})


def test_a_held_out_instance_that_cannot_be_reset_is_named(fit) -> None:
    pattern = r"reset of Misbehaving-v0 failed for held-out instance \d+: .*no such page at .*\.py:\d+"
    with pytest.raises(RunError, match=pattern):
        fit({"bad_resets": [*range(64, 100)]})


def test_a_training_instance_that_cannot_be_reset_leaves_its_place_out() -> None:
    def instances(bad: list[int]) -> list[Any]:
        env = misbehaving(bad_resets=bad)
        return list(Instances([env], Key(1), HeldOut(0), retry=Retrying(0)).training(0, 200).instances)

    whole, left = instances([]), instances([7, 8])
    assert left == [None if seed % 100 in (7, 8) else (env, seed) for env, seed in whole]
    assert left.count(None) == 3
    entries, place = Uniform(Sample(), 2).entries(0), left.index(None) + 1
    others = epoch_tasks(left, entries, Key(1), 0)
    assert len(others) == 197
    assert others[place - 1] == epoch_tasks(whole, entries, Key(1), 0)[place]  # with the draws of its place


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_policy_learns_although_its_environment_raises_hangs_and_dies(fit, tmp_path: Path) -> None:
    """As without: from 0.25 to some 0.98. What the environment noted of its failures is what the run counted.

    Which step fails depends on the order of the processes, so no two runs are alike: after 30 epochs most had .96 to 1
    and one .86, after 45 all of eight .98 or more.
    """
    epochs = 45
    (tmp_path / "noted").mkdir()
    chances = {"raises": 0.01, "hangs": 0.001, "dies": 0.001, "folder": str(tmp_path / "noted")}
    settings = {"data.env_processes": "true", "data.faults.step_timeout": 1.0, "data.faults.retries": 0}
    trainer, recorder = fit(
        chances,
        **settings,
        **{"trainer.max_epochs": epochs, "trainer.check_val_every_n_epoch": epochs, "data.env_workers": 2},
    )
    assert trainer.callback_metrics["val/sampled/success_rate"] > 0.9
    noted = [name.partition(".")[0] for name in os.listdir(tmp_path / "noted")]
    for kind, name in {"raised": "env_errors", "hung": "env_timeouts", "died": "env_deaths"}.items():
        assert recorder.total(f"cost/{name}") <= noted.count(kind)  # some were in evaluations
    assert recorder.total("cost/env_errors") > 0
    assert recorder.total("cost/env_timeouts") + recorder.total("cost/env_deaths") > 0  # some four of each are expected
    failures = sum(recorder.total(f"cost/env_{name}") for name in ("errors", "timeouts", "deaths"))
    assert recorder.total("cost/trajectories_lost") == failures
    trained = sum(len(group.trajectories) for groups in recorder.groups for group in groups)
    assert trained == epochs * 128 - failures


# -- parts -------------------------------------------------------------------------------------------------------------


def test_every_list_of_tasks_has_its_group_though_all_of_it_is_lost() -> None:
    """Or the groups of several ranks would be put together in another order than that of the tasks."""
    searches = tasks(Sample(), 12)
    lists = [searches[:4], searches[4:8], searches[8:]]
    groups = run_groups(driver(misbehaving(bad_resets=[1]), retry=Retrying(0)), lists, unreported)
    assert [(group.instance, len(group.trajectories)) for group in groups] == [(0, 4), (1, 0), (2, 4)]


class TestWithoutLone:
    SAMPLED = trajectory(0, 0)
    SEARCHED = replace(SAMPLED, origin=Origin.SEARCHED)

    def left(self, objective: Any, size: int, *members: Trajectory) -> list[tuple[Trajectory, ...]]:
        return [group.trajectories for group in drop_single_members([Group(0, members)], objective, size)]

    def test_a_whole_group_stays(self) -> None:
        assert self.left(GRPO(), 1, self.SAMPLED) == [(self.SAMPLED,)]

    def test_two_can_be_compared(self) -> None:
        assert self.left(GRPO(), 8, self.SAMPLED, self.SAMPLED) == [(self.SAMPLED, self.SAMPLED)]

    def test_one_cannot(self) -> None:
        assert self.left(GRPO(), 8, self.SAMPLED) == []

    def test_unless_the_baseline_is_a_critic(self) -> None:
        assert self.left(PPO(), 8, self.SAMPLED) == [(self.SAMPLED,)]

    def test_what_is_imitated_stays(self) -> None:
        left = self.left(GRPO(searched=ImitateSuccesses()), 8, self.SAMPLED, self.SEARCHED)
        assert left == [(self.SEARCHED,)]

    def test_what_has_a_tree_is_compared_there(self) -> None:
        [grown] = driver(keep_tree=True).run(tasks(Vine(), 1))
        assert grown.origin is Origin.SAMPLED
        assert self.left(GRPO(searched=TreeCredit()), 2, grown) == [(grown,)]

    def test_a_sample_is_compared_in_the_states_of_a_tree_where_they_are_merged(self) -> None:
        [grown] = driver(keep_tree=True).run(tasks(Vine(), 1))
        assert self.left(GRPO(searched=GraphCredit()), 3, self.SAMPLED, grown) == [(self.SAMPLED, grown)]
        assert self.left(GRPO(searched=TreeCredit()), 3, self.SAMPLED, grown) == [(grown,)]
        assert self.left(GRPO(searched=GraphCredit()), 3, self.SAMPLED) == []


@pytest.mark.parametrize(
    ("share", "trajectories", "most"), [(0.0, 100, 0), (0.1, 64, 6), (0.29, 100, 29), (0.99, 1, 0)]
)
def test_the_share_is_counted_in_whole_trajectories(share: float, trajectories: int, most: int) -> None:
    faults = Faults(max_share=share)
    assert faults.max_lost(trajectories) == most
    faults.check(most, trajectories, "epoch 0", "")
    with pytest.raises(RunError):
        faults.check(most + 1, trajectories, "epoch 0", "")


def test_failures_in_words() -> None:
    assert describe_failures(Costs(env_steps=10)) == ""
    assert describe_failures(Costs(env_errors=3, env_timeouts=1, trajectories_lost=2, candidates_lost=1)) == (
        "calls of the environment failed 4 times (raised 3, timed out 1); trajectories left out: 2, candidates of "
        "searches: 1"
    )
