"""Text of environments: prompts out, actions in.

`PAPER` is RAGEN's prompt (github.com/mll-lab-nu/RAGEN, ctx_manager.py), which the paper uses; `BRIEF` says the same in
a fraction of the tokens, and `BARE` leaves the rules out too, for the embedded policies. `INSTRUCT` is for pretrained
instruct models: plain words, no tags, and an example of an answer.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tsr_lightning.envs.reading import LENIENT, SEPARATOR, STRICT, Answer, Reader

ObservationName = Literal["grid", "coordinates", "both"]  # how a task on a grid shows its state

# gymnasium's default charset lacks the symbols of the grids and the newline
CHARSET = frozenset(string.printable + "√")


@dataclass(frozen=True)
class PromptStyle:
    """Templates of rules, turns and answers. Fields in braces are filled in."""

    system: str  # {rules} {symbols} {actions} {limit} {example}, an answer
    turn: str  # {reward} {warning} {turn}, from 1, {state} {left}, the actions, {asked}, how to answer
    reward: str  # {reward}: of the last turn; "" leaves it out
    marks: tuple[re.Pattern[str], ...]  # the tags around an answer; none where the whole response is one
    reply: str  # {actions}: a response that `reader` reads
    form: str  # what an answer must look like, for a warning
    terse: bool  # rules and states in as few tokens as possible
    says_form: bool = True  # the prompt says what an answer looks like; False: only who was trained on it knows
    reader: Reader = STRICT  # unless the environment is given another
    separator: str = f" {SEPARATOR} "  # between the actions of a reply


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
    system="{rules} Answer in this form: {example}",
    turn="{warning}{state}\n{left} left",
    reward="",
    marks=(re.compile("<answer>"), re.compile("</answer>")),
    reply="<answer>{actions}</answer>",
    form="<answer>...</answer>",
    terse=True,
)

BARE = replace(BRIEF, system="", says_form=False)  # for a policy that was trained on the task and needs no rules

INSTRUCT = PromptStyle(
    system="{rules}\n{symbols}",
    turn="{warning}{left} actions left.\n{state}\n{asked}",
    reward="",
    marks=(),
    reply="{actions}",
    form="an action alone",
    terse=False,
    reader=LENIENT,
    separator=", ",
)

PROMPT_STYLES: dict[str, PromptStyle] = {"paper": PAPER, "instruct": INSTRUCT, "brief": BRIEF, "bare": BARE}


def parse_answer(text: str, prompt_style: PromptStyle, actions: Sequence[str], limit: int) -> Answer:
    """The actions of a response: the first `limit` of its last answer, in any case, spelt as in `actions`."""
    answer = prompt_style.reader.find(text, prompt_style.marks)
    if answer is None:
        return Answer((), f"no {prompt_style.form} in the response")
    return prompt_style.reader.actions(answer, actions, limit)


def format_answer(prompt_style: PromptStyle, actions: Sequence[str]) -> str:
    """A response that plays `actions`."""
    return prompt_style.reply.format(actions=prompt_style.separator.join(actions))


def format_rules(
    prompt_style: PromptStyle,
    *,
    rules: str,
    symbols: str,
    actions: Sequence[str],
    limit: int,
    example: Sequence[str],
) -> str:
    """The system message.

    Args:
        rules: of the task, in a sentence or a few.
        symbols: what the symbols of the observation mean; "" where it has none.
        actions: all that there are, or their forms.
        limit: the most actions of an episode.
        example: the actions of an answer that is shown.
    """
    return prompt_style.system.format(
        rules=rules,
        symbols=symbols,
        actions=", ".join(actions),
        limit=limit,
        example=format_answer(prompt_style, example),
    ).rstrip()


def read_by(prompt_style: PromptStyle, reader: Reader) -> PromptStyle:
    """The style with another reader: a strict one reads no separator but its own."""
    separator = f" {SEPARATOR} " if reader is STRICT else prompt_style.separator
    return replace(prompt_style, reader=reader, separator=separator)


def ask_for_words(prompt_style: PromptStyle, words: Sequence[str], per_turn: int) -> str:
    """How to answer, for a task whose actions are a few words."""
    *others, last = words
    listed = f"{', '.join(others)} or {last}"
    if per_turn == 1:
        return f"Answer with one word: {listed}."
    example = prompt_style.separator.join(words[:per_turn])
    return f"Answer with up to {per_turn} words, each of them {listed}, such as: {example}."
