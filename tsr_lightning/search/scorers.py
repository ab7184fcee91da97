"""How good a prefix is: the S of the paper. A scorer sees nodes in batches, because a critic's value needs one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tsr_lightning.errors import ConfigError
from tsr_lightning.search.tree import Node

Critic = Callable[[Sequence[Node]], list[float]]


class Scorer(ABC):
    """Scores prefixes; higher is better."""

    @abstractmethod
    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        """One score per node."""

    @property
    def needs_critic(self) -> bool:
        return False


@dataclass(frozen=True)
class EnvironmentScore(Scorer):
    """The task's own feedback on the state."""

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.env_score for node in nodes]


@dataclass(frozen=True)
class ReturnSoFar(Scorer):
    """The sum of the rewards so far (the released code of the paper scores by rewards)."""

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [node.episode_return for node in nodes]


@dataclass(frozen=True)
class CriticValue(Scorer):
    """The return so far and, where the episode goes on, the critic's value of the rest."""

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        open_nodes = [node for node in nodes if not node.done]
        rest = dict(zip(map(id, open_nodes), critic(open_nodes), strict=True)) if open_nodes else {}
        return [node.episode_return + rest.get(id(node), 0.0) for node in nodes]

    @property
    def needs_critic(self) -> bool:
        return True


@dataclass(frozen=True)
class WeightedSum(Scorer):
    """A weighted sum of other scorers.

    Args:
        scorers: what is summed.
        weights: one per scorer.
    """

    scorers: list[Scorer]
    weights: list[float]

    def __post_init__(self) -> None:
        if len(self.scorers) != len(self.weights):
            raise ConfigError(
                f"scorer.weights has {len(self.weights)} entries for {len(self.scorers)} scorers: give one per scorer"
            )

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        columns = [scorer(nodes, critic) for scorer in self.scorers]
        return [
            sum(weight * part for weight, part in zip(self.weights, parts, strict=True))
            for parts in zip(*columns, strict=True)
        ]

    @property
    def needs_critic(self) -> bool:
        return any(scorer.needs_critic for scorer in self.scorers)
