"""Search: each strategy against an obvious reference (one node at a time, nothing batched, straight from its
description), what changes no draw, what is counted and what is refused."""

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.fakes import GOAL, TURNS, Guided, Letters, Scripted, Walk, driver, tasks
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Response
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.plan import Annealed, Mixed, PlanEntry, Uniform
from tsr_lightning.search.scorers import CriticValue, EnvironmentScore, ReturnSoFar, Scorer, WeightedSum
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Lookahead, Sample, Strategy
from tsr_lightning.search.tree import Node, best, distinct
from tsr_lightning.trajectory import Origin, Trajectory, Turn

ROOMY = TokenLimits(1000)
SCORERS: list[Scorer] = [
    EnvironmentScore(),
    ReturnSoFar(),
    CriticValue(),
    WeightedSum([EnvironmentScore(), ReturnSoFar(), CriticValue()], [0.5, 1.0, 0.2]),
]
STRATEGIES: list[Strategy] = [
    Sample(),
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
    *(Expert(noise) for noise in (0.0, 0.4, 1.0)),
]
ORIGINS = {  # of strategies that have alternatives to choose from
    Sample: Origin.SAMPLED,
    BestOfN: Origin.SEARCHED,
    Beam: Origin.SEARCHED,
    Lookahead: Origin.SEARCHED,
    Expert: Origin.DEMONSTRATED,
}
NOTHING_TO_CHOOSE = [
    strategy
    for strategy in STRATEGIES
    if (isinstance(strategy, BestOfN) and strategy.n == 1)
    or (isinstance(strategy, Beam) and strategy.candidates == 1)
    or (isinstance(strategy, Lookahead) and strategy.candidates == 1 and strategy.depth == 0)
]
FEW: list[Strategy] = [
    Sample(),
    BestOfN(3),
    BestOfN(3, "resample"),
    Beam(2, 4, CriticValue()),
    Beam(2, 4, commit="resample"),
    Lookahead(3, 2, 2),
    Lookahead(3, 2, 2, CriticValue(), "resample"),
    Expert(0.4),
]


# -- the reference -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Point:
    """A moment, as the reference sees it."""

    state: object
    observation: str
    key: Key
    place: object
    remaining: int
    env_score: float = 0.0
    parent: "Point | None" = None
    turn: Turn | None = None  # that led here
    episode_return: float = 0.0
    done: bool = False
    succeeded: bool = False
    truncated: bool = False
    proposed: int = 0  # children so far

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (*self.parent.turns, self.turn) if self.parent and self.turn else ()

    @property
    def ids(self) -> tuple[int, ...]:
        return Letters().prompt("walk", self.turns, self.observation)

    @property
    def tie(self) -> float:
        return self.key.fold_in(Stream.TIES).uniform()

    def first_turn_after(self, point: "Point") -> "Point":
        """The very child of `point` that this point comes from, with what was proposed from it."""
        return self if self.parent is point or self.parent is None else self.parent.first_turn_after(point)


