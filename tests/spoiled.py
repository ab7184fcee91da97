"""A corridor with one mistake in its program. A user's environment, named by module."""

import sys
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium
import numpy as np

from tests.corridor import Corridor
from tsr_lightning.errors import EnvFault
from tsr_lightning.trajectory import Message

Step = tuple[Any, Any, Any, Any, dict[str, Any]]


def _raises(error: BaseException) -> Callable[[Any], Any]:
    def spoil(result: Any) -> Any:
        raise type(error)(*error.args)  # a new one: tracebacks grow

    return spoil


def _reward(value: Any) -> Callable[[Step], Step]:
    return lambda step: (step[0], value, *step[2:])


def _observation(value: Any) -> Callable[[Any], Any]:
    return lambda result: (value, *result[1:])


def _info(**values: Any) -> Callable[[Step], Step]:
    return lambda step: (*step[:4], {**step[4], **values})


def _without_success(step: Step) -> Step:
    return (*step[:4], {name: value for name, value in step[4].items() if name != "success"})


def _numpy(step: Step) -> Step:
    observation, reward, terminated, truncated, info = step
    flags = {name: np.bool_(value) for name, value in info.items()}
    return observation, np.float64(reward), np.bool_(terminated), np.bool_(truncated), flags


# What becomes of a method's result, by the name of the mistake.
SPOILED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "step raises": ("step", _raises(KeyError("typo"))),
    "step exits": ("step", _raises(SystemExit(0))),
    "step faults": ("step", _raises(EnvFault("no page"))),
    "step hangs": ("step", lambda _: time.sleep(3600)),
    "score raises": ("score", _raises(ZeroDivisionError("division by zero"))),
    "score is nan": ("score", lambda _: float("nan")),
    "reset raises": ("reset", _raises(IndexError("list index out of range"))),
    "reset hangs": ("reset", lambda _: time.sleep(3600)),
    "legal actions raise": ("legal_actions", _raises(AttributeError("no board"))),
    "state key is a list": ("state_key", lambda key: [key]),
    "reward is infinite": ("step", _reward(float("inf"))),
    "reward is None": ("step", _reward(None)),
    "reward is an array": ("step", _reward(np.ones(2))),
    "success is None": ("step", _info(success=None)),
    "success is missing": ("step", _without_success),
    "parts": ("step", _observation([Message("user", [{"type": "text", "text": "go"}])])),  # type: ignore[arg-type]
    "observation is None": ("step", _observation(None)),
    "first parts": ("reset", _observation([Message("user", [{"type": "text"}])])),  # type: ignore[arg-type]
    "another role": ("step", _observation([Message("function", "3")])),
    "failures score 1": ("score", lambda _: 1.0),
    "numpy": ("step", _numpy),
    "numpy score": ("score", lambda score: np.float32(score)),
}


class Spoiled(Corridor):
    """The corridor without slips.

    Args:
        mistake: its one mistake; "" for none.
        after: calls of the method that are right.
    """

    def __init__(self, mistake: str = "", after: int = 0) -> None:
        super().__init__(slip=0.0)
        self.method, self.spoil = SPOILED.get(mistake, ("", _raises(AssertionError())))
        self.after = after

    def _spoiled(self, method: str, result: Any) -> Any:
        if method != self.method:
            return result
        self.after -= 1
        return result if self.after >= 0 else self.spoil(result)

    def reset(self, **kwargs: Any) -> Any:
        return self._spoiled("reset", super().reset(**kwargs))

    def step(self, action: str) -> Any:
        return self._spoiled("step", super().step(action))

    def score(self) -> Any:
        return self._spoiled("score", super().score())

    def state_key(self) -> Hashable:
        return self._spoiled("state_key", super().state_key())  # type: ignore[no-any-return]

    def legal_actions(self) -> Any:
        return self._spoiled("legal_actions", super().legal_actions())


if "Spoiled-v0" not in gymnasium.registry:  # as `spoiled` and as `tests.spoiled`
    gymnasium.register("Spoiled-v0", Spoiled)

sys.modules.setdefault("spoiled", sys.modules[__name__])
