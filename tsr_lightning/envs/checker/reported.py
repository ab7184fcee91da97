"""Reads what reset and step return as a run reads it: messages become text and NumPy's scalars plain ones, and what the
contract does not have is refused in a sentence."""

import copy
from typing import Any

from tsr_lightning.envs.outcome import InvalidOutcome, finite, flag, one_text, texts

FLAGS = ("success", "action_is_valid", "action_is_effective")  # of info
_EXCERPT = 80  # characters of a value in a sentence


def read_reset(returned: Any, instructions: Any) -> tuple[str, dict[str, Any], str]:
    """The observation as text, the info and the instructions.

    Raises:
        InvalidOutcome: one of them is not the contract's.
    """
    observation, info = _parts("reset", returned, ("observation", "info"))
    return as_text(observation), _plain_info(info), one_text("instructions", instructions)


def read_step(returned: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """The observation as text, the reward, terminated, truncated and the info.

    Raises:
        InvalidOutcome: one of them is not the contract's.
    """
    names = ("observation", "reward", "terminated", "truncated", "info")
    observation, reward, terminated, truncated, info = _parts("step", returned, names)
    return (
        as_text(observation),
        finite("the reward", reward),
        flag("terminated", terminated),
        flag("truncated", truncated),
        _plain_info(info),
    )


def as_text(observation: Any) -> str:
    """An observation: a text as it is, messages as lines, each after its role."""
    messages = texts(observation)
    if isinstance(observation, str):
        return observation
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def _parts(method: str, returned: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if isinstance(returned, tuple) and len(returned) == len(names):
        return returned
    shown = repr(returned)
    cut = shown[:_EXCERPT] + ("..." if len(shown) > _EXCERPT else "")
    raise InvalidOutcome(f"{method} returns {cut}; return the tuple ({', '.join(names)})")


def _plain_info(info: Any) -> dict[str, Any]:
    """A copy, which an environment that reuses its dictionary cannot change later."""
    if not isinstance(info, dict):
        raise InvalidOutcome(f"info is {info!r}; give a dictionary")
    try:
        copied: dict[str, Any] = copy.deepcopy(info)
    except Exception as error:
        raise InvalidOutcome(f"info cannot be copied ({error}); fill it with plain values") from error
    if "parsed_action" in copied:
        one_text("info['parsed_action']", copied["parsed_action"])
    return {name: flag(f"info[{name!r}]", value) if name in FLAGS else value for name, value in copied.items()}
