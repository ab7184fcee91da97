"""Search: each strategy against the brute-force reference, invariance of draws, trees and costs."""

import ast
import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import GOAL, TURNS, Guided, Letters, Scripted, Walk, driver, tasks
from tests.search.reference import FEW, SINGLE_CANDIDATE, STRATEGIES, Reference
from tsr_lightning.costs import Costs
from tsr_lightning.envs.base import fingerprint
from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.errors import RunError
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.progress import Progress
from tsr_lightning.search.scorers import CriticValue, EnvironmentScore, ReturnSoFar, WeightedSum
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Lookahead, RandomActions, Sample, Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import DriverState, Expand, Node, Snapshot, best, distinct
from tsr_lightning.trajectory import Ended, Message, Origin

UNLIMITED = TokenLimits(1000)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_strategy_chooses_what_the_reference_chooses(strategy: Strategy) -> None:
    """Searches of 4 instances or more have equal token ids, returns, successes, and trees."""
    searches = tasks(strategy, {Expert: 48, RandomActions: 200}.get(type(strategy), 16))
    played = driver(Guided(), concurrency=7, keep_tree=True).run(searches)
    assert played == [Reference(task, UNLIMITED, 64).trajectory() for task in searches]
    assert len({(t.succeeded, t.episode_return) for t in played}) > 3  # or any two strategies would agree


@pytest.mark.parametrize(
    "limits",
    [TokenLimits(26), TokenLimits(26, model=30), TokenLimits(1000, episode=4), TokenLimits(24, episode=3)],
    ids=str,
)
@pytest.mark.parametrize("strategy", FEW, ids=repr)
def test_a_token_limit_cuts_where_the_reference_cuts(strategy: Strategy, limits: TokenLimits) -> None:
    """Limits of a turn, an episode and a context: responses are cut to fit; without room the episode is truncated."""
    searches = tasks(strategy, 24)
    played = driver(Guided(), concurrency=7, limits=limits, max_response_tokens=2, keep_tree=True).run(searches)
    assert played == [Reference(task, limits, 2).trajectory() for task in searches]
    cut = [t for t in played if t.truncated and len(t.turns) < TURNS]
    assert cut, "no limit was reached"
    assert cut == [t for t in played if t.ended is Ended.TOKEN_LIMIT]  # and those that the turns ended are not
    if not isinstance(strategy, Expert | RandomActions):
        assert all(len(turn.response) <= 2 for t in played for turn in t.turns)
        assert any(not turn.finished for t in played for turn in t.turns)
        assert all(t.trained_tokens <= (limits.episode or 100) for t in played)
        assert all(len(turn.prompt) + len(turn.response) <= limits.context for t in played for turn in t.turns)


@pytest.mark.parametrize("strategy", SINGLE_CANDIDATE, ids=repr)
def test_a_search_with_a_single_candidate_is_a_plain_sample(strategy: Strategy) -> None:
    assert strategy.traits.origin is Origin.SAMPLED
    [searched, plain] = [driver().run(tasks(each)) for each in (strategy, Sample())]
    assert {t.origin for t in searched} == {Origin.SAMPLED}
    assert [t.turns[0].response for t in searched] == [t.turns[0].response for t in plain]
    if isinstance(strategy, Sample) or strategy.commit == "keep":
        assert [t.turns for t in searched] == [t.turns for t in plain]
    else:  # the real episode has draws of its own
        assert [t.turns for t in searched] != [t.turns for t in plain]


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
def test_trajectories_have_the_origin_of_their_strategy(strategy: Strategy, origin: Origin) -> None:
    assert strategy.traits.origin is origin
    assert {trajectory.origin for trajectory in driver(Guided()).run(tasks(strategy, 8))} == {origin}


@pytest.mark.parametrize("room", [26, 28, 1000])
def test_the_final_prompt_is_kept_up_to_the_limit_of_the_model(room: int) -> None:
    """A critic's value needs no room for a response, so the model's limit decides and not `context_tokens`."""
    cut = [t for t in driver(limits=TokenLimits(26, model=room)).run(tasks(Sample())) if t.truncated]
    letters = Letters()
    contexts = [letters.prompt(t.turns, t.final_messages) for t in cut]
    assert [t.final_prompt for t in cut] == [ids if len(ids) <= room else () for ids in contexts]
    assert any(len(ids) > 26 for ids in contexts)  # or no limit was exceeded


