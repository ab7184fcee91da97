"""The contract of an objective: two pure parts, credit once per rollout and a loss per micro-batch.

Knows tensors, and no model. N is the number of trained tokens: of one trajectory in `Estimates` and `Credit` (its turns
one after the other), of a micro-batch in `Targets` and `Outputs`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from tsr_lightning.trajectory import Group, Origin, Trajectory


@dataclass(frozen=True, slots=True)
class Needs:
    """What an objective wants computed for it before the updates."""

    logprobs: bool = True  # old log-probabilities, for ratios
    values: bool = False  # a critic
    final_values: bool = False  # its value after the last turn of truncated trajectories
    reference: bool = False  # log-probabilities under the reference


@dataclass(frozen=True, slots=True)
class Estimates:
    """The policy's, critic's and reference's view of one trajectory before the updates, fixed for all of them."""

    logprobs: Tensor  # [N]
    values: Tensor  # [N] V of the context that each token was sampled in; zeros without a critic
    reference: Tensor  # [N]; zeros where not needed
    final_value: float  # V of the context after the last turn; 0 where not needed, or longer than the model sees


@dataclass(frozen=True, slots=True)
class Credit:
    """What each trained token of one trajectory is worth. All [N], float32."""

    advantages: Tensor
    value_targets: Tensor  # the critic's regression target
    weights: Tensor  # of the policy's terms
    normalizers: Tensor  # an optimizer step divides the policy's terms by the sum of these over its tokens
    value_weights: Tensor  # of the critic's term; a step divides by their own sum


@dataclass(frozen=True, slots=True)
class Targets:
    """What the loss of a micro-batch is computed against. All [N], float32.

    `weights` and `value_weights` are already divided, so that each sums to (at most) 1 over an optimizer step.
    """

    logprobs: Tensor  # old
    values: Tensor  # old
    reference: Tensor
    advantages: Tensor
    value_targets: Tensor
    weights: Tensor
    value_weights: Tensor


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the model says of a micro-batch now. All [N]."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor  # zeros without a critic


class Loss(NamedTuple):
    """A scalar to minimise and detached statistics, each a weighted sum over the micro-batch (so that micro-batches and
    ranks add up to the figure of the optimizer step)."""

    total: Tensor  # []
    stats: dict[str, Tensor]  # name -> []


class Objective(ABC):
    """Frozen dataclasses derive from it: their fields are the arguments in YAML.

    What is made of a trajectory is declared here, so that a plan can be checked before a rollout and a filter knows
    where there is something to learn: the return of some is compared with a baseline, others are imitated whatever they
    returned, the rest has no part in the policy's terms.
    """

    @property
    @abstractmethod
    def needs(self) -> Needs: ...

    @property
    def minimum_compared(self) -> int:
        """The fewest compared trajectories of one instance for which credit is defined; 1 where the baseline does not
        come from the group."""
        return 1

    @property
    def takes_demonstrations(self) -> bool:
        """Whether it can train on what the policy did not sample at all. A policy gradient cannot: the ratio to the
        policy that sampled is not 1 there, and a baseline would push the weaker demonstrations down."""
        return False

    def compares(self, origin: Origin) -> bool:
        """Whether the return of a trajectory of this origin is compared with a baseline."""
        return origin is not Origin.DEMONSTRATED

    def imitates(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory that is not compared is made more likely."""
        return False

    @abstractmethod
    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        """Credit on whole trajectories, after filtering; `estimates` and the result are indexed as
        `groups[i].trajectories[j]`."""

    @abstractmethod
    def loss(self, targets: Targets, outputs: Outputs) -> Loss: ...
