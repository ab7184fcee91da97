"""Plays ALFWorld's own engine beside ours: every text, admissible command, score and flag of random steps, and speed.

    python -m benchmarks.alfworld_parity --games FOLDER --steps 10000

FOLDER has published games (`game.tw-pddl`). Needs `alfworld` and `textworld[pddl]`, which bring GPL-licensed parts and
are no dependencies of this project: install them into an environment of their own.
"""

import argparse
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tsr_lightning.rng import Key
from tsr_lightning.worlds.alfworld.actions import NO_EFFECT, admissible, answer, apply
from tsr_lightning.worlds.alfworld.games import GAME, read_game
from tsr_lightning.worlds.alfworld.level import Level
from tsr_lightning.worlds.alfworld.state import State
from tsr_lightning.worlds.alfworld.text import opening

ODD = 8  # one command in so many is no admissible one


class Seconds:
    """Processor time of both engines, for steps with their admissible commands."""

    ours = 0.0
    theirs = 0.0


def original(path: Path) -> Any:
    """A game in the original engine, numbered in the order of its ids as recorded games are."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    infos = textworld.EnvInfos(won=True, lost=True, admissible_commands=True)
    return textworld.start(str(path), infos, wrappers=[AlfredDemangler(shuffle=False)])


def speed_up_original() -> None:
    """Lets the original parse each rule and query once, and copy mappings of constant things instead of the things."""
    import textworld.envs.pddl.textgen as textgen
    import textworld.logic

    for module in (textgen, textworld.logic):
        module._parse_and_convert = lru_cache(maxsize=None)(module._parse_and_convert)
    textgen.copy_context = lambda context: {
        **context,
        "variables": dict(context["variables"]),
        "mapping": dict(context["mapping"]),
    }


def compared(path: Path, steps: int, key: Key, seconds: Seconds) -> Iterator[str]:
    """The differences of a random walk, which goes on after a win."""
    env, level = original(path), read_game(path, str(path))
    theirs, state = env.reset(), level.start
    yield from _differences("the start", _of_theirs(theirs), _of_ours(level, state, opening(level.scene)))
    for step in range(steps):
        command = _chosen(list(theirs.admissible_commands), key.fold_in(step))
        begun = time.process_time()
        theirs, score, done = env.step(command)
        seconds.theirs += time.process_time() - begun
        begun = time.process_time()
        action = admissible(level.scene, state).get(command.strip())
        text = NO_EFFECT
        if action is not None:
            state = apply(level.scene, state, action)
            text = answer(level.scene, state, action)
        ours = _of_ours(level, state, text)
        seconds.ours += time.process_time() - begun
        yield from _differences(f"step {step}, {command!r}", _of_theirs(theirs), ours)
        if (score, done) != (int(ours[2]), ours[2]):
            yield f"step {step}, {command!r}: score and end are {(score, done)} there"
    env.close()


def _chosen(commands: list[str], key: Key) -> str:
    command = commands[int(key.uniform(0) * len(commands))]
    if key.uniform(1) * ODD >= 1:
        # rare verbs more often: of three commands the one whose verb is rarest here
        drawn = [commands[int(key.uniform(index) * len(commands))] for index in (2, 3, 4)]
        verbs = [other.split()[0] for other in commands]
        return min(drawn, key=lambda other: verbs.count(other.split()[0]))
    odd = (f" {command} ", command.upper(), command.replace(" ", "  "), f"{command}.", command[:-1], "", "help me")
    return odd[int(key.uniform(2) * len(odd))]


def _of_theirs(state: Any) -> tuple[str, list[str], bool]:
    return state["feedback"], list(state.admissible_commands), state.won


def _of_ours(level: Level, state: State, text: str) -> tuple[str, list[str], bool]:
    return text, list(admissible(level.scene, state)), level.is_solved(state)


def _differences(where: str, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> Iterator[str]:
    for name, a, b in zip(("text", "admissible commands", "won"), theirs, ours, strict=True):
        if a != b:
            yield f"{where}: {name} is {a!r} there and {b!r} here"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=Path, required=True, help="folder of published games")
    parser.add_argument("--steps", type=int, default=10_000, help="in all")
    parser.add_argument("--per_game", type=int, default=40, help="steps of a walk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sped_up", action="store_true", help="the original without repeated parsing and copying")
    options = parser.parse_args()
    if options.sped_up:
        speed_up_original()
    paths = sorted(options.games.rglob(GAME))
    seconds, done, found = Seconds(), 0, 0
    for walk in range(-(-options.steps // options.per_game)):
        key = Key(options.seed).fold_in("alfworld parity", walk)
        path = paths[key.bits() % len(paths)]
        for difference in compared(path, options.per_game, key, seconds):
            found += 1
            print(f"{path.parent}: {difference}", flush=True)
        done += options.per_game
        if walk % 10 == 9:
            print(f"{done} steps, {found} differences", flush=True)
    print(
        f"{done} steps on {len(paths)} games, {found} differences; steps/s with admissible commands: original "
        f"{done / seconds.theirs:.0f}, ours {done / seconds.ours:.0f}, ratio {seconds.theirs / seconds.ours:.0f}"
    )


if __name__ == "__main__":
    main()