@dataclass
class Reference:
    """Plays one task."""

    task: SearchTask
    limits: TokenLimits
    max_response_tokens: int

    def trajectory(self) -> Trajectory:
        env = Guided()
        observation, _ = env.reset(seed=self.task.instance)
        self.root = Point(env.get_state(), observation, self.task.key, env.state_key(), env.remaining())
        end = self.end()
        final = end.ids if end.truncated and len(end.ids) <= (self.limits.model or self.limits.context) else ()
        strategy = self.task.strategy
        return Trajectory(
            self.task.instance,
            self.task.member,
            type(strategy).__name__,
            Origin.SAMPLED if strategy in NOTHING_TO_CHOOSE else ORIGINS[type(strategy)],
            end.turns,
            end.succeeded,
            end.truncated,
            final,
            end.observation,
        )

    def end(self) -> Point:
        strategy = self.task.strategy
        if isinstance(strategy, Sample):
            return self.sampled(self.root)
        if isinstance(strategy, Expert):
            return self.demonstrated(strategy.noise)
        plan = self.plan(strategy)
        if not isinstance(strategy, Lookahead) and strategy.commit == "keep":
            return plan(self.root)
        point = self.root
        while not point.done:
            leaf = plan(point)
            if strategy.commit == "resample":
                point = self.realised(point, leaf.first_turn_after(point))
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

    def sampled(self, point: Point) -> Point:
        while not point.done:
            point = self.proposed(point)
        return point

    def demonstrated(self, noise: float) -> Point:
        point = self.root
        while not point.done:
            key = self.child_key(point)
            env = Guided()
            env.set_state(point.state)
            text = env.oracle(noise, key.fold_in(Stream.ORACLE))
            response = Response(Letters().write(text), (0.0,) * len(text), True)
            point = self.played(point, response, key, key.fold_in(Stream.BRANCH))
        return point

    def best_of(self, strategy: BestOfN, point: Point) -> Point:
        firsts = [self.proposed(point) for _ in range(strategy.n)]
        return max((self.sampled(first) for first in firsts), key=lambda end: (end.episode_return, end.tie))

    def beam(self, strategy: Beam, point: Point) -> Point:
        frontier = [point]
        while not frontier[0].succeeded and not all(kept.done for kept in frontier):
            pool = [self.proposed(kept) for kept in frontier if not kept.done for _ in range(strategy.candidates)]
            pool += [kept for kept in frontier if kept.done]
            frontier = ranked(strategy.scorer, pruned(pool))[: strategy.width]
        return frontier[0]

    def lookahead(self, strategy: Lookahead, point: Point) -> Point:
        leaves = pruned([self.proposed(point) for _ in range(strategy.candidates)])
        for turn in range(strategy.depth):
            if ranked(strategy.scorer, leaves)[0].succeeded:
                break
            times = strategy.width if turn == 0 else 1
            leaves = [
                new for leaf in leaves for new in ([leaf] if leaf.done else [self.proposed(leaf) for _ in range(times)])
            ]
        return ranked(strategy.scorer, leaves)[0]

    def proposed(self, point: Point) -> Point:
        """One more candidate, with noise of its own."""
        key = self.child_key(point)
        response = Scripted().say(point.ids, key.fold_in(Stream.POLICY), self.room(point))
        return self.played(point, response, key, key.fold_in(Stream.BRANCH))

    def realised(self, point: Point, chosen: Point) -> Point:
        """The turn of `chosen` in the real episode, with the real episode's noise."""
        assert chosen.turn is not None
        real = self.task.key.fold_in(Stream.REAL, len(point.turns))
        response = Response(chosen.turn.response, chosen.turn.logprobs, chosen.turn.finished)
        return self.played(point, response, real.fold_in("path"), real)

    def played(self, point: Point, response: Response, key: Key, noise: Key) -> Point:
        env = Guided()
        env.set_state(point.state)
        env.reseed(noise)
        text = Letters().read(response.ids)
        observation, reward, terminated, truncated, info = env.step(text)
        valid, effective = info["action_is_valid"], info["action_is_effective"]
        said = (point.ids, response.ids, response.logprobs, response.finished)
        child = Point(
            state=env.get_state(),
            observation=observation,
            key=key,
            place=env.state_key(),
            remaining=env.remaining(),
            env_score=env.score(),
            parent=point,
            turn=Turn(*said, point.observation, text, reward, valid, effective),
            episode_return=point.episode_return + reward,
            done=terminated or truncated,
            succeeded=info["success"],
            truncated=truncated,
        )
        if not child.done and self.room(child) < 1:
            child.done = child.truncated = True
        return child

    def room(self, point: Point) -> int:
        left = self.limits.context - len(point.ids)
        if self.limits.episode is not None:
            left = min(left, self.limits.episode - sum(len(turn.response) for turn in point.turns))
        return min(left, self.max_response_tokens)

    def child_key(self, point: Point) -> Key:
        point.proposed += 1
        return point.key.fold_in(point.proposed - 1)


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
    return sorted(points, key=lambda point: (value(scorer, point), point.episode_return, point.tie), reverse=True)


