"""Losses against hand-computed numbers, torchrl, and their sums over micro-batches."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from tsr_lightning.batching.tensors import columns
from tsr_lightning.objectives import (
    CISPO,
    GRPO,
    GSPO,
    K2,
    K3,
    PPO,
    SFT,
    Clipped,
    ClippedWeight,
    CorrectedK3,
    K1Reward,
    Objective,
    ObservationLoss,
    Outputs,
    Targets,
    UnbiasedK3,
    ValueLoss,
)
from tsr_lightning.objectives.terms import binary_kl, clipped_surrogate, clipped_value_loss, k3, log_ratio
from tsr_lightning.training.metrics import step_metrics

OBJECTIVES = [
    PPO(kl=K3(0.1), entropy_coefficient=0.03, critic=ValueLoss(coefficient=0.7)),
    PPO(critic=ValueLoss(clip=None)),
    GRPO(kl=K3(0.1), entropy_coefficient=0.03),
    GRPO(kl=UnbiasedK3(0.1), surrogate=Clipped(dual=1.1)),
    GSPO(kl=K2(0.1)),
    GRPO(kl=CorrectedK3(0.1)),
    GRPO(observations=ObservationLoss(0.1)),
    CISPO(surrogate=ClippedWeight(0.2, 0.28), kl=K1Reward(0.1)),
    SFT(),
]


def targets_of(n: int, **given: Tensor) -> Targets:
    """Zeros and even weights by default."""
    even = torch.full((n,), 1 / n) if n else torch.zeros(0)
    tensors = {f.name: torch.zeros(n) for f in columns(Targets)} | {"weights": even, "value_weights": even}
    return Targets(**(tensors | given))


def outputs_of(logprobs: Tensor, entropies: Tensor | None = None, values: Tensor | None = None) -> Outputs:
    zeros = torch.zeros_like(logprobs)
    return Outputs(logprobs, zeros if entropies is None else entropies, zeros if values is None else values)


def random_batch(n: int, seed: int = 0) -> tuple[Targets, Tensor, Tensor]:
    """Targets with uneven weights that sum to 1, and the log-probabilities and values now, both leaves."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(n, generator=generator) * 3
    targets = Targets(
        old_logprobs=old,
        old_values=torch.randn(n, generator=generator),
        reference_logprobs=old + 0.3 * torch.randn(n, generator=generator),
        advantages=torch.randn(n, generator=generator),
        value_targets=torch.randn(n, generator=generator),
        weights=torch.rand(n, generator=generator).softmax(0),
        value_weights=torch.rand(n, generator=generator).softmax(0),
        supervised_weights=torch.rand(n, generator=generator).softmax(0),
        turn_starts=(torch.arange(n) % 3 == 0).float(),
        observation_weights=torch.rand(n, generator=generator).softmax(0),
    )
    now = (old + 0.4 * torch.randn(n, generator=generator)).requires_grad_()
    return targets, now, torch.randn(n, generator=generator).requires_grad_()


def test_clipped_surrogate_by_hand():
    # Widths 0.2 and 0.28, ratios 1.5, 1.5, 0.5, 0.5 and advantages 2, -2, 2, -2.
    # 1.5,  2: min(3, 1.28 * 2 = 2.56) = 2.56      clipped
    # 1.5, -2: min(-3, -2.56) = -3
    # 0.5,  2: min(1, 0.8 * 2 = 1.6) = 1
    # 0.5, -2: min(-1, -1.6) = -1.6                clipped
    log_ratios = torch.tensor([1.5, 1.5, 0.5, 0.5]).log().requires_grad_()
    clipped = clipped_surrogate(log_ratios, torch.tensor([2.0, -2.0, 2.0, -2.0]), low=0.2, high=0.28)
    torch.testing.assert_close(clipped.losses, torch.tensor([-2.56, 3.0, -1.0, 1.6]))
    assert clipped.is_clipped.tolist() == [True, False, False, True]
    # Unclipped, d(-r A) / d(log r) = -r A: 3 and -1; no gradient where clipped.
    clipped.losses.sum().backward()
    torch.testing.assert_close(log_ratios.grad, torch.tensor([0.0, 3.0, -1.0, 0.0]))


