"""Objectives without a critic: the other trajectories of the instance are the baseline."""

from dataclasses import dataclass

from tsr_lightning.objectives.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class GRPO(PolicyGradient):
    """GRPO (https://arxiv.org/abs/2402.03300): a trajectory's advantage is its return relative to its group.

    These are the defaults of `PolicyGradient`. Departs from the paper: two clip widths (DAPO). `TokenMean` weights long
    trajectories more; where failures are longer than successes, negative advantages then dominate a step and the policy
    collapses (docs/log.md).
    """