def pruned(points: list[Point]) -> list[Point]:
    """Without those that another one at the same place is better than, by return and then by the turns left."""
    kept: list[Point] = []
    for point in points:
        rivals = [other for other in kept if other.place == point.place]
        if not rivals:
            kept.append(point)
        elif (point.episode_return, point.remaining) > (rivals[0].episode_return, rivals[0].remaining):
            kept[kept.index(rivals[0])] = point
    return kept


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_strategy_chooses_what_the_reference_chooses(strategy: Strategy) -> None:
    """The same turns to the last id, return and success, on 48 searches of 12 instances."""
    searches = tasks(strategy, 48)
    played = driver(Guided(), concurrency=7).run(searches)
    assert played == [Reference(task, ROOMY, 64).trajectory() for task in searches]
    assert len({(t.succeeded, t.episode_return) for t in played}) > 3  # no two strategies could agree by default


@pytest.mark.parametrize(
    "limits",
    [TokenLimits(26), TokenLimits(26, model=30), TokenLimits(1000, episode=4), TokenLimits(24, episode=3)],
    ids=str,
)
@pytest.mark.parametrize("strategy", FEW, ids=repr)
def test_a_budget_cuts_where_the_reference_cuts(strategy: Strategy, limits: TokenLimits) -> None:
    """A turn of two letters, an episode of few, a short context: responses are cut to fit, then a node has ended."""
    searches = tasks(strategy, 48)
    played = driver(Guided(), concurrency=7, limits=limits, max_response_tokens=2).run(searches)
    assert played == [Reference(task, limits, 2).trajectory() for task in searches]
    cut = [t for t in played if t.truncated and len(t.turns) < TURNS]
    assert cut, "no budget was met"
    if not isinstance(strategy, Expert):
        assert all(len(turn.response) <= 2 for t in played for turn in t.turns)
        assert any(not turn.finished for t in played for turn in t.turns)
        assert all(t.trained_tokens <= (limits.episode or 100) for t in played)
        assert all(len(turn.prompt) + len(turn.response) <= limits.context for t in played for turn in t.turns)


@pytest.mark.parametrize("strategy", NOTHING_TO_CHOOSE, ids=repr)
def test_a_search_with_nothing_to_choose_from_is_a_plain_sample(strategy: Strategy) -> None:
    assert strategy.origin is Origin.SAMPLED
    if isinstance(strategy, Sample) or strategy.commit == "keep":  # under resample the real episode has its own draws
        [searched, plain] = [driver().run(tasks(each)) for each in (strategy, Sample())]
        assert [t.turns for t in searched] == [t.turns for t in plain]
        assert {t.origin for t in searched} == {Origin.SAMPLED}


@pytest.mark.parametrize(
    ("strategy", "origin"),
    [
        (BestOfN(2), Origin.SEARCHED),
        (Beam(1, 2), Origin.SEARCHED),
        (Lookahead(2, depth=0), Origin.SEARCHED),
        (Lookahead(1, depth=1, width=1), Origin.SEARCHED),  # a success found while looking ahead is kept
        (Lookahead(1, depth=1, width=2, commit="resample"), Origin.SAMPLED),  # the only candidate, and drawn anew
        (Expert(), Origin.DEMONSTRATED),
    ],
    ids=repr,
)
def test_the_origin_of_trajectories(strategy: Strategy, origin: Origin) -> None:
    assert strategy.origin is origin
    assert {trajectory.origin for trajectory in driver(Guided()).run(tasks(strategy, 8))} == {origin}


@pytest.mark.parametrize("room", [26, 28, 1000])
def test_the_final_context_is_kept_as_long_as_the_model_sees_it(room: int) -> None:
    """For the critic, whose value needs no room for a response: not `context_tokens` but the model's limit decides."""
    cut = [t for t in driver(limits=TokenLimits(26, model=room)).run(tasks(Sample())) if t.truncated]
    letters = Letters()
    contexts = [letters.prompt("walk", t.turns, t.final_observation) for t in cut]
    assert [t.final_prompt for t in cut] == [ids if len(ids) <= room else () for ids in contexts]
    assert any(len(ids) > 26 for ids in contexts)  # or nothing was tried


