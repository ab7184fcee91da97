"""Generalised advantage estimation as advantage estimators: they need a critic."""

from collections.abc import Sequence
from dataclasses import dataclass

from tsr_lightning.errors import require_fraction
from tsr_lightning.objectives.advantages import Advantages, bilevel_gae, discounted_return, token_gae, turn_gae
from tsr_lightning.objectives.base import Needs
from tsr_lightning.objectives.estimators import (
    AdvantageEstimator,
    ShapedTrajectory,
    response_lengths,
    separate_advantages,
)
from tsr_lightning.trajectory import Member


@dataclass(frozen=True)
class TokenGAE(AdvantageEstimator):
    """A step is a token; a turn's reward falls on its last one. See `advantages.token_gae`.

    Args:
        gamma: the discount per token.
        gae_lambda: 1 is Monte Carlo, smaller values rely more on the critic.
        bootstrap_truncated: whether the critic's value continues a trajectory that a limit truncated. Off by default:
            the limits are shown in the observation, so they are part of the task (https://arxiv.org/abs/1712.00378).
    """

    gamma: float = 1.0
    gae_lambda: float = 1.0
    bootstrap_truncated: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def needs(self) -> Needs:
        return Needs(values=True, final_values=self.bootstrap_truncated)

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        return discounted_return(response_lengths(member), rewards, per_token=self.gamma)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        def of(shaped: ShapedTrajectory) -> Advantages:
            return token_gae(
                shaped.lengths,
                shaped.rewards,
                shaped.estimates.values,
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                final_value=_final_value(shaped, self.bootstrap_truncated),
                penalties=shaped.kl_penalties,
            )

        return separate_advantages(groups, of)


@dataclass(frozen=True)
class TurnGAE(AdvantageEstimator):
    """A step is a turn, whose tokens share one advantage. See `advantages.turn_gae`.

    Args:
        gamma: the discount per turn.
        gae_lambda: 1 is Monte Carlo, smaller values rely more on the critic.
        bootstrap_truncated: as in `TokenGAE`.
    """

    gamma: float = 1.0
    gae_lambda: float = 1.0
    bootstrap_truncated: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def needs(self) -> Needs:
        return Needs(values=True, final_values=self.bootstrap_truncated)

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        return discounted_return(response_lengths(member), rewards, per_turn=self.gamma)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        def of(shaped: ShapedTrajectory) -> Advantages:
            return turn_gae(
                shaped.lengths,
                shaped.turn_rewards,
                shaped.estimates.values,
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                final_value=_final_value(shaped, self.bootstrap_truncated),
            )

        return separate_advantages(groups, of)


@dataclass(frozen=True)
class BilevelGAE(AdvantageEstimator):
    """Over turns, and then over the tokens of each. See `advantages.bilevel_gae`.

    Args:
        gamma: the discount per token within a turn.
        gae_lambda: within a turn; 1 is Monte Carlo, smaller values rely more on the critic.
        turn_gamma: the discount per turn.
        turn_gae_lambda: between turns.
        bootstrap_truncated: as in `TokenGAE`.
    """

    gamma: float = 1.0
    gae_lambda: float = 1.0
    turn_gamma: float = 0.95
    turn_gae_lambda: float = 1.0
    bootstrap_truncated: bool = False

    def __post_init__(self) -> None:
        _check(self)
        require_fraction("BilevelGAE.turn_gamma", self.turn_gamma)
        require_fraction("BilevelGAE.turn_gae_lambda", self.turn_gae_lambda)

    @property
    def needs(self) -> Needs:
        return Needs(values=True, final_values=self.bootstrap_truncated)

    def outcome_of(self, member: Member, rewards: Sequence[float]) -> float:
        lengths = response_lengths(member)
        first = next((length for length in lengths if length), 1)
        return self.gamma ** (first - 1) * discounted_return(lengths, rewards, per_turn=self.turn_gamma)

    def __call__(self, groups: Sequence[Sequence[ShapedTrajectory]]) -> list[list[Advantages]]:
        def of(shaped: ShapedTrajectory) -> Advantages:
            return bilevel_gae(
                shaped.lengths,
                shaped.rewards,
                shaped.estimates.values,
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                turn_gamma=self.turn_gamma,
                turn_gae_lambda=self.turn_gae_lambda,
                final_value=_final_value(shaped, self.bootstrap_truncated),
                penalties=shaped.kl_penalties,
            )

        return separate_advantages(groups, of)


def _final_value(shaped: ShapedTrajectory, bootstrap_truncated: bool) -> float:
    return shaped.estimates.final_value if bootstrap_truncated and shaped.member.truncated else 0.0


def _check(estimator: TokenGAE | TurnGAE | BilevelGAE) -> None:
    require_fraction(f"{type(estimator).__name__}.gamma", estimator.gamma)
    require_fraction(f"{type(estimator).__name__}.gae_lambda", estimator.gae_lambda)
