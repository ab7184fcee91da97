"""Scores of prefixes (the paper's S). A scorer takes a batch of nodes, because a critic computes values in batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tsr_lightning.envs.base import Branchable
from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.search.tree import Node
from tsr_lightning.trajectory import Group

Critic = Callable[[Sequence[Node]], list[float]]  # the value of each node
# How many random legal actions led from a node to a success, for each key; see `envs.base.HasRandomPlay`. None where
# the environment failed for good: the node is lost then, whatever score it is given
RandomPlay = Callable[[Node, Sequence[Key], int], list[int | None] | None]


class Learner(Protocol):
    """What a scorer learns from the rollouts of a run. A checkpoint keeps it."""

    def reset(self) -> None:
        """Called where a run begins: nothing is known of what an earlier run of this process taught."""

    def begin(self, epoch: int) -> None:
        """Called before an epoch is rolled out: scores as the epochs before it taught."""

    def learn(self, epoch: int, groups: Sequence[Group], trained: int) -> None:
        """Called with an epoch's rollout, by a policy that had been `trained` for so many epochs."""

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """What so many epochs taught, as plain types."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


class Scorer(ABC):
    """Scores prefixes; higher is better."""

    @abstractmethod
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        """One score per node."""

    @property
    def needs_critic(self) -> bool:
        return False

    @property
    def includes_rewards(self) -> bool:
        """Whether the rewards up to a node are in its score."""
        return False

    @property
    def learners(self) -> Sequence[Learner]:
        """What of it learns from the run's rollouts."""
        return ()

    def check(self, env: Branchable) -> None:  # noqa: B027  (most score any)
        """Raises a ConfigError if it cannot score the states of an environment."""

    def in_search(self, play: RandomPlay) -> "Scorer":
        """The scorer of one driver's searches, which may play from their nodes and remember what it found."""
        return self


@dataclass(frozen=True)
class EnvironmentScore(Scorer):
    """The environment's score of the state."""

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.env_score for node in nodes]


@dataclass(frozen=True)
class ReturnSoFar(Scorer):
    """The rewards so far; the paper's released code scores by rewards."""

    includes_rewards = True

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.episode_return for node in nodes]


@dataclass(frozen=True)
class CriticValue(Scorer):
    """The return so far plus, where the episode goes on, the critic's value."""

    needs_critic = True
    includes_rewards = True

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        open_nodes = [node for node in nodes if not node.done]
        rest = dict(zip(map(id, open_nodes), critic(open_nodes), strict=True)) if open_nodes else {}
        return [node.episode_return + rest.get(id(node), 0.0) for node in nodes]


@dataclass(frozen=True)
class WeightedSum(Scorer):
    """A weighted sum of other scorers.

    Args:
        scorers: the summands.
        weights: one per scorer.
    """

    scorers: list[Scorer]
    weights: list[float]

    def __post_init__(self) -> None:
        count = len(self.scorers)
        require(count > 0, "WeightedSum.scorers", self.scorers, "give at least one scorer")
        require(len(self.weights) == count, "WeightedSum.weights", self.weights, f"give {count}, one for each scorer")

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        columns = [scorer(nodes, critic) for scorer in self.scorers]
        return [
            sum(weight * part for weight, part in zip(self.weights, parts, strict=True))
            for parts in zip(*columns, strict=True)
        ]

    @property
    def needs_critic(self) -> bool:
        return any(scorer.needs_critic for scorer in self.scorers)

    @property
    def includes_rewards(self) -> bool:
        return any(scorer.includes_rewards for scorer in self.scorers)

    @property
    def learners(self) -> Sequence[Learner]:
        return [learner for scorer in self.scorers for learner in scorer.learners]

    def check(self, env: Branchable) -> None:
        for scorer in self.scorers:
            scorer.check(env)

    def in_search(self, play: RandomPlay) -> Scorer:
        return replace(self, scorers=[scorer.in_search(play) for scorer in self.scorers])