# -- what changes no draw ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", FEW, ids=repr)
def test_concurrency_and_order_change_nothing(strategy: Strategy) -> None:
    """1, 7 or 256 searches at once, in any order, a mixture of strategies beside them."""
    searches = tasks(strategy, 40)
    alone = driver(Guided(), concurrency=1).run(searches)
    assert driver(Guided(), concurrency=7).run(searches) == alone
    assert driver(Guided(), concurrency=256).run(searches) == alone
    order = random.Random(1).sample(range(len(searches)), len(searches))
    assert driver(Guided(), concurrency=7).run([searches[i] for i in order]) == [alone[i] for i in order]
    others = [tasks(other, 40, run=8) for other in FEW]
    mixed = [task for row in zip(searches, *others, strict=True) for task in row]
    assert driver(Guided(), concurrency=50).run(mixed)[:: len(FEW) + 1] == alone


def test_another_key_is_another_search() -> None:
    """Otherwise the tests above would pass with draws that are constant."""
    assert driver().run(tasks(Beam(2, 4), 40, run=7)) != driver().run(tasks(Beam(2, 4), 40, run=8))


# -- rules of the frontier ---------------------------------------------------------------------------------------------


def node(score: float = 0.0, total: float = 0.0, place: int = 0, remaining: int = 0, tie: float = 0.0) -> Node:
    return Node(None, "", Key(0), place, remaining, total=total, score=score, tie=tie)


def test_among_equal_scores_the_higher_return_wins_then_the_keyed_draw() -> None:
    good, late, early = node(0.9, total=5), node(1.0, total=0.94, tie=0.9), node(1.0, total=0.97)
    lucky = node(0.9, total=5, tie=0.5)
    for order in itertools.permutations([good, late, early, lucky]):
        assert best(4, order) == [early, late, lucky, good]
        assert best(1, order) == [early]


def test_of_equal_situations_the_higher_return_stays_then_the_larger_budget_then_the_first() -> None:
    poor, rich = node(place=1, total=0, remaining=9), node(place=1, total=1, remaining=0)
    short, long, twin = (node(place=2, remaining=n) for n in (3, 4, 4))
    other = node(place=3)
    assert distinct([poor, short, long, other, rich, twin]) == [rich, long, other]
    assert distinct([rich, poor, twin, long, short]) == [rich, twin]


@pytest.mark.parametrize("commit", ["keep", "resample"])
@pytest.mark.parametrize("strategy", [Beam(2, 3), Lookahead(3, 9, 2)], ids=["beam", "lookahead"])
def test_a_search_stops_at_its_first_success(strategy: Beam | Lookahead, commit: str) -> None:
    """On sure ground, two steps a turn from 3 to 9: three turns, and none is looked at beyond."""
    strategy = type(strategy)(**{**vars(strategy), "commit": commit})
    plays = driver(Walk(slip=0), Scripted(["b"]))
    [trajectory] = plays.run([SearchTask(3, 0, strategy, Key(1))])
    assert trajectory.succeeded
    assert len(trajectory.turns) == 3
    assert trajectory.episode_return == pytest.approx(1 - 3 * 0.01)
    # a plan looks at all turns up to the success: 3, and under resample 2 and then 1 more
    assert plays.costs.waves == (3 if commit == "keep" else 3 + 2 + 1)


def test_an_early_success_beats_a_late_one() -> None:
    """Each of 64 trajectories walks 3 to 9 by ones and twos: the quickest is kept, be it the first or the last."""
    for run in range(10):
        task = SearchTask(3, 0, BestOfN(64), Key(run))
        [chosen] = driver(Walk(slip=0), Scripted(["a", "b"])).run([task])
        assert chosen.succeeded
        assert len(chosen.turns) == (GOAL - 3) / 2  # missed by chance with probability (1 - 1/8)^64 = 0.0002 each


# -- trees -------------------------------------------------------------------------------------------------------------


def size(tree: Node) -> int:
    return sum(1 + size(child) for child in tree.children)


