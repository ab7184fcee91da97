"""Prompts of text games that are played by commands: rules and goal, what a turn shows, the command in a response.

`GUIDE` is the prompt of A Practitioner's Guide to Multi-turn Agentic Reinforcement Learning (arXiv 2510.01132;
github.com/pearls-lab/meow-tea-taro, meow_tea_experiments/data_generation): goal, history, a free-form command and no
list of actions. Departures: rules and goal are the system message, which every context shows, instead of the beginning
of the first user message; and of a response of several lines the last is the command, as the prompt says, not all.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.text import PROMPT_STYLES, PromptStyle, format_rules

GUIDE = PromptStyle(
    system=(
        "You are an expert TextWorld game solver. Your goal is to generate the best next action that will lead to "
        "winning the game.\n\nEnd your output sequence with an action starting with a verb. Example: open box.\n\n"
        "Here is how to win the game:\n{goal}"
    ),
    turn="current state: {state}\n\nyour action: ",
    reward="",
    marks=(),
    reply="{actions}",
    form="a command",
    terse=False,
)
# The game's text and nothing else, for a policy that was trained on the task; a response is a command
GAME = PromptStyle(
    system="",
    turn="{state}",
    reward="",
    marks=(),
    reply="{actions}",
    form="a command",
    terse=True,
    says_form=False,
)

COMMAND_PROMPT_STYLES: dict[str, PromptStyle] = {"guide": GUIDE, "game": GAME, **PROMPT_STYLES}

LONGEST_COMMAND = 256  # characters


class Exchange(NamedTuple):
    """A past turn: what the game said, and the command that followed."""

    answer: str
    command: str


def instructions(prompt_style: PromptStyle, goal: str, verbs: Sequence[str], limit: int, example: str) -> str:
    """The system message of an instance.

    Args:
        goal: what to reach, as the game says it.
        verbs: forms of the game's commands, such as "open <thing>".
        limit: the most commands of an episode.
        example: a command.
    """
    if prompt_style.system == GUIDE.system:  # with any reader
        return prompt_style.system.format(goal=goal)
    rules = f"You play a text game, one command a turn. Your goal: {goal}"
    if not prompt_style.marks:
        rules += f"\nCommands look like this: {', '.join(verbs)}."
    return format_rules(prompt_style, rules=rules, symbols="", actions=verbs, limit=limit, example=[example])


def show_turn(goal: str, history: Sequence[Exchange], answer: str, commands: Sequence[str]) -> str:
    """Formats the observation of a turn.

    Args:
        goal: stands first; "" where the conversation or the system message says it.
        history: past turns to repeat, oldest first.
        answer: what the game said last.
        commands: admissible ones; none are listed if there are none.
    """
    past = [f"{exchange.answer}\n> {exchange.command}" for exchange in history]
    listed = [f"Admissible commands: {', '.join(commands)}."] if commands else []
    return "\n".join([*([goal] if goal else []), *past, answer, *listed])


def parse_command(response: str, prompt_style: PromptStyle, verbs: Sequence[str] = ()) -> Answer:
    """The command of a response, stripped; any text but the empty and the overlong is one.

    Args:
        verbs: forms of the game's commands, such as "open <thing>", by which a lenient reader knows a command.
    """
    answer = prompt_style.reader.find(response, prompt_style.marks)
    if answer is None:
        return Answer((), f"no {prompt_style.form} in the response")
    command = prompt_style.reader.command(answer, tuple(form.split()[0] for form in verbs))
    if not command:
        return Answer((), "the command is empty")
    if len(command) > LONGEST_COMMAND:
        return Answer((), f"the command has {len(command)} characters, of at most {LONGEST_COMMAND}")
    return Answer((command,))
