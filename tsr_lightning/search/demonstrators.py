"""Players of demonstrations: the environment's oracle, or random legal actions where there is none."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from tsr_lightning.envs.base import Branchable, HasLegalActions, HasOracle
from tsr_lightning.envs.outcome import demonstrate, random_legal
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

_FILE = "give demonstrations of a file (data.demonstrations.path)"


class Demonstrator(ABC):
    """Writes the responses of a demonstration."""

    method: ClassVar[str]  # of the environment, which it asks

    @abstractmethod
    def check(self, env: Branchable, name: str) -> None:
        """Raises a ConfigError if the environment of this name cannot be asked."""

    @abstractmethod
    def respond(self, env: Branchable, state: Any, key: Key) -> str:
        """A response in a state of an environment that passes `check`, drawn from `key`."""


@dataclass(frozen=True)
class Oracle(Demonstrator):
    """The environment's oracle.

    Args:
        noise: probability that an action is a random legal one instead.
    """

    noise: float = 0.0
    method = "oracle"

    def check(self, env: Branchable, name: str) -> None:
        if isinstance(env, HasOracle):
            return
        remedy = (
            "use RandomActions, which teaches the form of an answer alone (--config warm_start/form.yaml)"
            if isinstance(env, HasLegalActions)
            else f"add the method oracle, or {_FILE}"
        )
        raise ConfigError(f"a strategy is Expert, but {name} has no oracle: {remedy}")

    def respond(self, env: Branchable, state: Any, key: Key) -> str:
        assert isinstance(env, HasOracle)
        return demonstrate(env, state, self.noise, key)


@dataclass(frozen=True)
class RandomPlayer(Demonstrator):
    """Legal actions, all equally likely."""

    method = "legal_actions"

    def check(self, env: Branchable, name: str) -> None:
        if not isinstance(env, HasLegalActions):
            raise ConfigError(
                f"a strategy is RandomActions, but {name} does not list its legal actions: add the method "
                f"legal_actions, or {_FILE}"
            )

    def respond(self, env: Branchable, state: Any, key: Key) -> str:
        assert isinstance(env, HasLegalActions)
        return random_legal(env, state, key)
