"""Rehearses an objective and its advantage estimator on a few made-up trajectories, before a model loads: a need, a
minimum or a property that is wrong or was forgotten is refused in one sentence.

What an objective does not declare to need is NaN here, and zeros in a run, which would be taken for estimates.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Estimates, Outputs, Targets
from tsr_lightning.errors import ConfigError, describe
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.estimators import AdvantageEstimator, ShapedTrajectory
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.trajectory import Candidate, Comparison, Group, Member, Message, Origin, Trajectory, Turn

GROUPS, TOKENS = 3, 3  # groups, and tokens of a response
_MESSAGES = (Message("user", "observation"),)
# What of the estimates each need stands for.
_NEEDED: Mapping[str, str] = {
    "logprobs": "the log-probabilities of the policy that sampled",
    "values": "the critic's values",
    "final_values": "the critic's value after the last turn",
    "reference": "the log-probabilities under the reference",
}


def rehearse(objective: Objective) -> None:
    """Compares what an objective declares with what it does.

    Raises:
        ConfigError: they differ, or a credit or a loss is not finite.
    """
    if isinstance(objective, PolicyGradient):
        rehearse_estimator(objective.advantage)
    name, needs = type(objective).__name__, objective.needs
    parts = _comparisons(objective)

    def credit(given: Needs) -> Tensor:
        estimates = [[_estimates(member, given) for member in part.members] for part in parts]
        credits = objective.credit(parts, estimates)
        return _joined([tensor for group in credits for one in group for tensor in (one.advantages, one.weights)])

    def loss(given: Needs) -> Tensor:
        return objective.loss(*_micro_batch(given)).total.detach().reshape(1)

    _check_needs(name, needs, "credit", credit)
    _check_needs(name, needs, "loss", loss)


def _comparisons(objective: Objective) -> list[Group | Comparison]:
    """What is credited of made-up groups, with search trees where the objective needs them.

    Raises:
        ConfigError: there is nothing, or a comparison that no run could train on.
    """
    name, needs = type(objective).__name__, objective.needs
    rolled_out = _groups(max(2, objective.minimum_compared), needs)
    parts = [part for group in rolled_out for part in objective.comparisons(group)]
    if not parts:
        trees = "with" if needs.tree else "without (Needs.tree is False)"
        raise ConfigError(f"{name}.comparisons gives nothing for made-up groups {trees} search trees: correct it")
    for part in parts:
        if isinstance(part, Comparison):
            _check_comparison(name, part, objective.minimum_compared)
    return parts


def _check_comparison(name: str, comparison: Comparison, least: int) -> None:
    if not 0 < comparison.weight < math.inf:
        raise ConfigError(f"{name} gives a comparison of weight {comparison.weight}: let it be above 0 and finite")
    if len(comparison.members) < least:
        raise ConfigError(
            f"{name} compares {len(comparison.members)} with one another, and its baseline needs {least} "
            "(minimum_compared): leave such comparisons out"
        )
    for path in comparison.members:
        if not len(path.turns) == len(path.states) > 0:
            counts = f"{len(path.turns)} turns and {len(path.states)} states"
            raise ConfigError(f"{name} gives a path of {counts}: give the state that each turn was proposed in")
        if not math.isfinite(path.value):
            raise ConfigError(f"{name} gives a path the value {path.value}: let it be finite")


def loss_of_made_up_tokens(objective: Objective) -> Loss:
    """The loss where all is given that an objective could need; its statistics have the names of a run's."""
    return objective.loss(*_micro_batch(Needs(logprobs=True, values=True, final_values=True, reference=True)))


def rehearse_estimator(estimator: AdvantageEstimator) -> None:
    """Compares what an advantage estimator declares with what it does.

    Raises:
        ConfigError: they differ, or an advantage is not finite.
    """
    name, needs, least = type(estimator).__name__, estimator.needs, estimator.minimum_compared

    def advantages(given: Needs, members: int = least, scale: float = 1.0) -> Tensor:
        groups = _groups(members, needs)
        found = estimator([[_shaped(one, given, scale) for one in group.trajectories] for group in groups])
        for group, of_group in zip(groups, found, strict=True):
            for one, own in zip(group.trajectories, of_group, strict=True):
                if own.advantages.shape != (one.trained_tokens,):
                    shape = tuple(own.advantages.shape)
                    raise ConfigError(
                        f"{name} gives advantages of shape {shape} for {one.trained_tokens} trained tokens"
                    )
        return _joined([own.advantages for of_group in found for own in of_group])

    _check_needs(name, needs, f"advantage in groups of {least} (minimum_compared)", advantages)
    if not advantages(needs).any():
        raise ConfigError(
            f"{name}.minimum_compared is {least}, and groups of {least} get the advantage 0 whatever they return: let "
            "it be the fewest trajectories that can be compared"
        )
    members = max(2, least)
    reads_rewards = not torch.equal(advantages(needs, members), advantages(needs, members, scale=-3.0))
    if reads_rewards != estimator.uses_rewards:
        did = "its advantages change with them" if reads_rewards else "no reward changes its advantages"
        raise ConfigError(f"{name}.uses_rewards is {estimator.uses_rewards}, and {did}: let it be {reads_rewards}")
    [trajectory] = _groups(1, needs)[0].trajectories
    if not reads_rewards and estimator.return_of(trajectory, [0.0]) != estimator.return_of(trajectory, [1.0]):
        raise ConfigError(
            f"{name}.return_of changes with the rewards, and its advantages do not: let it return what they compare, "
            "since groups of equal returns count as without signal"
        )


