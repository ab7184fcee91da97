"""Scores states by random play in the environment alone, at no token: the MC-Critic of https://arxiv.org/abs/2602.05327."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tsr_lightning.envs.base import Branchable, fingerprint
from tsr_lightning.envs.random_play import check_random_play
from tsr_lightning.errors import require
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.scorers import Critic, RandomPlay, Scorer
from tsr_lightning.search.tree import Node
from tsr_lightning.trajectory import Ended


class RolloutValue(ABC):
    """The value of a state, from the rollouts that began in it."""

    @abstractmethod
    def __call__(self, steps: Sequence[int | None]) -> float:
        """In [0, 1], from the actions that each of one or more rollouts took to a success; None for a failure."""


@dataclass(frozen=True)
class MeanSuccess(RolloutValue):
    """The mean over rollouts of discount^actions, 0 for a failure.

    Args:
        discount: per action; below 1 a near success is worth more than a far one.
    """

    discount: float = 0.95

    def __post_init__(self) -> None:
        require(0 < self.discount <= 1, "MeanSuccess.discount", self.discount, "give a number above 0 and up to 1")

    def __call__(self, steps: Sequence[int | None]) -> float:
        return sum(self.discount**step for step in steps if step is not None) / len(steps)


@dataclass(frozen=True)
class BestSuccess(RolloutValue):
    """discount^actions of the soonest success, 0 without one. Under noise it may be luck.

    Args:
        discount: per action.
    """

    discount: float = 0.95

    def __post_init__(self) -> None:
        require(0 < self.discount < 1, "BestSuccess.discount", self.discount, "give a number between 0 and 1")

    def __call__(self, steps: Sequence[int | None]) -> float:
        found = [step for step in steps if step is not None]
        return self.discount ** min(found) if found else 0.0


@dataclass(frozen=True)
class ShareSolved(RolloutValue):
    """The share of rollouts that succeed."""

    def __call__(self, steps: Sequence[int | None]) -> float:
        return sum(step is not None for step in steps) / len(steps)


@dataclass(frozen=True)
class RandomRollouts(Scorer):
    """The value of playing legal actions at random from a state on, so that an environment needs no score of its own.

    A state that solves the task is worth 1 and one that failed it 0. What is drawn belongs to the search and the state
    key alone, so equal states of a search with an equal budget left have one score, computed once. A `TextEnv` is
    played past the budget of its episodes, since random play is slow to succeed; where another environment has no
    `play_randomly`, its budget ends a rollout too.

    Legal actions are equally likely. Rollouts by the policy cost tokens: the strategies `Lookahead` and `Vine` make
    them.

    Args:
        rollouts: from each state.
        horizon: the most actions of one.
        value: of a state, from its rollouts.
    """

    rollouts: int = 32
    horizon: int = 60
    value: RolloutValue = field(default_factory=MeanSuccess)

    def __post_init__(self) -> None:
        require(self.rollouts >= 1, "RandomRollouts.rollouts", self.rollouts, "give 1 or more")
        remedy = "a rollout plays at least 1 action; give about as many as random play needs to succeed, such as 60"
        require(self.horizon >= 1, "RandomRollouts.horizon", self.horizon, remedy)

    def check(self, env: Branchable) -> None:
        check_random_play(env, "RandomRollouts")

    def in_search(self, play: RandomPlay) -> Scorer:
        return _Remembering(self, play)

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        raise TypeError("RandomRollouts scores in a search alone: see Scorer.in_search")


@dataclass(frozen=True)
class _Remembering(Scorer):
    """Rollouts from the nodes of a driver's searches, with the values of the states that were met."""

    spec: RandomRollouts
    play: RandomPlay
    known: dict[tuple[int, Hashable, int], float] = field(default_factory=dict)

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [self._score(node) for node in nodes]

    def _score(self, node: Node) -> float:
        if node.done and node.snapshot.ended in (Ended.SUCCEEDED, Ended.FAILED):
            return float(node.succeeded)
        search = node.path[0].driver.key
        place = search.value, node.snapshot.state_key, node.snapshot.remaining
        if place not in self.known:
            own = search.fold_in(Stream.ROLLOUT, fingerprint(node.snapshot.state_key))
            steps = self.play(node, _keys(own, self.spec.rollouts), self.spec.horizon)
            if steps is None:
                return math.nan
            self.known[place] = self.spec.value(steps)
        return self.known[place]


def _keys(key: Key, count: int) -> list[Key]:
    return [Key(key.bits(number)) for number in range(count)]
