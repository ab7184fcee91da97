"""Held against TextWorld itself: its wrappers, its `copy()`, its walkthroughs. And states restore exactly."""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import textworld
from textworld_games import KINDS, game_cache, make

from tsr_lightning.worlds.textworld.game import Answer, PlayableGame, open_game
from tsr_lightning.worlds.textworld.transcript import opening, tidy

ODD = (
    "look", "inventory", "i", "examine me", "wait", "again", "take all", "drop it", "jump", "go", "north", "x", "open",
    "take", "sing a song", "eat me", "put it on it", "goal", "score", "enter bed", "take key and chest", "yes",
)  # fmt: skip
INFOS = textworld.EnvInfos(
    feedback=True,
    inventory=True,
    score=True,
    max_score=True,
    won=True,
    lost=True,
    admissible_commands=True,
    policy_commands=True,
    objective=True,
)

pytestmark = pytest.mark.filterwarnings("ignore:Game .* is not fully supported")  # TextWorld ignores it on import


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return game_cache(tmp_path_factory)


def game(cache: Path, kind: str, seed: int = 0) -> PlayableGame:
    env = make(cache, kind)
    env.reset(seed=seed)
    return open_game(Path(env.state.game.path))


def start(played: PlayableGame) -> tuple[textworld.Environment, Any]:
    """TextWorld's own environment of a game, and its first state."""
    env = textworld.start(str(played.path), INFOS)
    return env, env.reset()


def without_tags(text: str) -> str:
    """TextWorld leaves the tags of what it does not track that turn."""
    return tidy(re.sub(r"<(score|moves|inventory)>\n.*?</\1>", "", text, flags=re.DOTALL))


def assert_agree(played: PlayableGame, answer: Answer, theirs: Any) -> None:
    position = answer.position
    assert answer.text == without_tags(theirs["feedback"])
    assert (position.won, position.lost) == (theirs.won, theirs.lost)
    assert position.score == theirs.score
    assert position.inventory == theirs.inventory
    if not (position.won or position.lost):
        assert list(played.situation(position).commands) == theirs.admissible_commands


def random_commands(rng: random.Random, played: PlayableGame, turns: int) -> Iterator[tuple[Answer, str]]:
    """Commands, most of them admissible, each with our answer."""
    position = played.beginning.position
    for _ in range(turns):
        command = rng.choice(ODD if rng.random() < 0.2 else played.situation(position).commands)
        answer = played.step(position, command)
        yield answer, command
        position = answer.position
        if position.won or position.lost:
            return


@pytest.mark.parametrize("kind", KINDS)
def test_every_turn_is_that_of_textworlds_wrappers(cache: Path, kind: str) -> None:
    played = game(cache, kind)
    env, state = start(played)
    assert played.beginning.text == opening(state["feedback"])
    assert played.world.goal == " ".join(state.objective.split())
    assert played.world.max_score == state.max_score
    for seed in range(4):
        state = env.reset()
        rng = random.Random(seed)
        for answer, command in random_commands(rng, played, 25):
            state, _, _ = env.step(command)
            assert_agree(played, answer, state)
    env.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "simple" else pytest.mark.exhaustive) for kind in KINDS]
)
def test_branches_are_those_of_textworlds_copies(cache: Path, kind: str) -> None:
    played = game(cache, kind)
    env, _ = start(played)
    rng = random.Random(7)
    for answer, command in list(random_commands(rng, played, 6)):
        env.step(command)
        if answer.position.won or answer.position.lost:
            break
        branch = env.copy()
        ours = answer
        for _ in range(3):
            command = rng.choice(played.situation(ours.position).commands)
            ours = played.step(ours.position, command)
            theirs, _, _ = branch.step(command)
            assert_agree(played, ours, theirs)
            if ours.position.won or ours.position.lost:
                break
        branch.close()
    env.close()


def branchings(played: PlayableGame, count: int) -> int:
    """Plays and repeats random turns from random earlier states, past all caches; returns the states visited.

    Each turn is played twice, with turns from other states between.
    """
    rng = random.Random(count)
    states = [played.beginning.position]
    first: list[tuple[Any, str, Answer]] = []
    for _ in range(count):
        position = rng.choice(states[-40:])
        command = rng.choice(ODD if rng.random() < 0.1 else played.situation(position).commands)
        answer = played._step(position, command)
        first.append((position, command, answer))
        if not (answer.position.won or answer.position.lost):
            states.append(answer.position)
        earlier = rng.choice(first)
        assert played._step(*earlier[:2]) == earlier[2]
    return len(states)


@pytest.mark.parametrize("kind", KINDS)
def test_restoring_and_repeating_is_exact(cache: Path, kind: str) -> None:
    assert branchings(game(cache, kind), 60) > 30


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_restoring_and_repeating_is_exact_ten_thousand_times(cache: Path, kind: str) -> None:
    assert branchings(game(cache, kind), 10_000) > 5_000


def wins(cache: Path, kind: str, seeds: Sequence[int]) -> None:
    env = make(cache, kind, max_turns=100)
    env.prepare(seeds)
    for seed in seeds:
        env.reset(seed=seed)
        played = open_game(Path(env.state.game.path))
        position = played.beginning.position
        for command in played.world.plan(()) or ():
            answer = played.step(position, command)
            assert not answer.problem
            position = answer.position
        assert position.won, (kind, seed)
        assert position.score == played.world.max_score, (kind, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_walkthroughs_win_with_the_full_score(cache: Path, kind: str) -> None:
    wins(cache, kind, [0])


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_walkthroughs_of_two_hundred_games_win_with_the_full_score(cache: Path, kind: str) -> None:
    wins(cache, kind, range(40))
