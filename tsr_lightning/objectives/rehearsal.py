"""Rehearses an objective and its advantage estimator on a few made-up trajectories, before a model loads: a need, a
minimum or a property that is wrong or was forgotten is refused in one sentence.

What an objective does not declare to need is NaN in the rehearsal (`made_up.py`).
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tsr_lightning.batching.sequences import OF_TURNS
from tsr_lightning.batching.tensors import Credit
from tsr_lightning.errors import ConfigError, describe
from tsr_lightning.objectives.backups import proposed_in
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.estimators import AdvantageEstimator
from tsr_lightning.objectives.made_up import (
    EVERYTHING,
    TOKENS,
    estimates_of,
    figures,
    made_up_groups,
    micro_batch,
    shaped,
)
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.signs import check_advantages, check_loss, check_values
from tsr_lightning.trajectory import Comparison, Group

# What of the estimates each need stands for.
_NEEDED: Mapping[str, str] = {
    "logprobs": "the log-probabilities of the policy that sampled",
    "values": "the critic's values",
    "final_values": "the critic's value after the last turn",
    "reference": "the log-probabilities under the reference",
    "entropies": "the policy's entropies",
    "logprobs_in_credit": "log-probabilities",
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

    own = [quantity for quantity in needs.quantities if quantity not in OF_TURNS]  # its credit gives these

    def credit(given: Needs) -> Tensor:
        estimates = [[estimates_of(member, given) for member in part.members] for part in parts]
        credits = objective.credit(parts, estimates)
        for one in chain.from_iterable(credits):
            _check_quantities(name, own, one)
        return _joined([tensor for group in credits for one in group for tensor in (one.advantages, one.weights)])

    def loss(given: Needs) -> Tensor:
        return objective.loss(*micro_batch(given, _Quantities(name, needs.quantities))).total.detach().reshape(1)

    _check_needs(name, needs, "credit", credit)
    _check_needs(name, needs, "loss", loss)
    check_loss(objective, parts)


def _comparisons(objective: Objective) -> list[Group | Comparison]:
    """Splits made-up groups into what is credited, with search trees where the objective needs them.

    Raises:
        ConfigError: there is nothing, or a comparison that no run could train on.
    """
    name, needs = type(objective).__name__, objective.needs
    rolled_out = made_up_groups(max(2, objective.minimum_compared), needs)
    parts = [part for group in rolled_out for part in objective.comparisons(group)]
    if not parts:
        had = "with" if needs.tree else "without (Needs.tree is False)"
        raise ConfigError(f"{name}.comparisons gives nothing for made-up groups {had} search trees: correct it")
    trees = [one.tree for group in rolled_out for one in group.trajectories]
    proposed = {(one.turn, state) for tree in trees for one, state in zip(tree, proposed_in(tree), strict=True)}
    for part in parts:
        if isinstance(part, Comparison):
            _check_comparison(name, part, objective.minimum_compared)
            kept = needs.merges_states or all(
                proposed.issuperset(zip(path.turns, path.states, strict=True)) for path in part.members
            )
            if not kept:
                raise ConfigError(
                    f"{name} gives a path a turn and another state than it was proposed in: "
                    "objectives.backups.proposed_in(tree) has the state of each candidate of a tree"
                )
            check_values(name, part)
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
    quantities = _Quantities(type(objective).__name__, objective.needs.quantities)
    return objective.loss(*micro_batch(EVERYTHING, quantities))


class _Quantities(dict[str, Tensor]):
    """Made-up quantities per token: those that an objective declares; others are refused by name."""

    def __init__(self, objective: str, names: Sequence[str]) -> None:
        super().__init__({name: figures(2 * TOKENS, -1.0 - 0.1 * i) for i, name in enumerate(names)})
        self.objective = objective

    def __missing__(self, name: str) -> Tensor:
        raise ConfigError(
            f"{self.objective} reads the quantity {name!r} per token, and its needs name {list(self) or 'none'}: add "
            "it to Needs.quantities, or a surrogate's to Surrogate.quantities"
        )


def _check_quantities(name: str, declared: Sequence[str], credit: Credit) -> None:
    """Refuses a credit whose quantities are not those that an objective declares beside the known ones."""
    for missing in [each for each in declared if each not in credit.quantities]:
        close = get_close_matches(missing, [*OF_TURNS, *credit.quantities], n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"known without credit: {', '.join(OF_TURNS)}"
        raise ConfigError(f"{name}.needs names the quantity {missing!r} per token, and its credit gives none; {guess}")
    for quantity, values in credit.quantities.items():
        if quantity not in declared:
            raise ConfigError(
                f"{name} gives the quantity {quantity!r} per token, which its needs do not name, so that no loss reads "
                "it: add it to Needs.quantities"
            )
        if values.shape != credit.weights.shape:
            shapes = f"{tuple(values.shape)} for {len(credit.weights)} trained tokens"
            raise ConfigError(f"{name} gives the quantity {quantity!r} per token in the shape {shapes}")


def rehearse_estimator(estimator: AdvantageEstimator) -> None:
    """Compares what an advantage estimator declares with what it does.

    Raises:
        ConfigError: they differ, or an advantage is not finite.
    """
    name, needs, least = type(estimator).__name__, estimator.needs, estimator.minimum_compared

    def advantages(given: Needs, members: int = least, scale: float = 1.0) -> Tensor:
        groups = made_up_groups(members, needs)
        found = estimator([[shaped(one, given, scale) for one in group.trajectories] for group in groups])
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
    if reads_rewards:
        own = [
            torch.full((one.trained_tokens,), sum(one.rewards))
            for group in made_up_groups(members, needs)
            for one in group.trajectories
        ]
        check_advantages(name, _joined(own), advantages(needs, members) - advantages(needs, members, scale=-3.0))
    trajectory, *_ = made_up_groups(1, needs)[0].trajectories
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
            undeclared = [need for need, is_declared in _declared(needs).items() if not is_declared]
            without: dict[str, dict[str, Any]] = {need: {need: False} for need in undeclared}
            read = [need for need in undeclared if not compute(replace(EVERYTHING, **without[need])).isfinite().all()]
            is_whole = bool(compute(EVERYTHING).isfinite().all())
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
        "entropies": needs.entropies,
        "logprobs_in_credit": needs.logprobs_in_credit,
    }


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors)) if tensors else torch.zeros(1)
