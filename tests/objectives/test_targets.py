"""Distributions over candidates as targets: mctx's own figures, the gradient of the cross-entropy, values by hand."""

import pytest
import torch
from trees import candidate_of, searched

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    DrGRPO,
    ExponentialWeights,
    ImprovedPolicy,
    LeaveOneOut,
    MaxBackup,
    OptimalBaseline,
    RolloutScaled,
    TreeCredit,
)
from tsr_lightning.objectives.rehearsal import rehearse
from tsr_lightning.objectives.targets import CandidateTarget, completed, improved
from tsr_lightning.trajectory import Comparison, Group, State, TreePath

LOGITS = torch.tensor([0.3, -1.2, 0.9, 0.0], dtype=torch.float64)
VALUES = torch.tensor([0.2, 0.7, -0.4, 0.0], dtype=torch.float64)
ESTIMATED = torch.tensor([True, True, True, False])


def test_the_improved_policy_is_that_of_mctx() -> None:
    """mctx 0.0.71: `qtransform_completed_by_mix_value(rescale_values=False)` and `softmax(logits + .)` of a root with
    these prior logits, q values and visits 3, 1, 2 and 0, whose raw value is the mean of q weighted by the prior. Its
    scale is (50 + 3) * 0.1."""
    q = completed(VALUES, ESTIMATED, LOGITS)
    scaled = [1.0600000619888306, 3.7100000381469727, -2.120000123977661, -0.6485772132873535]
    policy = [0.22893008589744568, 0.7230052947998047, 0.017346948385238647, 0.03071770817041397]
    torch.testing.assert_close(5.3 * q, torch.tensor(scaled, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(improved(LOGITS, q, 5.3), torch.tensor(policy, dtype=torch.float64), atol=1e-6, rtol=0)


def test_values_stay_where_none_or_all_have_an_estimate() -> None:
    for estimated in (torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)):
        assert torch.equal(completed(VALUES, estimated, LOGITS), VALUES)


def test_what_has_an_estimate_may_be_ever_so_unlikely() -> None:
    """The one response with an estimate has probability 0 in float64."""
    logits, estimated = torch.tensor([-800.0, -10.0], dtype=torch.float64), torch.tensor([True, False])
    q = completed(torch.tensor([0.7, 0.2], dtype=torch.float64), estimated, logits)
    assert q.tolist() == [0.7, 0.7]


def members(*drawn: tuple[str, float]) -> tuple[TreePath, ...]:
    """Single responses with values; `candidate_of` gives each letter a log-probability of -1."""
    return tuple(
        TreePath((candidate_of(text).turn,), (State(1, "s", 0),), value, False, False) for text, value in drawn
    )


@pytest.mark.parametrize("target", [ImprovedPolicy(2.0), ExponentialWeights(2.0)], ids=repr)
def test_the_step_is_that_of_the_cross_entropy(target: CandidateTarget) -> None:
    """Sum over draws of gain / draws, by response, is the target minus the policy: down the gradient of the loss."""
    drawn = members(("a", 0.9), ("b", 0.1), ("a", 0.9), ("cc", 0.5))
    gains = target.compared(drawn, [True] * 4)
    assert sum(each.value for each in gains) == pytest.approx(0)
    of_response = {text: sum(g.value for g in gains if g.turns[0].text == text) / 4 for text in ("a", "b", "cc")}
    start = {ImprovedPolicy: [-1.0, -1.0, -2.0], ExponentialWeights: [2 / 4, 1 / 4, 1 / 4]}[type(target)]
    logits = torch.tensor(start, dtype=torch.float64)
    logits = (logits if isinstance(target, ImprovedPolicy) else logits.log()).requires_grad_()
    wanted = (logits.detach() + 2.0 * torch.tensor([0.9, 0.1, 0.5], dtype=torch.float64)).softmax(-1)
    loss = -(wanted * logits.log_softmax(-1)).sum()
    [gradient] = torch.autograd.grad(loss, logits)
    assert list(of_response.values()) == pytest.approx((-gradient).tolist())


def test_what_has_no_estimate_gets_the_mean_of_the_others() -> None:
    """q of b becomes 0.8, that of a; so both keep the policy's share, and nothing is learned."""
    gains = ImprovedPolicy(3.0).compared(members(("a", 0.8), ("b", 0.1)), [True, False])
    assert [each.value for each in gains] == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(
    ("score", "share", "q"),
    [
        pytest.param(0.4, 0.5, 0.2, id="half of its score, by which it was pruned"),
        pytest.param(None, 0.5, 0.45, id="no score: the mean of 0.9 and 0"),
        pytest.param(0.4, 0.0, 0.45, id="a score that is worth nothing: the mean"),
    ],
)
def test_tree_credit_compares_by_a_target(score: float | None, share: float, q: float) -> None:
    """a leads to b, which succeeds; c is not searched on; d fails: p' = softmax(log p + 2 (0.9, q or 0))."""
    tree = (
        candidate_of("a", key="B", score=0.0),
        candidate_of("c", key="C", score=score),
        candidate_of("d", key="D", done=True, score=0.0),
        candidate_of("b", 0, key="E", succeeded=True),
        candidate_of("x", 0, key="F", done=True, score=0.0),
    )
    objective = DrGRPO(searched=TreeCredit(MaxBackup(0.9, share), target=ImprovedPolicy(2.0)))
    first, _ = [part for part in objective.comparisons(Group(0, (searched(tree),))) if isinstance(part, Comparison)]
    wanted = torch.tensor([1.8, 2 * q, 0.0], dtype=torch.float64).softmax(-1) - 1 / 3
    assert [each.value for each in first.members] == pytest.approx((3 * wanted).tolist())


def test_a_beam_of_one_teaches_where_it_went_on_with_one_response() -> None:
    """The search went on with a and failed; c has the better score, and is preferred though nothing followed it."""
    failure = candidate_of("x", 0, key="F", done=True, score=0.0)
    tree = (candidate_of("a", key="B", score=0.6), candidate_of("c", key="C", score=0.8), failure)
    objective = DrGRPO(searched=TreeCredit(MaxBackup(0.9), target=ImprovedPolicy(2.0)))
    [only] = [part for part in objective.comparisons(Group(0, (searched(tree),))) if isinstance(part, Comparison)]
    gains = {each.turns[0].text: each.value for each in only.members}
    assert gains["c"] == pytest.approx(-gains["a"])
    assert gains["c"] > 0.04


@pytest.mark.parametrize("target", [ImprovedPolicy(), ExponentialWeights()], ids=repr)
def test_a_target_passes_the_rehearsal(target: CandidateTarget) -> None:
    rehearse(DrGRPO(searched=TreeCredit(target=target)))


def test_a_division_by_the_deviation_is_refused_beside_a_target() -> None:
    with pytest.raises(ConfigError, match=r"GRPO\.advantage is 'GroupNormalised': TreeCredit\.target .* use DrGRPO"):
        GRPO(searched=TreeCredit(target=ImprovedPolicy()))
    with pytest.raises(ConfigError, match=r"GRPO\.advantage is 'RolloutScaled': TreeCredit\.target .* use DrGRPO"):
        GRPO(searched=TreeCredit(target=ImprovedPolicy()), advantage=RolloutScaled())
    with pytest.raises(ConfigError, match=r"DrGRPO\.whiten is True: TreeCredit\.target .* which whitening undoes"):
        DrGRPO(searched=TreeCredit(target=ImprovedPolicy()), whiten=True)
    with pytest.raises(
        ConfigError, match=r"DrGRPO\.advantage is 'OptimalBaseline': TreeCredit\.target .* another mean"
    ):
        DrGRPO(searched=TreeCredit(target=ImprovedPolicy()), advantage=OptimalBaseline())
    GRPO(searched=TreeCredit(), advantage=OptimalBaseline())
    GRPO(searched=TreeCredit())
    GRPO(searched=TreeCredit(target=ImprovedPolicy()), advantage=LeaveOneOut())


@pytest.mark.parametrize("target", [ImprovedPolicy, ExponentialWeights])
def test_a_scale_of_nothing_is_refused(target: type[ImprovedPolicy]) -> None:
    with pytest.raises(ConfigError, match=r"scale is 0: give a positive number"):
        target(0)