def test_low_and_high_clip_have_their_own_widths():
    # 1.25 lies within 1 + 0.28 though beyond 1 + 0.2; 0.75 lies beyond 1 - 0.2 though within 1 - 0.28.
    clipped = clipped_surrogate(torch.tensor([1.25, 0.75]).log(), torch.tensor([1.0, -1.0]), low=0.2, high=0.28)
    torch.testing.assert_close(clipped.losses, torch.tensor([-1.25, 0.8]))
    assert clipped.is_clipped.tolist() == [False, True]


def test_clipped_value_by_hand():
    # Width 0.5, old values 0, value targets 2.
    # V = 1:  (1 - 2)^2 = 1; clipped (0.5 - 2)^2 = 2.25, the larger; half is 1.125, no gradient
    # V = -1: (-1 - 2)^2 = 9, the larger; clipped (-0.5 - 2)^2 = 6.25; half is 4.5, gradient V - R = -3
    # V = 0.2: both (0.2 - 2)^2 = 3.24; half is 1.62, gradient -1.8
    values = torch.tensor([1.0, -1.0, 0.2]).requires_grad_()
    clipped = clipped_value_loss(values, torch.zeros(3), torch.full((3,), 2.0), clip=0.5)
    torch.testing.assert_close(clipped.losses, torch.tensor([1.125, 4.5, 1.62]))
    assert clipped.is_clipped.tolist() == [True, False, False]
    clipped.losses.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, -3.0, -1.8]))


def test_rounding_does_not_count_as_a_clipped_value():
    """In float32, old + (value - old) may differ from the value by rounding; no value here changes by 0.5."""
    old = torch.linspace(-0.2, 0.2, 4001)
    values = torch.linspace(-0.25, 0.25, 4001).flip(0)
    rounded = (old + (values - old) - 0.3).square()
    assert (rounded > (values - 0.3).square()).any()  # rounding occurs
    assert not clipped_value_loss(values, old, torch.full_like(old, 0.3), clip=0.5).is_clipped.any()


def test_value_loss_without_clip_is_half_the_squared_error():
    plain = clipped_value_loss(torch.tensor([1.0, -1.0]), torch.zeros(2), torch.full((2,), 2.0), clip=None)
    torch.testing.assert_close(plain.losses, torch.tensor([0.5, 4.5]))
    assert not plain.is_clipped.any()


def test_k3_by_hand_and_in_expectation():
    # r = 2: 2 - 1 - log 2 = 0.306853; r = 1: 0.
    torch.testing.assert_close(k3(torch.tensor([math.log(2), 0.0])), torch.tensor([0.30685282, 0.0]))
    # Near r = 1 it is d^2 / 2, which r - 1 - log r loses in float32.
    torch.testing.assert_close(k3(torch.tensor([1e-3])), torch.tensor([1e-6 / 2 + 1e-9 / 6]), rtol=1e-3, atol=0.0)
    torch.manual_seed(0)
    p, q = torch.distributions.Categorical(logits=torch.randn(2, 7)).probs
    expected = torch.distributions.kl_divergence(torch.distributions.Categorical(p), torch.distributions.Categorical(q))
    torch.testing.assert_close((p * k3(q.log() - p.log())).sum(), expected)


def test_the_binary_kl_is_that_of_two_outcomes_and_below_that_of_all():
    torch.manual_seed(0)
    old, new = Categorical(logits=3 * torch.randn(40, 7)), Categorical(logits=3 * torch.randn(40, 7))
    binary = binary_kl(new.probs.log(), old.probs.log())
    torch.testing.assert_close(binary, kl_divergence(Bernoulli(old.probs), Bernoulli(new.probs)), atol=1e-5, rtol=1e-4)
    assert (binary <= kl_divergence(old, new)[:, None] + 1e-5).all()
    assert binary_kl(torch.tensor([0.0, -1e-9, -1.0]), torch.tensor([0.0, 0.0, -1.0])).tolist() == [0, 0, 0]
    # a token that a search chose and an update made six times as likely: k3 is 3.2 nats, the two differ by 0.3
    kl = binary_kl(torch.tensor([0.3]).log(), torch.tensor([0.05]).log())
    torch.testing.assert_close(kl, torch.tensor([0.05 * math.log(1 / 6) + 0.95 * math.log(0.95 / 0.7)]))