class Briefed(Walk):
    """Its instructions are of the instance; an observation is the message of a tool and one of the user."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.instructions = f"walk from {self.place}"
        return observation, info

    def _observation(self) -> Any:
        return [Message("tool", super()._observation()), Message("user", "?")]


@pytest.mark.parametrize("workers", [0, 2])
def test_messages_and_instructions_of_the_instance_reach_the_prompt(workers: int) -> None:
    searches = [SearchTask(instance, member, Sample(), Key(instance)) for instance in (1, 2, 7) for member in (0, 1)]
    for played in driver(Briefed(), workers=[Briefed() for _ in range(workers)]).run(searches):
        answered = [*(turn.messages for turn in played.turns), played.final_messages]
        assert answered[0][0] == Message("system", f"walk from {played.instance % 4}")
        assert [[m.role for m in messages[-2:]] for messages in answered] == [["tool", "user"]] * len(answered)
        assert [len(messages) for messages in answered] == [3] + [2] * len(played.turns)
        for number, turn in enumerate(played.turns):
            assert turn.prompt == Letters().prompt(played.turns[:number], turn.messages)


# -- invariance of draws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", FEW, ids=repr)
def test_concurrency_and_order_change_nothing(strategy: Strategy) -> None:
    """1, 7 or 256 searches at once, in any order."""
    searches = tasks(strategy, 20)
    alone = driver(Guided(), concurrency=1).run(searches)
    assert driver(Guided(), concurrency=7).run(searches) == alone
    assert driver(Guided(), concurrency=256).run(searches) == alone
    order = random.Random(1).sample(range(len(searches)), len(searches))
    assert driver(Guided(), concurrency=7).run([searches[i] for i in order]) == [alone[i] for i in order]


def test_other_strategies_beside_one_change_nothing() -> None:
    searches = [tasks(strategy, 20) for strategy in FEW]
    mixed = [task for row in zip(*searches, strict=True) for task in row]
    together = driver(Guided(), concurrency=50).run(mixed)
    for place, own in enumerate(searches):
        assert together[place :: len(FEW)] == driver(Guided(), concurrency=1).run(own)


def test_another_key_is_another_search() -> None:
    """Otherwise the tests above would pass with constant draws."""
    assert driver().run(tasks(Beam(2, 4), 40, run=7)) != driver().run(tasks(Beam(2, 4), 40, run=8))


# -- rules of the frontier ---------------------------------------------------------------------------------------------


def node(score: float | None = 0.0, total: float = 0.0, place: int = 0, remaining: int = 0, tie: float = 0.0) -> Node:
    snapshot = Snapshot(None, (), place, remaining)
    made: Node = Node(snapshot, DriverState(Key(0)), episode_return=total, tie=tie)
    if score is not None:
        made.score = score
    return made


def test_among_equal_scores_the_higher_return_wins_then_the_keyed_draw() -> None:
    good, late, early = node(0.9, total=5), node(1.0, total=0.94, tie=0.9), node(1.0, total=0.97)
    lucky = node(0.9, total=5, tie=0.5)
    for order in itertools.permutations([good, late, early, lucky]):
        assert best(4, order) == [early, late, lucky, good]
        assert best(1, order) == [early]


def test_a_success_ranks_before_a_higher_score() -> None:
    """A critic may overestimate a prefix."""
    success, praised = node(1.0, total=1.0, place=1), node(1.5, total=0.5, place=2)
    success.snapshot = replace(success.snapshot, ended=Ended.SUCCEEDED)
    assert best(2, [praised, success]) == [success, praised]


def test_of_equal_situations_the_higher_return_wins_then_the_larger_budget_then_the_first() -> None:
    poor, rich = node(place=1, total=0, remaining=9), node(place=1, total=1, remaining=0)
    short, long, twin = (node(place=2, remaining=n) for n in (3, 4, 4))
    other = node(place=3)
    assert distinct([poor, short, long, other, rich, twin]) == [rich, long, other]
    assert distinct([rich, poor, twin, long, short]) == [rich, twin]


@pytest.mark.parametrize("ended", [Ended.TOKEN_LIMIT, Ended.TURN_LIMIT, Ended.FAILED])
def test_of_equal_situations_one_that_ended_without_success_goes(ended: Ended) -> None:
    going, cut, first = node(place=2, remaining=3), node(place=2, remaining=3), node(place=2, remaining=2)
    cut.snapshot = replace(cut.snapshot, ended=ended)
    assert distinct([cut, going]) == distinct([going, cut]) == [going]
    assert distinct([first, cut]) == distinct([cut, first]) == [first]
    rich = node(place=2, total=1, remaining=3)
    rich.snapshot = replace(rich.snapshot, ended=ended)
    assert distinct([rich, first]) == [first]  # a higher return is worth nothing where nothing follows
    won = node(place=2, remaining=0)
    won.snapshot = replace(won.snapshot, ended=Ended.SUCCEEDED)
    assert distinct([rich, first, won]) == distinct([won, first, rich]) == [won]


class Quitting(TextEnv[int]):
    """Three steps up; to quit ends the episode where it stands, and its key says no more than that place."""

    instructions = ""

    def __init__(self) -> None:
        super().__init__(max_turns=8, format_penalty=0.0)

    def initial_state(self, seed: int) -> int:
        return 0

    def read(self, response: str, limit: int) -> Answer:
        return Answer((response,), "" if response in ("up", "wait", "quit") else "no action")

    def play(self, state: int, actions: tuple[str, ...], noise: Draws) -> TurnResult[int]:
        after = state + (actions == ("up",))
        won = after == 3
        return TurnResult(after, float(won), effective=after != state, success=won, terminated=actions == ("quit",))

    def show(self, state: int) -> str:
        return str(state)

    def score(self) -> float:
        return self.state / 3


def test_an_episode_that_quit_does_not_displace_one_that_waits() -> None:
    texts = ["quit", *["wait"] * 5, "up"]
    played = driver(Quitting(), Scripted(texts), max_response_tokens=8).run(tasks(Beam(1, 4), 60))
    # all four candidates of a turn quit once in 7 ** 4 = 2,401 turns
    assert {trajectory.ended for trajectory in played} == {Ended.SUCCEEDED, Ended.TURN_LIMIT}


@pytest.mark.parametrize("commit", ["keep", "resample"])
@pytest.mark.parametrize("strategy", [Beam(2, 3), Lookahead(3, 9, 2)], ids=["beam", "lookahead"])
def test_a_search_stops_at_its_first_success(strategy: Beam | Lookahead, commit: str) -> None:
    """Without slips, two steps a turn from 3 to 9: three turns, and none is simulated beyond."""
    strategy = type(strategy)(**{**vars(strategy), "commit": commit})
    runner = driver(Walk(slip=0), Scripted(["b"]))
    [trajectory] = runner.run([SearchTask(3, 0, strategy, Key(1))])
    assert trajectory.succeeded
    assert len(trajectory.turns) == 3
    assert trajectory.episode_return == pytest.approx(1 - 3 * 0.01)
    # a plan simulates all turns up to the success: 3, and under resample 2 and then 1 more
    assert runner.costs.waves == (3 if commit == "keep" else 3 + 2 + 1)


def test_an_early_success_beats_a_late_one() -> None:
    """64 trajectories walk from 3 to 9 by ones and twos; the quickest is chosen, wherever it is in the list."""
    for run in range(10):
        task = SearchTask(3, 0, BestOfN(64), Key(run))
        [chosen] = driver(Walk(slip=0), Scripted(["a", "b"])).run([task])
        assert chosen.succeeded
        assert len(chosen.turns) == (GOAL - 3) / 2  # missed by chance with probability (1 - 1/8)^64 = 0.0002 each


# -- trees -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", FEW, ids=repr)
def test_trees_are_recorded_only_on_request_and_change_nothing(strategy: Strategy) -> None:
    searches = tasks(strategy, 12)
    recorded = driver(Guided(), keep_tree=True).run(searches)
    plain = driver(Guided()).run(searches)
    assert [replace(trajectory, tree=()) for trajectory in recorded] == plain
    for trajectory in recorded:
        assert bool(trajectory.tree) == strategy.traits.branches
        places: set[int | None] = {None}
        for turn in trajectory.turns if strategy.traits.branches else ():
            found = enumerate(trajectory.tree)
            places = {place for place, each in found if each.parent in places and each.turn == turn}
        assert places  # the trajectory is a path of its tree


@pytest.mark.parametrize(
    "strategy",
    [*FEW, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in STRATEGIES if other not in FEW)],
    ids=repr,
)
def test_state_keys_are_those_of_the_states_that_turns_were_taken_in(strategy: Strategy) -> None:
    searches = tasks(strategy)
    plain = driver(Guided()).run(searches)
    for trajectory, unkeyed in zip(driver(Guided(), keep_state_keys=True).run(searches), plain, strict=True):
        assert replace(trajectory, state_keys=()) == unkeyed
        places = [int(turn.messages[-1].content.partition(",")[0]) for turn in trajectory.turns]
        assert trajectory.state_keys == tuple(map(fingerprint, places))  # without the turns left


def test_the_tree_of_a_beam_has_all_its_candidates() -> None:
    """Without slips, from 3: four candidates in each of up to two states a turn, with their parents' contexts."""
    [trajectory] = driver(Walk(slip=0), keep_tree=True).run([SearchTask(3, 0, Beam(2, 4), Key(1))])
    states = Counter(candidate.parent for candidate in trajectory.tree)
    assert set(states.values()) == {4}
    assert len(states) > len(trajectory.turns)  # more than the trajectory's own
    assert len({candidate.score for candidate in trajectory.tree}) > 2
    for candidate in trajectory.tree:
        assert candidate.score == candidate.env_score
        assert candidate.drawn
        if candidate.parent is not None:
            before = trajectory.tree[candidate.parent].turn
            assert candidate.turn.prompt[: len(before.prompt)] == before.prompt


