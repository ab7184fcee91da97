"""The gradient that an objective computes for a group, over all outcomes of its searches."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gradients.enumeration import Choices, Outcome, outcomes
from benchmarks.gradients.exact import Exact, exact
from benchmarks.gradients.task import Ladder, LastObservation, Rules, Rung, Table
from tsr_lightning.batching.tensors import Estimates, Outputs, Targets
from tsr_lightning.engines.base import Sampling
from tsr_lightning.objectives import Objective
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Greedy, Sample, Strategy
from tsr_lightning.trajectory import Group, Member, Trajectory, Turn


class Search(NamedTuple):
    """A search's trajectory, and the turns that the policy drew for it."""

    trajectory: Trajectory
    turns: int


class GroupOutcome(NamedTuple):
    """A group, and the turns that the policy drew for it."""

    group: Group
    turns: float


@dataclass(frozen=True)
class Figures:
    """Compares the expected gradient of a step of many groups with the exact gradient."""

    gradient: Tensor  # [S, A] expected
    cosine: float  # with the exact gradient
    bias: float  # norm of what is left after the best multiple of the exact one, in units of that
    turns: float  # drawn until the noise is no larger than the part along the exact gradient
    opposed: int  # states in which the expected update makes the better action less likely


class Step(NamedTuple):
    """Bias and noise of the gradient of a step, relative to its component along the exact gradient."""

    bias: float  # norm of what is left after the best multiple of the exact gradient
    noise: float  # root of the summed variances


def quadrature(scale: float) -> tuple[Tensor, Tensor]:
    """Points t and weights for integrals over t from 0 on of what falls off around 1 / scale: the trapezoidal rule in
    log t, which converges faster than any power."""
    logs = torch.linspace(-30.0, 12.0, 1201, dtype=torch.float64)
    times = logs.exp() / scale
    return times, times * (logs[1] - logs[0])