def test_ppo_by_hand():
    # Two tokens, policy weights 0.25 and 0.75, value weights 0.5 and 0.5, widths 0.2 and 0.28.
    # Ratios 1.5 and 1, advantages 2 and -1: terms -2.56 (clipped) and 1: 0.25 * -2.56 + 0.75 * 1 = 0.11.
    # Values 1 and -1 against value targets 2, old 0, width 0.5: 1.125 and 4.5 (see above): 0.5 * 5.625 = 2.8125.
    # Entropies 1 and 2: 0.25 + 1.5 = 1.75.
    # KL to the reference: log(ref / pi) = log 2 and 0: 0.25 * (1 - log 2) = 0.0767132.
    # Loss = 0.11 + 0.5 * 2.8125 - 0.1 * 1.75 + 2 * 0.0767132 = 1.4946764.
    old = torch.tensor([-1.0, -2.0])
    now = old + torch.tensor([math.log(1.5), 0.0])
    targets = targets_of(
        2,
        old_logprobs=old,
        reference_logprobs=now + torch.tensor([math.log(2), 0.0]),
        advantages=torch.tensor([2.0, -1.0]),
        value_targets=torch.tensor([2.0, 2.0]),
        weights=torch.tensor([0.25, 0.75]),
        value_weights=torch.tensor([0.5, 0.5]),
    )
    ppo = PPO(critic=ValueLoss(0.5, 0.5), entropy_coefficient=0.1, kl=K3(2.0))
    loss = ppo.loss(targets, outputs_of(now, torch.tensor([1.0, 2.0]), torch.tensor([1.0, -1.0])))
    assert loss.total.item() == pytest.approx(1.4946764, abs=1e-6)
    assert loss.policy_weight.item() == pytest.approx(1.0)
    before, after = (Bernoulli(x.exp()) for x in (targets.old_logprobs, now))
    bernoulli_kl = float((targets.weights * kl_divergence(before, after)).sum())
    expected = {
        "policy_loss": 0.11,
        "entropy": 1.75,
        "approx_kl": 0.25 * (0.5 - math.log(1.5)),  # r - 1 - log r at r = 1.5; 0 at r = 1
        "binary_kl": bernoulli_kl,
        "clip_fraction": 0.25,
        "clip_fraction_low": 0.0,
        "clip_fraction_high": 0.25,
        "ratio": 0.25 * 1.5 + 0.75,
        "ratio_deviation": 0.25 * 0.5,
        "ratio_squared": 0.25 * 2.25 + 0.75,
        "kl_reference": 0.25 * (1 - math.log(2)),
        "value_loss": 2.8125,
        "value_weight": 1.0,
        "value_clip_fraction": 0.5,
    }
    assert {name: stat.item() for name, stat in loss.stats.items()} == pytest.approx(expected, abs=1e-6)
    assert {name: value.item() for name, value in loss.maxima.items()} == pytest.approx({"ratio_max": 1.5})
    grpo = GRPO(entropy_coefficient=0.1, kl=K3(2.0)).loss(targets, outputs_of(now, torch.tensor([1.0, 2.0])))
    # The same without the critic: 1.4946764 - 1.40625.
    assert grpo.total.item() == pytest.approx(0.0884264, abs=1e-6)
    assert list(grpo.stats) == list(expected)[:11]


