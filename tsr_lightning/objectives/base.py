"""The contract of an objective: credit once per rollout, and a loss per micro-batch. Both are pure functions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.trajectory import Comparison, Group, Member, Origin, Turn


@dataclass(frozen=True, slots=True)
class Needs:
    """Declares what an objective needs computed before the updates.

    Args:
        logprobs: log-probabilities of the policy that sampled, for importance ratios.
        demonstrated_logprobs: those of demonstrations too; not where these have no weight in the policy's loss.
        logprobs_in_credit: credit reads log-probabilities, the policy's or the reference's, as a KL penalty on rewards
            does. Without it, and without values and entropies, credit comes before the pass that computes them, which
            leaves out what has no weight in the policy's loss.
        values: a critic and its values.
        final_values: its value after the last turn of truncated trajectories.
        reference: log-probabilities under the reference.
        entropies: those of the policy that sampled.
        observations: the tokens of observations as targets, with `Targets.observation_weights`.
        greedy: a greedy trajectory in each group, which samples are compared with.
        tree: all that each search proposed, in `Trajectory.tree`.
        best_of_tree: the best outcome below a response stands for all of them.
        scores_of_tree: the score of a state stands for the return that is still to come there.
        state_keys: the state that each turn was taken in, in `Trajectory.state_keys`.
        merges_states: states with equal keys count as one, whatever turns and budget are left there; plain samples are
            compared by their states too.
        quantities: names of further quantities per token that the loss reads from `Targets.quantities`:
            `behaviour_logprobs`, the log-probabilities with which the engine sampled, and those that the objective's
            own credit gives (`Credit.quantities`).
        one_update: the loss of samples has no ratio, so a rollout makes one step.
    """

    logprobs: bool = True
    demonstrated_logprobs: bool = True
    logprobs_in_credit: bool = False
    values: bool = False
    final_values: bool = False
    reference: bool = False
    entropies: bool = False
    observations: bool = False
    greedy: bool = False
    tree: bool = False
    best_of_tree: bool = False
    scores_of_tree: bool = False
    state_keys: bool = False
    merges_states: bool = False
    quantities: tuple[str, ...] = ()
    one_update: bool = False

    @property
    def estimates_in_credit(self) -> bool:
        """True if credit reads any estimate, so that it comes after them."""
        return self.logprobs_in_credit or self.values or self.final_values or self.entropies


class Loss(NamedTuple):
    """The loss of a micro-batch. Every part but `maxima` is a weighted sum over its tokens, so that micro-batches and
    ranks add up to the figure of the optimizer step."""

    total: Tensor  # [] to be minimised
    policy_weight: Tensor  # [] sum of `Targets.weights`; a statistic divided by it is a mean over tokens
    stats: dict[str, Tensor]  # name -> [], detached; `binary_kl` is the one that data.updates.target_kl limits
    maxima: Mapping[str, Tensor] = MappingProxyType({})  # name -> [], detached; the largest of a step is its figure


class Objective(ABC):
    """Base of the objectives: frozen dataclasses, whose fields are the arguments in YAML.

    An objective declares how it uses trajectories, so that a plan can be checked before the rollout and a filter knows
    which groups teach something: it compares the returns of some with a baseline, imitates others whatever they
    returned, and leaves the rest out of the policy loss.
    """

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def minimum_compared(self) -> int:
        """The fewest compared trajectories per instance for which credit is defined; 1 where the baseline does not come
        from the group."""
        return 1

    @property
    def takes_demonstrations(self) -> bool:
        """True if it can train on trajectories that the policy did not sample. A policy gradient alone cannot: the
        importance ratio is not 1 there, and a baseline would make the weaker demonstrations less likely."""
        return False

    @property
    def needs_demonstrations(self) -> bool:
        """True if a part of it does nothing without demonstrations."""
        return False

    @property
    def comparison_settings(self) -> Mapping[str, object]:
        """Settings that act through the advantages of compared trajectories alone, by key, where they are not the
        defaults; without a comparison they do nothing, and are refused."""
        return {}

    def at(self, epoch: int) -> "Objective":
        """The objective as it is in an epoch, where a part of it follows a schedule. As configured it is that of
        epoch 0."""
        return self

    def compares(self, origin: Origin) -> bool:
        """True if the return of a trajectory of this origin is compared with a baseline."""
        return origin.is_sampled

    def imitates(self, member: Member) -> bool:
        """True if a member that is not compared is made more likely."""
        return False

    def return_of(self, member: Member) -> float:
        """The return that is compared, as far as it is known before the policy's estimates: rewards after shaping, or 1
        for a success and 0 for a failure where the objective looks at success alone."""
        return sum(member.rewards)

    def outcome_of(self, member: Member) -> float:
        """The same as its credit discounts it: where these differ, equal returns have a signal."""
        return self.return_of(member)

    def masks(self, member: Member) -> bool:
        """True if a compared member stays out of the policy loss, though its return counts in the baseline."""
        return False

    @property
    def has_advantages_without_outcomes(self) -> bool:
        """True if advantages can differ from 0 where all outcomes are equal: by a critic's errors, by a KL penalty in
        the rewards, or by rounding that whitening magnifies. Such advantages alone make no optimizer step
        (`signal.outcomes_teach`)."""
        return self.needs.values

    def penalises(self, turn: Turn) -> bool:
        """True if a turn's advantage is lowered whatever the outcome, as for text that could not be read."""
        return False

    @property
    def comparing_part(self) -> str:
        """The name of the part that makes `comparisons`, for refusals."""
        return type(self).__name__

    def comparisons(self, group: Group) -> list[Group | Comparison]:
        """Splits a group that was rolled out into what is credited: the group itself, or comparisons within its search
        trees; empty where nothing is learned from it."""
        return [group]

    @abstractmethod
    def credit(
        self, groups: Sequence[Group | Comparison], estimates: Sequence[Sequence[Estimates]]
    ) -> list[list[Credit]]:
        """Credit of every member, after filtering and `comparisons`; `estimates` and the result are indexed as
        `groups[i].members[j]`. Where the needs name none in credit, the estimates are NaN."""

    @abstractmethod
    def loss(self, targets: Targets, outputs: Outputs) -> Loss: ...
