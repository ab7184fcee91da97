"""Runs the environment classes of TRL's `GRPOTrainer(environment_factory=...)` unchanged.

    tsr fit ... --data.env tsr_lightning.envs.trl_env:TRL-v0 --data.env_kwargs.environment my_module.MyEnv

As there, public methods are tools (bound ones, so class methods too and static ones not), `reset` begins an episode
with the whole row, what it returns follows the row's prompt (its last message, where it has messages), a coroutine is
run to its end, a tool's exception is its answer, and a response without a call ends the episode. TRL is not needed.

A turn's reward is what that of the class has grown by. So the return is TRL's reward less that of an episode that ends
at once, which all episodes of a row have.
"""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from tsr_lightning.envs.global_random import lent
from tsr_lightning.envs.object_digest import digest
from tsr_lightning.envs.outcome import finite, one_text
from tsr_lightning.envs.rows import Row, messages_in, read_rows
from tsr_lightning.envs.tool_env import ToolEnv
from tsr_lightning.envs.validate import imported
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.trajectory import Message

_NO_TOOLS = ("reset", "get_reward")
_SEEDS = 1 << 32


class Held(NamedTuple):
    """The state: the object itself, which methods change, as bytes."""

    row: int
    pickled: bytes
    digest: str  # of the object
    begun: str  # what reset returned
    value: float  # the reward of an episode that ended here
    answered: bool = False  # a response called no tool


class TRLEnv(ToolEnv[Held]):
    """An environment class of TRL, which must be one that pickle can write.

    Args:
        environment: the class, or its dotted path.
        rows: a .jsonl or .csv file, or the rows, with a prompt (a text, or messages with role and content) and further
            columns; `reset` gets them all. None for one empty row.
        reward: a reward function of TRL, or its dotted path, which is called with `environments` and the columns of the
            row, each a list of one, and not with `prompts` or `completions`; None: the class has `get_reward`.
        success_at: the reward from which on an episode is a success, which ends it. Search ranks by
            reward / success_at within [0, 1].
        max_turns: responses before the episode is truncated.
        call_format: as for `ToolEnv`.
    """

    def __init__(
        self,
        environment: str | type,
        *,
        rows: str | Path | Iterable[Row] | None = None,
        reward: str | Callable[..., list[float]] | None = None,
        success_at: float = 1.0,
        max_turns: int = 16,
        call_format: CallFormatName | None = None,
    ) -> None:
        name = type(self).__name__
        self._class: Any = imported(f"{name}.environment", environment)
        self._rows = [{"prompt": ""}] if rows is None else read_rows(f"{name}.rows", rows)
        for number, row in enumerate(self._rows, start=1):
            _check_prompt(f"{name}.rows", number, row)
        self._reward = None if reward is None else imported(f"{name}.reward", reward)
        valid = isinstance(success_at, int | float) and 0 < success_at < float("inf")
        require(valid, f"{name}.success_at", success_at, "give a reward above 0.")
        require(callable(self._class), f"{name}.environment", environment, "give a class.")
        with lent(0):
            held = self._class()
        members = dict(inspect.getmembers(held, predicate=inspect.ismethod))
        has_all = "reset" in members and (reward is not None or "get_reward" in members)
        remedy = "its class needs reset and get_reward (or give reward, a function)."
        require(has_all, f"{name}.environment", environment, remedy)
        if self._reward is not None:
            self._check_reward(name, self._reward)
        self._success_at = success_at
        self.tool_functions = tuple(
            each.__func__ if each.__self__ is held else each
            for key, each in members.items()
            if key not in _NO_TOOLS and not key.startswith("_")
        )
        super().__init__(max_turns=max_turns, call_format=call_format, format_penalty=0.0)

    def initial_state(self, seed: int) -> Held:
        row = self.noise_key(seed).fold_in("row").bits() % len(self._rows)
        with lent(seed % _SEEDS):
            held = self._class()
            returned = held.reset(**copy.deepcopy(dict(self._rows[row])))  # what it changes of a row stays its own
            begun = "" if returned is None else one_text("reset()", returned)
            kept = pickle.dumps(held), digest(held)
            return Held(row, *kept, begun, self._value(held, row))

    def ask(self) -> str | Sequence[Message]:
        prompt = self._rows[self.state.row].get("prompt", "")
        if isinstance(prompt, str):
            return prompt + self.state.begun
        *before, last = messages_in(prompt)
        return [*before, replace(last, content=last.content + self.state.begun)]

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
        held = pickle.loads(self.state.pickled)
        with lent(self.noise.below(_SEEDS)):
            try:
                result = _finished(function(**arguments) if inspect.ismethod(function) else function(held, **arguments))
            except Exception as error:  # of any class: it is what the tool tells, as in TRL
                result = {"error": str(error)}
            kept = pickle.dumps(held), digest(held)  # before it is asked for a reward, as in TRL at the end alone
            value = self._value(held, self.state.row)
        self.state = self.state._replace(pickled=kept[0], digest=kept[1], value=value)
        return str(result)

    def said(self, response: str) -> str:
        self.state = self.state._replace(answered=True)
        return ""

    def reward(self, before: Held) -> float:
        return self.state.value - before.value

    def success(self) -> bool:
        return self.state.value >= self._success_at

    def ended(self) -> bool:
        return self.state.answered or self.success()

    def score(self) -> float:
        return min(max(self.state.value / self._success_at, 0.0), 1.0)

    def state_key(self) -> Hashable:
        """The row, what the object has become, and whether the episode was ended."""
        return self.state.row, self.state.digest, self.state.answered

    def _value(self, held: Any, row: int) -> float:
        if self._reward is None:
            return finite("get_reward()", held.get_reward())
        [value] = self._reward(environments=[held], **self._columns(row))
        return finite("the reward", value)

    def _columns(self, row: int) -> dict[str, list[Any]]:
        """The columns of a row, each a list of one."""
        return {key: [value] for key, value in self._rows[row].items()}

    def _check_reward(self, name: str, reward: Callable[..., list[float]]) -> None:
        try:
            inspect.signature(reward).bind(environments=[], **self._columns(0))
        except TypeError as error:
            remedy = "it is called with environments and the row's columns alone, so give one that takes them."
            raise ConfigError(f"{name}.reward is {reward!r}: {error}; {remedy}") from error


def _finished(result: Any) -> Any:
    """The result of a method; a coroutine is run to its end."""
    if not inspect.iscoroutine(result):
        return result
    with ThreadPoolExecutor(1) as pool:  # this thread may have a loop of its own, such as a notebook's
        return pool.submit(asyncio.run, result).result()


def _check_prompt(key: str, number: int, row: Row) -> None:
    prompt = row.get("prompt", "")
    if not isinstance(prompt, str) and not messages_in(prompt):
        raise ConfigError(
            f"{key}: the 'prompt' of row {number} is {prompt!r}; give a text, or messages with role and content."
        )


gymnasium.register("TRL-v0", "tsr_lightning.envs.trl_env:TRLEnv")