class World:
    """A task, a policy, and the searches of one by the other."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.choices = Choices()
        self.policy = Table(rules, self.choices)
        self.exact: Exact = exact(rules, self.policy.logits)

    def searches(
        self, strategy: Strategy, *, exact_score: bool = False, whole_key: bool = False
    ) -> Iterator[Outcome[Search]]:
        """Every outcome of a search, trees included.

        Args:
            strategy: of the search.
            exact_score: score a state by the policy's exact value instead of its nearness to the goal.
            whole_key: the turns left are a part of the state key.
        """
        env = Ladder(self.rules, self.choices, self.exact.values if exact_score else None, whole_key)
        limits = TokenLimits(100)
        driver = Driver([env], LastObservation(), self.policy, Sampling(), limits, keep_tree=True, keep_state_keys=True)
        task = SearchTask(0, 0, strategy, Key(0))

        def run() -> Search:
            before = self.policy.turns
            [trajectory] = driver.run([task])
            return Search(trajectory, self.policy.turns - before)

        return outcomes(run, self.choices)

    def single(
        self, strategy: Strategy, *, exact_score: bool = False, whole_key: bool = False
    ) -> list[Outcome[GroupOutcome]]:
        """Groups of one search, with its tree."""
        searches = self.searches(strategy, exact_score=exact_score, whole_key=whole_key)
        return [
            Outcome(probability, GroupOutcome(Group(0, (search.trajectory,)), search.turns))
            for probability, search in searches
        ]

    def groups(self, strategy: Strategy, size: int, *, whole_key: bool = False) -> list[Outcome[GroupOutcome]]:
        """Groups of several searches of one instance, without their trees; their order does not matter."""
        found: dict[tuple[Turn, ...], list[tuple[float, Search]]] = defaultdict(list)
        for probability, search in self.searches(strategy, whole_key=whole_key):
            found[search.trajectory.turns].append((probability, search))
        cost = sum(probability * search.turns for same in found.values() for probability, search in same)
        members = [(sum(probability for probability, _ in same), same[0][1].trajectory) for same in found.values()]
        result = []
        for chosen in combinations_with_replacement(range(len(members)), size):
            orders = factorial(size) / prod(map(factorial, Counter(chosen).values()))
            probability = orders * prod(members[i][0] for i in chosen)
            group = Group(0, tuple(members[i][1] for i in chosen))
            result.append(Outcome(probability, GroupOutcome(group, size * cost)))
        return result

    def beside_greedy(self) -> list[Outcome[GroupOutcome]]:
        """Groups of one plain sample and greedy play."""
        samples, greedy = list(self.searches(Sample())), list(self.searches(Greedy()))
        return [
            Outcome(p * q, GroupOutcome(Group(0, (one.trajectory, other.trajectory)), one.turns + other.turns))
            for p, one in samples
            for q, other in greedy
        ]

    def figures(self, objective: Objective, groups: Sequence[Outcome[GroupOutcome]]) -> Figures:
        """Of the gradient of a step, sum of `weights` times losses over sum of `normalizers`.

        Its expectation is that of a step of many groups, the quotient of the two expectations, and its noise that of
        such a step, by linearisation; both are exact, up to the float32 of credit.
        """
        probabilities = torch.tensor([probability for probability, _ in groups], dtype=torch.float64)
        sums, divisors = self._steps(objective, [group for _, (group, _) in groups])
        divisor = probabilities @ divisors
        gradient = torch.einsum("g,gsa->sa", probabilities, sums) / divisor
        residuals = (sums - gradient * divisors[:, None, None]) / divisor
        variance = probabilities @ residuals.square().sum((1, 2))
        turns = sum(probability * group.turns for probability, group in groups)
        goal = self.exact.gradient
        along = (gradient * goal).sum() / goal.norm()  # the part of the expected gradient along the exact one
        across = gradient - along * goal / goal.norm()
        return Figures(
            gradient,
            float(along / gradient.norm()),
            float(across.norm() / along.abs()),
            float(turns * variance / along.square()),
            int((gradient * goal < -1e-9).any(1).sum()),
        )

    def step(self, objective: Objective, groups: Sequence[Outcome[GroupOutcome]], count: int) -> Step:
        """Bias and noise of a step of `count` groups, which divides by the weights of these groups alone.

        With S and D the sums of a group's weighted losses and normalizers, and 1 / D = int exp(-t D) dt,
        E[sum S / sum D] = n int E[S exp(-t D)] E[exp(-t D)]^(n - 1) dt, and E[|sum S|^2 / (sum D)^2] likewise, by
        quadrature over t. A step without a comparison counts as 0.
        """
        probabilities = torch.tensor([probability for probability, _ in groups], dtype=torch.float64)
        sums, divisors = self._steps(objective, [group for _, (group, _) in groups])
        sums = sums.flatten(1)
        scale = float(probabilities @ divisors) * count
        times, weights = quadrature(scale)
        gradient, square = torch.zeros_like(sums[0]), torch.zeros((), dtype=torch.float64)
        for time, weight in zip(times.tolist(), weights.tolist(), strict=True):
            discounts = probabilities * (-time * divisors).exp()
            rest, first, second = discounts.sum(), discounts @ sums, discounts @ sums.square().sum(1)
            gradient += weight * count * first * rest ** (count - 1)
            pairs = (count - 1) * first.square().sum() * rest ** (count - 2) if count > 1 else 0.0
            square += weight * time * count * (second * rest ** (count - 1) + pairs)
        goal = self.exact.gradient.flatten()
        along = (gradient @ goal) / goal.norm()
        across = gradient - along * goal / goal.norm()
        variance = square - gradient.square().sum()
        return Step(float(across.norm() / along.abs()), float(variance.clamp(min=0).sqrt() / along.abs()))

    def _steps(self, objective: Objective, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
        """The ascent direction [G, S, A] and the divisor [G] that each group adds to its step: the objective's own
        comparisons, credit and loss, with importance ratios of 1."""
        turns: list[tuple[Rung, int]] = []  # of all trained tokens, of which a turn has one
        columns: list[Targets] = []
        owners: list[int] = []
        divisors = torch.zeros(len(groups), dtype=torch.float64)
        for i, group in enumerate(groups):
            compared = objective.comparisons(group)
            estimates = [[self._estimates(member) for member in each.members] for each in compared]
            members = [member for each in compared for member in each.members]
            flat = [credit for credits in objective.credit(compared, estimates) for credit in credits]
            known = [estimate for of_group in estimates for estimate in of_group]
            for member, credit, estimate in zip(members, flat, known, strict=True):
                turns += [(Rung(*turn.prompt), turn.response[0]) for turn in member.turns]
                owners += [i] * len(member.turns)
                divisors[i] += credit.normalizers.sum()
                columns.append(
                    Targets(
                        estimate.logprobs,
                        estimate.values,
                        estimate.reference_logprobs,
                        credit.advantages,
                        credit.value_targets,
                        credit.weights,
                        credit.value_weights,
                        credit.supervised_weights,
                        torch.ones(len(member.turns)),
                        torch.zeros(len(member.turns)),
                    )
                )
        targets = Targets.joined(columns)
        logprobs = targets.old_logprobs.clone().requires_grad_()
        outputs = Outputs(logprobs, torch.zeros_like(logprobs), targets.old_values)
        (descent,) = torch.autograd.grad(objective.loss(targets, outputs).total, logprobs)
        sums = torch.zeros(len(groups), *self.policy.logits.shape, dtype=torch.float64)
        ascent = -descent.double()[:, None, None] * self.policy.scores(turns)
        return sums.index_add(0, torch.tensor(owners), ascent), divisors

    def _estimates(self, member: Member) -> Estimates:
        """With the exact values for a critic's."""
        values = [self.exact.values[Rung(*turn.prompt)] for turn in member.turns]
        logprobs = [turn.behaviour_logprobs[0] for turn in member.turns]
        zeros = torch.zeros(len(values))
        return Estimates(torch.tensor(logprobs), torch.tensor(values), zeros, 0.0)
