"""Splits a game's output into the text for the player and what TextWorld's debug tags say about the turn.

The tags are those that textworld.envs.wrappers.tw_inform7 reads, and the text is what its wrappers leave, without
prompt, status line, runs of blank lines and what a finished game offers.
"""

import re
from typing import NamedTuple

_INFO = re.compile(r"<(score|moves|inventory)>\n(.*?)</\1>", re.DOTALL)
_TRACE = re.compile(r"\[([^]]+)\]\n?")
_PROMPT = re.compile(r"\n>[^\n]*\Z|\n\nWould you like to RESTART.*\Z", re.DOTALL)
_BLANK_LINES = re.compile(r"\n\s*\n\s*")
_SUCCEEDED = " - succeeded"
_WON, _LOST = "*** The End ***", "*** You lost! ***"


class Turn(NamedTuple):
    """A turn as the game reported it."""

    text: str  # for the player
    events: tuple[str, ...]  # actions that succeeded, in Inform's words and lower case: "opening the chest"
    understood: bool  # whether the command was an action at all, done or not
    score: int | None  # None where the turn did not count
    inventory: str | None
    won: bool
    lost: bool


def read_turn(raw: str) -> Turn:
    """A turn from all that the interpreter printed."""
    infos: dict[str, str] = dict(_INFO.findall(raw))
    text = _INFO.sub("", raw)
    traced = _TRACE.findall(text)
    text = _TRACE.sub("", text)
    # an event in brackets is part of another one
    events = tuple(name.lower() for line in traced if (name := _succeeded(line)) and "(" not in name)
    return Turn(
        text=tidy(text),
        events=events,
        understood=bool(traced),
        score=int(infos["score"].split()[0]) if "score" in infos else None,
        inventory=_TRACE.sub("", infos["inventory"]).strip() if "inventory" in infos else None,
        won=_WON in text,
        lost=_LOST in text,
    )


def _succeeded(traced: str) -> str:
    """The action, if the line says that it succeeded."""
    action, found, _ = traced.partition(_SUCCEEDED)
    return action.strip() if found else ""


def tidy(text: str) -> str:
    """Text without the prompt behind it, and with single blank lines."""
    return _BLANK_LINES.sub("\n\n", _PROMPT.sub("", text)).strip()


def opening(text: str) -> str:
    """The first room of a game's opening text, without banner and goal, which are said elsewhere."""
    text = tidy(text)
    return text[max(0, text.find("-= ")) :]