def test_a_committed_turn_is_a_further_outcome_of_its_response() -> None:
    [trajectory] = driver(Guided(), keep_tree=True).run([SearchTask(3, 0, Beam(2, 4, commit="resample"), Key(1))])
    real = [candidate for candidate in trajectory.tree if not candidate.drawn]
    assert [candidate.turn for candidate in real] == [*trajectory.turns]
    for candidate in real:
        drawn = [other for other in trajectory.tree if other.parent == candidate.parent and other.drawn]
        assert candidate.turn.response in [other.turn.response for other in drawn]


# -- the strategy's view of a node -------------------------------------------------------------------------------------


def test_data_of_a_strategy_is_unset_until_it_sets_it() -> None:
    fresh: Node[int] = Node(Snapshot(None, (), 0, 0), DriverState(Key(0)))
    with pytest.raises(AttributeError):
        print(fresh.data)
    fresh.data = 3
    assert fresh.data == 3


def test_the_environment_score_is_an_error_without_a_scorer() -> None:
    [leaf] = driver().leaves(tasks(Sample(), 1))
    with pytest.raises(ValueError, match=r"Strategy\.traits has to name a scorer"):
        print(leaf.env_score)
    [leaf] = driver().leaves(tasks(Beam(), 1))
    assert leaf.score == leaf.env_score


