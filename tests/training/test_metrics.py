"""The figures of a rollout."""

from dataclasses import replace

from callback_support import trajectory

from tsr_lightning.costs import Costs
from tsr_lightning.training.metrics import rollout_metrics
from tsr_lightning.trajectory import Group, Origin


def test_outcomes_are_separate_by_origin():
    outcomes = [(Origin.SAMPLED, False), (Origin.SAMPLED, True), (Origin.SEARCHED, False), (Origin.DEMONSTRATED, True)]
    members = tuple(replace(trajectory(0, i, succeeded=won), origin=origin) for i, (origin, won) in enumerate(outcomes))
    figures = rollout_metrics([Group(0, members)], [], Costs(), seconds=1.0, skipped=0)
    assert figures["rollout/success_rate"] == 0.5
    assert figures["rollout/sampled/success_rate"] == 0.5
    assert figures["rollout/searched/success_rate"] == 0.0
    assert figures["rollout/demonstrated/success_rate"] == 1.0
