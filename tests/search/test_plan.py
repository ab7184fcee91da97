"""Group plans, and the arguments of plans and strategies that are refused."""

import re
from collections.abc import Callable

import pytest

from tests.fakes import driver, tasks
from tsr_lightning.errors import ConfigError
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.plan import Annealed, Mixed, NoRollout, Phases, PlanEntry, SearchFailedGroups, Uniform
from tsr_lightning.search.scorers import EnvironmentScore, ReturnSoFar, WeightedSum
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Greedy, Lookahead, Sample


def test_a_uniform_group_has_one_strategy() -> None:
    plan = Uniform(Beam(), 5)
    assert plan.entries(0) == plan.entries(99) == [PlanEntry(Beam(), 5)]
    assert (plan.group_size(0), plan.strategies) == (5, [Beam()])


def test_a_mixed_group_has_its_members_in_order() -> None:
    members = [PlanEntry(Sample(), 3), PlanEntry(Beam(), 2)]
    plan = Mixed(members)
    assert plan.entries(0) == members
    assert (plan.group_size(0), plan.strategies) == (5, [Sample(), Beam()])


def test_searches_are_for_groups_of_which_all_samples_fail() -> None:
    plan = SearchFailedGroups(Beam(), samples=6, searches=2)
    assert plan.entries(3) == [PlanEntry(Sample(), 6)]
    assert plan.fallback(3) == [PlanEntry(Beam(), 2)]
    assert (plan.group_size(3), plan.strategies) == (6, [Sample(), Beam()])
    assert Uniform().fallback(3) == []
    phases = Phases([Uniform(Expert(), 1), plan], [2])
    assert [phases.fallback(epoch) for epoch in range(4)] == [[], [], *[plan.fallback(0)] * 2]
    assert phases.strategies == [Expert(), Sample(), Beam()]


def test_annealed_search_fades_out_linearly_at_a_constant_group_size() -> None:
    plan = Annealed(Beam(), count=8, epochs=4)
    assert [plan.entries(epoch) for epoch in range(6)] == [
        [PlanEntry(Beam(), 8)],
        [PlanEntry(Beam(), 6), PlanEntry(Sample(), 2)],
        [PlanEntry(Beam(), 4), PlanEntry(Sample(), 4)],
        [PlanEntry(Beam(), 2), PlanEntry(Sample(), 6)],
        [PlanEntry(Sample(), 8)],
        [PlanEntry(Sample(), 8)],
    ]
    assert (plan.group_size(0), plan.strategies, plan.constant_from) == (8, [Beam(), Sample()], 4)


@pytest.mark.parametrize(
    ("count", "epochs", "plain"),
    [
        # 4 · epoch / 8 = 0, 0.5, 1, 1.5, 2, …: a lone plain sample is rounded down below 1 and up from there on
        (4, 8, [0, 0, 2, 2, 2, 2, 3, 4, 4]),
        (2, 4, [0, 0, 2, 2, 2]),
        (1, 4, [0, 0, 1, 1, 1]),  # a group of one cannot do better
    ],
)
def test_annealed_search_never_has_a_single_plain_sample_in_a_group(count: int, epochs: int, plain: list[int]) -> None:
    plan = Annealed(Beam(), count, epochs)
    entries = [plan.entries(epoch) for epoch in range(epochs + 1)]
    assert [sum(e.count for e in of_epoch if e.strategy == Sample()) for of_epoch in entries] == plain
    assert all(sum(e.count for e in of_epoch) == count for of_epoch in entries)


WARM_START = Phases([Uniform(Expert(), 1), Mixed([PlanEntry(Expert(), 1), PlanEntry(Sample(), 4)]), Uniform()], [2, 1])


def test_phases_follow_one_another() -> None:
    expert, mixture, samples = (plan.entries(0) for plan in WARM_START.plans)
    assert [WARM_START.entries(epoch) for epoch in range(6)] == [expert, expert, mixture, *[samples] * 3]
    assert [WARM_START.group_size(epoch) for epoch in range(4)] == [1, 1, 5, 8]
    assert (WARM_START.constant_from, WARM_START.strategies) == (3, [Expert(), Sample()])


def test_a_plan_counts_its_epochs_from_the_beginning_of_its_phase() -> None:
    annealed = Annealed(Beam(), count=8, epochs=4)
    plan = Phases([Uniform(Expert(), 1), annealed], [3])
    assert [plan.entries(3 + epoch) for epoch in range(6)] == [annealed.entries(epoch) for epoch in range(6)]
    assert plan.constant_from == 7


def test_a_phase_without_rollout() -> None:
    plan = Phases([NoRollout(), Uniform(count=3)], [2])
    assert [plan.group_size(epoch) for epoch in range(4)] == [0, 0, 3, 3]
    assert plan.strategies == [Sample()]


def test_a_phase_of_no_epochs_is_skipped_and_its_strategies_stay_named() -> None:
    plan = Phases([Uniform(Expert(), 1), Uniform()], [0])
    assert plan.entries(0) == [PlanEntry(Sample(), 8)]
    assert plan.strategies == [Expert(), Sample()]


REFUSED: dict[str, Callable[[], object]] = {
    "Beam.width is 5: the first turn has only 4": lambda: Beam(5, 4),
    "Beam.width is 0": lambda: Beam(0, 4),
    "Beam.candidates is 0": lambda: Beam(1, 0),
    "Lookahead.candidates is 0": lambda: Lookahead(candidates=0),
    "Lookahead.width is 0": lambda: Lookahead(width=0),
    "Lookahead.depth is -1": lambda: Lookahead(depth=-1),
    "BestOfN.n is 0": lambda: BestOfN(0),
    "Expert.noise is 2": lambda: Expert(2),
    "Expert.noise is nan": lambda: Expert(float("nan")),
    "WeightedSum.scorers is []: give at least one scorer": lambda: WeightedSum([], []),
    "SearchFailures.strategy is 'Greedy': its responses are greedy": lambda: SearchFailures(Greedy()),
    "WeightedSum.weights is [1.0]: give 2": lambda: WeightedSum([EnvironmentScore(), ReturnSoFar()], [1.0]),
    "Uniform.count is 0": lambda: Uniform(Sample(), 0),
    "Mixed.members is []": lambda: Mixed([]),
    "Phases.plans is []: give 1": lambda: Phases([], []),
    "Phases.epochs is [3, 4]: give 1 numbers": lambda: Phases([Uniform(), Uniform()], [3, 4]),
    "Phases.epochs is [-1]": lambda: Phases([Uniform(), Uniform()], [-1]),
    "PlanEntry.count is -1": lambda: PlanEntry(Beam(), -1),
    "Annealed.count is -2": lambda: Annealed(Beam(), -2),
    "SearchFailedGroups.samples is 0": lambda: SearchFailedGroups(samples=0),
    "SearchFailedGroups.searches is 0: give 1 or more, or use Uniform": lambda: SearchFailedGroups(searches=0),
    "Annealed.epochs is 0": lambda: Annealed(Beam(), epochs=0),
    "a strategy is Expert, but Walk has no oracle: use RandomActions": lambda: driver().run(tasks(Expert(), 1)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_an_invalid_argument_is_refused_by_its_key(sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        REFUSED[sentence]()
