"""The tokens of observations as targets, against a plain forward pass of each trajectory."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, GSPO, PPO, ObservationLoss, PolicyGradient, TreeCredit
from tsr_lightning.policy.chat import Full, LastK, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.setting_checks import check_observations
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory, Turn

TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
COEFFICIENT = 0.3
# Ids of prompt and responses, observations between them: O are observations, and what comes before is the prompt.
EPISODES = [
    ([5, 6, 7], [[8, 9], [10]], [[11, 12, 13]]),
    ([5, 6, 7], [[8], [9], [10, 11]], [[12], [13, 14]]),
    ([5, 6], [[9, 9, 9]], []),
]


def trajectory(place: int, reward: float) -> Trajectory:
    prompt, responses, observations = EPISODES[place]
    turns, context = [], tuple(prompt)
    for response, after in zip(responses, [*observations, []], strict=True):
        turns.append(Turn(context, tuple(response), (-1.0,) * len(response), True, (), "", reward, True, True, ""))
        context = (*context, *response, *after)
    return Trajectory(0, place, "Sample", Origin.SAMPLED, tuple(turns), Ended.FAILED, (), ())


def steps(objective: PolicyGradient, rewards: Sequence[float], micro_batch_tokens: int = 1000) -> list[list[Batch]]:
    group = Group(0, tuple(trajectory(place, reward) for place, reward in enumerate(rewards)))

    def estimate(asked: Sequence[ToEstimate]) -> list[Estimates]:
        sizes = [one.piece.trained_tokens for one in asked]
        return [Estimates(torch.full((n,), -2.0), torch.zeros(n), torch.zeros(n), 0.0) for n in sizes]

    updates = Updates(minibatches=1, micro_batch_tokens=micro_batch_tokens)
    credited = credited_sequences([objective.comparisons(group)], objective, estimate, ProcessGroup(), updates)
    return schedule(credited.sequences, updates, Key(0))


def gradient(policy: Policy, total: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(total, [p for p in policy.model.parameters() if p.requires_grad]))


def cross_entropy(policy: Policy) -> Tensor:
    """The mean over all observation tokens, by the model's own pass of each trajectory."""
    losses = []
    for prompt, responses, observations in EPISODES:
        ids, is_observation = list(prompt), [False] * len(prompt)
        for response, after in zip(responses, [*observations, []], strict=True):
            ids += [*response, *after]
            is_observation += [False] * len(response) + [True] * len(after)
        logits = policy.causal_lm(torch.tensor([ids])).logits[0, :-1]
        each = functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        losses.append(each[torch.tensor(is_observation[1:])])
    return torch.cat(losses).mean()


@pytest.mark.parametrize("micro_batch_tokens", [1000, 6], ids=["one micro-batch", "several"])
@pytest.mark.parametrize("kind", [GRPO, GSPO, PPO])
def test_the_term_is_the_mean_cross_entropy_of_observations(kind: type[PolicyGradient], micro_batch_tokens: int):
    plain, observing = kind(), kind(observations=ObservationLoss(COEFFICIENT))
    policy = Policy(PolicySpec(Scratch(32, 2, 2, 64)), TOKENIZER, critic=plain.needs.values)
    [before], [after] = (steps(each, [1.0, 0.0, 0.5], micro_batch_tokens) for each in (plain, observing))
    assert (len(after) > 1) == (micro_batch_tokens == 6)

    def total(objective: PolicyGradient, step: Sequence[Batch]) -> Tensor:
        outputs = [policy.outputs(batch.packed, 1.0, entropies=True) for batch in step]
        return torch.stack(
            [objective.loss(batch.targets, own).total for batch, own in zip(step, outputs, strict=True)]
        ).sum()

    expected = COEFFICIENT * cross_entropy(policy)
    torch.testing.assert_close(total(observing, after) - total(plain, before), expected, rtol=1e-5, atol=1e-5)
    of_term = gradient(policy, expected)
    with_term, without = (gradient(policy, total(*each)) for each in ((observing, after), (plain, before)))
    for one, other, of_one in zip(with_term, without, of_term, strict=True):
        torch.testing.assert_close(one - other, of_one, rtol=1e-4, atol=1e-5)
    assert max(float(each.abs().max()) for each in of_term) > 1e-3
    assert sum(len(batch.packed) for batch in after) <= sum(len(batch.packed) for batch in before) + 2


def test_observations_teach_where_all_fail_alike():
    assert steps(GRPO(), [0.0, 0.0, 0.0]) == []
    [[batch]] = steps(GRPO(observations=ObservationLoss()), [0.0, 0.0, 0.0])
    assert batch.targets.observation_weights.sum() == pytest.approx(1.0)
    assert not batch.targets.advantages.any()


def test_where_no_observation_follows_a_response_the_term_is_refused():
    check_observations(GRPO(observations=ObservationLoss()), Full())
    check_observations(GRPO(), SingleTurn())
    for context in (SingleTurn(), LastK(1), LastK(5)):
        name = type(context).__name__
        with pytest.raises(ConfigError, match=rf"data\.context is '{name}': prompts leave earlier turns out.*use Full"):
            check_observations(GRPO(observations=ObservationLoss()), context)
    with pytest.raises(ConfigError, match="under TreeCredit a response is trained in its state, and no observation"):
        GRPO(searched=TreeCredit(), observations=ObservationLoss())
    with pytest.raises(ConfigError, match=r"ObservationLoss\.coefficient is -1"):
        ObservationLoss(-1.0)
