"""Environments of OpenEnv, over a server of its own: branched by replay, and trained on."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="openenv-core is an extra: make test-extras EXTRAS=openenv")
from commands import in_folder, tsr

from tests.extras.openenv_number import served
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError

ENV = "tsr_lightning.envs.openenv:OpenEnv-v0"
NUMBERS = [str(number) for number in range(1, 10)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(sessions=16) as address:
        yield address


def test_a_session_can_be_branched(url: str) -> None:
    given = {"url": url, "action": "number", "observation": "text", "max_turns": 4, "actions": NUMBERS}
    check_branchable(lambda: make_env(ENV, **given), seeds=range(3), turns=4)


def test_what_the_server_refuses_is_an_invalid_turn(url: str) -> None:
    env = make_env(ENV, url=url, max_turns=8)
    observation, _ = env.reset(seed=1)
    assert observation == '{"text": "Guess a number from 1 to 9."}'
    for response in ("five", "[5]", '{"number": "five"}', '{"guess": 5}'):
        answer, reward, terminated, truncated, info = env.step(response)
        assert answer.startswith("Error: ")
        assert not info["action_is_valid"]
        assert (reward, terminated, truncated) == (0, False, False)
    rewards = [env.step(f'{{"number": {number}}}') for number in (1, 2, 3)]
    assert all(info["action_is_valid"] for *_, info in rewards)
    env.close()


def test_seeds_of_one_answer_are_one_instance(url: str) -> None:
    env = make_env(ENV, url=url, max_turns=4)
    keys = set()
    for seed in range(30):
        env.reset(seed=seed)
        keys.add(env.state_key())
    assert len(keys) == 9
    env.close()


def test_it_trains_with_beam_search(url: str, tmp_path: Path) -> None:
    given = f'{{"url": "{url}", "action": "number", "observation": "text", "max_turns": 4, "actions": {NUMBERS}}}'
    with in_folder(tmp_path):
        tsr(
            *("fit", "--config", "frozen_lake.yaml", "--config", "search/beam.yaml"),
            *("--config", "credit/imitate.yaml", "--data.env", ENV),
            *("--data.env_kwargs", given.replace("'", '"'), "--data.held_out.instances", "2", "--data.instances", "2"),
            *("--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"),
        )
    assert (tmp_path / "runs").exists()


def test_a_server_that_is_not_there_is_named() -> None:
    env = make_env(ENV, url="http://127.0.0.1:9", max_turns=4)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9"):
        env.reset(seed=0)
    env.close()


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv.core.generic_client", None)
    with pytest.raises(ConfigError, match=r"needs the package openenv-core"):
        make_env(ENV, url="http://127.0.0.1:9", max_turns=4)
