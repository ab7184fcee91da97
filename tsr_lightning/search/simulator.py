"""Turns of an episode, played on one environment object by restoring states.

Every draw is keyed by the node and the number of the child, so it makes no difference which object plays a turn, or
when.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from tsr_lightning.engines.base import Response, Sampling
from tsr_lightning.envs.base import Branchable, HasLegalActions
from tsr_lightning.envs.boundary import Call, bounded, name_of
from tsr_lightning.envs.outcome import Outcome, play, reset
from tsr_lightning.envs.random_play import play_randomly
from tsr_lightning.errors import ConfigError, EnvFault
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.demonstrators import Demonstrator
from tsr_lightning.search.retry import NoRetry, Retry
from tsr_lightning.search.tree import DriverState, Node, Snapshot
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Ended, Message, Turn

ResultT = TypeVar("ResultT")

_TEMPLATE_TOKENS = 64  # the most that a chat template is assumed to put around one message


class ChatFormat(Protocol):
    """Text to token ids and back, for search, which knows no tokenizer."""

    @property
    def call_format(self) -> CallFormatName:
        """In which responses call tools."""

    def prompt(self, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[int, ...]: ...

    def read(self, response: Sequence[int], prompt: Sequence[int] = ()) -> str: ...

    def write(self, text: str, prompt: Sequence[int] = ()) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class TokenLimits:
    """Limits beyond that of a single response. A node with no room for another response is truncated.

    Args:
        context: the most tokens of a prompt and its response together: the model's own limit, or less.
        episode: the most tokens of all responses of an episode; null for no limit.
        model: the most tokens that the model takes, for a critic's value after the end; null as `context`.
    """

    context: int
    episode: int | None = None
    model: int | None = None


@dataclass(frozen=True, slots=True)
class TurnSimulator:
    """Plays single turns from any node.

    Args:
        envs: the environments; nothing else may use them meanwhile.
        chat_format: builds prompts.
        sampling: the token limit of a turn.
        limits: the other token limits.
        retry: repeats calls of the environment that fail.
    """

    envs: Sequence[Branchable]
    chat_format: ChatFormat
    sampling: Sampling
    limits: TokenLimits
    retry: Retry = field(default_factory=NoRetry)

    def root(self, instance: int, key: Key, index: int = 0, scored: bool = False) -> Node:
        """The initial state of an instance of the environment with this index. One whose prompt leaves no room for a
        response counts as a failed reset: a run that it ended would end there again after it was resumed."""
        env = self.envs[index]

        def begin() -> Node:
            initial = reset(env, instance, scored, self.chat_format.call_format)
            snapshot = Snapshot(
                initial.state, initial.messages, initial.state_key, initial.remaining, env_score=initial.score
            )
            root: Node = Node(snapshot, DriverState(key, env=index, instance=instance))
            if self.token_budget(root) < 1:
                raise EnvFault(
                    f"the first prompt of instance {instance} has {len(self.prompt(root))} tokens, which leaves no "
                    f"room for a response within {self.limits.context}: use a model or data.context_tokens with a "
                    "longer context"
                )
            return root

        return self._called(Call(env, "reset", instance), begin)

    def prompt(self, node: Node) -> tuple[int, ...]:
        """The context of the next response, built on first use."""
        if node.driver.prompt is None:
            node.driver.prompt = self.chat_format.prompt(node.turns, node.snapshot.messages)
        return node.driver.prompt

    def token_budget(self, node: Node) -> int:
        """The most tokens that the next response may have."""
        room = self.limits.context - len(self.prompt(node))
        if self.limits.episode is not None:
            room = min(room, self.limits.episode - sum(len(turn.response) for turn in node.turns))
        return min(room, self.sampling.max_response_tokens)

    def simulate(self, node: Node, number: int, response: Response, scored: bool) -> Node:
        """The outcome of a response in search: the child of this number, with branch noise of its own."""
        key = node.driver.key.fold_in(number)
        text = self.chat_format.read(response.ids, self.prompt(node))
        child = self._step(node, response, text, key, key.fold_in(Stream.BRANCH), scored)
        child.driver.generated_tokens += len(response.ids)
        return child

    def commit(self, root: Node, simulated: Node, scored: bool = False) -> Node:
        """The outcome of the response that led to `simulated`, in the real episode that began at `root`."""
        turn, parent = simulated.turn, simulated.parent
        if turn is None or parent is None:
            raise ValueError("a root cannot be committed: it has no response to play")
        key = root.driver.key.fold_in(Stream.REAL, parent.depth)
        response = Response(turn.response, turn.behaviour_logprobs, turn.finished)
        child = self._step(parent, response, turn.text, key.fold_in("path"), key, scored)
        child.driver.generated_tokens = simulated.driver.generated_tokens
        child.driver.committed = simulated
        return child

    def demonstrate(self, node: Node, number: int, demonstrator: Demonstrator, scored: bool = False) -> Node:
        """One turn of a demonstrator, as the child of this number. A response longer than the context counts as a
        failed call, as in `root`."""
        env = self.envs[node.driver.env]
        demonstrator.check(env, name_of(env))
        key = node.driver.key.fold_in(number)
        call = Call(env, demonstrator.method, node.driver.instance)
        ask = partial(demonstrator.respond, env, node.snapshot.state, key.fold_in(Stream.ORACLE))

        def respond() -> tuple[int, ...]:
            text = bounded(call, ask)
            ids = self.chat_format.write(text, self.prompt(node))
            length = len(self.prompt(node)) + len(ids)
            if length > self.limits.context:
                raise EnvFault(
                    f"a demonstrated response of {name_of(env)} ends at token {length}, beyond data.context_tokens of "
                    f"{self.limits.context}: raise it, or show fewer turns"
                )
            return ids

        ids = self.retry(respond)
        played = self.chat_format.read(ids, self.prompt(node))  # as the policy's own would be
        response = Response(ids, (0.0,) * len(ids), True)
        return self._step(node, response, played, key, key.fold_in(Stream.BRANCH), scored)

    def play_randomly(self, node: Node, keys: Sequence[Key], horizon: int) -> list[int | None]:
        """How many random legal actions led from a node to a success, for each key; see `HasRandomPlay`."""
        env = self.envs[node.driver.env]
        if not isinstance(env, HasLegalActions):
            raise ConfigError(
                f"{name_of(env)} does not list its legal actions, which random play needs: add the method"
            )
        call = Call(env, "play_randomly", node.driver.instance)
        return self._called(call, partial(play_randomly, env, node.snapshot.state, keys, horizon))

    def replay(self, node: Node, response: Response, noise: Key, scored: bool) -> Node:
        """The outcome of a recorded response, with the noise that it was played with."""
        return self._step(node, response, self.chat_format.read(response.ids, self.prompt(node)), noise, noise, scored)

    def final_prompt(self, leaf: Node) -> tuple[int, ...]:
        """The context after an episode that a budget ended, even where no response would fit behind it; empty where the
        task ended it or the context exceeds the model's own limit."""
        if leaf.snapshot.ended not in (Ended.TURN_LIMIT, Ended.TOKEN_LIMIT):
            return ()
        prompt = self.prompt(leaf)
        return prompt if len(prompt) <= (self.limits.model or self.limits.context) else ()

    def _step(self, node: Node, response: Response, text: str, key: Key, noise: Key, scored: bool = False) -> Node:
        env = self.envs[node.driver.env]
        after = self._called(
            Call(env, "step", node.driver.instance, text),
            partial(play, env, node.snapshot.state, noise, text, scored),
        )
        turn = Turn(
            prompt=self.prompt(node),
            response=response.ids,
            behaviour_logprobs=response.logprobs,
            finished=response.finished,
            messages=node.snapshot.messages,
            text=text,
            reward=after.reward,
            valid=after.valid,
            effective=after.effective,
            action=after.action,
        )
        snapshot = Snapshot(
            state=after.state,
            messages=after.messages,
            state_key=after.state_key,
            remaining=after.remaining,
            ended=_ended(after),
            env_score=after.score,
        )
        child: Node = Node(
            snapshot,
            DriverState(
                key,
                generated_tokens=node.driver.generated_tokens,
                env=node.driver.env,
                instance=node.driver.instance,
                noise=noise,
            ),
            parent=node,
            turn=turn,
            depth=node.depth + 1,
            episode_return=node.episode_return + after.reward,
            tie=key.fold_in(Stream.TIES).uniform(),
        )
        if not child.done and not self._has_room(node, turn, child):
            child.snapshot = replace(snapshot, ended=Ended.TOKEN_LIMIT)
        return child

    def _called(self, call: Call, act: Callable[[], ResultT]) -> ResultT:
        """The result of a call, tried again as `retry` says."""
        return self.retry(partial(bounded, call, act))

    def _has_room(self, parent: Node, turn: Turn, child: Node) -> bool:
        """Whether another response fits.

        The prompt is built only where a bound on its length leaves that open: every token is at least one byte of
        text, or one of the chat template's.
        """
        bound = len(self.prompt(parent)) + len(turn.response)
        for message in child.snapshot.messages:
            bound += len(message.content.encode()) + _TEMPLATE_TOKENS
        if bound < self.limits.context and self.limits.episode is None:
            return True
        return self.token_budget(child) >= 1


def _ended(outcome: Outcome) -> Ended | None:
    """Why the environment ended an episode; None where it goes on."""
    if not (outcome.terminated or outcome.truncated):
        return None
    if outcome.succeeded:
        return Ended.SUCCEEDED
    return Ended.FAILED if outcome.terminated else Ended.TURN_LIMIT
