"""Trains language-model agents with reinforcement learning on trajectories built by search.

Importing the package registers its environments with gymnasium, by name: `gymnasium.make("tsr/Sokoban-v0")`. It loads
neither them nor PyTorch. The public names are loaded when they are first used: `from tsr_lightning import Agent, GRPO`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tsr_lightning import envs as envs
from tsr_lightning import worlds as worlds

# The public names, by the module that defines them.
PUBLIC = {
    "batching.schedule": ("Updates",),
    "costs": ("Costs",),
    "engines.base": ("Engine", "EngineSpec", "Prompt", "Response", "Sampling"),
    "engines.transformers.spec": ("Transformers",),
    "engines.vllm.spec": ("VLLM",),
    "envs.base": ("Branchable",),
    "envs.checker": ("check_branchable",),
    "envs.replay": ("Replayed",),
    "envs.single_turn": ("SingleTurnEnv", "SolvedSingleTurnEnv"),
    "envs.text": ("Answer",),
    "envs.text_env": ("TextEnv",),
    "envs.tool_env": ("ToolEnv",),
    "envs.turns": ("TurnResult",),
    "errors": ("ConfigError", "EnvFault", "RunError"),
    "objectives": (
        "CISPO",
        "DAPO",
        "GRPO",
        "GSPO",
        "PPO",
        "RAFT",
        "RLOO",
        "SFT",
        "DrGRPO",
        "GiGPO",
        "GraphCredit",
        "GreedyBaseline",
        "ImitateEverySuccess",
        "ImitateSuccesses",
        "MaxRL",
        "Needs",
        "Objective",
        "PolicyGradient",
        "ReinforcePlusPlus",
        "ReinforcePlusPlusBaseline",
        "ReinforceRej",
        "SearchedCredit",
        "TreeCredit",
        "Unchanged",
    ),
    "policy.chat": ("Context",),
    "policy.model": ("Policy",),
    "policy.spec": ("NF4", "LoRA", "PolicySpec", "Scratch"),
    "rng": ("Key",),
    "rollout.actor": ("Actor", "ActorSpec"),
    "rollout.collect": ("DynamicSampling",),
    "rollout.engine_check": ("check_engine",),
    "rollout.environments": ("EnvFactory",),
    "rollout.evaluate": ("EvalResult", "evaluate"),
    "rollout.instances": ("HeldOut",),
    "rollout.learnability": ("Learnability",),
    "rollout.mixture": ("MixtureEntry",),
    "rollout.protocol": ("EvalProtocol",),
    "search": (
        "AdaptiveTree",
        "Beam",
        "BestOfN",
        "ContrastBeam",
        "EntropyExpansion",
        "EntropyRise",
        "Expert",
        "FirstImprovement",
        "Greedy",
        "Lookahead",
        "ProcessScore",
        "RandomActions",
        "RandomRollouts",
        "Sample",
        "SearchFailures",
        "Strategy",
        "SuffixRestarts",
        "Vine",
    ),
    "search.plan": ("Annealed", "Mixed", "Phases", "Plan", "SearchFailedGroups", "Uniform"),
    "search.scorers": ("CriticValue", "EnvironmentScore", "ReturnSoFar", "Scorer", "WeightedSum"),
    "search.traits": ("Traits",),
    "search.tree": ("Commit", "Expand", "Node", "Search"),
    "training.agent": ("Agent",),
    "training.datamodule": ("RolloutDataModule",),
    "training.optimizer": ("Optimizer",),
    "training.trainer": ("Trainer",),
    "trajectory": (
        "Candidate",
        "Comparison",
        "Group",
        "Message",
        "Origin",
        "State",
        "Trajectory",
        "TreePath",
        "Turn",
    ),
}
_MODULES = {name: module for module, names in PUBLIC.items() for name in names}

if TYPE_CHECKING:  # the same names, for editors and mypy
    from tsr_lightning.batching.schedule import Updates
    from tsr_lightning.costs import Costs
    from tsr_lightning.engines.base import Engine, EngineSpec, Prompt, Response, Sampling
    from tsr_lightning.engines.transformers.spec import Transformers
    from tsr_lightning.engines.vllm.spec import VLLM
    from tsr_lightning.envs.base import Branchable
    from tsr_lightning.envs.checker import check_branchable
    from tsr_lightning.envs.replay import Replayed
    from tsr_lightning.envs.single_turn import SingleTurnEnv, SolvedSingleTurnEnv
    from tsr_lightning.envs.text import Answer
    from tsr_lightning.envs.text_env import TextEnv
    from tsr_lightning.envs.tool_env import ToolEnv
    from tsr_lightning.envs.turns import TurnResult
    from tsr_lightning.errors import ConfigError, EnvFault, RunError
    from tsr_lightning.objectives import (
        CISPO,
        DAPO,
        GRPO,
        GSPO,
        PPO,
        RAFT,
        RLOO,
        SFT,
        DrGRPO,
        GiGPO,
        GraphCredit,
        GreedyBaseline,
        ImitateEverySuccess,
        ImitateSuccesses,
        MaxRL,
        Needs,
        Objective,
        PolicyGradient,
        ReinforcePlusPlus,
        ReinforcePlusPlusBaseline,
        ReinforceRej,
        SearchedCredit,
        TreeCredit,
        Unchanged,
    )
    from tsr_lightning.policy.chat import Context
    from tsr_lightning.policy.model import Policy
    from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec, Scratch
    from tsr_lightning.rng import Key
    from tsr_lightning.rollout.actor import Actor, ActorSpec
    from tsr_lightning.rollout.collect import DynamicSampling
    from tsr_lightning.rollout.engine_check import check_engine
    from tsr_lightning.rollout.environments import EnvFactory
    from tsr_lightning.rollout.evaluate import EvalResult, evaluate
    from tsr_lightning.rollout.instances import HeldOut
    from tsr_lightning.rollout.learnability import Learnability
    from tsr_lightning.rollout.mixture import MixtureEntry
    from tsr_lightning.rollout.protocol import EvalProtocol
    from tsr_lightning.search import (
        AdaptiveTree,
        Beam,
        BestOfN,
        ContrastBeam,
        EntropyExpansion,
        EntropyRise,
        Expert,
        FirstImprovement,
        Greedy,
        Lookahead,
        ProcessScore,
        RandomActions,
        RandomRollouts,
        Sample,
        SearchFailures,
        Strategy,
        SuffixRestarts,
        Vine,
    )
    from tsr_lightning.search.plan import Annealed, Mixed, Phases, Plan, SearchFailedGroups, Uniform
    from tsr_lightning.search.scorers import CriticValue, EnvironmentScore, ReturnSoFar, Scorer, WeightedSum
    from tsr_lightning.search.traits import Traits
    from tsr_lightning.search.tree import Commit, Expand, Node, Search
    from tsr_lightning.training.agent import Agent
    from tsr_lightning.training.datamodule import RolloutDataModule
    from tsr_lightning.training.optimizer import Optimizer
    from tsr_lightning.training.trainer import Trainer
    from tsr_lightning.trajectory import (
        Candidate,
        Comparison,
        Group,
        Message,
        Origin,
        State,
        Trajectory,
        TreePath,
        Turn,
    )
else:  # mypy would take a `__getattr__` to have every name

    def __getattr__(name: str) -> Any:
        """Loads a public name on first use."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
