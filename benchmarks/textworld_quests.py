"""Conversations about TextWorld quests, of games that are generated and not compiled: ten a second instead of one.

    PYTHONHASHSEED=0 python -m benchmarks.textworld_quests configs/textworld.yaml --games 3000 --output quests.jsonl

`python -m benchmarks.transcripts --conversations quests.jsonl` teaches a policy such as `embedded/textworld` from them
first: many names, and many ways to tell a quest. Each is a quest's goal and walkthrough in the prompts of the
configuration, one JSON object `{"messages": [...]}` a line. Goals, names and descriptions are TextWorld's. The game's
answers are put together here, in its words; rooms are told without what depends on the game's state, and with single
quotes where Inform prints double ones.

The generator's sets are ordered by Python's hash, so equal files need the PYTHONHASHSEED above.
"""

import argparse
import json
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import textworld
import yaml
from textworld.generator import make_game
from textworld.generator.data import KnowledgeBase
from textworld.generator.game import Game, GameOptions
from textworld.logic import State

from tsr_lightning.worlds.command_prompts import COMMAND_PROMPT_STYLES, instructions

Message = dict[str, str]

FIRST_SEED = 1_000_000  # far from the seeds of games that are played
_CONDITIONAL = re.compile(r"\[if .*?\[end if\]", re.DOTALL)  # Inform's, such as what a container holds
_ANSWERS = (  # to a walkthrough's commands, the first that fits
    (re.compile("take (.*) from (.*)"), r"You take the \1 from the \2."),
    (re.compile("take (.*)"), r"You pick up the \1 from the ground."),
    (re.compile("drop (.*)"), r"You drop the \1 on the ground."),
    (re.compile("put (.*) on (.*)"), r"You put the \1 on the \2."),
    (re.compile("insert (.*) into (.*)"), r"You put the \1 into the \2."),
    (re.compile("(lock|unlock) (.*) with .*"), r"You \1 the \2."),
    (re.compile("(open|close) (.*)"), r"You \1 the \2."),
    (re.compile("eat (.*)"), r"You eat the \1. Not bad."),
)


def generate(settings: Mapping[str, Any], logic: KnowledgeBase, seed: int) -> Game | None:
    """The custom game of a seed, not compiled; None where there is none."""
    options = GameOptions()
    options.kb, options.seeds = logic, seed  # the logic is parsed once, which is most of the work
    options.nb_rooms, options.nb_objects = settings["world_size"], settings["objects"]
    options.quest_length = settings["quest_length"]
    textworld.g_rng.set_seed(options.seeds["map"])
    try:
        return make_game(options)
    except Exception:  # of many kinds, bare ones among them: this seed has no such game
        return None


def answers(game: Game) -> Iterator[str]:
    """What the game says at first and after every command of its walkthrough but the last."""
    state: State = game.world.state.copy()
    [quest] = game.quests
    actions = dict(zip(quest.commands, quest.win_events[0].actions, strict=True))  # a walkthrough may leave some out
    yield _room(game, state)
    for command in game.walkthrough[:-1]:
        action = actions[command]
        state.apply(action)
        if command.startswith("go "):
            yield _room(game, state)
            continue
        text = next(match.expand(answer) for pattern, answer in _ANSWERS if (match := pattern.fullmatch(command)))
        opened = action.variables[-1].name if action.name == "open/c" else ""
        held = [game.infos[fact.arguments[0].name].name for fact in state.facts if _is_in(fact, opened)]
        yield f"{text[:-1]}, revealing {' and '.join(map(_with_article, sorted(held)))}." if held else text


def _is_in(fact: Any, container: str) -> bool:
    return fact.name == "in" and fact.arguments[1].name == container


def _with_article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _room(game: Game, state: State) -> str:
    [place] = [fact.arguments[1].name for fact in state.facts if fact.name == "at" and fact.arguments[0].name == "P"]
    room = game.infos[place]
    paragraphs = [" ".join(part.split()) for part in _CONDITIONAL.sub("", room.desc).split("\n\n")]
    return "\n".join([f"-= {room.name.title()} =-", "\n\n".join(part for part in paragraphs if part)])


def conversation(game: Game, settings: Mapping[str, Any]) -> list[Message]:
    """A walkthrough in the prompts of an environment with these arguments."""
    style = COMMAND_PROMPT_STYLES[settings["prompt_style"]]
    messages = [{"role": "system", "content": instructions(style, game.objective, (), settings["max_turns"], "")}]
    for answer, command in zip(answers(game), game.walkthrough, strict=True):
        messages.append({"role": "user", "content": style.turn.format(state=answer)})
        messages.append({"role": "assistant", "content": command})
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="its env_kwargs say which games, and how they are told")
    parser.add_argument("--games", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True, help="a JSONL file")
    arguments = parser.parse_args()

    settings = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))["data"]["env_kwargs"]
    warnings.simplefilter("ignore")  # tatsu's, about its own syntax
    logic, begun, made = KnowledgeBase.load(), time.process_time(), 0
    with arguments.output.open("w", encoding="utf-8") as output:
        for number in range(arguments.games):
            if (game := generate(settings, logic, FIRST_SEED + number)) is not None:
                made += 1
                output.write(json.dumps({"messages": conversation(game, settings)}) + "\n")
    print(f"{made} conversations in {time.process_time() - begun:.0f} s")


if __name__ == "__main__":
    main()
