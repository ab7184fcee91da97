"""Reads a problem in PDDL: the facts of its start and its goal, one of ALFWorld's six kinds. Nothing is evaluated."""

import re
from collections.abc import Iterator
from typing import TypeAlias

from tsr_lightning.worlds.alfworld.goals import CHANGES, Goal, LookAt, Place, PlaceTwo
from tsr_lightning.worlds.alfworld.level import Facts

Expression: TypeAlias = "str | list[Expression]"

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_FACT = re.compile(r"\(\s*([^\s()=]+)([^()]*)\)")
_CHANGED = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}


def read_problem(text: str) -> tuple[Facts, Goal]:
    """The initial facts and the goal.

    Raises:
        ValueError: says what is missing, if this is no problem of ALFWorld.
    """
    text = _COMMENT.sub("", text).lower()
    _, found, rest = text.partition("(:init")
    if not found:
        raise ValueError("it has no (:init ...)")
    start, found, goal = rest.partition("(:goal")
    if not found:
        raise ValueError("it has no (:goal ...)")
    return _facts(start), _goal(goal)


def _facts(text: str) -> Facts:
    facts: dict[str, list[tuple[str, ...]]] = {}
    for predicate, arguments in _FACT.findall(text):
        facts.setdefault(predicate, []).append(tuple(arguments.split()))
    for needed in ("atlocation", "receptacleatlocation", "receptacletype", "objecttype"):
        if needed not in facts:
            raise ValueError(f"no fact says {needed}")
    return facts


def _goal(text: str) -> Goal:
    """The goal of a formula: the six kinds are told apart by the predicates that they use."""
    literals = list(_literals(_parse(text)))
    said = {literal[0] for literal in literals}
    types = {(literal[0], literal[2]) for literal in literals if literal[0] in ("objecttype", "receptacletype")}
    things = sorted(kind for predicate, kind in types if predicate == "objecttype")
    receptacles = sorted(kind for predicate, kind in types if predicate == "receptacletype")
    if said == {"objecttype", "toggleable", "istoggled", "receptacleatlocation", "atlocation", "inreceptacle", "holds"}:
        lamp = {literal[2] for literal in literals if literal[0] == "objecttype" and literal[1] == "?ot"}
        held = [kind for kind in things if kind not in lamp]
        if len(lamp) == len(held) == 1:
            return LookAt(held[0], lamp.pop())
    if len(things) == len(receptacles) == 1:
        changes = [name for predicate, name in _CHANGED.items() if predicate in said]
        placing = said - set(_CHANGED) - {"cleanable", "heatable", "coolable", "="}
        if placing == {"objecttype", "receptacletype", "inreceptacle"}:
            twice = sum(literal[0] == "inreceptacle" for literal in literals) == 2
            if twice and "=" in said and not changes:
                return PlaceTwo(things[0], receptacles[0])
            if not twice and "=" not in said and len(changes) < 2:
                return Place(things[0], receptacles[0], CHANGES[changes[0]] if changes else None)
    raise ValueError("its goal is none of ALFWorld's six kinds")


def _parse(text: str) -> Expression:
    """The first expression in brackets of a text that may go on."""
    open_lists: list[list[Expression]] = []
    for token in _TOKEN.findall(text):
        if token == "(":
            open_lists.append([])
        elif token == ")":
            if not open_lists:
                break
            closed = open_lists.pop()
            if not open_lists:
                return closed
            open_lists[-1].append(closed)
        elif open_lists:
            open_lists[-1].append(token)
    raise ValueError("the brackets of its goal do not match")


def _literals(expression: Expression) -> Iterator[tuple[str, str, str]]:
    """The atoms of a formula, each padded to a predicate and two arguments."""
    if isinstance(expression, str) or not expression:
        return
    head, *parts = expression
    if head in ("and", "not"):
        for part in parts:
            yield from _literals(part)
    elif head == "exists":
        for part in parts[1:]:
            yield from _literals(part)
    elif isinstance(head, str) and all(isinstance(part, str) for part in parts):
        words = [head, *(part for part in parts if isinstance(part, str)), "", ""]
        yield words[0], words[1], words[2]
    else:
        raise ValueError("its goal is no formula of PDDL")
