"""What is kept of a search besides its trajectory, where the driver is asked to.

`Driver.record`: every turn in the order in which it was proposed, what was pruned too, and what was lost.
`Driver.keep_tree`: the candidates as a tree.
"""

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from tsr_lightning.engines.base import Response
from tsr_lightning.envs.base import fingerprint
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Commit, Demonstrate, Expand, Node, Request
from tsr_lightning.trajectory import Candidate, RecordedTurn, Turn


class Asked(NamedTuple):
    """A turn that a search asked for."""

    root: Node
    parent: Node  # in whose state it is played
    response: Response | None  # None of a demonstration, and of a commit, whose response the tree has
    request: Request


class _Played(NamedTuple):
    """A turn in the record of a root."""

    asked: Asked
    node: Node | None  # None where the environment failed
    round: int


def asked_of(requests: Sequence[tuple[Node, Request]], sampled: Iterator[Sequence[Response]]) -> list[Asked]:
    """The turns of a wave, in the order of its environment steps.

    Args:
        requests: of each search, with its root.
        sampled: the responses to each node of every `Expand`.
    """
    asked: list[Asked] = []
    for root, request in requests:
        match request:
            case Expand(nodes):
                asked += [Asked(root, node, response, request) for node in nodes for response in next(sampled)]
            case Commit(node):
                asked.append(Asked(root, node.parent or root, None, request))
            case Demonstrate(node):
                asked.append(Asked(root, node, None, request))
    return asked


def note(asked: Sequence[Asked], nodes: Sequence[Node | None]) -> None:
    """Adds the turns of a wave to the records of their roots."""
    rounds: dict[int, int] = {}
    for each, node in zip(asked, nodes, strict=True):
        record = each.root.driver.record = each.root.driver.record or []
        number = rounds.setdefault(id(each.root), record[-1].round + 1 if record else 0)
        record.append(_Played(each, node, number))


def lose(root: Node, lost: Set[int]) -> None:
    """Marks turns in the record of a root as lost, by the `id` of their nodes: those from which a scorer could not play
    on, without which the search goes on."""
    record: list[_Played] = root.driver.record or []
    root.driver.record = [each._replace(node=None) if id(each.node) in lost else each for each in record]


def record_of(root: Node, simulator: TurnSimulator) -> tuple[RecordedTurn, ...]:
    """The record of a search."""
    places: dict[int, int] = {}
    found: list[RecordedTurn] = []
    for played in root.driver.record or ():
        parent = places.get(id(played.asked.parent))
        if played.node is not None:
            places[id(played.node)] = len(found)
            found.append(_turn(played, played.node, parent))
        elif played.asked.response is not None:
            found.append(_lost(played, played.asked.response, parent, simulator))
    return tuple(found)


def candidate_of(node: Node, turn: Turn, parent: int | None) -> Candidate:
    """A node of a search tree, without the objects of the search."""
    return Candidate(
        turn=turn,
        parent=parent,
        state_key=state_key(node),
        remaining=node.snapshot.remaining,
        env_score=node.snapshot.env_score,
        score=node.known_score,
        ended=node.snapshot.ended,
        drawn=node.driver.committed is None,
    )


def tree_of(leaf: Node) -> tuple[Candidate, ...]:
    """All that the search of a leaf proposed, depth by depth; none of a demonstrator's turns, which are no samples."""
    tree: list[Candidate] = []
    level: list[tuple[int | None, Node]] = [(None, leaf.path[0])]  # nodes, each with its place in the tree
    while level:
        children = [(parent, child) for parent, node in level for child in node.driver.candidates]
        level = [(place, child) for place, (_, child) in enumerate(children, start=len(tree))]
        tree += [candidate_of(child, child.turn, parent) for parent, child in children if child.turn]
    return tuple(tree)


def state_key(node: Node) -> str:
    """The fingerprint of a node's state."""
    return fingerprint(node.snapshot.state_key)


def _turn(played: _Played, node: Node, parent: int | None) -> RecordedTurn:
    assert node.turn is not None
    assert node.driver.noise is not None
    return RecordedTurn(
        candidate_of(node, node.turn, parent),
        played.round,
        node.driver.noise.value,
        node.snapshot.messages,
        demonstrated=isinstance(played.asked.request, Demonstrate),
    )


def _lost(played: _Played, response: Response, parent: int | None, simulator: TurnSimulator) -> RecordedTurn:
    """A response on which the environment failed: its outcome is not known."""
    state, prompt = played.asked.parent, simulator.prompt(played.asked.parent)
    text = simulator.chat_format.read(response.ids, prompt)
    turn = Turn(
        prompt,
        response.ids,
        response.logprobs,
        response.finished,
        state.snapshot.messages,
        text,
        reward=0.0,
        valid=False,
        effective=False,
        action=text,
    )
    remaining = state.snapshot.remaining
    candidate = Candidate(turn, parent, "", remaining, env_score=None, score=None, ended=None, drawn=True)
    return RecordedTurn(candidate, played.round, noise=0, messages=(), lost=True)
