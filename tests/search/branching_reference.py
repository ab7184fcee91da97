"""Brute-force references of the strategies that branch for information, on the points of reference.py."""

from collections.abc import Callable, Iterator
from statistics import median

from tests.fakes import Guided, Varied
from tests.search.reference import SCORERS, Point, Reference, pruned, ranked, value
from tsr_lightning.rng import Stream
from tsr_lightning.search import (
    AdaptiveTree,
    Beam,
    BestOfN,
    ContrastBeam,
    EntropyExpansion,
    EntropyRise,
    Lookahead,
    Sample,
    SearchFailures,
    Strategy,
    SuffixRestarts,
    Vine,
)
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.scorers import CriticValue, EnvironmentScore
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.trajectory import Message

BRANCHING: list[Strategy] = [
    *(Vine(*sizes) for sizes in ((2,), (4, 0.5), (3, 0.2, 3))),
    *(
        ContrastBeam(*sizes, scorer, commit)
        for sizes in ((1, 3, 0, 1), (2, 4, 1, 1))
        for scorer in SCORERS
        for commit in ("keep", "resample")
    ),
    *(ContrastBeam(*sizes) for sizes in ((1, 2, 1, 0), (2, 5, 3, 9))),
    *(
        wrapped
        for search in (
            Sample(),
            BestOfN(3, "resample"),
            Beam(2, 4, CriticValue()),
            Beam(2, 4, commit="resample"),
            Lookahead(3, 2, 2),
        )
        for wrapped in (SearchFailures(search), SearchFailures(search, 3), SuffixRestarts(search))
    ),
    *(SuffixRestarts(search, 1, 2) for search in (Beam(), BestOfN(5))),
    *(EntropyExpansion(*sizes) for sizes in ((1, 1, 1), (2, 2, 3), (3, 2, 2, 0.0), (1, 3, 9, 0.02))),
    *(EntropyRise(*sizes) for sizes in ((1, 2), (2, 7, 2, 1), (4, 8, 3, 2, 0.6), (2, 9, 1, 20, 0.5, -1.0))),
    *(
        AdaptiveTree(*sizes, scorer=scorer)
        for sizes in ((4, 2, 2, 2, 0.5, 6), (3, 1, 1, 3, 0.05, 2))
        for scorer in SCORERS
    ),
    AdaptiveTree(2, 1, 5, 2, 0.0, 2, EnvironmentScore()),
    SearchFailures(SuffixRestarts(ContrastBeam())),
    SuffixRestarts(SearchFailures(), 2, 3),
]
ONE_OF_EACH: list[Strategy] = [
    Vine(3, 0.5, 2),
    EntropyExpansion(),
    EntropyRise(),
    AdaptiveTree(scorer=EnvironmentScore()),
    ContrastBeam(),
    ContrastBeam(2, 5, 1, 2, CriticValue(), "resample"),
    SearchFailures(),
    SuffixRestarts(),
]


def root(task: SearchTask) -> Point:
    env = Guided()
    observation, _ = env.reset(seed=task.instance)
    messages = (Message("system", "walk"), Message("user", observation))
    return Point(env.get_state(), messages, task.key, env.state_key(), env.remaining())