def test_a_score_is_an_error_until_it_is_set() -> None:
    root, unset = node(), node(None)
    with pytest.raises(
        ValueError, match=r"Node\.score was read and never set; this is the root: .*scores_every_node=True"
    ):
        print(unset.score)
    with pytest.raises(ValueError, match=r"Node\.score was read and never set"):
        best(1, [root, unset])
    with pytest.raises(ValueError, match=r"Node\.score was set to nan"):
        unset.score = float("nan")
    assert unset.known_score is None
    unset.score = 0.5
    assert unset.score == unset.known_score == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_ends_the_run(value: float) -> None:
    """Or a search would choose by order."""

    class Broken(ReturnSoFar):
        def __call__(self, nodes: Any, critic: Any) -> list[float]:
            return [value if node.depth == 2 else 0.0 for node in nodes]

    with pytest.raises(
        RunError, match=rf"Broken gives the score {value} \(instance 0, after '[a-dx.]+'\); let it give"
    ):
        driver().run(tasks(Beam(2, 2, Broken()), 1))


# -- costs -------------------------------------------------------------------------------------------------------------

# Without slips a policy that answers "d" stays where it is for six turns, so that all candidates are one situation.
COUNTS = {
    # strategy: (proposals, committed turns, waves); each proposal is one token
    Sample(): (6, 0, 6),
    BestOfN(3): (3 * 6, 0, 6),
    # 3 trajectories of 6, 5, … 1 turns, and a real turn after each plan
    BestOfN(3, "resample"): (3 * (6 + 5 + 4 + 3 + 2 + 1), 6, 6 + 5 + 4 + 3 + 2 + 1),
    Beam(2, 4): (4 * 6, 0, 6),  # the four are one situation, so the frontier is one node
    Beam(2, 4, commit="resample"): (4 * (6 + 5 + 4 + 3 + 2 + 1), 6, 6 + 5 + 4 + 3 + 2 + 1),
    # 3 candidates, pruned to 1, whose 2 continuations go on: 3 + 2 + 2 in 3 waves, fewer where the episode ends
    Lookahead(3, 2, 2): (4 * (3 + 2 + 2) + (3 + 2) + 3, 0, 4 * 3 + 2 + 1),
    Lookahead(3, 2, 2, commit="resample"): (4 * (3 + 2 + 2) + (3 + 2) + 3, 6, 4 * 3 + 2 + 1),
    FirstImprovement(4): (4 * 6, 0, 4 * 6),  # none improves, and each is a wave
    FirstImprovement(4, commit="resample"): (4 * 6, 6, 4 * 6),
}


