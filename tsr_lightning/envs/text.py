"""Text of environments: prompts out, actions in.

`PAPER` is RAGEN's prompt (github.com/mll-lab-nu/RAGEN, ctx_manager.py), which the paper uses; `BRIEF` says the same in
a fraction of the tokens, and `BARE` leaves the rules out too, for the embedded policies.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

PromptStyleName = Literal["paper", "brief", "bare"]
ObservationName = Literal["grid", "coordinates", "both"]  # how a task on a grid shows its state

SEPARATOR = "||"
# gymnasium's default charset lacks the symbols of the grids and the newline
CHARSET = frozenset(string.printable + "√")


@dataclass(frozen=True)
class PromptStyle:
    """Templates of rules, turns and answers. Fields in braces are filled in."""

    system: str  # {rules} {symbols} {actions} {limit}
    turn: str  # {reward} {warning} {turn}, from 1, {state} {left}, the actions
    reward: str  # {reward}: of the last turn; "" leaves it out
    marks: tuple[re.Pattern[str], ...]  # the tags around an answer: see `find_answer`
    reply: str  # {actions}: an answer that `find_answer` finds
    form: str  # what an answer must look like, for a warning
    terse: bool  # rules and states in as few tokens as possible


PAPER = PromptStyle(
    system=(
        "You're a helpful assistant. {rules}\n{symbols}\nYour available actions are:\n{actions}\n"
        'You can make up to {limit} actions, separated by the action separator " || "'
    ),
    turn=(
        "{reward}Turn {turn}:\nState:\n{state}\n{warning}You have {left} actions left. Always output: "
        "<think> [Your thoughts] </think> <answer> [your answer] </answer> with no extra text. "
        "Strictly follow this format."
    ),
    reward="Reward:\n{reward}\n",
    marks=(re.compile("<think>"), re.compile(r"</think>\s*+<answer>"), re.compile("</answer>")),
    reply="<think></think><answer>{actions}</answer>",
    form="<think>...</think><answer>...</answer>",
    terse=False,
)

BRIEF = PromptStyle(
    system="{rules}",
    turn="{warning}{state}\n{left} left",
    reward="",
    marks=(re.compile("<answer>"), re.compile("</answer>")),
    reply="<answer>{actions}</answer>",
    form="<answer>...</answer>",
    terse=True,
)

BARE = replace(BRIEF, system="")  # for a policy that was trained on the task and needs no rules

PROMPT_STYLES: dict[str, PromptStyle] = {"paper": PAPER, "brief": BRIEF, "bare": BARE}


@dataclass(frozen=True)
class Answer:
    """A response as actions; `problem` says why there are none."""

    actions: tuple[str, ...]
    problem: str = ""


def find_answer(text: str, prompt_style: PromptStyle) -> str | None:
    """The text between the last two marks of the last place where all marks follow each other; None without one.

    Without marks the whole response is the answer. With marks A, B and C it is the group of the last match of
    `A.*?B(.*?)C`, found in linear time: that pattern searches B and C again after every A, but where one of them is
    missing after the first A, it is missing after the later ones too.
    """
    if not prompt_style.marks:
        return text
    answer, end = None, 0
    while True:
        start = stop = end
        for mark in prompt_style.marks:
            found = mark.search(text, end)
            if found is None:
                return answer
            start, stop, end = end, found.start(), found.end()
        answer = text[start:stop]


def parse_answer(text: str, prompt_style: PromptStyle, actions: Sequence[str], limit: int) -> Answer:
    """The actions of a response: the first `limit` of its last answer, in any case, spelt as in `actions`.

    A single unknown action makes the whole turn invalid. Actions past `limit` are not played and not punished (RAGEN).
    """
    answer = find_answer(text, prompt_style)
    if answer is None:
        return Answer((), f"no {prompt_style.form} in the response")
    given = [part.strip() for part in answer.split(SEPARATOR)]
    if given == [""]:
        return Answer((), "the answer is empty")
    known = {action.lower(): action for action in actions}
    for part in given[:limit]:
        if part.lower() not in known:
            return Answer((), f"{part[:20]!a} is no action")
    return Answer(tuple(known[part.lower()] for part in given[:limit]))


def format_answer(prompt_style: PromptStyle, actions: Sequence[str]) -> str:
    """A response that plays `actions`."""
    return prompt_style.reply.format(actions=f" {SEPARATOR} ".join(actions))


def format_rules(prompt_style: PromptStyle, *, rules: str, symbols: str, actions: Sequence[str], limit: int) -> str:
    """The system message."""
    return prompt_style.system.format(rules=rules, symbols=symbols, actions=", ".join(actions), limit=limit)