@pytest.mark.parametrize("strategy", [s for s in FEW if not isinstance(s, Expert)], ids=repr)
def test_the_whole_tree_is_kept_on_demand(strategy: Strategy) -> None:
    """Every node that was proposed hangs on its parent; the choice is the same; and nothing is kept unasked."""
    searches = tasks(strategy, 12)
    for task in searches:
        keeping, forgetting = driver(keep_trees=True), driver()
        [leaf], [bare] = keeping.leaves([task]), forgetting.leaves([task])
        assert leaf.turns == bare.turns
        path = [leaf.at_depth(depth) for depth in range(leaf.depth + 1)]
        resampled = leaf.depth if getattr(strategy, "commit", "") == "resample" else 0
        # under resample each realised moment has a tree of its own, and is itself no proposal
        proposed = sum(map(size, path)) if resampled else size(path[0])
        assert proposed == keeping.costs.env_steps - resampled
        if not resampled:
            assert all(child in parent.children for parent, child in itertools.pairwise(path))
        assert size(bare.at_depth(0)) == 0


# -- the ledger --------------------------------------------------------------------------------------------------------

# On sure ground a policy that says "d" stays where it is for six turns, so that all candidates are one situation.
COUNTS = {
    # strategy: steps of the environment, waves; a token is said per proposal
    Sample(): (6, 6),
    BestOfN(3): (3 * 6, 6),
    # 3 trajectories of 6, 5, … 1 turns, and a step of the real episode after each plan
    BestOfN(3, "resample"): (3 * (6 + 5 + 4 + 3 + 2 + 1) + 6, 6 + 5 + 4 + 3 + 2 + 1),
    Beam(2, 4): (4 * 6, 6),  # the four are one, so the frontier is one
    Beam(2, 4, commit="resample"): (4 * (6 + 5 + 4 + 3 + 2 + 1) + 6, 6 + 5 + 4 + 3 + 2 + 1),
    # 3 candidates, pruned to 1, rolled on twice, once each: 3 + 2 + 2 in 3 waves, less where the episode ends
    Lookahead(3, 2, 2): (4 * (3 + 2 + 2) + (3 + 2) + 3, 4 * 3 + 2 + 1),
    Lookahead(3, 2, 2, commit="resample"): (4 * (3 + 2 + 2) + (3 + 2) + 3 + 6, 4 * 3 + 2 + 1),
}


@pytest.mark.parametrize("strategy", COUNTS, ids=repr)
def test_the_ledger_counts_what_a_hand_counts(strategy: Strategy) -> None:
    steps, waves = COUNTS[strategy]
    plays = driver(Walk(slip=0), Scripted(["d"]))
    plays.run([SearchTask(0, 0, strategy, Key(1))])
    realised = 6 if getattr(strategy, "commit", "") == "resample" else 0
    costs = plays.costs
    assert (costs.env_steps, costs.waves) == (steps, waves)
    assert costs.tokens_generated == steps - realised
    assert costs.tokens_kept == 6
    assert costs.tokens_discarded == steps - realised - 6
    assert costs.seconds_environment > 0
    assert costs.seconds_generation > 0


def test_a_wave_serves_all_searches_and_costs_add_up() -> None:
    """Ten searches side by side take ten times the steps and the same number of engine calls; a second run adds on."""
    engine = Scripted(["d"])
    plays = driver(Walk(slip=0), engine)
    plays.run([SearchTask(0, member, Beam(2, 4), Key(member)) for member in range(10)])
    assert (plays.costs.env_steps, plays.costs.waves, engine.calls.count("generate")) == (240, 6, 6)
    plays.run([SearchTask(0, 0, Sample(), Key(1))])
    assert (plays.costs.env_steps, plays.costs.waves, plays.costs.tokens_kept) == (246, 12, 66)


def test_a_demonstration_is_neither_generated_nor_discarded() -> None:
    plays = driver(Guided())
    plays.run(tasks(Expert(), 8))
    assert plays.costs.env_steps > 0
    assert (plays.costs.waves, plays.costs.tokens_generated) == (0, 0)
    assert (plays.costs.tokens_kept, plays.costs.tokens_discarded) == (0, 0)


def test_ledgers_add_and_subtract_field_by_field() -> None:
    one, two = Costs(*range(9)), Costs(*range(10, 19))
    assert one + two == Costs(*range(10, 27, 2))
    assert one + two - two == one