@pytest.mark.parametrize("strategy", COUNTS, ids=repr)
def test_costs_equal_a_count_by_hand(strategy: Strategy) -> None:
    proposals, committed, waves = COUNTS[strategy]
    searches = driver(Walk(slip=0), Scripted(["d"]))
    searches.run([SearchTask(0, 0, strategy, Key(1))])
    costs = searches.costs
    assert (costs.env_steps, costs.waves) == (proposals + committed, waves)
    assert costs.tokens_generated == proposals
    assert costs.tokens_kept == 6
    assert costs.tokens_discarded == proposals - 6
    assert costs.seconds_environment > 0
    assert costs.seconds_generation > 0


def test_a_turn_that_improves_the_score_costs_a_climb_one_response() -> None:
    """From 3 to 9 in six steps of 1, and then from 0, where the last of six is a failure that three others follow."""
    searches = driver(Walk(slip=0), Scripted(["a"]))
    [leaf] = searches.leaves([SearchTask(3, 0, FirstImprovement(4), Key(1))])
    assert (leaf.succeeded, searches.costs.tokens_generated) == (True, 6)
    [leaf] = searches.leaves([SearchTask(0, 0, FirstImprovement(4), Key(1))])
    assert (leaf.succeeded, searches.costs.tokens_generated) == (False, 6 + 5 + 4)


def test_all_searches_share_a_wave_and_costs_accumulate() -> None:
    """Ten searches at once take ten times the steps and as many engine calls as one; a second run adds to them."""
    engine = Scripted(["d"])
    runner = driver(Walk(slip=0), engine)
    runner.run([SearchTask(0, member, Beam(2, 4), Key(member)) for member in range(10)])
    assert (runner.costs.env_steps, runner.costs.waves, engine.calls.count("generate")) == (240, 6, 6)
    runner.run([SearchTask(0, 0, Sample(), Key(1))])
    assert (runner.costs.env_steps, runner.costs.waves, runner.costs.tokens_kept) == (246, 12, 66)


