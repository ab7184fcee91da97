"""Demonstrations by random legal actions: answers of the right form, for environments without an oracle."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import MOVES, Guided, driver, tasks
from tsr_lightning.envs.base import HasLegalActions
from tsr_lightning.envs.boundary import Call, bounded
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.sokoban import SokobanEnv
from tsr_lightning.errors import ConfigError, EnvFault, RunError
from tsr_lightning.rng import Key
from tsr_lightning.search.demonstrators import Oracle, RandomPlayer
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Expert, RandomActions
from tsr_lightning.trajectory import Origin

STYLES = {
    "tsr/FrozenLake-v0": ("paper", "instruct", "brief", "bare"),
    "tsr/Sokoban-v0": ("paper", "instruct", "brief", "bare"),
    "tsr/WebShop-v0": ("paper", "instruct", "brief", "bare", "original"),
    "tsr/ALFWorld-v0": ("paper", "instruct", "brief", "bare", "guide", "game"),
    "tsr/TextWorld-v0": ("paper", "instruct", "brief", "bare", "guide", "game"),
}
SLOW = ("tsr/ALFWorld-v0", "tsr/TextWorld-v0")


@pytest.mark.parametrize(
    ("id", "style"),
    [
        pytest.param(id, style, marks=pytest.mark.exhaustive if id in SLOW else [])
        for id, styles in STYLES.items()
        for style in styles
    ],
)
def test_every_turn_is_a_valid_answer_of_the_task_in_its_style(id: str, style: str, tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"prompt_style": style}
    if id == "tsr/TextWorld-v0":
        kwargs |= {"kind": "coin_collector", "level": 1, "game_count": 1, "cache": str(tmp_path)}
    env = make_env(id, **kwargs)
    assert isinstance(env, HasLegalActions)
    player, turns = RandomPlayer(), 0
    for seed in range(2):
        env.reset(seed=seed)
        ended = False
        while not ended and turns < 24:
            key = Key(seed).fold_in(turns)
            response = player.respond(env, env.get_state(), key)
            _, _, terminated, truncated, info = env.step(response)
            assert info["action_is_valid"], response
            ended, turns = terminated or truncated, turns + 1
    assert turns > 2


def test_legal_actions_are_equally_likely() -> None:
    env, player = Guided(), RandomPlayer()
    env.reset(seed=0)
    counts = Counter(player.respond(env, env.get_state(), Key(seed)) for seed in range(3000))
    # of four, each has the mean 750 and the standard deviation sqrt(3000 * 1/4 * 3/4) < 24
    assert counts.keys() == set(MOVES)
    assert all(abs(count - 750) < 120 for count in counts.values())


def test_a_trajectory_is_demonstrated_and_costs_no_token() -> None:
    playing = driver(Guided())
    trajectories = playing.run(tasks(RandomActions(), 20))
    assert {trajectory.origin for trajectory in trajectories} == {Origin.DEMONSTRATED}
    assert {turn.text for trajectory in trajectories for turn in trajectory.turns} == set(MOVES)
    assert len({tuple(turn.text for turn in trajectory.turns) for trajectory in trajectories}) > 5
    assert playing.costs.tokens_generated == 0


class Mute(SokobanEnv):
    def legal_actions(self) -> list[str]:
        return []


def test_a_state_without_a_legal_action_is_named() -> None:
    env = Mute()
    env.reset(seed=0)
    sentence = (
        r"legal_actions of Mute \(instance 0\) is wrong: legal_actions\(\) is empty in a state that has not ended"
    )
    with pytest.raises(RunError, match=sentence):
        bounded(Call(env, "legal_actions", 0), lambda: RandomPlayer().respond(env, env.get_state(), Key(0)))


class Bare:
    """An environment with the contract alone."""


def test_who_cannot_be_asked_is_refused_with_what_can() -> None:
    bare: Any = Bare()
    walk: Any = Guided.__bases__[0]()
    with pytest.raises(
        ConfigError, match=r"Expert, but mine has no oracle: use RandomActions, .*warm_start/form\.yaml"
    ):
        Oracle().check(walk, "mine")
    with pytest.raises(ConfigError, match=r"Expert, but mine has no oracle: add the method oracle, or give demonstr"):
        Oracle().check(bare, "mine")
    with pytest.raises(ConfigError, match=r"RandomActions, but mine does not list its legal actions: add the method"):
        RandomPlayer().check(bare, "mine")
    Oracle().check(Guided(), "mine")
    RandomPlayer().check(walk, "mine")


@pytest.mark.parametrize("strategy", [Expert(), RandomActions()])
def test_search_refuses_it_too(strategy: Any) -> None:
    """Where no command has checked the environment before."""

    class Silent(Guided):
        oracle = legal_actions = None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="add the method"):
        driver(Silent()).run(tasks(strategy, 1))


def test_a_demonstration_beyond_the_context_is_lost_alone() -> None:
    """The model would be trained on more tokens than it is allowed to see; the others are played on."""

    class Wordy(Guided):
        def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
            return 2 * super().oracle(noise, key)

    whole = tasks(Expert(), 12)
    ends = [max(len(turn.prompt) + len(turn.response) for turn in tree.turns) for tree in driver(Wordy()).run(whole)]
    longest = max(ends)
    limits = TokenLimits(longest - 1)
    with pytest.raises(
        EnvFault, match=rf"ends at token {longest}, beyond data\.context_tokens of {longest - 1}: raise"
    ):
        driver(Wordy(), limits=limits).run(whole)
    retry = Retrying(0)
    found = driver(Wordy(), limits=limits, retry=retry).survivors(whole)
    assert [tree is None for tree in found] == [end == longest for end in ends]
    assert 0 < found.count(None) < len(found)
    assert "data.context_tokens" in retry.last
