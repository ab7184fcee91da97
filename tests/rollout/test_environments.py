"""A run closes its environments at its end; a further run makes new ones."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from commands import QUICK, TINY, tsr

from tests.connected import MADE, OPEN, STEPS, Connected
from tsr_lightning.cli.app import parsed_run, resolved_settings
from tsr_lightning.cli.estimate import estimate
from tsr_lightning.cli.ray.command import checked_settings
from tsr_lightning.cli.ray.options import RayOptions
from tsr_lightning.cli.replay import replay
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.playing import check_first_reset
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.rollout.environments import EnvFactory, Environments
from tsr_lightning.rollout.mixture import MixtureEntry

NAME = "tests.connected:Connected-v0"
TASK = (
    *("--config", "sokoban.yaml", "--model.policy.model", TINY, "--data.env", NAME, *QUICK),
    *("--data.held_out.instances", 1, "--data.updates.minibatches", 1),
)


@pytest.fixture(autouse=True)
def nothing_open():
    OPEN.clear()
    MADE.clear()
    STEPS.clear()


def test_what_is_closed_is_made_anew_on_its_next_use():
    environments = Environments(EnvFactory.of(NAME), workers=2)
    assert (len(environments.envs), MADE) == (1, [])
    first = environments.envs[0]
    assert environments.envs[0] is first
    environments.make()
    assert len(OPEN) == 3
    environments.close()
    environments.close()
    assert OPEN == []
    assert [*environments.envs] == OPEN != [first]
    assert [env for worker in environments.workers for env in worker] == OPEN[1:]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_leaves_none_open_and_a_trainer_that_fits_on_has_new_ones(empty_folder, staleness: int):
    asynchronous = ("--data.staleness", staleness, "--data.env_workers", 2)
    cli = tsr("fit", *TASK, *asynchronous, "--trainer.max_epochs", 1)
    made = len(MADE)
    assert (made > 3, OPEN) == (True, [])
    cli.trainer.fit_loop.max_epochs = 2
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.current_epoch == 2
    assert (len(MADE) > made, OPEN) == (True, [])
    assert {env.made_in for env in MADE} == {threading.main_thread()}  # and in none of workers or rollouts


@pytest.mark.parametrize(("staleness", "made"), [(0, 4), (1, 5)])
def test_a_run_that_ends_in_an_error_leaves_none_open(empty_folder, staleness: int, made: int):
    ahead = ("--data.staleness", staleness, "--trainer.max_epochs", 1)
    with pytest.raises(RunError, match="the server is gone"):  # after 195 steps of checks and evaluation
        tsr("fit", *TASK, *ahead, "--data.env_kwargs.fails_after", 200)
    assert (len(MADE), OPEN) == (made, [])


def test_none_stays_open_where_another_cannot_be_made():
    broken = MixtureEntry(NAME, {"fails_after": 1, "unknown": 1})
    with pytest.raises(ConfigError, match="unknown"):
        EnvFactory([MixtureEntry(NAME), broken]).make_all()
    assert (len(MADE), OPEN) == (1, [])


def test_one_that_cannot_be_reset_is_closed():
    class Unready(Connected):
        def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
            raise ValueError("the server is not ready")

    with pytest.raises(RunError, match="not ready"):
        check_first_reset(NAME, Unready)
    assert (len(MADE), OPEN) == (1, [])


def test_a_run_that_is_refused_leaves_none_open(empty_folder):
    with pytest.raises(ConfigError, match="context_tokens"):
        tsr("fit", *TASK, "--data.context_tokens", 20)
    assert (len(MADE) > 1, OPEN) == (True, [])
    made = len(MADE)
    with pytest.raises(ConfigError, match=r"data\.staleness"):  # of several ranks, which are checked with a Trainer
        checked_settings([*map(str, TASK), "--data.staleness", "1"], RayOptions(num_workers=2))
    assert (len(MADE) > made, OPEN) == (True, [])


def test_a_check_of_the_contract_closes_what_it_made_and_no_other():
    given = Connected()
    check_branchable(NAME, seeds=range(1))
    check_branchable(Connected, seeds=range(1))
    check_branchable(given, seeds=range(1))
    assert (len(MADE) > 3, OPEN) == (True, [given])


def test_commands_that_train_nothing_leave_none_open(empty_folder, capsys: pytest.CaptureFixture[str]):
    resolved_settings([str(arg) for arg in TASK])
    assert (len(MADE) > 1, OPEN) == (True, [])
    assert estimate([str(arg) for arg in TASK], parsed_run) == 0
    assert OPEN == []
    tsr("rollout", *TASK, "--output", "played.jsonl", "--episodes", 2)
    assert OPEN == []
    made = len(MADE)
    assert replay(["played.jsonl"]) == 0
    assert (len(MADE) > made, OPEN) == (True, [])
    made = len(MADE)
    tsr("fit", *TASK, "--trainer.max_epochs", 1, "--trainer.run_folder", "run")
    [checkpoint] = Path("run").rglob("*.ckpt")
    tsr("export", *TASK, "--ckpt_path", checkpoint, "--output", "exported")
    assert (len(MADE) > made, OPEN) == (True, [])


def test_one_that_cannot_be_closed_is_logged_and_costs_nothing(empty_folder, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "tsr_lightning"):
        trainer = tsr("fit", *TASK, "--data.env_kwargs.is_lost", "true", "--trainer.max_epochs", 1).trainer
    assert (trainer.current_epoch, OPEN) == (1, [])
    assert "close of Connected-v0 failed, and the run goes on: RuntimeError: the connection was lost" in caplog.text