def test_sft_by_hand():
    # -(0.25 * -1 + 0.75 * -3) = 2.5, and its gradient is minus the weights.
    weights = torch.tensor([0.25, 0.75])
    now = torch.tensor([-1.0, -3.0], requires_grad=True)
    loss = SFT().loss(targets_of(2, weights=weights), outputs_of(now, torch.tensor([2.0, 4.0])))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(2.5)
    assert loss.stats["entropy"].item() == pytest.approx(3.5)
    torch.testing.assert_close(now.grad, -weights)


@pytest.mark.parametrize("objective", [PPO(), GRPO()])
def test_the_gradient_at_ratio_one_is_the_policy_gradient(objective: Objective):
    # At ratio 1 the gradient of the loss is -weight * advantage: a descent step makes good tokens more likely.
    targets, _, _ = random_batch(9)
    now = targets.old_logprobs.clone().requires_grad_()
    loss = objective.loss(targets, outputs_of(now))
    loss.total.backward()
    torch.testing.assert_close(now.grad, -targets.weights * targets.advantages)
    assert loss.stats["approx_kl"] == loss.stats["ratio_deviation"] == loss.stats["clip_fraction"] == 0


@pytest.mark.parametrize("objective", [PPO(entropy_coefficient=0.5), GRPO(entropy_coefficient=0.5)])
def test_the_entropy_term_rewards_entropy(objective: Objective):
    entropies = torch.ones(4, requires_grad=True)
    objective.loss(targets_of(4), outputs_of(torch.zeros(4, requires_grad=True), entropies)).total.backward()
    torch.testing.assert_close(entropies.grad, torch.full((4,), -0.5 / 4))


