"""Searches whose environments fail: repetitions change nothing, what is lost is left out, and all of it is counted."""

import logging
import re
from typing import Any

import pytest

from tests.fakes import Guided, Walk, driver, tasks
from tests.misbehaving import Misbehaving
from tests.search.reference import FEW
from tsr_lightning.costs import Costs
from tsr_lightning.errors import ConfigError
from tsr_lightning.search.branching import ContrastBeam, SuffixRestarts, Vine
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Sample, Strategy
from tsr_lightning.trajectory import Trajectory

BRANCHING = [Vine(), ContrastBeam(2, 4), SearchFailures(Beam(2, 4)), SuffixRestarts(Beam(2, 4))]


class MisbehavingGuided(Misbehaving):
    """The same with an oracle, and with all legal actions."""

    def oracle(self, noise: float = 0.0, key: Any = None) -> str:
        return self.env.oracle(noise, key)

    def legal_actions(self) -> list[str]:
        return Guided().legal_actions()


def misbehaving(**chances: Any) -> MisbehavingGuided:
    return MisbehavingGuided(Guided(), **chances)


def outcomes(env: Any, searches: list[SearchTask], retries: int) -> tuple[list[Trajectory | None], Costs]:
    runner = driver(env, retry=Retrying(retries), keep_tree=True)
    return runner.survivors(searches), runner.costs


@pytest.mark.parametrize("strategy", [*FEW, *BRANCHING], ids=repr)
def test_a_repeated_step_gives_what_it_would_have_given(strategy: Strategy) -> None:
    searches = tasks(strategy, 12)
    expected = driver(Guided(), keep_tree=True).run(searches)
    found, costs = outcomes(misbehaving(raises=0.2), searches, retries=20)
    assert found == expected
    assert costs.env_errors > 5
    assert (costs.candidates_lost, costs.trajectories_lost) == (0, 0)


def test_samples_that_are_not_lost_are_those_without_failures() -> None:
    searches = tasks(Sample(), 100)
    expected = driver(Guided()).run(searches)
    found, costs = outcomes(misbehaving(raises=0.05), searches, retries=0)
    lost = [one is None for one in found]
    assert 10 < sum(lost) < 50
    assert costs.trajectories_lost == costs.env_errors == sum(lost)
    assert [one for one in found if one] == [one for one, gone in zip(expected, lost, strict=True) if not gone]


@pytest.mark.parametrize("strategy", [*FEW, *BRANCHING], ids=repr)
def test_every_strategy_bears_losses_and_trees_hold_none(strategy: Strategy) -> None:
    found, costs = outcomes(misbehaving(raises=0.02), tasks(strategy, 80), retries=0)
    assert costs.trajectories_lost == found.count(None)
    survivors = [one for one in found if one is not None]
    assert survivors
    assert costs.env_errors >= costs.trajectories_lost + costs.candidates_lost > 0
    for trajectory in survivors:  # its path is whole, and in the tree
        assert trajectory.turns
        above: int | None = None
        for turn in trajectory.turns if trajectory.tree else ():
            below = [i for i, candidate in enumerate(trajectory.tree) if candidate.parent == above]
            above = next(i for i in below if trajectory.tree[i].turn is turn)


def test_a_search_goes_on_without_a_candidate_that_was_lost() -> None:
    """Four candidates at every node: rarely are all of them lost."""
    found, costs = outcomes(misbehaving(raises=0.2), tasks(Beam(1, 4), 40), retries=0)
    assert costs.candidates_lost > 20
    assert found.count(None) < 5
    counts = {}
    for trajectory in found:
        for candidate in trajectory.tree if trajectory else ():
            counts[id(trajectory), candidate.parent] = counts.get((id(trajectory), candidate.parent), 0) + 1
    assert sum(4 - count for count in counts.values()) <= costs.candidates_lost
    assert min(counts.values()) < 4


def test_a_group_whose_instance_cannot_be_reset_is_lost_after_one_attempt_each() -> None:
    found, costs = outcomes(misbehaving(bad_resets=[1]), tasks(Sample(), 12), retries=2)
    assert [i for i, one in enumerate(found) if one is None] == [4, 5, 6, 7]  # instance 1
    assert costs.env_errors == 3  # for the group together
    assert costs.trajectories_lost == 4


