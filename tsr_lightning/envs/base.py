"""What search asks of an environment: a `gymnasium.Env` with text in and text out whose moments can be branched.

Knows no torch and no language model.
"""

import hashlib
from collections.abc import Hashable
from typing import Any, Protocol, runtime_checkable

from tsr_lightning.rng import Key


@runtime_checkable
class Branchable(Protocol):
    """A text environment that search can branch.

    Turn and step limits live in the state, never in a wrapper: gymnasium's TimeLimit and OrderEnforcing break
    restoring. So environments are registered without `max_episode_steps`, and search works on `env.unwrapped`.

    `step` reports in `info`: `success` (the task is solved), `action_is_valid` (the text could be read as actions),
    `action_is_effective` (the state of the task changed).
    """

    @property
    def instructions(self) -> str:
        """The rules, told once: the system message."""
        ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]: ...

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    def get_state(self) -> Hashable:
        """The whole moment, immutable: what `set_state` needs to go on exactly from here, randomness included."""
        ...

    def set_state(self, state: Any, /) -> None:
        """Back to a moment that `get_state` returned, in any environment made with the same arguments."""
        ...

    def reseed(self, key: Key, /) -> None:
        """From here on, the noise of `key` and of nothing else: a branch must not see the real episode's future.

        What the state holds of noise drawn in advance is drawn anew; score and situation stay as they are.
        """
        ...

    def score(self) -> float:
        """The task's own feedback on this state in [0, 1], higher is better, 1 when solved (the paper's S).

        Never part of the reward and never in the observation.
        """
        ...

    def state_key(self) -> Hashable:
        """Equal for equal situations, whatever budget is left; made of numbers, strings and tuples alone.

        Search keeps one of the states of an episode with equal keys. So equal keys promise, but for what the budget
        decides, equal legal actions, and after equal reseeds and actions equal rewards, ends, flags in `info` and keys;
        with an equal budget and return, equal scores too. What leaves the situation as it is (`action_is_effective`
        False, a reseed) leaves the key as it is.
        """
        ...

    def remaining(self) -> int:
        """The budget left before truncation, in the environment's own unit (actions)."""
        ...

    def legal_actions(self) -> list[str]:
        """Single actions that can be said now."""
        ...


@runtime_checkable
class HasOracle(Protocol):
    """An environment with a solver."""

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response that plays the next turn of a best solution; each action is, with probability `noise`, a
        random legal one instead, drawn from `key`."""
        ...


def fingerprint(state_key: Hashable) -> str:
    """The hash of a situation, the same in every process (Python's own hash of a string is salted)."""
    return hashlib.blake2b(repr(state_key).encode(), digest_size=12).hexdigest()
