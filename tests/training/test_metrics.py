"""The figures of a rollout."""

from dataclasses import replace

import pytest
import torch
from callback_support import trajectory

from tsr_lightning.batching.tensors import Credit
from tsr_lightning.costs import Costs
from tsr_lightning.training.metrics import rollout_metrics, signal_metrics, step_metrics
from tsr_lightning.trajectory import Group, Origin


def test_outcomes_are_separate_by_origin():
    outcomes = [(Origin.SAMPLED, False), (Origin.SAMPLED, True), (Origin.SEARCHED, False), (Origin.DEMONSTRATED, True)]
    members = tuple(replace(trajectory(0, i, succeeded=won), origin=origin) for i, (origin, won) in enumerate(outcomes))
    figures = rollout_metrics([Group(0, members)], [], Costs(), seconds=1.0, skipped=0)
    assert figures["rollout/success_rate"] == 0.5
    assert figures["rollout/sampled/success_rate"] == 0.5
    assert figures["rollout/searched/success_rate"] == 0.0
    assert figures["rollout/demonstrated/success_rate"] == 1.0


def credit(advantages: list[float], weight: float = 1.0) -> Credit:
    given = torch.tensor(advantages)
    zeros, weights = torch.zeros_like(given), torch.full_like(given, weight)
    return Credit(given, zeros, weights, weights, zeros, zeros)


def test_signal_needs_an_advantage_and_a_weight():
    groups = [
        [credit([0.0, 0.0]), credit([0.0])],  # equal returns
        [credit([0.5, 0.5]), credit([-0.5, 0.0])],  # 3 of 4 tokens
        [credit([1.0], weight=0.0), credit([])],  # left out
    ]
    assert signal_metrics(groups) == {"rollout/signal_group_share": 1 / 3, "rollout/signal_token_share": 3 / 8}
    assert signal_metrics([[credit([])]]) == {"rollout/signal_group_share": 0.0, "rollout/signal_token_share": 0.0}


@pytest.mark.parametrize(
    ("weights", "ratios", "expected"),
    [
        ([0.25] * 4, [1.0] * 4, 1.0),
        ([0.25] * 4, [3.0] * 4, 1.0),
        ([0.25] * 4, [1.0, 0.0, 0.0, 0.0], 0.25),  # one of four counts
        ([0.5, 0.25, 0.25, 0.0], [1.0, 2.0, 0.0, 9.0], 1.0 / 1.5),  # (0.5 + 0.5)^2 / (1 * (0.5 + 1)); the last not
        ([2.0, 1.0, 1.0, 0.0], [1.0, 2.0, 0.0, 9.0], 1.0 / 1.5),  # whatever the weights sum to
    ],
)
def test_effective_sample_size_by_hand(weights: list[float], ratios: list[float], expected: float):
    pairs = list(zip(weights, ratios, strict=True))
    sums = {
        "policy_weight": sum(weights),
        "ratio": sum(w * r for w, r in pairs),
        "ratio_squared": sum(w * r * r for w, r in pairs),
    }
    figures = step_metrics(sums, {"ratio_max": 9.0})
    assert figures["train/effective_sample_size"] == pytest.approx(expected)
    assert figures["train/ratio_max"] == 9.0
    assert "train/ratio_squared" not in figures


def test_a_step_without_weights_or_ratios_has_no_effective_sample_size():
    for sums in ({"policy_weight": 1.0, "entropy": 2.0}, {"policy_weight": 0.0, "ratio": 0.0, "ratio_squared": 0.0}):
        assert "train/effective_sample_size" not in step_metrics(sums, {})
