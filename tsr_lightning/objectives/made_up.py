"""Made-up trajectories, search trees and micro-batches, on which objectives are rehearsed before a model loads.

What is not given is NaN here, and zeros in a run, which would be taken for estimates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tsr_lightning.batching.tensors import Estimates, Outputs, Targets
from tsr_lightning.objectives.base import Needs
from tsr_lightning.objectives.estimators import ShapedTrajectory
from tsr_lightning.trajectory import Candidate, Ended, Group, Member, Message, Origin, Trajectory, Turn

GROUPS, TOKENS = 3, 3  # groups, and tokens of a response
EVERYTHING = Needs(
    logprobs=True, logprobs_in_credit=True, values=True, final_values=True, reference=True, entropies=True
)
_MESSAGES = (Message("user", "observation"),)


def made_up_groups(members: int, needs: Needs) -> list[Group]:
    """Groups of different returns; half of the members succeed, and in each group another one is the first to. Where
    greedy play is needed, that of each group fails."""

    def greedy(group: int) -> list[Trajectory]:
        failed = _trajectory(group, 1 - group % 2, needs)
        return [replace(failed, member=members, strategy="Greedy", origin=Origin.GREEDY)] if needs.greedy else []

    return [
        Group(group, tuple([_trajectory(group, member, needs) for member in range(members)] + greedy(group)))
        for group in range(GROUPS)
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
        ended=Ended.SUCCEEDED if succeeded else Ended.TURN_LIMIT,
        final_prompt=() if succeeded else (1,),
        final_messages=_MESSAGES,
        state_keys=("first", f"second {member}") if needs.state_keys else (),
        tree=_tree(turns, succeeded) if needs.tree else (),
    )


def _turn(number: int, reward: float) -> Turn:
    """A turn whose prompt and response differ from those of other numbers."""
    response = tuple(range(number, number + TOKENS))
    text = f"response {number}"
    return Turn((number,), response, (-1.0,) * TOKENS, True, _MESSAGES, text, reward, True, True, text)


def _tree(turns: Sequence[Turn], succeeded: bool) -> tuple[Candidate, ...]:
    """The tree of a search: another response beside each of the trajectory's two, which failed."""
    first, second = turns
    others = [_turn(2, 0.0), replace(_turn(3, 0.0), prompt=second.prompt)]
    others[0] = replace(others[0], prompt=first.prompt)

    def candidate(turn: Turn, parent: int | None, key: str, ended: Ended | None) -> Candidate:
        return Candidate(turn, parent, key, 1, 0.5, 0.5, ended, drawn=True)

    return (
        candidate(first, None, "on", None),
        candidate(others[0], None, "lost", Ended.FAILED),
        candidate(second, 0, "end", Ended.SUCCEEDED if succeeded else Ended.FAILED),
        candidate(others[1], 0, "lost", Ended.FAILED),
    )


def estimates_of(member: Member, given: Needs) -> Estimates:
    """What credit may read."""
    count = member.trained_tokens
    return Estimates(
        logprobs=figures(count, -1.0, given.logprobs and given.logprobs_in_credit),
        values=figures(count, 0.2, given.values),
        reference_logprobs=figures(count, -1.1, given.reference and given.logprobs_in_credit),
        final_value=0.3 if given.final_values else float("nan"),
        entropies=figures(count, 0.7, given.entropies),
    )


def shaped(trajectory: Trajectory, given: Needs, scale: float) -> ShapedTrajectory:
    estimates = estimates_of(trajectory, given)
    rewards = tuple(scale * turn.reward for turn in trajectory.turns)
    return ShapedTrajectory(
        trajectory, estimates, rewards, torch.zeros(trajectory.trained_tokens), trajectory.origin.is_sampled
    )


def micro_batch(given: Needs, quantities: Mapping[str, Tensor]) -> tuple[Targets, Outputs]:
    count = 2 * TOKENS
    weights = torch.full((count,), 1 / count)
    targets = Targets(
        old_logprobs=figures(count, -1.0, given.logprobs),
        old_values=figures(count, 0.2, given.values),
        reference_logprobs=figures(count, -1.1, given.reference),
        advantages=figures(count, 0.5),
        value_targets=figures(count, 0.4),
        weights=weights,
        value_weights=weights if given.values else torch.zeros(count),
        supervised_weights=torch.zeros(count),
        turn_starts=torch.tensor([1.0, *[0.0] * (TOKENS - 1)] * 2),
        observation_weights=torch.zeros(count),
        quantities=quantities,
    )
    return targets, Outputs(figures(count, -1.2), figures(count, 1.5), figures(count, 0.1, given.values))


def figures(count: int, first: float, is_given: bool = True) -> Tensor:
    """Figures [N] that differ a little; NaN where they are not given."""
    return first + 0.01 * torch.arange(count) if is_given else torch.full((count,), float("nan"))
