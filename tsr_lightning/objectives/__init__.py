"""Objectives: credit once per rollout, and a loss per micro-batch, both pure functions of tensors."""

from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, Targets
from tsr_lightning.objectives.aggregation import Aggregation, Constant, SequenceMean, TokenMean
from tsr_lightning.objectives.base import Loss, Needs, Objective
from tsr_lightning.objectives.grpo import GRPO
from tsr_lightning.objectives.ppo import PPO
from tsr_lightning.objectives.raft import RAFT
from tsr_lightning.objectives.searched import ImitateSuccesses, SearchedCredit, Unchanged
from tsr_lightning.objectives.sft import SFT

__all__ = [
    "GRPO",
    "PPO",
    "RAFT",
    "SFT",
    "Aggregation",
    "Constant",
    "Credit",
    "Estimates",
    "ImitateSuccesses",
    "Loss",
    "Needs",
    "Objective",
    "Outputs",
    "SearchedCredit",
    "SequenceMean",
    "Targets",
    "TokenMean",
    "Unchanged",
]
