"""Where games come from: generation, the cache, folders, and what is refused."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from textworld_games import KINDS, game_cache, make

from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError, EnvFault
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.worlds.panels import load_panel, make_panel
from tsr_lightning.worlds.textworld import package
from tsr_lightning.worlds.textworld import pool as pool_module
from tsr_lightning.worlds.textworld.game import check_story
from tsr_lightning.worlds.textworld.kinds import GameKind
from tsr_lightning.worlds.textworld.maker import without_date
from tsr_lightning.worlds.textworld.orders import Order
from tsr_lightning.worlds.textworld.pool import GameError, MakerPool
from tsr_lightning.worlds.textworld.sources import GeneratedGames, open_folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return game_cache(tmp_path_factory)


def source(folder: Path, count: int | None = None, **settings: Any) -> GeneratedGames:
    return GeneratedGames(GameKind(**settings), "1.7.0", folder, count)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


@pytest.mark.exhaustive  # tw-make is another process too, in the next test
def test_two_processes_make_equal_games_byte_for_byte(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that fills the cache of the tests, and one with another salt of Python's hashes."""
    kinds = [{}, {"kind": "coin_collector", "level": KINDS["coin_collector"]["level"]}]
    made = [source(cache, **kind).path(0) for kind in kinds]
    paths = [tmp_path / f"{number}.z8" for number in range(len(kinds))]
    monkeypatch.setenv("PYTHONHASHSEED", "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2")
    orders = [
        Order(settings=GameKind(**kind).settings(), seed=0, path=str(path))
        for kind, path in zip(kinds, paths, strict=True)
    ]
    for future in MakerPool(1).order(orders):
        future.result()
    for path, known in zip(paths, made, strict=True):
        for end in (".z8", ".json"):
            assert path.with_suffix(end).read_bytes() == known.with_suffix(end).read_bytes()


@pytest.mark.slow
def test_games_are_those_of_tw_make_with_the_same_seed(cache: Path, tmp_path: Path) -> None:
    arguments = "custom --world-size 2 --nb-objects 3 --quest-length 4 --seed 11 --silent --output game.z8"
    tool = [sys.executable, str(Path(sys.executable).parent / "tw-make"), *arguments.split()]
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # of Python's hashes, not that of this process
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONHASHSEED": salt}
    subprocess.run(tool, cwd=tmp_path, env=environment, check=True, capture_output=True)
    path = source(cache).path(11)
    assert path.read_bytes() == without_date((tmp_path / "game.z8").read_bytes())


def test_games_are_made_ahead_kept_and_named_by_what_they_are_made_of(cache: Path, tmp_path: Path) -> None:
    games = source(cache)
    games.prepare([0, 1, 0])
    paths = [games.path(seed) for seed in (0, 1)]
    assert len({path.read_bytes() for path in paths}) == 2
    times = [path.stat().st_mtime_ns for path in paths]
    assert [source(cache).path(seed) for seed in (0, 1)] == paths
    assert [path.stat().st_mtime_ns for path in paths] == times
    names = {
        GeneratedGames(GameKind(**settings), version, tmp_path)._order(seed)["path"]
        for settings in ({}, {"objects": 4}, {"kind": "simple"})
        for version in ("1.7.0", "1.7.1")
        for seed in (0, 1)
    }
    assert len(names) == 12
    unused = GeneratedGames(GameKind(level=3), "1.7.0", tmp_path)
    assert unused._order(0) == GeneratedGames(GameKind(), "1.7.0", tmp_path)._order(0)  # of a custom game


def test_a_game_count_makes_seeds_share_games(cache: Path) -> None:
    games = source(cache, count=2)
    assert games.path(0) == games.path(4) == source(cache).path(0)
    assert games.path(1) == games.path(7) != games.path(0)


def test_instances_announce_games_before_they_are_drawn(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(cache, game_count=4)
    announced: list[list[int]] = []
    drawn: list[int] = []
    monkeypatch.setattr(env, "prepare", lambda seeds: announced.append(list(seeds)))
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda *, seed: drawn.append(seed) or reset(seed=seed))
    instances = Instances([env], Key(0), HeldOut(1))
    held_out = [seed for _, seed in instances.held_out]
    assert announced == [held_out] == [drawn]
    instances.training(0, 2)
    first, following = announced[1:]
    assert first[0] in drawn
    assert len(first) == len(following) == 2
    instances.training(1, 2)
    assert announced[3] == following  # of the next epoch, already announced


def test_an_impossible_game_is_refused(tmp_path: Path) -> None:
    games = source(tmp_path, kind="coin_collector", level=200)
    with pytest.raises(
        ConfigError,
        match=r"TextWorldEnv.kind is 'coin_collector': TextWorld makes no game of kind coin_collector, level 200 from "
        r"seed 5 \(ValueError: .* more than 100 rooms are not supported\.\); change them\.",
    ):
        games.path(5)
    assert contents(tmp_path) == {}


def test_a_game_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST_SECONDS", 0.0)
    order = Order(settings=GameKind().settings(), seed=0, path=str(tmp_path / "a.z8"))
    [future] = MakerPool(1).order([order])
    with pytest.raises(GameError, match="it took longer than 0 s"):
        future.result()


