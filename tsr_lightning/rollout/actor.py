"""The actor: plays a policy in environments, for rollouts and evaluations."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tsr_lightning.engines.base import Engine, EngineSpec, Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.policy.chat import Chat, Context, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.rollout.answer_notice import AnswerForm
from tsr_lightning.rollout.environments import Environments
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.trajectory import Message, Turn


@dataclass(frozen=True)
class ActorSpec:
    """How an actor generates responses.

    Args:
        engine: what generates them.
        context: what of the episode the policy sees at each turn.
        sampling: temperature of rollouts, and the most tokens of a response.
        context_tokens: the most tokens of a prompt and its response together; None takes the model's own limit.
        episode_tokens: the most response tokens of an episode; None for no limit.
        concurrency: searches that run side by side.
    """

    engine: EngineSpec = field(default_factory=Transformers)
    context: Context = field(default_factory=SingleTurn)
    sampling: Sampling = field(default_factory=Sampling)
    context_tokens: int | None = None
    episode_tokens: int | None = None
    concurrency: int = 256


class Actor:
    """Owns what a policy is played with: the chat format, the engine and the environments. Nobody else syncs, releases
    or closes the engine. One thread at a time uses an actor.

    Args:
        policy: the policy in training, or a copy of its own (`copy`).
        tokenizer: the policy's.
        spec: how it generates.
        environments: in which it plays.
        retry: repeats calls of environments that fail, and counts the failures.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: PreTrainedTokenizerFast,
        spec: ActorSpec,
        environments: Environments,
        retry: Retrying,
    ) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.spec = spec
        self.environments = environments
        self.retry = retry
        self._engine: Engine | None = None

    @cached_property
    def chat(self) -> Chat:
        """Builds prompts and reads responses. Made once: reading a template and a large vocabulary takes a second."""
        return Chat.of(self.policy.spec, self.tokenizer, self.spec.context)

    @property
    def engine(self) -> Engine:
        """The engine of `spec`; built on first use, reused until `close`, because its memory is allocated once."""
        if self._engine is None:
            self._engine = self.spec.engine.build(self.policy, self.chat.end_ids, self.context_tokens)
        return self._engine

    @property
    def context_tokens(self) -> int:
        """The most tokens of a prompt and its response."""
        own = self.policy.context_length
        return min(own, self.spec.context_tokens or own)

    def following(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids [F] from the last turn's response to the next one (`Chat.following`); none if they exceed
        `context_tokens`.

        Args:
            turns: all past turns, at least one.
            messages: that answer the response.
        """
        ids, last = self.chat.following(turns, messages), turns[-1]
        has_room = len(last.prompt) + len(last.response) + len(ids) <= self.context_tokens
        return ids if has_room else ()

    @property
    def device(self) -> torch.device:
        return next(self.policy.parameters()).device

    def answer_form(self, index: int) -> AnswerForm:
        """The form in which the environment with an index of the mixture wants to be answered."""
        return self.environments.factory.answer_form(index, self.chat.call_format)

    def driver(
        self,
        temperature: float | None = None,
        *,
        policy_epochs: int | None = None,
        keep_tree: bool = False,
        keep_state_keys: bool = False,
        record: bool = False,
    ) -> Driver:
        """Runs searches with the policy.

        Args:
            temperature: of the responses; None takes that of `spec`.
            policy_epochs: that the policy has been trained for, recorded in the trajectories.
            keep_tree: as of `Driver`.
            keep_state_keys: as of `Driver`.
            record: as of `Driver`.
        """
        sampling = self.spec.sampling
        self.environments.make()  # here, and not in the threads of workers
        return Driver(
            envs=self.environments.envs,
            chat_format=self.chat,
            engine=self.engine,
            sampling=Sampling(
                sampling.temperature if temperature is None else temperature, sampling.max_response_tokens
            ),
            limits=TokenLimits(self.context_tokens, self.spec.episode_tokens, self.policy.context_length),
            concurrency=self.spec.concurrency,
            workers=self.environments.workers,
            keep_tree=keep_tree,
            keep_state_keys=keep_state_keys,
            retry=self.retry,
            policy_epochs=policy_epochs,
            record=record,
        )

    def copy(self, retry: Retrying) -> "Actor":
        """A thread-safe copy with its own weights, tokenizer, engine and environments; frozen base weights are shared.

        Args:
            retry: the copy's.
        """
        tokenizer = copy.deepcopy(self.tokenizer)  # its settings are no thread's own
        copied = Actor(self.policy.frozen_copy(), tokenizer, self.spec, self.environments.another(), retry)
        _ = copied.engine  # built here, in no other thread, as the environments are
        copied.environments.make()
        return copied

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces the trained weights of a copy by those of a snapshot; `sync` hands them to the engine."""
        self.policy.load_trainable_state(weights)

    def sync(self) -> None:
        """Lets the engine take over the policy's weights as they are now; does nothing where they have not changed."""
        self.engine.sync()

    def release(self) -> None:
        """Gives the engine's memory to the updates; the actor stays usable."""
        if self._engine is not None:
            self._engine.release()

    def close(self) -> None:
        """Closes the engine and the environments."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.environments.close()