@pytest.mark.parametrize("objective", [PPO(kl=K3(1.0)), GRPO(kl=K3(1.0))])
def test_the_kl_term_pulls_towards_the_reference(objective: Objective):
    # d k3 / d log pi = 1 - ref / pi: above 0 where the policy is likelier than the reference, below where it is not.
    now = torch.tensor([0.0, -2.0], requires_grad=True)
    reference = torch.tensor([-1.0, -1.0])
    objective.loss(
        targets_of(2, old_logprobs=now.detach(), reference_logprobs=reference), outputs_of(now)
    ).total.backward()
    torch.testing.assert_close(now.grad, (1 - (reference - now.detach()).exp()) / 2)
    assert now.grad[0] > 0 > now.grad[1]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_and_statistics_of_micro_batches_add_up(objective: Objective):
    n = 24
    targets, now, values = random_batch(n)
    entropies = torch.rand(n, generator=torch.Generator().manual_seed(5)).requires_grad_()
    leaves = (now, entropies, values)

    def gradients() -> list[Tensor]:
        current = [torch.zeros(n) if leaf.grad is None else leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return current

    whole = objective.loss(targets, Outputs(*leaves))
    whole.total.backward()
    expected = gradients()
    parts = []
    turns = torch.arange(n).split(3)  # as `random_batch` has them; none is split
    for some in ([5], [1, 7, 0], [], [2, 3, 4, 6]):
        indices = torch.cat([turns[i] for i in some]) if some else torch.arange(0)
        part = targets.map(lambda column, indices=indices: column[indices])
        parts.append(objective.loss(part, Outputs(*(leaf[indices] for leaf in leaves))))
        parts[-1].total.backward()
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    for actual, correct in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(actual, correct)
    torch.testing.assert_close(sum(part.policy_weight for part in parts), whole.policy_weight)
    for name, value in whole.maxima.items():
        assert max(part.maxima[name] for part in parts) == value > 0
    for name, stat in whole.stats.items():
        torch.testing.assert_close(sum(part.stats[name] for part in parts), stat)
        assert stat.shape == ()
        assert not stat.requires_grad


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("n", [0, 3])
def test_zero_weights_give_zero_loss_and_gradients(objective: Objective, n: int):
    targets, now, values = random_batch(n)
    targets = Targets(
        **{f.name: getattr(targets, f.name) for f in columns(Targets)}
        | dict.fromkeys(("weights", "value_weights", "observation_weights"), torch.zeros(n))
        | {"old_logprobs": targets.old_logprobs - 1e4}
    )
    loss = objective.loss(targets, outputs_of(now, values=values))
    loss.total.backward()
    assert loss.total.item() == 0
    assert all(stat.item() == 0 for stat in (loss.policy_weight, *loss.stats.values(), *loss.maxima.values()))
    torch.testing.assert_close(now.grad, torch.zeros(n))


def test_an_extreme_ratio_is_finite():
    assert log_ratio(torch.tensor([0.0]), torch.tensor([-1e4])).exp().isfinite().all()


@pytest.mark.parametrize("objective", [PPO(entropy_coefficient=0.0), GRPO(entropy_coefficient=0.0), SFT()])
def test_terms_at_coefficient_zero_have_no_gradient(objective: Objective):
    now, entropies = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    # Without a reference its log-probabilities are zeros, from which an unlikely token would be extremely far.
    loss = objective.loss(targets_of(3, old_logprobs=torch.full((3,), -500.0)), outputs_of(now - 500, entropies))
    loss.total.backward()
    assert entropies.grad is None
    assert "kl_reference" not in loss.stats
    assert loss.total.isfinite()


def test_ppo_matches_torchrl():
    torch.manual_seed(0)
    n, actions = 64, 5
    body, head = nn.Linear(4, actions), nn.Linear(4, 1)
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(head, in_keys=["observation"])
    batch = TensorDict(
        observation=torch.randn(n, 4),
        action=torch.randint(actions, (n,)),
        advantage=torch.randn(n, 1),
        value_target=torch.randn(n, 1),
        state_value=torch.randn(n, 1),
        batch_size=[n],
    )
    distribution = torch.distributions.Categorical(logits=body(batch["observation"]))
    batch["action_log_prob"] = distribution.log_prob(batch["action"]).detach() + 0.3 * torch.randn(n)

    theirs = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=(0.2, 0.28),
        clip_value=0.5,
        entropy_coeff=0.03,
        critic_coeff=0.5,
        loss_critic_type="l2",
    )
    out = theirs(batch.clone())
    total = out["loss_objective"] + out["loss_entropy"] + out["loss_critic"]
    expected = torch.autograd.grad(total, list(theirs.parameters()))

    # Their value loss is the squared error, ours half of it, so our coefficient is twice theirs.
    ours = PPO(critic=ValueLoss(0.5, 1.0), entropy_coefficient=0.03).loss(
        targets_of(
            n,
            old_logprobs=batch["action_log_prob"],
            old_values=batch["state_value"][:, 0],
            advantages=batch["advantage"][:, 0],
            value_targets=batch["value_target"][:, 0],
        ),
        Outputs(distribution.log_prob(batch["action"]), distribution.entropy(), head(batch["observation"])[:, 0]),
    )
    torch.testing.assert_close(ours.total, total)
    torch.testing.assert_close(ours.stats["policy_loss"], out["loss_objective"].detach())
    torch.testing.assert_close(ours.stats["entropy"], out["entropy"])
    torch.testing.assert_close(ours.stats["value_loss"], out["loss_critic"].detach())
    figures = {name: stat.item() for name, stat in ours.stats.items()} | {"policy_weight": 1.0}
    sample_size = step_metrics(figures, {})["train/effective_sample_size"]
    assert sample_size == pytest.approx(out["ESS"].item(), abs=1e-6)
    torch.testing.assert_close(ours.stats["ratio"], out["mean_ratio"])
    torch.testing.assert_close(ours.maxima["ratio_max"], out["max_ratio"])
    assert min(ours.stats["clip_fraction"], ours.stats["value_clip_fraction"]) > 0.05  # both clips are active
    parameters = [*body.parameters(), *head.parameters()]
    gradients = torch.autograd.grad(ours.total, parameters)
    by_shape = {tuple(gradient.shape): gradient for gradient in expected}
    assert len(by_shape) == len(parameters)
    for gradient in gradients:
        torch.testing.assert_close(gradient, by_shape[tuple(gradient.shape)])
