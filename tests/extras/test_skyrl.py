"""Environments as SkyRL-gym's."""

import pytest

pytest.importorskip("skyrl_gym", reason="skyrl-gym is an extra: make test-extras EXTRAS=skyrl")
import skyrl_gym

from tsr_lightning.envs.make import make_env
from tsr_lightning.outward.skyrl import NAME, row

SOKOBAN = {"size": [5, 5], "boxes": 1}


@pytest.mark.parametrize("seed", range(3))
def test_an_oracle_wins_an_episode_of_a_row(seed: int) -> None:
    task = row("tsr/Sokoban-v0", seed, **SOKOBAN)
    player = make_env("tsr/Sokoban-v0", **SOKOBAN)
    player.reset(seed=seed)
    env = skyrl_gym.make(NAME, env_config={}, extras=task)
    prompt, _ = env.init(task["prompt"])
    assert prompt == task["prompt"]
    assert [message["role"] for message in prompt] == ["system", "user"]
    total, done, turns = 0.0, False, 0
    while not done:
        response = player.oracle()
        answer = env.step(response)
        observation, reward, terminated, truncated, info = player.step(response)
        assert [message["content"] for message in answer["observations"]] == [observation]
        assert (answer["reward"], answer["done"]) == (reward, terminated or truncated)
        assert answer["metadata"]["success"] == info["success"]
        total, done, turns = total + reward, answer["done"], turns + 1
    assert env.get_metrics() == {"success": 1.0, "return": pytest.approx(total), "valid_actions": 1.0}
    env.close()


def test_tools_are_explained_and_answer_as_such() -> None:
    task = row("tests.counter:Counter-v0", 0, call_format="fenced")
    env = skyrl_gym.make(NAME, extras=task)
    prompt, _ = env.init(task["prompt"])
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert "finish" in prompt[0]["content"]
    answer = env.step("```add\n2\n```")
    assert answer["observations"] == [{"role": "tool", "content": "The count is 2."}]
    assert env.step("nothing")["metadata"] == {"success": False, "action_is_valid": False}
    assert env.step("```finish\n```")["done"]
    assert env.get_metrics() == {"success": 1.0, "return": 0.9, "valid_actions": pytest.approx(2 / 3)}
    env.close()
