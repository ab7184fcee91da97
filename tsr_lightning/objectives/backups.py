"""Values of the candidates of search trees, backed up from what the searches found below them.

Trees of one instance are one graph: a state is its depth, its key and the budget left, so that a candidate that a
search dropped because an equal state was kept has that state's value. Outcomes of equal actions in equal states are
averaged, since under noise one of them may be luck.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from tsr_lightning.errors import require_fraction
from tsr_lightning.trajectory import Candidate, State

ROOT = State(0, "", 0)


class Edge(NamedTuple):
    """An action in a state."""

    state: State
    action: str


# The value of one outcome, given that of the state it led to where the trees go on from there; None where nothing is
# known of it
Outcome = Callable[[Candidate, float | None], float | None]


class ActionValue(NamedTuple):
    """The value of an action in a state, and how often it was drawn."""

    value: float
    draws: int


def backed_up(
    trees: Sequence[Sequence[Candidate]],
    outcome: Outcome,
    value_of_state: Callable[[Sequence[ActionValue]], float],
) -> list[list[float | None]]:
    """The value of every candidate's action: the mean of its outcomes, deepest states first.

    Args:
        trees: of searches of one instance.
        outcome: see `Outcome`.
        value_of_state: from the values of the actions in it.
    """
    states_of = [proposed_in(tree) for tree in trees]
    outcomes: dict[State, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for tree, states in zip(trees, states_of, strict=True):
        for candidate, state in zip(tree, states, strict=True):
            outcomes[state][candidate.turn.action].append(candidate)
    of_states: dict[State, float] = {}
    of_edges: dict[Edge, float] = {}
    for state in sorted(outcomes, reverse=True):  # by depth
        values_here = []
        for action, candidates in outcomes[state].items():
            known = [outcome(each, None if each.done else of_states.get(_led_to(each, state))) for each in candidates]
            values = [value for value in known if value is not None]
            if values:
                of_edges[Edge(state, action)] = fmean(values)
                values_here.append(ActionValue(fmean(values), sum(each.drawn for each in candidates)))
        if values_here:
            of_states[state] = value_of_state(values_here)
    return [
        [of_edges.get(Edge(state, each.turn.action)) for each, state in zip(tree, states, strict=True)]
        for tree, states in zip(trees, states_of, strict=True)
    ]


def proposed_in(tree: Sequence[Candidate]) -> list[State]:
    """The state that each candidate was proposed in."""
    states: list[State] = []
    for candidate in tree:
        parent = candidate.parent
        states.append(ROOT if parent is None else _led_to(tree[parent], states[parent]))
    return states


def _led_to(candidate: Candidate, before: State) -> State:
    return State(before.depth + 1, candidate.state_key, candidate.remaining)


# `backed_up`, or `state_graph.StateGraph.backed_up`
BackUp = Callable[
    [Sequence[Sequence[Candidate]], Outcome, Callable[[Sequence[ActionValue]], float]], list[list[float | None]]
]


class Backup(ABC):
    """The values of candidates."""

    @property
    def takes_best(self) -> bool:
        """True if the best outcome below a response stands for all of them."""
        return False

    @property
    def takes_scores_for_returns(self) -> bool:
        """True if the score of a state stands for the return that is still to come there."""
        return False

    @property
    def values_scores(self) -> bool:
        """True if a response that was not searched on is worth a share of its score."""
        return False

    @abstractmethod
    def __call__(self, trees: Sequence[Sequence[Candidate]], back_up: BackUp = backed_up) -> list[list[float]]:
        """Values of the candidates, indexed as `trees[i][j]`; equal actions in equal states have equal values.

        Args:
            trees: `Trajectory.tree` of searches of one instance.
            back_up: goes backwards through them, and says which states are equal.
        """


@dataclass(frozen=True)
class MaxBackup(Backup):
    """The best that was found below a candidate: a success, discounted by the turns it took; else a share of the best
    score.

    It is the value of acting by search from there on, and not that of the policy. Under noise the best of several
    outcomes may be luck, though those of one response are averaged: use `MeanBackup` there.

    Args:
        discount: per turn, up to the success.
        score_share: the value of the best score, bounded to [0, 1], where no success was found: of the strategy's
            scorer, which may be a critic. Below discount^turns, and without noise, a success is always worth more.
    """

    discount: float = 0.9
    score_share: float = 0.5

    takes_best = True

    def __post_init__(self) -> None:
        require_fraction("MaxBackup.discount", self.discount)
        require_fraction("MaxBackup.score_share", self.score_share)

    @property
    def values_scores(self) -> bool:
        return self.score_share > 0

    def __call__(self, trees: Sequence[Sequence[Candidate]], back_up: BackUp = backed_up) -> list[list[float]]:
        def success(candidate: Candidate, below: float | None) -> float:
            return 1.0 if candidate.succeeded else self.discount * (below or 0.0)

        def score(candidate: Candidate, below: float | None) -> float | None:
            return _max_known(bounded_score(candidate), below)

        found = back_up(trees, success, _best)
        scores = back_up(trees, score, _best)
        return [
            [value or self.score_share * (score or 0.0) for value, score in zip(*tree, strict=True)]
            for tree in zip(found, scores, strict=True)
        ]


@dataclass(frozen=True)
class MeanBackup(Backup):
    """The mean return from a candidate on: its reward and what the candidates below it returned, each weighted by how
    often it was drawn.

    Where every episode was played to its end by the policy, as by `Vine`, it is an unbiased estimate of the
    policy's Q (VinePPO, https://arxiv.org/abs/2410.01679). Where a search selected what it went on with, the mean is
    over the selected.

    Args:
        discount: per turn.
        score_share: the value of a state that the search left: this share of its score, bounded to [0, 1].
    """

    discount: float = 1.0
    score_share: float = 0.5

    def __post_init__(self) -> None:
        require_fraction("MeanBackup.discount", self.discount)
        require_fraction("MeanBackup.score_share", self.score_share)

    @property
    def takes_scores_for_returns(self) -> bool:
        return self.values_scores

    @property
    def values_scores(self) -> bool:
        return self.score_share > 0

    def __call__(self, trees: Sequence[Sequence[Candidate]], back_up: BackUp = backed_up) -> list[list[float]]:
        def value(candidate: Candidate, below: float | None) -> float:
            rest = below
            if candidate.done:
                rest = 0.0
            elif rest is None:
                rest = self.score_share * (bounded_score(candidate) or 0.0)
            return candidate.turn.reward + self.discount * rest

        return [[each or 0.0 for each in tree] for tree in back_up(trees, value, _mean)]


def found_success(trees: Sequence[Sequence[Candidate]], back_up: BackUp = backed_up) -> list[list[bool]]:
    """Marks the candidates at or below which an outcome is a success, indexed as `trees[i][j]`."""

    def outcome(candidate: Candidate, below: float | None) -> float:
        return float(candidate.succeeded) or (below or 0.0)

    return [[bool(value) for value in tree] for tree in back_up(trees, outcome, _best)]


def have_estimates(trees: Sequence[Sequence[Candidate]], by_score: bool) -> list[list[bool]]:
    """Marks the candidates of whose response something is known, as `trees[i][j]`: an outcome of it ended an episode or
    was searched on or, with `by_score`, was scored."""

    def outcome(candidate: Candidate, below: float | None) -> float:
        scored = by_score and bounded_score(candidate) is not None
        return float(candidate.done or below is not None or scored)

    return [[bool(value) for value in tree] for tree in backed_up(trees, outcome, _best)]


def bounded_score(candidate: Candidate) -> float | None:
    """The strategy's score within [0, 1]; None where it gave none."""
    if candidate.env_score is None or candidate.score is None:
        return None
    return min(max(candidate.score, 0.0), 1.0)


def _max_known(score: float | None, below: float | None) -> float | None:
    known = [value for value in (score, below) if value is not None]
    return max(known) if known else None


def _best(actions: Sequence[ActionValue]) -> float:
    return max(action.value for action in actions)


def _mean(actions: Sequence[ActionValue]) -> float:
    draws = sum(action.draws for action in actions)
    return sum(action.value * action.draws for action in actions) / draws if draws else 0.0
