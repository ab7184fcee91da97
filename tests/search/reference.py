"""A brute-force reference of search: one node at a time, nothing batched, straight from the strategies' descriptions.

It shares the fake environment, the fake policy and the keys with the code under test, and nothing of tree, simulator or
driver.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fakes import GREEDY, MOVES, Guided, Letters, Scripted
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.envs.base import fingerprint
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.scorers import CriticValue, EnvironmentScore, ReturnSoFar, Scorer, WeightedSum
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Greedy, Lookahead, RandomActions, Sample, Strategy
from tsr_lightning.trajectory import Candidate, Ended, Message, Origin, Trajectory, Turn

SCORERS: list[Scorer] = [
    EnvironmentScore(),
    ReturnSoFar(),
    CriticValue(),
    WeightedSum([EnvironmentScore(), ReturnSoFar(), CriticValue()], [0.5, 1.0, 0.2]),
]
STRATEGIES: list[Strategy] = [
    Sample(),
    Greedy(),
    *(BestOfN(n, commit) for n in (1, 2, 5) for commit in ("keep", "resample")),
    *(
        Beam(*sizes, scorer, commit)
        for sizes in ((1, 1), (1, 4), (2, 4), (4, 4))
        for scorer in SCORERS
        for commit in ("keep", "resample")
    ),
    *(
        Lookahead(*sizes, scorer, commit)
        for sizes in ((1, 0, 1), (4, 0, 2), (3, 1, 1), (4, 2, 2), (2, 9, 3))
        for scorer in SCORERS
        for commit in ("keep", "resample")
    ),
    *(
        FirstImprovement(candidates, scorer, commit, without_replacement)
        for candidates in (1, 2, 5)
        for scorer in SCORERS
        for commit in ("keep", "resample")
        for without_replacement in (False, True)
    ),
    *(Expert(noise) for noise in (0.0, 0.4, 1.0)),
    RandomActions(),
]
ORIGINS = {  # of strategies with candidates to choose among
    Sample: Origin.SAMPLED,
    Greedy: Origin.GREEDY,
    BestOfN: Origin.SEARCHED,
    Beam: Origin.SEARCHED,
    Lookahead: Origin.SEARCHED,
    FirstImprovement: Origin.SEARCHED,
    Expert: Origin.DEMONSTRATED,
    RandomActions: Origin.DEMONSTRATED,
}
SINGLE_CANDIDATE = [
    strategy
    for strategy in STRATEGIES
    if (isinstance(strategy, BestOfN) and strategy.n == 1)
    or (isinstance(strategy, Beam) and strategy.candidates == 1)
    or (isinstance(strategy, Lookahead) and strategy.candidates == 1 and strategy.depth == 0)
    or (isinstance(strategy, FirstImprovement) and strategy.candidates == 1)
]
FEW: list[Strategy] = [
    Sample(),
    Greedy(),
    BestOfN(3),
    BestOfN(3, "resample"),
    Beam(2, 4, CriticValue()),
    Beam(2, 4, commit="resample"),
    Lookahead(3, 2, 2),
    Lookahead(3, 2, 2, CriticValue(), "resample"),
    FirstImprovement(4),
    FirstImprovement(4, CriticValue(), "resample", without_replacement=False),
    Expert(0.4),
    RandomActions(),
]


@dataclass(eq=False)
class Point:
    """A node of the reference."""

    state: object
    messages: tuple[Message, ...]
    key: Key
    place: object
    remaining: int
    env_score: float = 0.0
    parent: "Point | None" = None
    turn: Turn | None = None  # that led here; None at the root
    episode_return: float = 0.0
    ended: Ended | None = None
    proposals: list["Point"] = field(default_factory=list)  # and real turns
    children: int = 0  # proposals, and turns of the oracle
    simulated: "Point | None" = None  # whose response a real turn played

    @property
    def done(self) -> bool:
        return self.ended is not None

    @property
    def succeeded(self) -> bool:
        return self.ended is Ended.SUCCEEDED

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (*self.parent.turns, self.turn) if self.parent and self.turn else ()

    @property
    def ids(self) -> tuple[int, ...]:
        return Letters().prompt(self.turns, self.messages)

    @property
    def tie(self) -> float:
        return self.key.fold_in(Stream.TIES).uniform()

    def first_turn_after(self, point: "Point") -> "Point":
        """The child of `point` on the path to this one."""
        return self if self.parent is point or self.parent is None else self.parent.first_turn_after(point)

    @property
    def path(self) -> "list[Point]":
        return [*self.parent.path, self] if self.parent else []

    def tree(self, strategy: Strategy, root: "Point") -> tuple[Candidate, ...]:
        """Everything below the root, nearer things first."""
        scorer = strategy.traits.scored_by

        def scored(point: Point) -> bool:
            return scorer is not None and (point.simulated is None or isinstance(strategy, FirstImprovement))

        queue = [*root.proposals]
        for point in queue:
            queue += point.proposals
        return tuple(
            Candidate(
                point.turn,
                None if point.parent is root else queue.index(point.parent),
                fingerprint(point.place),
                point.remaining,
                point.env_score if scored(point) else None,
                value(scorer, point) if scorer and scored(point) else None,
                point.ended,
                point.simulated is None,
            )
            for point in queue
        )


@dataclass
class Reference:
    """Runs one task."""

    task: SearchTask
    limits: TokenLimits
    max_response_tokens: int
    engine: Scripted = field(default_factory=Scripted)

    def trajectory(self) -> Trajectory:
        env = Guided()
        observation, _ = env.reset(seed=self.task.instance)
        messages = (Message("system", "walk"), Message("user", observation))
        self.root = Point(env.get_state(), messages, self.task.key, env.state_key(), env.remaining(), env.score())
        end = self.end()
        final = (
            end.ids
            if end.ended in (Ended.TURN_LIMIT, Ended.TOKEN_LIMIT)
            and len(end.ids) <= (self.limits.model or self.limits.context)
            else ()
        )
        strategy = self.task.strategy
        return Trajectory(
            self.task.instance,
            self.task.member,
            type(strategy).__name__,
            Origin.SAMPLED if strategy in SINGLE_CANDIDATE else ORIGINS[type(strategy)],
            end.turns,
            end.ended,
            final,
            end.messages,
            end.tree(strategy, self.root) if strategy.traits.branches else (),
        )

    def end(self) -> Point:
        strategy = self.task.strategy
        if isinstance(strategy, Sample):
            return self.sample(self.root)
        if isinstance(strategy, Greedy):
            point = self.root
            while not point.done:
                point = self.propose(point, greedy=True)
            return point
        if isinstance(strategy, Expert):
            return self.demonstrate(lambda env, key: env.oracle(strategy.noise, key))
        if isinstance(strategy, RandomActions):
            return self.demonstrate(lambda env, key: list(MOVES)[int(4 * key.uniform())])
        if isinstance(strategy, FirstImprovement):
            return self.climb(strategy)
        plan = self.plan(strategy)
        if not isinstance(strategy, Lookahead) and strategy.commit == "keep":
            return plan(self.root)
        point = self.root
        while not point.done:
            leaf = plan(point)
            if strategy.commit == "resample":
                point = self.commit(point, leaf.first_turn_after(point))
            else:
                point = leaf if leaf.succeeded else leaf.first_turn_after(point)
        return point

    def plan(self, strategy: Strategy) -> Callable[[Point], Point]:
        match strategy:
            case BestOfN():
                return lambda point: self.best_of(strategy, point)
            case Beam():
                return lambda point: self.beam(strategy, point)
            case Lookahead():
                return lambda point: self.lookahead(strategy, point)
        raise AssertionError(strategy)

    def sample(self, point: Point) -> Point:
        while not point.done:
            point = self.propose(point)
        return point

    def demonstrate(self, said: Callable[[Guided, Key], str]) -> Point:
        point = self.root
        while not point.done:
            key = self.child_key(point)
            env = Guided()
            env.set_state(point.state)
            text = said(env, key.fold_in(Stream.ORACLE))
            response = Response(Letters().write(text), (0.0,) * len(text), True)
            point = self.step(point, response, key, key.fold_in(Stream.BRANCH))
        return point

    def best_of(self, strategy: BestOfN, point: Point) -> Point:
        firsts = [self.propose(point) for _ in range(strategy.n)]
        return max((self.sample(first) for first in firsts), key=lambda end: (end.episode_return, end.tie))

    def beam(self, strategy: Beam, point: Point) -> Point:
        frontier = [point]
        while not frontier[0].succeeded and not all(kept.done for kept in frontier):
            pool = [self.propose(kept) for kept in frontier if not kept.done for _ in range(strategy.candidates)]
            pool += [kept for kept in frontier if kept.done]
            frontier = ranked(strategy.scorer, pruned(pool))[: strategy.width]
        return frontier[0]

    def lookahead(self, strategy: Lookahead, point: Point) -> Point:
        leaves = pruned([self.propose(point) for _ in range(strategy.candidates)])
        for turn in range(strategy.depth):
            if ranked(strategy.scorer, leaves)[0].succeeded:
                break
            times = strategy.width if turn == 0 else 1
            leaves = [
                new for leaf in leaves for new in ([leaf] if leaf.done else [self.propose(leaf) for _ in range(times)])
            ]
        return ranked(strategy.scorer, leaves)[0]

    def climb(self, strategy: FirstImprovement) -> Point:
        point = self.root
        while not point.done:
            chosen = self.first_improvement(strategy, point)
            point = self.commit(point, chosen) if strategy.commit == "resample" else chosen
        return point

    def first_improvement(self, strategy: FirstImprovement, point: Point) -> Point:
        pool: list[Point] = []
        for _ in range(strategy.candidates):
            new = self.propose(point, excluding=pool if strategy.without_replacement else [])
            if new.succeeded or (value(strategy.scorer, new) > value(strategy.scorer, point) and not new.done):
                return new
            pool.append(new)
        if strategy.without_replacement:  # a letter has a log-probability of -1: the shortest, then the first
            letters = [-len(new.turn.response) for new in pool if new.turn]
            places = range(len(pool))
            return pool[
                max(places, key=lambda i: (value(strategy.scorer, pool[i]), pool[i].episode_return, letters[i]))
            ]
        return ranked(strategy.scorer, pool)[0]

    def propose(self, point: Point, excluding: Sequence[Point] = (), greedy: bool = False) -> Point:
        """One more candidate, with its own noise."""
        key = self.child_key(point)
        turns = [other.turn for other in excluding if other.turn]
        excluded = tuple(Response(turn.response, turn.behaviour_logprobs, turn.finished) for turn in turns)
        prompt = Prompt(point.ids, (), self.room(point), excluded)
        response = self.engine.another(prompt, GREEDY if greedy else key.fold_in(Stream.POLICY))
        point.proposals.append(self.step(point, response, key, key.fold_in(Stream.BRANCH)))
        return point.proposals[-1]

    def commit(self, point: Point, chosen: Point) -> Point:
        """The turn of `chosen` in the real episode, with the real episode's noise."""
        assert chosen.turn is not None
        real = self.task.key.fold_in(Stream.REAL, len(point.turns))
        response = Response(chosen.turn.response, chosen.turn.behaviour_logprobs, chosen.turn.finished)
        outcome = self.step(point, response, real.fold_in("path"), real)
        outcome.simulated = chosen
        point.proposals.append(outcome)
        return outcome

    def step(self, point: Point, response: Response, key: Key, noise: Key) -> Point:
        env = Guided()
        env.set_state(point.state)
        env.reseed(noise)
        text = Letters().read(response.ids)
        observation, reward, terminated, truncated, info = env.step(text)
        valid, effective = info["action_is_valid"], info["action_is_effective"]
        sampled = (point.ids, response.ids, response.logprobs, response.finished)
        child = Point(
            state=env.get_state(),
            messages=(Message("user", observation),),
            key=key,
            place=env.state_key(),
            remaining=env.remaining(),
            env_score=env.score(),
            parent=point,
            turn=Turn(*sampled, point.messages, text, reward, valid, effective, info.get("parsed_action", text)),
            episode_return=point.episode_return + reward,
        )
        if info["success"]:
            child.ended = Ended.SUCCEEDED
        elif terminated:
            child.ended = Ended.FAILED
        elif truncated:
            child.ended = Ended.TURN_LIMIT
        elif self.room(child) < 1:
            child.ended = Ended.TOKEN_LIMIT
        return child

    def room(self, point: Point) -> int:
        left = self.limits.context - len(point.ids)
        if self.limits.episode is not None:
            left = min(left, self.limits.episode - sum(len(turn.response) for turn in point.turns))
        return min(left, self.max_response_tokens)

    def child_key(self, point: Point) -> Key:
        point.children += 1
        return point.key.fold_in(point.children - 1)


