"""Objectives: credit once per rollout, and a loss per micro-batch, both pure functions of tensors."""

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.aggregation import Aggregation, Constant, SequenceMean, TokenMean
from tsr_lightning.objectives.anchors import GroupInGroup
from tsr_lightning.objectives.backups import Backup, MaxBackup, MeanBackup
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.estimators import (
    AdvantageEstimator,
    GreedyBaseline,
    GroupNormalised,
    LeaveOneOut,
    OptimalBaseline,
    ReturnToGo,
    RolloutScaled,
    ShapedTrajectory,
    SuccessRelative,
    SuccessSign,
    outcome_advantages,
)
from tsr_lightning.objectives.gae import BilevelGAE, TokenGAE, TurnGAE
from tsr_lightning.objectives.graph_credit import GraphCredit
from tsr_lightning.objectives.kl import K2, K3, KL, CorrectedK3, K1Reward, UnbiasedK3
from tsr_lightning.objectives.losses import ObservationLoss, ValueLoss
from tsr_lightning.objectives.policy_gradient import PolicyGradient
from tsr_lightning.objectives.presets import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RAFT,
    RLOO,
    DrGRPO,
    GiGPO,
    MaxRL,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReinforceRej,
)
from tsr_lightning.objectives.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, Schedule
from tsr_lightning.objectives.searched import ImitateEverySuccess, ImitateSuccesses, SearchedCredit, Unchanged
from tsr_lightning.objectives.shaping import Discount, OverlongPenalty, ReturnAtEnd, RewardShaping, Scale
from tsr_lightning.objectives.supervised import SFT, Supervised
from tsr_lightning.objectives.surrogates import (
    Clipped,
    ClippedWeight,
    GeometricMean,
    SoftGate,
    Surrogate,
    TurnClipped,
    Unclipped,
)
from tsr_lightning.objectives.targets import CandidateTarget, ExponentialWeights, ImprovedPolicy
from tsr_lightning.objectives.tree_credit import TreeCredit

__all__ = [
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "K2",
    "K3",
    "KL",
    "PPO",
    "RAFT",
    "RLOO",
    "SFT",
    "AdvantageEstimator",
    "Aggregation",
    "Backup",
    "BilevelGAE",
    "CandidateTarget",
    "Clipped",
    "ClippedWeight",
    "Constant",
    "ConstantSchedule",
    "CorrectedK3",
    "CosineSchedule",
    "Credit",
    "Discount",
    "DrGRPO",
    "Estimates",
    "ExponentialWeights",
    "GeometricMean",
    "GiGPO",
    "GraphCredit",
    "GreedyBaseline",
    "GroupInGroup",
    "GroupNormalised",
    "ImitateEverySuccess",
    "ImitateSuccesses",
    "ImprovedPolicy",
    "K1Reward",
    "LeaveOneOut",
    "LinearSchedule",
    "Loss",
    "MaxBackup",
    "MaxRL",
    "MeanBackup",
    "Needs",
    "Objective",
    "ObservationLoss",
    "OptimalBaseline",
    "Outputs",
    "OverlongPenalty",
    "PolicyGradient",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "ReinforceRej",
    "ReturnAtEnd",
    "ReturnToGo",
    "RewardShaping",
    "RolloutScaled",
    "Scale",
    "Schedule",
    "SearchedCredit",
    "SequenceMean",
    "ShapedTrajectory",
    "SoftGate",
    "SuccessRelative",
    "SuccessSign",
    "Supervised",
    "Surrogate",
    "Targets",
    "TokenGAE",
    "TokenMean",
    "TreeCredit",
    "TurnClipped",
    "TurnGAE",
    "UnbiasedK3",
    "Unchanged",
    "Unclipped",
    "ValueLoss",
    "outcome_advantages",
]
