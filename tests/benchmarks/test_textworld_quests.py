"""Quests told without compiling their games read as TextWorld plays them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from textworld_games import game_cache

from tsr_lightning.envs.make import make_env

GAMES = 3
FIRST_SEED = 1_000_000


@pytest.mark.exhaustive  # the generator is a process of its own, and TextWorld compiles the same games beside it
def test_conversations_are_those_of_the_compiled_games(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    config = ROOT / "configs" / "textworld.yaml"
    file = tmp_path / "quests.jsonl"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.textworld_quests",
            str(config),
            "--games",
            str(GAMES),
            "--output",
            str(file),
        ],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    conversations = [json.loads(line)["messages"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(conversations) == GAMES

    data = yaml.safe_load(config.read_text(encoding="utf-8"))["data"]
    own = {"game_count": None, "cache": game_cache(tmp_path_factory)}
    env = make_env(data["env"], **data["env_kwargs"] | own)
    env.prepare(range(FIRST_SEED, FIRST_SEED + GAMES))
    for seed, (system, *turns) in enumerate(conversations, FIRST_SEED):
        observation, _ = env.reset(seed=seed)
        assert system == {"role": "system", "content": env.instructions}
        won = False
        for told, command in zip(turns[::2], turns[1::2], strict=True):
            assert not won
            if "-=" in observation:  # rooms are told without what depends on the game's state, in the source's quotes
                words = iter(observation.replace('"', "'").split())
                assert all(word in words for word in told["content"].split()), (told["content"], observation)
            else:
                assert told["content"] == observation
            observation, _, won, _, _ = env.step(command["content"])
        assert won
