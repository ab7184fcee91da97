"""How the environments speak and listen: prompts out, actions in.

`PAPER` is RAGEN's prompt (github.com/mll-lab-nu/RAGEN, ctx_manager.py), which the paper uses; `BRIEF` says the same in
a fraction of the tokens, and `BARE` leaves the rules out too, for the embedded policies.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

ActionT = TypeVar("ActionT")
PromptStyleName = Literal["paper", "brief", "bare"]

SEPARATOR = "||"
# gymnasium's default charset lacks the symbols of the grids and the newline
CHARSET = frozenset(string.printable + "√")


@dataclass(frozen=True)
class PromptStyle:
    """A way to say rules, turns and answers. Fields in braces are filled in."""

    system: str  # {rules} {symbols} {actions} {limit}
    turn: str  # {reward} {warning} {turn} {state} {left}
    reward: str  # {reward}: how the last turn's reward is told; "" keeps it untold
    marks: tuple[re.Pattern[str], ...]  # what stands around an answer: see `find_answer`
    reply: str  # {actions}: an answer that `find_answer` reads
    form: str  # what an answer must look like, for a warning
    terse: bool  # environments say rules and states in as few tokens as they can


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

BARE = replace(BRIEF, system="")  # the rules untold: a policy that was made for the task knows them

PROMPT_STYLES: dict[str, PromptStyle] = {"paper": PAPER, "brief": BRIEF, "bare": BARE}


@dataclass(frozen=True)
class Answer(Generic[ActionT]):
    """A response as actions; `problem` says what was wrong where there are none."""

    actions: tuple[ActionT, ...]
    problem: str = ""

    @property
    def valid(self) -> bool:
        return not self.problem


def find_answer(text: str, prompt_style: PromptStyle) -> str | None:
    """The text between the last two marks, where all marks last stood in their order; None where they never did.

    Without marks the whole response is the answer. With marks A, B and C it is the group of the last match of
    `A.*?B(.*?)C`, found in time linear in the text: that pattern looks for B and C anew behind every A, but where one
    of them is missing behind the first A, it is missing behind the later ones too.
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


def read_answer(text: str, prompt_style: PromptStyle, names: Mapping[str, ActionT], limit: int) -> Answer[ActionT]:
    """The actions of a response: those of its last answer, the first `limit` of them.

    A single unknown action makes the whole turn invalid. Actions past `limit` are not played and not punished (RAGEN).

    Args:
        text: the response, without control tokens.
        prompt_style: says what an answer looks like.
        names: lower-case names of the actions.
        limit: the most actions a turn may play.
    """
    answer = find_answer(text, prompt_style)
    if answer is None:
        return Answer((), f"no {prompt_style.form} in the response")
    said = [part.strip() for part in answer.split(SEPARATOR)]
    if said == [""]:
        return Answer((), "the answer is empty")
    unknown = [part for part in said[:limit] if part.lower() not in names]
    if unknown:
        return Answer((), f"{unknown[0][:20]!a} is no action")
    return Answer(tuple(names[part.lower()] for part in said[:limit]))


def say_answer(prompt_style: PromptStyle, actions: Sequence[str]) -> str:
    """A response that plays `actions`."""
    return prompt_style.reply.format(actions=f" {SEPARATOR} ".join(actions))


def say_turn(prompt_style: PromptStyle, *, turn: int, state: str, left: int, reward: float | None, problem: str) -> str:
    """The observation of a turn.

    Args:
        prompt_style: how to say it.
        turn: counted from 1.
        state: the task's own picture of itself.
        left: actions left in the episode.
        reward: of the turn before; None at the first.
        problem: what was wrong with the response before; "" if nothing was.
    """
    return prompt_style.turn.format(
        reward="" if reward is None else prompt_style.reward.format(reward=round(reward, 3)),
        warning=f"No valid action provided previously: {problem}.\n" if problem else "",
        turn=turn,
        state=state,
        left=left,
    )


def say_rules(prompt_style: PromptStyle, *, rules: str, symbols: str, actions: Sequence[str], limit: int) -> str:
    """The system message."""
    return prompt_style.system.format(rules=rules, symbols=symbols, actions=", ".join(actions), limit=limit)
