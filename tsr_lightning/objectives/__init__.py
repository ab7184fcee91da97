"""Objectives: credit once per rollout, and a loss per micro-batch, both pure functions of tensors."""

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.aggregation import Aggregation, Constant, SequenceMean, TokenMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.estimators import (
    AdvantageEstimator,
    GroupNormalised,
    ShapedTrajectory,
    outcome_advantages,
)
from tsr_lightning.objectives.gae import TokenGAE, TurnGAE
from tsr_lightning.objectives.grpo import GRPO
from tsr_lightning.objectives.kl import K3, KL
from tsr_lightning.objectives.losses import ValueLoss
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.ppo import PPO
from tsr_lightning.objectives.raft import RAFT
from tsr_lightning.objectives.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, Schedule
from tsr_lightning.objectives.searched import ImitateSuccesses, SearchedCredit, Unchanged
from tsr_lightning.objectives.sft import SFT
from tsr_lightning.objectives.shaping import RewardShaping
from tsr_lightning.objectives.supervised import Supervised
from tsr_lightning.objectives.surrogates import Clipped, Surrogate

__all__ = [
    "GRPO",
    "K3",
    "KL",
    "PPO",
    "RAFT",
    "SFT",
    "AdvantageEstimator",
    "Aggregation",
    "Clipped",
    "Constant",
    "ConstantSchedule",
    "CosineSchedule",
    "Credit",
    "Estimates",
    "GroupNormalised",
    "ImitateSuccesses",
    "LinearSchedule",
    "Loss",
    "Needs",
    "Objective",
    "Outputs",
    "PolicyGradient",
    "RewardShaping",
    "Schedule",
    "SearchedCredit",
    "SequenceMean",
    "ShapedTrajectory",
    "Supervised",
    "Surrogate",
    "Targets",
    "TokenGAE",
    "TokenMean",
    "TurnGAE",
    "Unchanged",
    "ValueLoss",
    "outcome_advantages",
]