class BranchingReference:
    """Runs one task; `points` are then all that it drew."""

    def __init__(self, task: SearchTask, limits: TokenLimits, max_response_tokens: int) -> None:
        self.one = Reference(task, limits, max_response_tokens, Varied())
        self.root = self.one.root = root(task)
        self.end = self.play(task.strategy, self.root)

    @property
    def points(self) -> list[Point]:
        """All proposals; turns of an oracle and real ones are none."""
        found = {id(point): point for start in [*states(self.end), self.end] for point in below(start)}
        return [point for point in found.values() if point.simulated is None]

    def play(self, strategy: Strategy, start: Point) -> Point:
        match strategy:
            case Vine():
                return self.vine(strategy, start)
            case EntropyExpansion():
                return self.expansion(strategy, start)
            case AdaptiveTree():
                return self.adaptive(strategy, start)
            case EntropyRise():
                return self.rise(strategy, start)
            case SearchFailures():
                return self.failures(strategy, start)
            case SuffixRestarts():
                return self.restarts(strategy, start)
            case ContrastBeam():
                return self.committed(strategy.commit, lambda point: self.contrast(strategy, point), start)
            case Beam() | BestOfN():
                return self.committed(strategy.commit, self.one.plan(strategy), start)
        task, self.one.task = self.one.task, SearchTask(0, 0, strategy, self.one.task.key)
        end = self.one.end()
        self.one.task = task
        return end

    def committed(self, commit: str, plan: Callable[[Point], Point], point: Point) -> Point:
        while not point.done:
            leaf = plan(point)
            if commit == "keep":
                return leaf
            point = self.commit(point, leaf.first_turn_after(point))
        return point

    def commit(self, point: Point, chosen: Point) -> Point:
        real = self.one.commit(point, chosen)
        if real not in point.proposals:
            point.proposals.append(real)
        return real

    def vine(self, strategy: Vine, start: Point) -> Point:
        end = self.one.sample(start)
        for state in states(end):
            if chance(state) < strategy.share:
                for _ in range(strategy.candidates - 1):
                    self.play_out(self.one.propose(state), strategy.rollouts)
        return end

    def expansion(self, strategy: EntropyExpansion, start: Point) -> Point:
        ends = [self.one.sample(self.one.propose(start)) for _ in range(strategy.samples)]
        for _ in range(strategy.rounds):
            open_states = {id(state): state for end in ends for state in states(end)}
            surprise = {}
            for number, state in open_states.items():
                of_responses = [
                    -sum(point.turn.behaviour_logprobs) / len(point.turn.response)
                    for point in state.proposals
                    if point.turn
                ]
                surprise[number] = sum(of_responses) / len(of_responses)
            counts = {number: len(state.proposals) for number, state in open_states.items()}
            extra = dict.fromkeys(open_states, 0)
            for _ in range(strategy.points):
                scores = {
                    number: (surprise[number] - strategy.penalty * counts[number], place_in_order(state))
                    for number, state in open_states.items()
                }
                chosen = max(scores, key=lambda number: scores[number])
                counts[chosen] += 1
                extra[chosen] += 1
            for number, count in sorted(extra.items(), key=lambda item: item[1]):
                ends += self.play_out(open_states[number], count)
        return max(ends, key=lambda end: (end.episode_return, end.tie))

    def rise(self, strategy: EntropyRise, start: Point) -> Point:
        """Turn by turn. A child's first response is compared with that of the turn that its path begins with."""

        def nats(point: Point) -> float:
            assert point.turn
            first = point.turn.behaviour_logprobs[: strategy.tokens]
            return -sum(first) / len(first)

        every = [self.one.propose(start) for _ in range(strategy.samples)]
        level, left = every, strategy.total - strategy.samples
        while any(not point.done for point in level):
            parents = [point for point in level if not point.done]
            level = [self.one.propose(parent) for parent in parents]
            forked: list[Point] = []
            for parent, child in zip(parents, list(level), strict=True):
                probability = strategy.alpha + strategy.beta * (nats(child) - nats(child.path[0]))
                if probability > strategy.threshold and left >= strategy.branches:
                    left -= strategy.branches
                    forked += [self.one.propose(parent) for _ in range(strategy.branches)]
            level += forked
            every += level
        every += [self.one.sample(self.one.propose(start)) for _ in range(left)]
        return max((point for point in every if point.done), key=lambda end: (end.episode_return, end.tie))

    def adaptive(self, strategy: AdaptiveTree, start: Point) -> Point:
        level, ends, turns = [self.one.propose(start) for _ in range(strategy.samples)], list[Point](), 1
        while True:
            ends += [point for point in level if point.done]
            going = [point for point in level if not point.done]
            if not going:
                return max(ends, key=lambda end: (end.episode_return, end.tie))
            first: list[Point] = []
            if turns % strategy.every == 0:
                middle = median(value(strategy.scorer, point) for point in going)
                ranking = ranked(strategy.scorer, going)
                stays = [
                    value(strategy.scorer, point) >= middle - strategy.margin
                    and not (len(last) == strategy.repeats and len(set(last)) == 1)
                    for point in ranking
                    for last in [[turn.action for turn in point.turns[-strategy.repeats :]]]
                ]
                going = [point for point, stay in zip(ranking, stays, strict=True) if stay] or ranking[:1]
                first = going[: strategy.expanded]
            counts = [strategy.children if point in first else 1 for point in going]
            level = [self.one.propose(point) for point, n in zip(going, counts, strict=True) for _ in range(n)]
            turns += 1

    def failures(self, strategy: SearchFailures, start: Point) -> Point:
        for _ in range(strategy.samples):
            end = self.one.sample(start)
            if end.succeeded:
                return end
        return self.play(strategy.strategy, start)

    def restarts(self, strategy: SuffixRestarts, start: Point) -> Point:
        end = self.play(strategy.strategy, start)
        going = end.succeeded
        for number, state in enumerate(reversed(states(end))):
            if going and number < strategy.points:
                going = any(leaf.succeeded for leaf in self.play_out(state, strategy.rollouts))
        return end

    def contrast(self, strategy: ContrastBeam, start: Point) -> Point:
        frontier, drawn = [start], []
        while not frontier[0].succeeded and not all(point.done for point in frontier):
            pool = [self.one.propose(point) for point in frontier if not point.done for _ in range(strategy.candidates)]
            pool = ranked(strategy.scorer, pruned(pool + [point for point in frontier if point.done]))
            won = pool[0].succeeded
            frontier = [pool.pop(0) for _ in range(min(len(pool), 1 if won else strategy.width))]
            open_points = [point for point in pool if not point.done]
            for _ in range(0 if won else strategy.contrast):
                if open_points:
                    worst = open_points.pop()
                    frontier.insert(strategy.width, worst)
            drawn += sorted(open_points, key=chance)[: strategy.rollouts]
        for point in drawn:
            self.play_out(point, 1)
        return frontier[0]

    def play_out(self, point: Point, count: int) -> list[Point]:
        if point.done:
            return [point]
        return [self.one.sample(self.one.propose(point)) for _ in range(count)]


def place_in_order(point: Point) -> float:
    """The tie of a state; the root has none."""
    return point.tie if point.parent else 0.0


def chance(point: Point) -> float:
    return point.key.fold_in(Stream.CHOICE).uniform()


def states(end: Point) -> list[Point]:
    """Those that the turns up to `end` were taken in."""
    return [*states(end.parent), end.parent] if end.parent else []


def below(point: Point) -> Iterator[Point]:
    for child in point.proposals:
        yield child
        yield from below(child)