@pytest.mark.parametrize("strategy", [Beam(2, 4, CriticValue()), Lookahead(3, 2, 2, CriticValue())], ids=repr)
def test_a_wave_is_scored_by_one_critic_call(strategy: Strategy) -> None:
    """However many searches there are: generate, values, generate, values; no values when all of a wave have ended."""
    engine = Scripted()
    driver(Walk(), engine).run(tasks(strategy, 40))
    calls = "".join(call[0] for call in engine.calls)
    assert re.fullmatch("(gv?)+", calls), calls
    assert calls.count("v") > 3


def test_no_critic_is_asked_where_no_scorer_asks() -> None:
    engine = Scripted()
    driver(Walk(), engine).run(tasks(Beam(2, 4), 8) + tasks(BestOfN(2), 8))
    assert set(engine.calls) == {"generate"}


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Callable[[], object]] = {
    "Beam.width is 5, but only 4": lambda: Beam(5, 4),
    "search.width is 0": lambda: Beam(0, 4),
    "search.candidates is 0": lambda: Lookahead(candidates=0),
    "search.n is 0": lambda: BestOfN(0),
    "Lookahead.depth is -1": lambda: Lookahead(depth=-1),
    "Expert.noise is 2": lambda: Expert(2),
    "scorer.weights has 1 entries for 2": lambda: WeightedSum([EnvironmentScore(), ReturnSoFar()], [1.0]),
    "groups of 0 trajectories": lambda: Uniform(Sample(), 0),
    "groups of 0": lambda: Mixed([]),
    "a share of -1": lambda: Mixed([PlanEntry(Sample(), 3), PlanEntry(Beam(), -1)]),
    "groups of -2": lambda: Annealed(Beam(), -2),
    "plan.epochs is 0": lambda: Annealed(Beam(), epochs=0),
    "Expert needs an oracle, and Walk has none": lambda: driver().run(tasks(Expert(), 1)),
    "the first prompt has 8 tokens, which leaves no room": lambda: driver(limits=TokenLimits(8)).run(
        tasks(Sample(), 1)
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        REFUSED[sentence]()


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_uniform_group_is_of_one_strategy() -> None:
    plan = Uniform(Beam(), 5)
    assert plan.entries(0) == plan.entries(99) == [PlanEntry(Beam(), 5)]
    assert (plan.group_size, plan.strategies) == (5, [Beam()])


def test_a_mixed_group_has_its_members_in_order() -> None:
    members = [PlanEntry(Sample(), 3), PlanEntry(Beam(), 2)]
    plan = Mixed(members)
    assert plan.entries(0) == members
    assert (plan.group_size, plan.strategies) == (5, [Sample(), Beam()])


def test_annealed_search_fades_out_linearly_in_groups_of_one_size() -> None:
    plan = Annealed(Beam(), count=8, epochs=4)
    assert [plan.entries(epoch) for epoch in range(6)] == [
        [PlanEntry(Beam(), 8)],
        [PlanEntry(Beam(), 6), PlanEntry(Sample(), 2)],
        [PlanEntry(Beam(), 4), PlanEntry(Sample(), 4)],
        [PlanEntry(Beam(), 2), PlanEntry(Sample(), 6)],
        [PlanEntry(Sample(), 8)],
        [PlanEntry(Sample(), 8)],
    ]
    assert (plan.group_size, plan.strategies, plan.settled) == (8, [Beam(), Sample()], 4)


@pytest.mark.parametrize(
    ("count", "epochs", "plain"),
    [
        # 4 · epoch / 8 = 0, 0.5, 1, 1.5, 2, …: a lone plain sample is rounded down below 1 and up from there on
        (4, 8, [0, 0, 2, 2, 2, 2, 3, 4, 4]),
        (2, 4, [0, 0, 2, 2, 2]),
        (1, 4, [0, 0, 1, 1, 1]),  # a group of one cannot do better
    ],
)
def test_annealed_search_leaves_no_plain_sample_alone(count: int, epochs: int, plain: list[int]) -> None:
    plan = Annealed(Beam(), count, epochs)
    entries = [plan.entries(epoch) for epoch in range(epochs + 1)]
    assert [sum(s.count for s in of_epoch if s.strategy == Sample()) for of_epoch in entries] == plain
    assert all(sum(s.count for s in of_epoch) == count for of_epoch in entries)
