"""Turns of an episode, played on one environment object by restoring states.

Every draw is keyed by the node and the number of the turn among its children, so which object plays a turn, and when,
changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tsr_lightning.engines.base import Response, Sampling
from tsr_lightning.envs.base import Branchable, HasOracle
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.tree import Node
from tsr_lightning.trajectory import Turn


class ChatFormat(Protocol):
    """Text to token ids and back, for search, which knows no tokenizer."""

    def prompt(self, system: str, turns: Sequence[Turn], observation: str) -> tuple[int, ...]: ...

    def read(self, response: Sequence[int]) -> str: ...

    def write(self, text: str) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class TokenLimits:
    """What may be said. A node whose budget is used up has ended, truncated.

    Args:
        context: the most tokens of a prompt and its response together: the model's own, or less.
        episode: the most tokens that all responses of an episode may say; null for no limit.
        model: the most tokens that the model itself sees, for a critic's value after the end; null as `context`.
    """

    context: int
    episode: int | None = None
    model: int | None = None


@dataclass(frozen=True, slots=True)
class TurnSimulator:
    """What can be played.

    Args:
        env: the environment, already made; nobody else may use it meanwhile.
        speaker: the prompts.
        sampling: the budget of a turn.
        limits: the other budgets.
    """

    env: Branchable
    speaker: ChatFormat
    sampling: Sampling
    limits: TokenLimits

    def root(self, instance: int, key: Key) -> Node:
        """The first moment of an instance."""
        observation, _ = self.env.reset(seed=instance)
        root = Node(self.env.get_state(), observation, key, self.env.state_key(), self.env.remaining())
        if self.token_budget(root) < 1:
            raise ConfigError(
                f"the first prompt has {len(root.prompt)} tokens, which leaves no room for a response within "
                f"{self.limits.context}: use a model or data.context_tokens with a longer context"
            )
        return root

    def simulate(self, node: Node, number: int, response: Response, scored: bool) -> Node:
        """What search imagines to come of a response: the child of this number, a branch with noise of its own."""
        key = node.key.fold_in(number)
        child = self._step(node, response, key, key.fold_in(Stream.BRANCH), self.speaker.read(response.ids))
        if scored:
            child.env_score = self.env.score()
        return child

    def commit(self, root: Node, simulate: Node) -> Node:
        """What does come of it in the real episode, which began at `root`."""
        turn, parent = simulate.turn, simulate.parent
        if turn is None or parent is None:
            raise ValueError("a root cannot be committed: it has no response to play")
        real = root.key.fold_in(Stream.REAL, parent.depth)
        response = Response(turn.response, turn.logprobs, turn.finished)
        return self._step(parent, response, real.fold_in("path"), real, turn.text)

    def expert_step(self, node: Node, number: int, noise: float) -> Node:
        """One turn of the oracle, as the child of this number."""
        if not isinstance(self.env, HasOracle):
            raise ConfigError(f"the strategy Expert needs an oracle, and {type(self.env).__name__} has none")
        key = node.key.fold_in(number)
        self.token_budget(node)  # builds the prompt
        self.env.set_state(node.state)
        text = self.env.oracle(noise, key.fold_in(Stream.ORACLE))
        ids = self.speaker.write(text)
        child = self._step(node, Response(ids, (0.0,) * len(ids), True), key, key.fold_in(Stream.BRANCH), text)
        child.generated = node.generated
        return child

    def token_budget(self, node: Node) -> int:
        """How many tokens the next response may have; builds the prompt."""
        if not node.prompt:
            node.prompt = self.speaker.prompt(self.env.instructions, node.turns, node.observation)
        room = self.limits.context - len(node.prompt)
        if self.limits.episode is not None:
            room = min(room, self.limits.episode - node.response_tokens)
        return min(room, self.sampling.max_response_tokens)

    def final_prompt(self, leaf: Node) -> tuple[int, ...]:
        """What a truncated episode would have gone on from, even where no response would fit behind it any more; empty
        where it has ended, or where the model itself does not see so much."""
        if not leaf.truncated:
            return ()
        prompt = self.speaker.prompt(self.env.instructions, leaf.turns, leaf.observation)
        return prompt if len(prompt) <= (self.limits.model or self.limits.context) else ()

    def _step(self, node: Node, response: Response, key: Key, noise: Key, text: str) -> Node:
        self.env.set_state(node.state)
        self.env.reseed(noise)
        observation, reward, terminated, truncated, info = self.env.step(text)
        turn = Turn(
            prompt=node.prompt,
            response=response.ids,
            logprobs=response.logprobs,
            finished=response.finished,
            observation=node.observation,
            text=text,
            reward=float(reward),
            valid=bool(info["action_is_valid"]),
            effective=bool(info["action_is_effective"]),
        )
        child = Node(
            state=self.env.get_state(),
            observation=observation,
            key=key,
            state_key=self.env.state_key(),
            remaining=self.env.remaining(),
            depth=node.depth + 1,
            episode_return=node.episode_return + float(reward),
            done=terminated or truncated,
            succeeded=bool(info["success"]),
            truncated=truncated and not terminated,
            parent=node,
            turn=turn,
            response_tokens=node.response_tokens + len(response.ids),
            generated=node.generated + len(response.ids),
            tie=key.fold_in(Stream.TIES).uniform(),
        )
        if not child.done and not self._has_room(child):
            child.done = child.truncated = True
        return child

    def _has_room(self, node: Node) -> bool:
        """Whether another response fits. A prompt is built only where a bound on its length leaves that open: every
        token is at least a byte of text, or one of the template's."""
        parent = node.parent
        bound = len(node.observation.encode()) + 64
        if parent is not None and node.turn is not None:
            bound += len(parent.prompt) + len(node.turn.response)
        if bound + 1 <= self.limits.context and self.limits.episode is None:
            return True
        return self.token_budget(node) >= 1
