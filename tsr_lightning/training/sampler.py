"""What plays rollouts with one copy of the policy's weights."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tsr_lightning.engines.base import Engine, EngineSpec
from tsr_lightning.envs.base import Branchable
from tsr_lightning.policy.chat import Chat, Context
from tsr_lightning.policy.model import Policy
from tsr_lightning.search.faults import Retrying
from tsr_lightning.training.agent import Agent


@dataclass(frozen=True)
class Sampler:
    """A policy, its engine and its environments; one thread at a time uses them.

    Args:
        policy: whose weights the engine has.
        chat: builds its prompts.
        engine: samples its responses.
        envs: the environments of the mixture.
        workers: further ones, which step in threads.
        guard: what becomes of those that fail.
    """

    policy: Policy
    chat: Chat
    engine: Engine
    envs: list[Branchable]
    workers: list[list[Branchable]]
    guard: Retrying

    @classmethod
    def beside(
        cls,
        agent: Agent,
        engine: EngineSpec,
        context: Context,
        context_tokens: int,
        envs: list[Branchable],
        workers: list[list[Branchable]],
        guard: Retrying,
    ) -> "Sampler":
        """One that shares nothing with the agent which changes or is in use while the agent is trained: not the
        trained weights, nor the tokenizer, whose settings are no thread's own."""
        policy, chat = agent.policy.frozen_copy(), Chat.of(agent.spec, copy.deepcopy(agent.tokenizer), context)
        return cls(policy, chat, engine.build(policy, chat.end_ids, context_tokens), envs, workers, guard)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over a snapshot of the trained weights."""
        self.policy.load_trainable_state(weights)
        self.engine.sync()
