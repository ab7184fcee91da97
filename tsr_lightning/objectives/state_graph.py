"""The states of an instance's trajectories and search trees as one graph: nodes by state key, edges by action.

Turns and budgets left do not tell states apart here, as they do in a tree's values (`backups.py`), so that what was
found after one path counts for every other that passes through an equal state. The graph may have circles.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tsr_lightning.errors import require
from tsr_lightning.objectives.backups import ActionValue, Outcome
from tsr_lightning.trajectory import Candidate, Trajectory


def chain(trajectory: Trajectory) -> tuple[Candidate, ...]:
    """A trajectory without a tree as one, of single responses that nothing scored."""
    last = len(trajectory.turns) - 1
    following = (*trajectory.state_keys[1:], "")  # the last state is none that a turn was taken in
    return tuple(
        Candidate(
            turn=turn,
            parent=i - 1 if i else None,
            state_key=key,
            remaining=0,
            env_score=None,
            score=None,
            ended=trajectory.ended if i == last else None,
            drawn=True,
        )
        for i, (turn, key) in enumerate(zip(trajectory.turns, following, strict=True))
    )


@dataclass(frozen=True)
class StateGraph:
    """The graph of an instance's trees.

    Args:
        trees: all that was drawn and played, parents first.
        keys: of the state that each candidate was proposed in, indexed as `trees[i][j]`.
        takes_best: an edge is worth its best outcome, as where a world without chance has one, which a budget may cut;
            else the mean of its outcomes.
    """

    trees: Sequence[Sequence[Candidate]]
    keys: Sequence[Sequence[str]]
    takes_best: bool

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], takes_best: bool) -> "StateGraph":
        """The graph of one instance's trajectories.

        Raises:
            ConfigError: a trajectory has no `state_keys`.
        """
        remedy = "the graph needs the key of every state, so collect them with Driver(keep_state_keys=True)"
        for each in trajectories:
            require(len(each.state_keys) == len(each.turns), "Trajectory.state_keys", each.state_keys, remedy)
        trees = [trajectory.tree or chain(trajectory) for trajectory in trajectories]
        roots = [trajectory.state_keys[0] for trajectory in trajectories]
        keys = [
            [root if each.parent is None else tree[each.parent].state_key for each in tree]
            for root, tree in zip(roots, trees, strict=True)
        ]
        return cls(trees, keys, takes_best)

    @property
    def drawn(self) -> dict[str, list[tuple[int, int]]]:
        """The places [i][j] of the responses that were drawn in each state."""
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for i, (tree, keys) in enumerate(zip(self.trees, self.keys, strict=True)):
            for j, (candidate, key) in enumerate(zip(tree, keys, strict=True)):
                if candidate.drawn:
                    places[key].append((i, j))
        return dict(places)

    def backed_up(
        self,
        trees: Sequence[Sequence[Candidate]],
        outcome: Outcome,
        value_of_state: Callable[[Sequence[ActionValue]], float],
    ) -> list[list[float | None]]:
        """As `backups.backed_up`, by backward passes over all edges: after the k-th a state has the value of acting for
        k turns. There are as many passes as the longest path has turns, or until nothing changes."""
        edges: dict[str, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
        for tree, keys in zip(trees, self.keys, strict=True):
            for candidate, key in zip(tree, keys, strict=True):
                edges[key][candidate.turn.action].append(candidate)
        of_edges: dict[str, dict[str, ActionValue]] = {}
        states: dict[str, float] = {}
        for _ in range(max(map(_depth, trees), default=0)):
            of_edges = {key: self._valued(of_state, outcome, states) for key, of_state in edges.items()}
            before = states
            states = {key: value_of_state(list(known.values())) for key, known in of_edges.items() if known}
            if states == before:
                break
        return [
            [_value(of_edges[key].get(candidate.turn.action)) for candidate, key in zip(tree, keys, strict=True)]
            for tree, keys in zip(trees, self.keys, strict=True)
        ]

    def _valued(
        self, edges: Mapping[str, Sequence[Candidate]], outcome: Outcome, states: Mapping[str, float]
    ) -> dict[str, ActionValue]:
        """The edges of a state of which something is known, by their action."""
        join = max if self.takes_best else fmean
        valued = {}
        for action, candidates in edges.items():
            values = [outcome(each, _below(each, states)) for each in candidates]
            if known := [value for value in values if value is not None]:
                valued[action] = ActionValue(join(known), sum(each.drawn for each in candidates))
        return valued


def states_met(trajectories: Sequence[Trajectory]) -> int:
    """Counts the states of an instance in which the policy sampled two or more responses."""
    played = [each for each in trajectories if each.origin.is_sampled]
    return sum(len(places) > 1 for places in StateGraph.of(played, takes_best=False).drawn.values())


def action_of_two_outcomes(trajectories: Sequence[Trajectory]) -> str | None:
    """An action that led from one state of an instance to two; None where every action led to one, as without chance it
    does if state keys leave nothing out. A budget that ended an episode is no outcome of an action.
    """
    graph = StateGraph.of(trajectories, takes_best=True)
    led: dict[tuple[str, str], tuple[str, bool]] = {}
    for trajectory, tree, keys in zip(trajectories, graph.trees, graph.keys, strict=True):
        for candidate, key in zip(tree, keys, strict=True):
            if not trajectory.tree and candidate.turn is trajectory.turns[-1]:
                continue  # the state after it is not known
            reached = candidate.state_key, candidate.succeeded
            if led.setdefault((key, candidate.turn.action), reached) != reached:
                return candidate.turn.action
    return None


def _value(edge: ActionValue | None) -> float | None:
    return None if edge is None else edge.value


def _below(candidate: Candidate, states: Mapping[str, float]) -> float | None:
    return None if candidate.done else states.get(candidate.state_key)


def _depth(tree: Sequence[Candidate]) -> int:
    """The turns of its longest path."""
    depths: list[int] = []
    for candidate in tree:
        depths.append(1 + (0 if candidate.parent is None else depths[candidate.parent]))
    return max(depths, default=0)
