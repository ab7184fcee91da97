"""The published games and recorded episodes of ALFWorld, of ../shared/data where that exists, and a small game."""

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tsr_lightning.worlds.alfworld.grammars import PUT
from tsr_lightning.worlds.alfworld.level import Level, build
from tsr_lightning.worlds.alfworld.pddl import read_problem

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "alfworld"
REASON = f"no published games in {DATA}"

# A kitchen with two mugs, of which one is listed in two receptacles; a lamp on the counter.
PROBLEM = """
(define (problem small) (:domain alfred)
(:objects agent1 - agent)
(:init
  (atLocation agent1 loc_bar_9)                 ; no receptacle is there
  (receptacleType Cabinet_bar_1 CabinetType) (receptacleAtLocation Cabinet_bar_1 loc_bar_1) (openable Cabinet_bar_1)
  (receptacleType Shelf_bar_1 ShelfType) (receptacleAtLocation Shelf_bar_1 loc_bar_2)
  (receptacleType Shelf_bar_2 ShelfType) (receptacleAtLocation Shelf_bar_2 loc_bar_2)
  (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType) (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_3)
  (objectType Mug_bar_1 MugType) (inReceptacle Mug_bar_1 Cabinet_bar_1) (objectAtLocation Mug_bar_1 loc_bar_1)
  (objectType Mug_bar_2 MugType) (inReceptacle Mug_bar_2 Shelf_bar_1) (inReceptacle Mug_bar_2 Shelf_bar_2)
  (objectAtLocation Mug_bar_2 loc_bar_2)
  (objectType Knife_bar_1 KnifeType) (inReceptacle Knife_bar_1 Shelf_bar_2) (objectAtLocation Knife_bar_1 loc_bar_2)
  (objectType Apple_bar_1 AppleType) (inReceptacle Apple_bar_1 Cabinet_bar_1) (objectAtLocation Apple_bar_1 loc_bar_1)
  (objectType DeskLamp_bar_1 DeskLampType) (inReceptacle DeskLamp_bar_1 Shelf_bar_1) (toggleable DeskLamp_bar_1)
  (isReceptacleObject Mug_bar_1) (isReceptacleObject Mug_bar_2) (inReceptacleObject Knife_bar_1 Mug_bar_2)
  (pickupable Mug_bar_1) (pickupable Mug_bar_2) (pickupable Knife_bar_1) (pickupable Apple_bar_1)
  (cleanable Mug_bar_1) (cleanable Mug_bar_2) (cleanable Apple_bar_1) (sliceable Apple_bar_1)
  (canContain ShelfType MugType) (canContain CabinetType MugType) (canContain CabinetType AppleType)
  (canContain SinkBasinType MugType) (canContain ShelfType KnifeType)
  (= (total-cost) 0)
)
%s)
"""

PLACE = """(:goal (and (exists (?r - receptacle) (exists (?o - object) (and
  %s (objectType ?o MugType) (receptacleType ?r %s) %s (inReceptacle ?o ?r)
)))))"""
GOALS = {
    "put a mug in cabinet.": PLACE % ("", "CabinetType", ""),
    "put a mug in sinkbasin.": PLACE % ("", "SinkBasinType", ""),
    "put a clean mug in shelf.": PLACE % ("(cleanable ?o)", "ShelfType", "(isClean ?o)"),
    "put a clean apple in cabinet.": (PLACE % ("(cleanable ?o)", "CabinetType", "(isClean ?o)")).replace(
        "Mug", "Apple"
    ),
    "put two mug in shelf.": """(:goal (and (exists (?r - receptacle) (exists (?o1 - object) (and
      (objectType ?o1 MugType) (receptacleType ?r ShelfType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and
        (not (= ?o1 ?o2)) (objectType ?o2 MugType) (receptacleType ?r ShelfType) (inReceptacle ?o2 ?r)
    )))))))""",
    "look at apple under the desklamp.": """(:goal (and
      (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType)
        (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
      (exists (?o - object ?a - agent) (and (objectType ?o AppleType) (holds ?a ?o)))))""",
}


def problem(task: str) -> str:
    """The PDDL of the small game with one of GOALS."""
    return PROBLEM % GOALS[task]


def small(task: str) -> Level:
    """The small game with one of GOALS, in the older phrasing."""
    facts, goal = read_problem(problem(task))
    return build("small", facts, goal, task, PUT)


def write_games(folder: Path, names: Iterable[str]) -> None:
    """Writes published games as they were published, each checked against its SHA-256."""
    for name in names:
        text = json.dumps(content(name))
        assert hashlib.sha256(text.encode()).hexdigest() == index()[name]["sha256"]
        (folder / name).mkdir(parents=True)
        (folder / name / "game.tw-pddl").write_text(text)


def content(name: str) -> dict[str, Any]:
    """What the `game.tw-pddl` of a published game holds."""
    return {
        "pddl_domain": _files()["games/domain.pddl"],
        "grammar": _files()["games/grammar.twl2"].replace("UNKNOWN GOAL", index()[name]["task"]),
        "pddl_problem": _files()[f"games/{name}/initial_state.pddl"],
        "solvable": True,
    }


@cache
def published(name: str) -> Level:
    """A published game."""
    facts, goal = read_problem(_files()[f"games/{name}/initial_state.pddl"])
    return build(name, facts, goal, index()[name]["task"], PUT)


@cache
def index() -> dict[str, dict[str, str]]:
    """Kind, task and SHA-256 by the game's name."""
    lines = map(json.loads, _files()["games/index.jsonl"].splitlines())
    return {line["game"]: line for line in lines}


@cache
def episodes() -> list[dict[str, Any]]:
    with gzip.open(DATA / "episodes.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@cache
def _files() -> dict[str, str]:
    with tarfile.open(DATA / "games.tar.xz") as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read().decode() for name, file in members if file is not None}
