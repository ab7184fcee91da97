"""Makes games, in a process of its own: `python -m tsr_lightning.worlds.textworld.maker` reads orders from stdin.

TextWorld's generator has global state, its sets are ordered by Python's salted hash, it reads data from the working
folder, and Inform writes to $HOME. A process for it (`pool.py` starts it) keeps all that from ours.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import textworld
from textworld.challenges import CHALLENGES
from textworld.generator import compile_game, make_game
from textworld.generator.game import Game, GameOptions

from tsr_lightning.rng import Key
from tsr_lightning.worlds.textworld.orders import Order, Outcome

TRIES = 5  # seeds before the arguments count as impossible
_SERIAL = slice(0x12, 0x18)  # the date of compilation in a Z-machine header, which the checksum leaves out


def make(order: Order) -> None:
    """Makes a game, so that both its files are there or the .z8 is not.

    The first try takes the seed as it is, so that `tw-make` with this seed makes the same game.

    Raises:
        Exception: TextWorld's own, of the last try.
    """
    target = Path(order["path"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
        made = _make(order["settings"], order["seed"], Path(folder) / target.name)
        os.replace(made.with_suffix(".json"), target.with_suffix(".json"))
        os.replace(made, target)


def _make(settings: Mapping[str, Any], seed: int, path: Path) -> Path:
    for attempt in range(TRIES):
        options = GameOptions()
        options.seeds = Key(seed).fold_in("textworld", attempt).bits() >> 33 if attempt else seed
        options.path, options.file_ext = str(path), ".z8"
        textworld.g_rng.set_seed(options.seeds["map"])
        try:
            game = _MAKERS[settings["kind"]](settings, options)
            compile_game(game, options)
        except Exception:  # of many kinds, bare ones among them: this seed has no such game
            if attempt + 1 == TRIES:
                raise
            continue
        path.write_bytes(without_date(path.read_bytes()))
        return path
    raise AssertionError("a try either returns or raises")


def without_date(story: bytes) -> bytes:
    """A .z8 without the date that it was made on, so that equal games are equal files on any day."""
    return story[: _SERIAL.start] + b"000000" + story[_SERIAL.stop :]


def _custom(settings: Mapping[str, Any], options: GameOptions) -> Game:
    options.nb_rooms, options.nb_objects = settings["world_size"], settings["objects"]
    options.quest_length = settings["quest_length"]
    return make_game(options)


def _simple(settings: Mapping[str, Any], options: GameOptions) -> Game:
    chosen = {"rewards": settings["milestones"], "goal": settings["hint"], "test": False}
    return CHALLENGES["tw-simple"][1](chosen, options)


def _coin_collector(settings: Mapping[str, Any], options: GameOptions) -> Game:
    return CHALLENGES["tw-coin_collector"][1]({"level": settings["level"]}, options)


def _treasure_hunter(settings: Mapping[str, Any], options: GameOptions) -> Game:
    return CHALLENGES["tw-treasure_hunter"][1]({"level": settings["level"]}, options)


_MAKERS = {
    "custom": _custom,
    "simple": _simple,
    "coin_collector": _coin_collector,
    "treasure_hunter": _treasure_hunter,
}


def main() -> None:
    """Reads an order a line, and answers each with a line. Ends with its input."""
    warnings.simplefilter("ignore")
    replies = sys.stdout
    home = tempfile.mkdtemp(prefix="tsr-inform-")
    try:
        os.environ["HOME"] = home
        os.chdir(home)
        with contextlib.redirect_stdout(sys.stderr):
            for line in sys.stdin:
                outcome = Outcome(problem="")
                try:
                    make(json.loads(line))
                except Exception as error:
                    outcome = Outcome(problem=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
                print(json.dumps(outcome), file=replies, flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