def test_a_demonstration_is_neither_generated_nor_discarded() -> None:
    runner = driver(Guided())
    runner.run(tasks(Expert(), 8))
    assert runner.costs.env_steps > 0
    assert (runner.costs.waves, runner.costs.tokens_generated) == (0, 0)
    assert (runner.costs.tokens_kept, runner.costs.tokens_discarded) == (0, 0)


def test_costs_add_and_subtract_field_by_field() -> None:
    one, two = Costs(*range(9)), Costs(*range(10, 19))
    assert one + two == Costs(*range(10, 27, 2))
    assert one + two - two == one


@pytest.mark.parametrize(
    "strategy",
    [Beam(2, 4, CriticValue()), Lookahead(3, 2, 2, CriticValue()), FirstImprovement(4, CriticValue())],
    ids=repr,
)
def test_a_wave_is_scored_by_one_critic_call(strategy: Strategy) -> None:
    """The calls alternate between generate and values for any number of searches; no values where all have ended. Where
    every node is scored, all roots are scored first, together."""
    engine = Scripted()
    driver(Walk(), engine).run(tasks(strategy, 40))
    calls = "".join(call[0] for call in engine.calls)
    assert re.fullmatch("v(gv?)+" if strategy.traits.scores_every_node else "(gv?)+", calls), calls
    assert calls.count("v") > 3


def test_without_a_critic_scorer_no_values_are_computed() -> None:
    engine = Scripted()
    driver(Walk(), engine).run(tasks(Beam(2, 4), 8) + tasks(BestOfN(2), 8))
    assert set(engine.calls) == {"generate"}


# -- imports -----------------------------------------------------------------------------------------------------------


def test_search_knows_only_the_contracts_of_engines_and_environments() -> None:
    folder = Path(__file__).resolve().parents[2] / "tsr_lightning" / "search"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")]
    modules = {n.module for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    own = {module.removeprefix("tsr_lightning.") for module in modules if module.startswith("tsr_lightning.")}
    others = {module for module in own if not module.startswith("search.")}
    boundary = {"envs.base", "envs.boundary", "envs.retried", "envs.outcome", "envs.random_play", "envs.waiting"}
    assert others == boundary | {"costs", "engines.base", "errors", "rng", "tool_calls", "trajectory"}


def test_further_searches_add_to_what_has_ended():
    begun = Progress("rollout", began=0.0, done=6, total=6, costs=Costs(waves=2))
    after = begun.after(1, 2, Costs(waves=1), spent=0.75)
    assert (after.phase, after.began) == ("rollout", 0.0)
    assert (after.done, after.total, after.costs.waves) == (7, 8, 3)
    assert after.spent == (6 + 0.75 * 2) / 8  # six whole searches and three quarters of two
    assert after.seconds > 0


@dataclass(frozen=True)
class Weighed(Beam):
    """A beam that builds a new scorer whenever its traits are read."""

    weight: float = 1.0

    @property
    def traits(self) -> Traits:
        return replace(super().traits, scored_by=WeightedSum([EnvironmentScore()], [self.weight]))


def test_a_scorer_that_is_made_anew_scores_its_own_nodes() -> None:
    for _ in range(20):  # whether an object takes the place of another is chance
        own = [
            replace(task, strategy=Weighed(2, 2, weight=(1.0, -1.0, 2.0)[task.member % 3])) for task in tasks(Beam())
        ]
        for task, found in zip(own, driver(keep_tree=True).run(own), strict=True):
            assert {each.score for each in found.tree} == {
                each.env_score * task.strategy.weight for each in found.tree if each.env_score is not None
            }


def test_a_request_for_nothing_or_of_a_node_twice_is_refused() -> None:
    node: Node = Node(Snapshot(None, (), 0, 3), DriverState(Key(0)))
    for nodes, count, sentence in (
        ([], 1, "1 responses to each of 0 nodes; at least 1"),
        ([node], 0, "0 responses to each of 1 nodes; at least 1"),
        ([node, node], 2, "names a node twice, whose responses would be equal"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Expand(nodes, count)