def value(scorer: Scorer, point: Point) -> float:
    match scorer:
        case EnvironmentScore():
            return point.env_score
        case ReturnSoFar():
            return point.episode_return
        case CriticValue():
            return point.episode_return + (0.0 if point.done else Scripted.value(point.ids))
        case WeightedSum(scorers=scorers, weights=weights):
            return sum(weight * value(part, point) for weight, part in zip(weights, scorers, strict=True))
    raise AssertionError(scorer)


def ranked(scorer: Scorer, points: list[Point]) -> list[Point]:
    def rank(point: Point) -> tuple[bool, float, float, float]:
        return point.ended is Ended.SUCCEEDED, value(scorer, point), point.episode_return, point.tie

    return sorted(points, key=rank, reverse=True)


def pruned(points: list[Point]) -> list[Point]:
    """One point per place: a success, then one that goes on, then the highest return, then the most turns left, then
    the first."""

    def rank(point: Point) -> tuple[bool, bool, float, int]:
        return point.ended is Ended.SUCCEEDED, point.ended is None, point.episode_return, point.remaining

    kept: list[Point] = []
    for point in points:
        rivals = [other for other in kept if other.place == point.place]
        if not rivals:
            kept.append(point)
        elif rank(point) > rank(rivals[0]):
            kept[kept.index(rivals[0])] = point
    return kept