def _check_needs(name: str, needs: Needs, what: str, compute: Callable[[Needs], Tensor]) -> None:
    """Refuses a result that is not finite where all is given that is declared, and names what it lacks."""
    try:
        with warnings.catch_warnings(action="ignore"):  # such as of the spread of a single number, which is NaN
            if compute(needs).isfinite().all():
                return
            everything = Needs(logprobs=True, values=True, final_values=True, reference=True)
            undeclared = [need for need, is_declared in _declared(needs).items() if not is_declared]
            read = [need for need in undeclared if not compute(replace(everything, **{need: False})).isfinite().all()]
            is_whole = bool(compute(everything).isfinite().all())
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed in its rehearsal on made-up trajectories: {describe(error)}") from error
    if is_whole and read:
        raise ConfigError(f"{name}.needs has {read[0]}=False, and its {what} reads {_NEEDED[read[0]]}: let it be True")
    raise ConfigError(f"{name} gives an {what} that is not finite, although all that it is given is: correct it")


def _declared(needs: Needs) -> dict[str, bool]:
    return {
        "logprobs": needs.logprobs,
        "values": needs.values,
        "final_values": needs.final_values,
        "reference": needs.reference,
    }


def _groups(members: int, needs: Needs) -> list[Group]:
    """Groups of different returns; half of the members succeed, and in each group another one is the first to."""
    return [
        Group(group, tuple(_trajectory(group, member, needs) for member in range(members))) for group in range(GROUPS)
    ]


def _trajectory(group: int, member: int, needs: Needs) -> Trajectory:
    succeeded = (group + member) % 2 == 0
    rewards = (-0.1 * (1 + member), float(succeeded) + 0.3 * group)
    turns = tuple(_turn(i, reward) for i, reward in enumerate(rewards))
    return Trajectory(
        instance=group,
        member=member,
        strategy="Sample",
        origin=Origin.SAMPLED,
        turns=turns,
        succeeded=succeeded,
        truncated=not succeeded,
        final_prompt=() if succeeded else (1,),
        final_messages=_MESSAGES,
        state_keys=("first", f"second {member}") if needs.state_keys else (),
        tree=_tree(turns, succeeded) if needs.tree else (),
    )


def _turn(number: int, reward: float) -> Turn:
    """A turn whose prompt and response differ from those of other numbers."""
    response = tuple(range(number, number + TOKENS))
    return Turn((number,), response, (-1.0,) * TOKENS, True, _MESSAGES, f"response {number}", reward, True, True)


def _tree(turns: Sequence[Turn], succeeded: bool) -> tuple[Candidate, ...]:
    """The tree of a search: another response beside each of the trajectory's two, which failed."""
    first, second = turns
    others = [_turn(2, 0.0), replace(_turn(3, 0.0), prompt=second.prompt)]
    others[0] = replace(others[0], prompt=first.prompt)

    def candidate(turn: Turn, parent: int | None, key: str, done: bool, succeeded: bool = False) -> Candidate:
        return Candidate(turn, parent, key, 1, 0.5, 0.5, done, succeeded, out_of_tokens=False, drawn=True)

    return (
        candidate(first, None, "on", done=False),
        candidate(others[0], None, "lost", done=True),
        candidate(second, 0, "end", done=True, succeeded=succeeded),
        candidate(others[1], 0, "lost", done=True),
    )


def _estimates(member: Member, given: Needs) -> Estimates:
    count = member.trained_tokens
    return Estimates(
        logprobs=_figures(count, -1.0, given.logprobs),
        values=_figures(count, 0.2, given.values),
        reference_logprobs=_figures(count, -1.1, given.reference),
        final_value=0.3 if given.final_values else float("nan"),
    )


def _shaped(trajectory: Trajectory, given: Needs, scale: float) -> ShapedTrajectory:
    estimates = _estimates(trajectory, given)
    rewards = tuple(scale * turn.reward for turn in trajectory.turns)
    return ShapedTrajectory(trajectory, estimates, rewards, torch.zeros(trajectory.trained_tokens), compared=True)


def _micro_batch(given: Needs) -> tuple[Targets, Outputs]:
    count = 2 * TOKENS
    weights = torch.full((count,), 1 / count)
    targets = Targets(
        old_logprobs=_figures(count, -1.0, given.logprobs),
        old_values=_figures(count, 0.2, given.values),
        reference_logprobs=_figures(count, -1.1, given.reference),
        advantages=_figures(count, 0.5),
        value_targets=_figures(count, 0.4),
        weights=weights,
        value_weights=weights if given.values else torch.zeros(count),
        supervised_weights=torch.zeros(count),
        turn_starts=torch.tensor([1.0, *[0.0] * (TOKENS - 1)] * 2),
    )
    return targets, Outputs(_figures(count, -1.2), _figures(count, 1.5), _figures(count, 0.1, given.values))


def _figures(count: int, first: float, is_given: bool = True) -> Tensor:
    """Figures [N] that differ a little; NaN where they are not given."""
    return first + 0.01 * torch.arange(count) if is_given else torch.full((count,), float("nan"))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors)) if tensors else torch.zeros(1)
