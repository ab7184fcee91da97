"""A base for environments that are played by calling tools: states, turns, answers to calls.

A subclass defines its task: `tool_functions`, `instructions`, `initial_state`, `ask`, `reward`, `success` and `score`;
where they apply, also `ended`, `said`, `state_key`, `noise_key` and the optional `legal_actions` and `oracle`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple

import gymnasium
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.text_env import AnyText
from tsr_lightning.envs.tools import Offer, RefusedCall, Tool
from tsr_lightning.envs.turns import Draws, StateT
from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CALL_FORMAT_NAMES, CALL_FORMATS, Call, CallFormatName, calls_in
from tsr_lightning.trajectory import Message, to_messages

_LONGEST = 1 << 20  # characters of an observation or a response


class ToolEpisode(NamedTuple, Generic[StateT]):
    """All of an episode that `set_state` needs, immutable."""

    state: StateT  # the task's own
    key: Key  # of the noise
    call_format: CallFormatName
    draws: int = 0  # numbers of `key` used up
    turns: int = 0  # played
    over: bool = False  # the task is solved, or has ended unsolved


class ToolEnv(gymnasium.Env[Any, str], ABC, Generic[StateT]):
    """A task whose state is an immutable `StateT`, which the policy changes by calling tools, several a turn.

    A tool is a method: it sets `self.state` anew, draws its chance from `self.noise`, and returns what the policy is
    shown of it. A turn with a call that cannot be read, names no tool or has a wrong argument is invalid: it changes
    nothing, and its calls are answered with what is wrong.

    Args:
        max_turns: turns before the episode is truncated; an invalid one uses one up.
        call_format: how responses call tools: "hermes", "xml", "json" or "fenced"; None: as the chat template of the
            policy says, or "hermes" where it does not.
        format_penalty: reward of an invalid turn, at most 0.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, gymnasium's own form
    tool_functions: tuple[Callable[..., Any], ...]  # methods, of the class as a rule
    instructions: str = ""  # the system message, without the tools
    state: StateT

    def __init__(
        self, *, max_turns: int, call_format: CallFormatName | None = None, format_penalty: float = -0.1
    ) -> None:
        name = type(self).__name__
        whole(f"{name}.max_turns", max_turns)
        if call_format is not None:
            one_of(f"{name}.call_format", call_format, CALL_FORMAT_NAMES)
        valid = isinstance(format_penalty, int | float) and format_penalty <= 0
        require(valid, f"{name}.format_penalty", format_penalty, "it is a reward, so give 0 or less, such as -0.1.")
        self.max_turns, self.format_penalty = max_turns, float(format_penalty)
        self.call_format = call_format
        self.observation_space = AnyText(_LONGEST, min_length=0)
        self.action_space = AnyText(_LONGEST, min_length=0)
        self._tools = {function.__name__: Tool(function) for function in self.tool_functions}
        self._episode: ToolEpisode[StateT] | None = None

    # What a task defines

    @abstractmethod
    def initial_state(self, seed: int) -> StateT:
        """The state that a seed begins with, the same in every process."""

    @abstractmethod
    def ask(self) -> str | Sequence[Message]:
        """The user's first message, or the messages that begin the episode."""

    @abstractmethod
    def reward(self, before: StateT) -> float:
        """Of the turn that led from `before` to the state."""

    @abstractmethod
    def success(self) -> bool:
        """Whether the task is solved, which ends the episode."""

    @abstractmethod
    def score(self) -> float:
        """The task's own feedback on the state in [0, 1], 1 when solved; see `Branchable.score`."""

    def ended(self) -> bool:
        """Whether the episode has ended, solved or not."""
        return self.success()

    def said(self, response: str) -> str:
        """Takes a response that calls no tool, and returns the user's reply.

        Raises:
            RefusedCall: the task takes none.
        """
        raise RefusedCall(f"call a tool: {', '.join(self._tools)}")

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
        """Plays a tool, and returns what the policy is shown of it."""
        shown: str = function(self, **arguments)
        return shown

    def state_key(self) -> Hashable:
        """The state, budget and noise left out; see `Branchable.state_key`."""
        return self.state

    def noise_key(self, seed: int) -> Key:
        """The key of the noise of the episode that a seed names."""
        return Key(0).fold_in("noise", seed)

    # What is the same for all tasks

    def offer(self) -> Offer:
        return Offer(tuple(self._tools.values()), self.episode.call_format)

    @property
    def episode(self) -> ToolEpisode[StateT]:
        """The current episode."""
        if self._episode is None:
            raise ResetNeeded("there is no episode yet: call reset() or set_state() first")
        return self._episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Begins the episode that `seed` names."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        call_format = self.call_format or (options or {}).get("call_format") or "hermes"
        self.set_state(ToolEpisode(self.initial_state(seed), self.noise_key(seed), call_format))
        return list(to_messages(self.ask())), self._info(valid=True, effective=False)

    def step(self, action: str) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        before = self.episode
        if before.over or not self.remaining():
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        key_before = self.state_key()
        calls = calls_in(action, before.call_format, self._tools)
        messages, problem = self._answered(calls) if calls else self._replied(action)
        parsed = [(call.name, call.arguments) for call in calls] if calls else action
        over = not problem and self.ended()
        self._episode = before._replace(state=self.state, draws=self.noise.count, turns=before.turns + 1, over=over)
        reward = self.format_penalty if problem else float(self.reward(before.state))
        info = self._info(valid=not problem, effective=self.state_key() != key_before)
        info["parsed_action"] = "" if problem else json.dumps(parsed, sort_keys=True)
        return messages, reward, over, not over and not self.remaining(), info

    def get_state(self) -> ToolEpisode[StateT]:
        return self.episode

    def set_state(self, state: ToolEpisode[StateT], /) -> None:
        self._episode, self.state, self.noise = state, state.state, Draws(state.key, state.draws)

    def reseed(self, key: Key, /) -> None:
        self.set_state(self.episode._replace(key=key, draws=0))

    def remaining(self) -> int:
        """Turns left."""
        return self.max_turns - self.episode.turns

    def written(self, function: Callable[..., str], **arguments: Any) -> str:
        """A response that calls a tool, for `oracle` and `legal_actions`."""
        return CALL_FORMATS[self.episode.call_format].write(function.__name__, arguments)

    def _answered(self, calls: Sequence[Call]) -> tuple[list[Message], bool]:
        """The answers to calls, and whether one of them is invalid: then none is played."""
        bound = [self._bound(call) for call in calls]
        if any(isinstance(one, RefusedCall) for one in bound):
            unplayed = "not run, because another call of this response is wrong"
            problems = [str(one) if isinstance(one, RefusedCall) else unplayed for one in bound]
            return [Message("tool", f"Error: {problem}") for problem in problems], True
        messages: list[Message] = []
        for play in bound:
            if callable(play) and not self.ended():
                messages.append(Message("tool", play()))
        return messages, False

    def _bound(self, call: Call) -> Callable[[], str] | RefusedCall:
        """A call, ready to be played."""
        try:
            if call.problem:
                raise RefusedCall(call.problem)
            tool = self._tools.get(call.name)
            if tool is None:
                raise RefusedCall(f"there is no tool {call.name!r}, only {', '.join(self._tools)}")
            return partial(self.call, tool.function, tool.arguments(call))
        except RefusedCall as refused:
            return refused

    def _replied(self, response: str) -> tuple[list[Message], bool]:
        try:
            return [Message("user", self.said(response))], False
        except RefusedCall as refused:
            return [Message("user", f"Error: {refused}")], True

    def _info(self, *, valid: bool, effective: bool) -> dict[str, Any]:
        return {"success": self.success(), "action_is_valid": valid, "action_is_effective": effective}
