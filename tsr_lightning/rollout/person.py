"""A person's game as a search: the turns that are typed, those that are taken back, and the suggestions."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from tsr_lightning.envs.base import Branchable
from tsr_lightning.rng import Key
from tsr_lightning.search.demonstrators import Demonstrator, Oracle
from tsr_lightning.search.scorers import EnvironmentScore
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Demonstrate, Expand, Node, Search
from tsr_lightning.trajectory import Origin


class Move(Enum):
    """Moves of a person other than a response; the values are what is typed."""

    TAKE = ""
    POLICY = ":policy"
    ORACLE = ":oracle"
    UNDO = ":undo"
    NEXT = ":next"
    QUIT = ":quit"


class Screen(Protocol):
    """Shows states to a person, and asks for moves."""

    def show(self, node: Node) -> None: ...

    def offer(self, suggested: Node, by: Move) -> None: ...

    def ask(self, node: Node, suggested: Node | None) -> Move | str:
        """A response in a state, or another move that is possible in it.

        Args:
            node: the state.
            suggested: that was offered in it last.
        """
        ...


@dataclass(frozen=True)
class Typed(Demonstrator):
    """A response that somebody has written."""

    text: str
    method = "step"

    def check(self, env: Branchable, name: str) -> None:
        """Does nothing: the environment is not asked."""

    def respond(self, env: Branchable, state: Any, key: Key) -> str:
        return self.text


@dataclass(frozen=True)
class Person(Strategy):
    """A person at a screen. Suggestions are played ahead in the state that they are asked in, and taken or left.

    Args:
        screen: where the game is shown.
    """

    screen: Screen
    traits = Traits(
        origin=Origin.DEMONSTRATED,
        branches=True,
        independent_siblings=False,
        monte_carlo_rollouts=False,
        scored_by=EnvironmentScore(),
        scores_every_node=True,
    )

    def __call__(self, root: Node) -> Search:
        node, suggested = root, None
        self.screen.show(root)
        while (move := self.screen.ask(node, suggested)) not in (Move.NEXT, Move.QUIT):
            if move is Move.POLICY or move is Move.ORACLE:
                suggested = yield from _suggested(move, node)
                self.screen.offer(suggested, move)
                continue
            if isinstance(move, str):
                node = yield Demonstrate(node, Typed(move))
            else:
                node = (suggested if move is Move.TAKE else node.parent) or node
            suggested = None
            self.screen.show(node)
        return node


def _suggested(by: Move, node: Node) -> Search:
    """A response of the policy or of the oracle, played ahead."""
    if by is Move.ORACLE:
        return (yield Demonstrate(node, Oracle()))
    [[child]] = yield Expand([node], 1)
    return child