def test_an_instance_whose_first_prompt_fills_the_context_is_lost_alone() -> None:
    """A run that it ended would end there again after it was resumed."""

    class LongAtOne(Walk):
        def _observation(self) -> str:
            return super()._observation() + "long " * 100 * (self.place == 1 and not self.turn)

    retry = Retrying(0)
    runner = driver(LongAtOne(), retry=retry, limits=TokenLimits(200))
    found = runner.survivors(tasks(Sample(), 12))
    assert [i for i, one in enumerate(found) if one is None] == [4, 5, 6, 7]  # instance 1
    assert runner.costs.trajectories_lost == 4
    assert "the first prompt of instance 1 has 508 tokens, which leaves no room for a response within 200" in retry.last


def test_workers_lose_what_one_environment_would_lose() -> None:
    """Where failures depend on the state alone."""

    class Pit(Walk):
        def step(self, action: str, /) -> Any:
            if self.place == 5:
                raise ConnectionError("the page is gone")
            return super().step(action)

    searches = tasks(BestOfN(3), 40)
    found, costs = outcomes(Pit(), searches, retries=1)
    threaded = driver(Pit(), retry=Retrying(1), keep_tree=True, workers=[Pit(), Pit()])
    assert threaded.survivors(searches) == found
    assert 0 < found.count(None) < 40
    assert (threaded.costs.env_errors, threaded.costs.trajectories_lost) == (costs.env_errors, found.count(None))


def test_a_rollout_is_given_up_once_too_much_is_lost() -> None:
    env = misbehaving(raises=1.0)
    runner = driver(env, retry=Retrying(0), concurrency=4)
    reported = []
    found = runner.survivors(tasks(Sample(), 40), reported.append, max_lost=2)
    assert found == [None] * 40
    assert env.calls == 4  # one wave
    assert runner.costs.trajectories_lost == 40


def test_progress_counts_lost_searches_as_ended() -> None:
    reported = []
    runner = driver(misbehaving(raises=0.1), retry=Retrying(0), concurrency=8)
    found = runner.survivors(tasks(Sample(), 40), reported.append)
    last = reported[-1]
    assert last.done == last.total == 40
    assert last.spent == 1
    assert last.costs.trajectories_lost == found.count(None) > 0
    assert last.costs == runner.costs - Costs(tokens_kept=runner.costs.tokens_kept)  # what is kept is known afterwards


def test_progress_says_how_much_of_the_budgets_is_spent() -> None:
    """A walk has six turns; one that has ended counts whole, one that has not begun counts nothing."""
    reported = []
    leaves = driver(concurrency=30).leaves(tasks(Sample(), 40), reported.append)
    lengths = [leaf.depth for leaf in leaves]
    first, second = [wave.spent for wave in reported[:2]]
    ended = [sum(length == turns for length in lengths[:30]) for turns in (1, 2)]
    assert ended[0] == 0  # no walk begins next to the goal: 30 have played a turn
    assert first == pytest.approx(30 / 6 / 40)
    assert second == pytest.approx((ended[1] + (30 - ended[1]) * 2 / 6) / 40)
    assert [wave.spent for wave in reported] == sorted(wave.spent for wave in reported)
    assert reported[-1].spent == 1


def test_a_mistake_in_the_configuration_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="Expert, but Walk has no oracle: use RandomActions"):
        driver(Walk(), retry=Retrying(3)).survivors(tasks(Expert(), 1))


def test_each_kind_of_failure_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    retry = Retrying(0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            driver(misbehaving(raises=0.3, bad_resets=[2]), retry=retry).survivors(tasks(Sample(), 40))
    assert len(caplog.records) == 2
    texts = [record.getMessage() for record in caplog.records]
    for message in ("the page is gone", "no such page"):
        [text] = [text for text in texts if f"ConnectionError: {message}" in text]
        assert "misbehaving.py" in text
    assert re.fullmatch(r"ConnectionError: the page is gone at tests/misbehaving\.py:\d+", retry.last)
