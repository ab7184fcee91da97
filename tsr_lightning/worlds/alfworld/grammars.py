"""The two published phrasings of the game. A game file's own grammar is code for TextWorld; ours only recognises it."""

from dataclasses import dataclass
from typing import Literal

GrammarName = Literal["put", "move"]

_HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


@dataclass(frozen=True)
class Grammar:
    """A phrasing of the game: the texts in which the two published ones differ."""

    name: GrammarName
    put: str  # {thing} {receptacle}: the command
    has_put: str  # {thing} {receptacle}: its answer
    arrives_at_place: bool  # "You arrive at loc 5", and not "You arrive at desk 2"
    help: str | None  # the answer to "help"; None: there is no such command


PUT = Grammar("put", "put {thing} in/on {receptacle}", "You put the {thing} in/on the {receptacle}.", True, None)
MOVE = Grammar("move", "move {thing} to {receptacle}", "You move the {thing} to the {receptacle}.", False, _HELP)

GRAMMARS: dict[str, Grammar] = {grammar.name: grammar for grammar in (PUT, MOVE)}  # ALFWorld 0.2.2, and 0.4 and later