def test_a_maker_that_dies_is_named_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(settings=GameKind(kind="coin_collector").settings(), seed=0, path=str(tmp_path / "a.z8"))
    pool = MakerPool(1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    [future] = pool.order([order])
    with pytest.raises(EnvFault, match="the process that makes games ended with code 1"):
        future.result()
    monkeypatch.undo()
    [future] = pool.order([order], urgent=True)
    future.result()
    assert (tmp_path / "a.z8").exists()
    assert (tmp_path / "a.json").exists()
    assert pool.progress == (1, 1)


def test_a_folder_of_games_is_played_by_seed(cache: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        made = source(cache).path(seed)
        for end in (".z8", ".json"):
            shutil.copy(made.with_suffix(end), tmp_path / f"game-{seed}{end}")
    env = make(cache, games=tmp_path)
    keys = []
    for seed in range(4):
        env.reset(seed=seed)
        keys.append(env.state_key())
    assert keys[0] == keys[2] != keys[1] == keys[3]
    made_env = make(cache)
    made_env.reset(seed=1)
    assert made_env.state_key() == keys[1]  # wherever the file lies


def test_a_panel_plays_its_games_and_notices_others(cache: Path, tmp_path: Path) -> None:
    paths = source(cache).named(["1", "0"])
    panel = make_panel("two", {name: path.read_bytes() for name, path in paths.items()})
    panel.save(tmp_path / "two.json")
    env, all_games = make(cache, panel=tmp_path / "two.json", game_count=1), make(cache)
    for seed, same in ((0, 1), (1, 0), (2, 1)):
        env.reset(seed=seed)
        all_games.reset(seed=same)
        assert env.state_key() == all_games.state_key()
    other = tmp_path / "other.json"
    replace(panel, digest="0" * 24).save(other)
    refuse(r"TextWorldEnv.panel is 'two': its games have the hash", panel=str(other), cache=str(cache))
    replace(panel, games=("one",)).save(other)
    refuse(r"TextWorldEnv.panel is 'two': 1 of the 1 games are missing", panel=str(other))
    refuse(r"TextWorldEnv.panel is 'nowhere': there is no such panel", panel="nowhere")


@pytest.mark.exhaustive
def test_the_example_of_the_docs_makes_a_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "textworld.md").read_text(), re.DOTALL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace("60_064", "60_002"), "docs/textworld.md", "exec"), {})
    assert load_panel("panel", "w2-o3-q4.json").games == ("60000", "60001")


@pytest.mark.exhaustive  # it makes 64 games
@pytest.mark.timeout(1200)
def test_the_panel_that_comes_with_the_package_is_of_games_that_are_made_again(cache: Path) -> None:
    env = make(cache, panel="textworld-w2-o3-q4-64")
    keys = set()
    for seed in range(64):
        env.reset(seed=seed)
        keys.add(env.state_key())
    assert len(keys) == 64


def refuse(match: str, **settings: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        make_env("tsr/TextWorld-v0", **settings).reset(seed=0)


def test_what_is_no_folder_of_games_is_refused(cache: Path, tmp_path: Path) -> None:
    refuse(r"TextWorldEnv.games is 'nowhere': there is no such folder", games="nowhere")
    refuse(r"TextWorldEnv.games is .*: the folder has no games", games=str(tmp_path))
    made = source(cache).path(0)
    story, logic = made.read_bytes(), made.with_suffix(".json").read_text()
    target = tmp_path / "game.z8"
    target.write_bytes(story)
    refuse(r"game.json: it is missing beside its .z8", games=str(tmp_path))
    for content in ("", "[]", "{}", '{"version": 99}', "\0", logic[:-400]):
        target.with_suffix(".json").write_text(content)
        refuse(r"game.json: it is no game of TextWorld's \(.*\); take it out of the folder\.", games=str(tmp_path))
    without_quests = re.sub(r'"quests": \[.*?\], "infos"', '"quests": [], "infos"', logic)
    assert without_quests != logic
    target.with_suffix(".json").write_text(without_quests)
    refuse(r"game.json: TextWorld knows no way to win this game", games=str(tmp_path))
    target.with_suffix(".json").write_text(logic)
    for broken in (
        b"",
        b"\x08",
        b"not a game" * 100,
        story[:-3000],
        b"\x05" + story[1:],
        story[:5000] + b"!" + story[5001:],
    ):
        target.write_bytes(broken)
        refuse(r"TextWorldEnv.games is .*game.z8': it is no whole .z8 game", games=str(tmp_path))
    check_story(target, story)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("kind", "cooking", "take one of custom, simple, coin_collector, treasure_hunter"),
        ("world_size", 0, "give a whole number of at least 1"),
        ("objects", "3", "give a whole number of at least 1"),
        ("quest_length", 0, "give a whole number of at least 1"),
        ("milestones", "rich", "take one of dense, balanced, sparse"),
        ("hint", "long", "take one of detailed, brief, none"),
        ("game_count", 0, "give a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_named(argument: str, value: Any, message: str) -> None:
    refuse(rf"TextWorldEnv\.{argument} is {value!r}: {message}", **{argument: value})


def test_levels_have_a_range() -> None:
    refuse(r"TextWorldEnv\.level is 31: a treasure_hunter has levels from 1 to 30", kind="treasure_hunter", level=31)
    refuse(r"TextWorldEnv\.level is 301: a coin_collector has levels", kind="coin_collector", level=301)


def test_a_missing_or_other_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs textworld 1\.7, and 1\.6\.2 is installed: install the extra"):
        package.check_installed("1.6.2")
    assert package.check_installed("1.7.3") == "1.7.3"
    script = (
        "import importlib.metadata as m; real = m.version\n"
        "def missing(name):\n"
        "    if name == 'textworld': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = missing\n"
        "from tsr_lightning.envs.make import make_env\n"
        "make_env('tsr/TextWorld-v0')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "tsr/TextWorld-v0 needs the package textworld, which is missing: install the extra: pip install "
        "'tsr-lightning[textworld]' (it needs gcc)."
    )


def test_an_open_folder_lists_its_games_in_order(tmp_path: Path) -> None:
    for name in ("b.z8", "a.z8", "c.json"):
        (tmp_path / name).touch()
    assert [path.name for path in open_folder(tmp_path).games] == ["a.z8", "b.z8"]
