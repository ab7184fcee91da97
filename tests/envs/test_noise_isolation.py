"""Search must not see the real episode's noise.

In these environments every action is equally good, so without knowing the noise to come no policy can succeed more
often than the known probability; a policy that knows it nearly always succeeds.
"""

import math
from collections.abc import Hashable
from typing import Any

import pytest

from tests.fakes import Scripted, driver
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.strategies import Beam, BestOfN, Lookahead, Sample, Strategy

EPISODES = 300
GAIN = 0.15  # of success rate, which must be detected
LEVEL = 0.01  # of a one-sided exact binomial test
POWER = 0.99
SEARCHES: list[Strategy] = [
    BestOfN(4, "resample"),
    Beam(2, 4, commit="resample"),
    Lookahead(4, 2, 2, commit="resample"),
]


class Coins:
    """Five tosses, three heads win. Each of the actions has a coin of its own, and all coins are fair."""

    instructions = "toss"
    answers = ("a", "b", "c", "d")
    win = 0.5  # as many ways to three heads or more as to three tails or more

    def __init__(self) -> None:
        self.heads, self.tosses, self.key, self.drawn = 0, 0, Key(0), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.heads, self.tosses, self.key, self.drawn = 0, 0, Key(seed or 0).fold_in("coins"), 0
        return "0", {}

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.heads += self.key.fold_in(action).uniform(self.drawn) < 0.5
        self.tosses += 1
        self.drawn += 1
        won = self.heads == 3
        info = {"success": won, "action_is_valid": True, "action_is_effective": True}
        return str(self.heads), float(won), won, self.tosses == 5 and not won, info

    def get_state(self) -> Hashable:
        return (self.heads, self.tosses, self.key, self.drawn)

    def set_state(self, state: Any, /) -> None:
        self.heads, self.tosses, self.key, self.drawn = state

    def reseed(self, key: Key, /) -> None:
        self.key, self.drawn = key, 0

    def score(self) -> float:
        return self.heads / 3

    def state_key(self) -> Hashable:
        return self.heads

    def remaining(self) -> int:
        return 5 - self.tosses


class EvenLake(TextFrozenLake):
    """A lake where every move goes to one of its two sides: from the corner S, any action stays or reaches a G with
    probability 1/2 each. Two turns."""

    win = 1 - 0.5**2

    def __init__(self) -> None:
        super().__init__(
            desc=["SG", "GF"], success_rate=0.0, max_turns=2, actions_per_turn=1, max_actions=2, prompt_style="brief"
        )
        self.reset(seed=0)
        self.answers = tuple(self.legal_actions())


class SharedNoiseCoins(Coins):
    """A mutant: the real episode and all branches share the noise in the state."""

    def reseed(self, key: Key, /) -> None:
        pass


class SharedNoiseLake(EvenLake):
    """The same mutant of the lake."""

    def reseed(self, key: Key, /) -> None:
        pass


def wins(env: Any, strategy: Strategy) -> int:
    """Successes in `EPISODES` episodes of different instances."""
    play = driver(env, Scripted(env.answers))
    searches = [SearchTask(seed, 0, strategy, Key(2025).fold_in(seed)) for seed in range(EPISODES)]
    return sum(trajectory.succeeded for trajectory in play.run(searches))


def at_least(count: int, n: int, p: float) -> float:
    """The probability of `count` successes or more in n tries."""
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(count, n + 1))


def too_many(n: int, p: float) -> int:
    """The fewest successes that are significantly more than probability p gives."""
    return next(count for count in range(n + 2) if at_least(count, n, p) < LEVEL)


def on_each(coins: type, lake: type, strategies: list[Strategy]) -> list[Any]:
    """Every strategy on the coins, and the first on the lake; the others there are exhaustive."""
    return [pytest.param(coins, strategy, id=f"{coins.__name__}-{strategy!r}") for strategy in strategies] + [
        pytest.param(
            lake,
            strategy,
            id=f"{lake.__name__}-{strategy!r}",
            marks=pytest.mark.exhaustive if i else [],
        )
        for i, strategy in enumerate(strategies)
    ]


@pytest.mark.parametrize("env_type", [Coins, EvenLake])
def test_the_number_of_episodes_gives_enough_power(env_type: type[Coins] | type[EvenLake]) -> None:
    """300 episodes detect a gain of 15 points with probability 0.997 (coins, 0.5) and 0.9999 (lake, 0.75)."""
    assert at_least(too_many(EPISODES, env_type.win), EPISODES, env_type.win + GAIN) > POWER


@pytest.mark.parametrize("env_type", [Coins, EvenLake, SharedNoiseCoins, SharedNoiseLake])
def test_plain_sampling_has_the_known_success_rate(env_type: type[Coins] | type[EvenLake]) -> None:
    """In the mutants too, since a plain sample has no branches."""
    won = wins(env_type(), Sample())
    assert at_least(won, EPISODES, env_type.win) > LEVEL / 2
    assert at_least(EPISODES - won, EPISODES, 1 - env_type.win) > LEVEL / 2


@pytest.mark.parametrize(("env_type", "strategy"), on_each(Coins, EvenLake, SEARCHES))
def test_search_succeeds_no_more_often_than_sampling(
    strategy: Strategy, env_type: type[Coins] | type[EvenLake]
) -> None:
    assert wins(env_type(), strategy) < too_many(EPISODES, env_type.win)


@pytest.mark.parametrize(("env_type", "strategy"), on_each(SharedNoiseCoins, SharedNoiseLake, SEARCHES))
def test_shared_noise_is_detected(strategy: Strategy, env_type: type[Coins] | type[EvenLake]) -> None:
    won = wins(env_type(), strategy)
    assert won >= too_many(EPISODES, env_type.win)
    assert won / EPISODES > env_type.win + GAIN


@pytest.mark.parametrize(("env_type", "strategy"), on_each(Coins, EvenLake, [BestOfN(4), Beam(2, 4)]))
def test_with_keep_search_selects_lucky_noise(strategy: Strategy, env_type: type[Coins] | type[EvenLake]) -> None:
    """As documented, and as in the paper: with `keep` search does beat sampling here."""
    assert wins(env_type(), strategy) >= too_many(EPISODES, env_type.win)
