"""Drives a strategy through a tree of fakes: no environment, no policy, outcomes as wanted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Commit, Demonstrate, DriverState, Expand, Node, Request, Snapshot, flat
from tsr_lightning.trajectory import Ended, Message, Turn

# A node's place: the numbers of the children from the root on; a turn that was committed has a negative one.
Path = tuple[int, ...]

MOST_REQUESTS = 20_000
MOST_NODES = 1_000_000


class Misuse(Exception):
    """A request or a result that the driver could not answer or use; the message completes "the strategy ..."."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of a response."""

    done: bool
    succeeded: bool = False
    score: float = 0.0  # the environment's
    reward: float = 0.0


OutcomeFn = Callable[[Path], Outcome]
SetScores = Callable[[Sequence[Node]], None]


@dataclass
class Drive:
    """A finished search."""

    requests: list[Request] = field(default_factory=list)
    nodes: dict[Path, Node] = field(default_factory=dict)
    batches: dict[Path, list[list[Path]]] = field(default_factory=dict)  # the children of each request, by parent
    demonstrated: set[Path] = field(default_factory=set)
    leaf: Path = ()  # the one returned

    def drawn(self, path: Path) -> int:
        """Responses that were drawn in a state."""
        return sum(map(len, self.batches.get(path, ())))


def drive(
    strategy: Strategy,
    outcome: OutcomeFn,
    turns: int,
    set_scores: SetScores | None,
    *,
    scores_every_node: bool = False,
    key: Key = Key(0),  # noqa: B008  (frozen)
    loses: bool = False,
    most_requests: int | None = MOST_REQUESTS,
) -> Drive:
    """Runs a search to its end. No state is equal to another, so nothing is merged.

    Args:
        strategy: searches.
        outcome: of each response, by its place.
        turns: after which an episode ends in any case.
        set_scores: sets the scores of new nodes; None leaves them unset.
        scores_every_node: those of the root and of committed turns too.
        key: of all draws.
        loses: every request loses its responses but the first of each node, as where the environment fails.
        most_requests: after which the search counts as one that does not end; None for no limit.

    Raises:
        Misuse: a request or the result is none, or the search does not end.
    """
    run = Drive()
    paths: dict[int, Path] = {}

    def add(path: Path, node: Node) -> Node:
        if most_requests is not None and len(run.nodes) >= MOST_NODES:
            raise Misuse(f"does not end: it has proposed {MOST_NODES:,} responses in an episode of {turns} turns")
        run.nodes[path], paths[id(node)] = node, path
        return node

    def known(node: Any) -> Path:
        if id(node) not in paths:
            named = f"a node of depth {node.depth}" if isinstance(node, Node) else repr(node)
            raise Misuse(f"names {named}, which is no node of its tree; keep none from one search to the next")
        return paths[id(node)]

    def scored(nodes: list[Node], wanted: bool) -> list[Node]:
        if set_scores is not None and wanted:
            set_scores(nodes)
        return nodes

    def env_score(score: float, wanted: bool) -> float | None:
        return score if set_scores is not None and wanted else None

    def child(parent: Node, path: Path, wanted: bool = True) -> Node:
        own, result, depth = parent.driver.key.fold_in(path[-1]), outcome(path), parent.depth + 1
        done = result.done or depth >= turns
        snapshot = Snapshot(
            state=None,
            messages=_MESSAGES,
            state_key=path,
            remaining=turns - depth,
            ended=(Ended.SUCCEEDED if result.succeeded else Ended.TURN_LIMIT) if done else None,
            env_score=env_score(result.score, wanted),
        )
        turn = Turn(
            prompt=(0,),
            response=(path[-1],),
            behaviour_logprobs=(-1 - own.uniform(),),
            finished=True,
            messages=parent.snapshot.messages,
            text=f"response {path[-1]}",
            reward=result.reward,
            valid=True,
            effective=True,
            action=f"response {path[-1]}",
        )
        total, tie = parent.episode_return + result.reward, own.fold_in(Stream.TIES).uniform()
        return add(path, Node(snapshot, DriverState(own), parent, turn, depth, total, tie=tie))

    def answer(request: Any) -> Any:
        match request:
            case Expand(nodes, count):
                if not isinstance(count, int) or count < 1:
                    raise Misuse(f"asks for {count!r} responses; Expand takes 1 or more")
                groups = []
                for node in nodes:
                    path = known(node)
                    if node.done:
                        raise Misuse("expands a node whose episode has ended; expand live(nodes) alone")
                    first, node.driver.children = node.driver.children, node.driver.children + count
                    made = [child(node, (*path, first + i)) for i in range(count)]
                    run.batches.setdefault(path, []).append([paths[id(each)] for each in made])
                    groups.append(made[:1] if loses else made)
                scored(flat(groups), True)
                return groups
            case Commit(node):
                path = known(node)
                if node.parent is None:
                    raise Misuse("commits the root, which no response led to")
                return scored([child(node.parent, (*path[:-1], -1 - path[-1]), scores_every_node)], scores_every_node)[
                    0
                ]
            case Demonstrate(node):
                path = (*known(node), node.driver.children)
                node.driver.children += 1
                run.batches.setdefault(path[:-1], []).append([path])
                run.demonstrated.add(path)
                return child(node, path, False)
        raise Misuse(f"yields {request!r}; it may yield Expand, Commit and Demonstrate")

    first = Snapshot(None, _MESSAGES, (), turns, env_score=env_score(0.0, scores_every_node))
    [root] = scored([add((), Node(first, DriverState(key)))], scores_every_node)
    search, reply = strategy(root), None
    while True:
        try:
            request = search.send(reply)
        except StopIteration as end:
            run.leaf = known(end.value)
            if not end.value.done:
                raise Misuse("returns a node whose episode has not ended; return a leaf") from None
            return run
        if most_requests is not None and len(run.requests) >= most_requests:
            raise Misuse(f"does not end: it has made {most_requests:,} requests in an episode of {turns} turns")
        run.requests.append(request)
        reply = answer(request)


_MESSAGES = (Message("user", "observation"),)
