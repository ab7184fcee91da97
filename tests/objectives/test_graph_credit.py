"""Credit on the graph of states: its values by hand and against a recursion, and what is compared and trained once."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from trees import candidate_of, random_tree, searched

from tsr_lightning.batching.distinct import distinct_pieces
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    DrGRPO,
    GiGPO,
    GraphCredit,
    MaxBackup,
    MeanBackup,
    Objective,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
)
from tsr_lightning.objectives.rehearsal import rehearse
from tsr_lightning.search import Beam, FirstImprovement, Sample
from tsr_lightning.search.plan import Mixed, PlanEntry, Uniform
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.trajectory import Candidate, Comparison, Ended, Group, Origin, Trajectory

GAMMA = 0.9


def played(path: str, ended: Ended) -> Trajectory:
    """A plain sample, written as states and responses in turn: "AaBb" takes a in A and b in B."""
    turns = [
        replace(candidate_of(text).turn, prompt=(ord(key),)) for key, text in zip(path[::2], path[1::2], strict=True)
    ]
    return Trajectory(0, 0, "Sample", Origin.SAMPLED, tuple(turns), ended, (), (), state_keys=tuple(path[::2]))


PLAYED = Group(0, (played("AaBb", Ended.SUCCEEDED), played("AcCdAeDf", Ended.FAILED)))


def compared(objective: Objective, group: Group) -> dict[str, Comparison]:
    """The comparisons by the state key."""
    parts = [each for each in objective.comparisons(group) if isinstance(each, Comparison)]
    return {each.members[0].states[0].state_key: each for each in parts}


def values_of(state: Comparison) -> dict[str, float]:
    return {member.turns[0].action: member.value for member in state.members}


def test_trajectories_without_state_keys_are_refused() -> None:
    without = Group(0, (PLAYED.trajectories[0], replace(PLAYED.trajectories[1], state_keys=())))
    with pytest.raises(ConfigError, match=r"Trajectory\.state_keys .* Driver\(keep_state_keys=True\)"):
        RLOO(searched=GraphCredit()).comparisons(without)


def test_values_go_around_circles() -> None:
    """b succeeds: V(B) = 1, so a is worth 0.9, and c, d, a, b succeeds after three more turns: 0.9^3."""
    objective = RLOO(searched=GraphCredit(MaxBackup(GAMMA), drop_uniform=False))
    [(key, state)] = compared(objective, PLAYED).items()  # one response alone was drawn in B, C and D
    assert key == "A"
    assert values_of(state) == pytest.approx({"a": GAMMA, "c": GAMMA**3, "e": 0.0})
    assert [member.succeeded for member in state.members] == [True, True, False]
    assert state.weight == pytest.approx(1 / 3)  # three visits, a response each
    assert state.weight == compared(replace(objective, searched=GraphCredit(MaxBackup(GAMMA))), PLAYED)["A"].weight


def test_means_are_over_what_was_drawn() -> None:
    """There are four passes. V(A) after three is the mean of a, c and e, of which a alone succeeds in two turns; d
    is worth 0.9 V_2(A), c 0.81 V_2(A), and V_2(A) = (0.9 + 0 + 0) / 3."""
    objective = RLOO(searched=GraphCredit(MeanBackup(GAMMA)))
    succeeded = [replace(turn, reward=float(turn.text == "b")) for turn in PLAYED.trajectories[0].turns]
    group = replace(
        PLAYED, trajectories=(replace(PLAYED.trajectories[0], turns=tuple(succeeded)), PLAYED.trajectories[1])
    )
    values = values_of(compared(objective, group)["A"])
    assert values == pytest.approx({"a": GAMMA, "c": GAMMA**2 * GAMMA / 3, "e": 0.0})


def recursion(
    trees: Sequence[Sequence[Candidate]], root: str, discount: float, share: float
) -> Callable[[int, str, str], float]:
    """The mean value of an action in a state when acting for some turns."""

    def key_of(tree: Sequence[Candidate], each: Candidate) -> str:
        return root if each.parent is None else tree[each.parent].state_key

    every = [(key_of(tree, each), each) for tree in trees for each in tree]

    def edge(turns: int, key: str, action: str) -> float:
        return fmean(of_outcome(turns, each) for before, each in every if before == key and each.turn.action == action)

    def of_outcome(turns: int, each: Candidate) -> float:
        rest = 0.0
        if not each.done:
            known = [(other.turn.action, other.drawn) for before, other in every if before == each.state_key]
            if turns > 1 and known:
                drawn = sum(was for _, was in known)
                below = sum(edge(turns - 1, each.state_key, action) * was for action, was in known)
                rest = below / drawn if drawn else 0.0
            else:
                score = each.score if each.env_score is not None else None
                rest = share * min(1.0, max(0.0, score or 0.0))
        return each.turn.reward + discount * rest

    return edge


@pytest.mark.parametrize("seed", range(8))
def test_values_are_those_of_a_recursion_over_turns(seed: int) -> None:
    draws = random.Random(seed)
    trees = [random_tree(draws) for _ in range(2)]
    longest = max(depth(tree, each) for tree in trees for each in tree)
    edge = recursion(trees, "s", 0.8, 0.5)
    group = Group(0, tuple(searched(tree, state_keys=("s",)) for tree in trees))
    states = compared(RLOO(searched=GraphCredit(MeanBackup(0.8), drop_uniform=False)), group)
    assert states
    for key, state in states.items():
        for text, value in values_of(state).items():
            assert value == pytest.approx(edge(longest, key, text))


@pytest.mark.parametrize("seed", range(8))
def test_the_best_values_are_those_of_a_search_of_all_walks(seed: int) -> None:
    """Brute force over all walks: the success in the fewest turns, else the best score."""
    draws = random.Random(seed)
    trees = [random_tree(draws) for _ in range(2)]
    longest = max(depth(tree, each) for tree in trees for each in tree)
    led: dict[str, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for tree in trees:
        for each in tree:
            led["s" if each.parent is None else tree[each.parent].state_key][each.turn.action].append(each)

    def walks(key: str, text: str, turns: int) -> Iterator[list[Candidate]]:
        for outcome in led[key][text]:
            yield [outcome]
            if turns > 1 and not outcome.done:
                for following in led.get(outcome.state_key, {}):
                    yield from ([outcome, *rest] for rest in walks(outcome.state_key, following, turns - 1))

    def best(key: str, text: str) -> float:
        every = list(walks(key, text, longest))
        found = [0.8 ** (len(walk) - 1) for walk in every if walk[-1].succeeded]
        scores = [walk[-1].score for walk in every if walk[-1].env_score is not None]
        return max(found, default=0.0) or 0.5 * max((min(1.0, max(0.0, s or 0.0)) for s in scores), default=0.0)

    group = Group(0, tuple(searched(tree, state_keys=("s",)) for tree in trees))
    states = compared(RLOO(searched=GraphCredit(MaxBackup(0.8, 0.5), drop_uniform=False)), group)
    assert states
    for key, state in states.items():
        for text, value in values_of(state).items():
            assert value == pytest.approx(best(key, text))


def test_the_best_outcome_of_an_edge_stands_for_it() -> None:
    """Without chance an edge has one outcome, which a budget may cut: here a ended an episode, and led another on."""
    cut = played("Aa", Ended.TURN_LIMIT)
    group = Group(0, (cut, played("AaBb", Ended.SUCCEEDED), played("Ac", Ended.FAILED)))
    [state] = compared(RLOO(searched=GraphCredit(MaxBackup(GAMMA))), group).values()
    assert values_of(state) == pytest.approx({"a": GAMMA, "c": 0.0})


def depth(tree: Sequence[Candidate], each: Candidate) -> int:
    return 1 if each.parent is None else 1 + depth(tree, tree[each.parent])


def test_responses_of_one_action_are_one_edge() -> None:
    """A policy that reasons never says the same twice: two responses of the action a, one of which failed."""
    said = played("Aa", Ended.SUCCEEDED)
    otherwise = replace(said, ended=Ended.FAILED, turns=(replace(said.turns[0], text="hm, a", response=(7, 8)),))
    group = Group(0, (said, otherwise, played("Ab", Ended.FAILED)))
    succeeded = replace(said, turns=(replace(said.turns[0], reward=1.0),))
    group = replace(group, trajectories=(succeeded, *group.trajectories[1:]))
    for backup, values in ((MeanBackup(), [0.5, 0.5, 0.0]), (MaxBackup(), [1.0, 1.0, 0.0])):
        [state] = compared(RLOO(searched=GraphCredit(backup)), group).values()
        assert [member.value for member in state.members] == values
    # apart in what is trained: each is a turn of its own
    assert len({member.turns[0].text for member in state.members}) == 3


def test_a_circle_of_costs_is_worth_no_more_than_an_episode() -> None:
    waits = tuple(candidate_of("w", i - 1 if i else None, key="s", reward=-0.1, score=None) for i in range(5))
    group = Group(0, (searched(waits, state_keys=("s",)),))
    [state] = compared(RLOO(searched=GraphCredit(MeanBackup(1.0), drop_uniform=False)), group).values()
    assert values_of(state) == pytest.approx({"w": -0.5})


def test_a_turn_that_was_drawn_at_two_depths_is_trained_once() -> None:
    """The same response to the same prompt in the same state; of another prompt it is another turn."""
    group = Group(0, (played("AaAaAb", Ended.FAILED), played("AbAa", Ended.SUCCEEDED)))
    parts = GRPO(searched=GraphCredit(MaxBackup())).comparisons(group)
    [state] = [part for part in parts if isinstance(part, Comparison)]
    assert len(state.members) == 5
    pieces = distinct_pieces([parts]).pieces
    assert sorted(piece.turns[0].text for piece in pieces) == ["a", "b"]


def test_plain_samples_and_searches_meet_in_one_graph() -> None:
    tree = (candidate_of("a", key="B"), candidate_of("c", key="C", done=True))
    plain = played("AeBb", Ended.SUCCEEDED)
    state = compared(RLOO(searched=GraphCredit(MaxBackup(GAMMA))), Group(0, (plain, searched(tree, state_keys=("A",)))))
    assert values_of(state["A"]) == pytest.approx({"e": GAMMA, "a": GAMMA, "c": 0.0})


@pytest.mark.parametrize(
    "objective", [GRPO, DrGRPO, DAPO, GSPO, CISPO, RLOO, PPO, ReinforcePlusPlus, ReinforcePlusPlusBaseline]
)
def test_every_objective_takes_it(objective: type[GRPO]) -> None:
    rehearse(objective(searched=GraphCredit()))


def test_an_objective_that_compares_by_states_itself_refuses_it() -> None:
    with pytest.raises(ConfigError, match=r"under GraphCredit siblings are compared in their state already"):
        GiGPO(searched=GraphCredit())


def test_plans_that_it_takes_and_refuses() -> None:
    objective = GRPO(searched=GraphCredit())
    check_plan(objective, Uniform(Sample(), 8))
    check_plan(objective, Mixed([PlanEntry(Sample(), 1), PlanEntry(Beam(), 1)]))  # compared with what the beam proposed
    with pytest.raises(ConfigError, match="it makes groups of 1, of which GRPO compares 1 in epoch 0"):
        check_plan(objective, Uniform(Sample(), 1))
    with pytest.raises(ConfigError, match="GraphCredit needs independent responses in a state"):
        check_plan(objective, Uniform(FirstImprovement(), 1))
