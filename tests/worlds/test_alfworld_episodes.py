"""Replays the episodes recorded in the original engine, and wins every published game by our plans."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.alfworld_games import DATA, REASON, episodes, index, published, write_games
from tsr_lightning.worlds.alfworld.actions import NO_EFFECT, admissible, answer, apply
from tsr_lightning.worlds.alfworld.env import ALFWorldEnv
from tsr_lightning.worlds.alfworld.level import Level
from tsr_lightning.worlds.alfworld.oracle import shortest_plan
from tsr_lightning.worlds.alfworld.text import opening

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=REASON)


def replayed(level: Level, episode: dict[str, Any]) -> int:
    """Steps of an episode, of which each is as recorded."""
    state, scene, reset = level.start, level.scene, episode["reset"]
    assert opening(scene) == reset["observation"]
    assert list(admissible(scene, state)) == reset["admissible"]
    assert level.is_solved(state) == reset["won"]
    steps = [*episode["steps"], *episode.get("after_win", [])]
    for number, step in enumerate(steps):
        action = admissible(scene, state).get(step["command"].strip())
        observation = NO_EFFECT
        if action is not None:
            state = apply(scene, state, action)
            observation = answer(scene, state, action)
        won = level.is_solved(state)
        found = (observation, list(admissible(scene, state)), float(won), won, won)
        expected = tuple(step[name] for name in ("observation", "admissible", "score", "won", "done"))
        assert found == expected, f"{episode['game']}, {episode['kind']}, step {number}, {step['command']!r}"
    return len(steps)


def test_every_recorded_step_is_equal():
    """Observation, admissible commands, score and flags of plans, random walks with odd input, and odd places."""
    steps = sum(replayed(published(episode["game"]), episode) for episode in episodes())
    kinds = Counter(episode["kind"] for episode in episodes())
    assert (len(episodes()), steps) == (196, 5394)
    assert kinds == {"plan": 90, "walk": 90, "corner": 16}


def test_our_plans_win_every_published_game_and_are_as_short_as_the_original_planners():
    lengths = {}
    for name in index():
        level = published(name)
        plan = shortest_plan(level.scene, level.start, level.goal)
        assert plan is not None
        state = level.start
        for command in plan:
            assert not level.is_solved(state)
            state = apply(level.scene, state, admissible(level.scene, state)[command])
        assert level.is_solved(state)
        lengths[name] = len(plan)
    assert len(lengths) == 237
    recorded = [episode for episode in episodes() if episode["kind"] == "plan"]
    longer = Counter((e["plan_source"], len(e["steps"]) - lengths[e["game"]]) for e in recorded)
    assert longer == {("planner", 0): 73, ("scripted", 0): 15, ("scripted", 1): 2}


def test_recorded_plans_win_in_the_environment(tmp_path: Path):
    plans = [episode for episode in episodes() if episode["kind"] == "plan"][::5]
    write_games(tmp_path, [episode["game"] for episode in plans])
    env = ALFWorldEnv(games=tmp_path, prompt_style="game")
    names = sorted(episode["game"] for episode in plans)
    for episode in plans:
        observation, info = env.reset(seed=names.index(episode["game"]) + len(names))  # modulo the number of games
        assert (info["game"], info["task"]) == (episode["game"], episode["goal_type"])
        assert observation == episode["reset"]["observation"]
        for step in episode["steps"]:
            observation, reward, terminated, truncated, info = env.step(step["command"])
            assert observation == step["observation"]
            assert (reward, terminated, info["success"]) == (step["score"], step["done"], step["won"])
            assert not truncated
        assert env.score() == 1


def test_the_kind_of_every_published_goal_is_recognised():
    assert {name: published(name).task for name in index()} == {
        name: line["goal_type"] for name, line in index().items()
    }
