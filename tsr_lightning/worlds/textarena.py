"""The single-player games of TextArena (github.com/LeonGuertler/TextArena, MIT), which draw from Python's own random.

`--data.env tsr_lightning.worlds.textarena:TextArena-v0 --data.env_kwargs.game TowerOfHanoi-v0-raw`
"""

import pickle
from collections.abc import Hashable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.global_random import lent
from tsr_lightning.envs.object_digest import digest
from tsr_lightning.envs.outcome import finite
from tsr_lightning.envs.text_env import AnyText
from tsr_lightning.envs.turns import Draws
from tsr_lightning.envs.validate import whole
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key

_SEEDS = 1 << 32
_LONGEST = 1 << 20  # characters of an observation or a response


class Held(NamedTuple):
    """The state: the game, which its methods change, as bytes."""

    game: bytes
    digest: str  # of it
    key: Key  # of the noise
    draws: int = 0  # numbers of `key` used up
    turns: int = 0  # played
    reward: float | None = None  # of the game, once it has ended


class TextArena(gymnasium.Env[str, str]):
    """A game, played by responses that it reads itself. The reward comes at its end; a response that it refuses costs
    a turn and changes nothing else.

    Args:
        game: its id in TextArena, as a rule one that ends with `-raw`.
        max_turns: responses before the episode is truncated.
        game_kwargs: arguments of the game.
        success_at: the reward from which on a game is won. Search ranks finished games by reward / success_at.
        instructions: the system message; "" for none, since games explain themselves.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, gymnasium's own form

    def __init__(
        self,
        game: str,
        *,
        max_turns: int = 30,
        game_kwargs: dict[str, Any] | None = None,
        success_at: float = 1.0,
        instructions: str = "",
    ) -> None:
        try:
            import textarena
        except ImportError as error:
            remedy = "pip install 'tsr-lightning[textarena]'"
            raise ConfigError(f"TextArena needs the package textarena ({error}): {remedy}.") from error
        whole("TextArena.max_turns", max_turns)
        valid = isinstance(success_at, int | float) and 0 < success_at < float("inf")
        require(valid, "TextArena.success_at", success_at, "give a reward above 0.")
        try:
            self._new: Any = pickle.dumps(textarena.make(game, **(game_kwargs or {})))
        except (ValueError, TypeError, ImportError, SyntaxError) as error:
            key = f"TextArena.game is {game!r}, with game_kwargs {game_kwargs!r}"
            raise ConfigError(f"{key}: TextArena refuses it ({error}); give an id and arguments of its own.") from error
        self._said = textarena.ObservationType.PLAYER_ACTION
        self.max_turns, self.instructions, self._success_at = max_turns, instructions, success_at
        self.observation_space = AnyText(_LONGEST, min_length=0)
        self.action_space = AnyText(_LONGEST, min_length=0)
        self._held: Held | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        game = pickle.loads(self._new)
        with lent(seed % _SEEDS):
            game.reset(num_players=1, seed=seed)
        shown = self._shown(game)
        self._held = Held(pickle.dumps(game), digest(game), Key(0).fold_in("noise", seed))
        return shown, self._info(valid=True, effective=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before, key_before = self.get_state(), self.state_key()
        if before.reward is not None or not self.remaining():
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        game, noise = pickle.loads(before.game), Draws(before.key, before.draws)
        errors = game.state.error_count
        drawn = noise.below(_SEEDS)
        turned = before._replace(turns=before.turns + 1, draws=noise.count)
        with lent(drawn):
            try:
                done, _ = game.step(action)
            except Exception as error:  # of any class: some games read a number that is none
                self._held = turned
                info = self._info(valid=False, effective=False)
                return f"Invalid move: {error}", 0.0, False, not self.remaining(), info
        shown = self._shown(game)
        refused = game.state.game_info[0]["invalid_move"] or game.state.error_count > errors
        if refused:
            self._held = turned
        else:
            reward = finite("the reward", game.close()[0][0]) if done else None
            self._held = turned._replace(game=pickle.dumps(game), digest=digest(game), reward=reward)
        info = self._info(valid=not refused, effective=self.state_key() != key_before)
        ended = self._held.reward is not None
        return shown, self._held.reward or 0.0, ended, not ended and not self.remaining(), info

    def get_state(self) -> Held:
        if self._held is None:
            raise ResetNeeded("there is no episode yet: call reset() or set_state() first")
        return self._held

    def set_state(self, state: Held, /) -> None:
        self._held = state

    def reseed(self, key: Key, /) -> None:
        self._held = self.get_state()._replace(key=key, draws=0)

    def score(self) -> float:
        """The reward of a finished game as a share of `success_at`, within [0, 1]; 0 before."""
        return min(max((self.get_state().reward or 0.0) / self._success_at, 0.0), 1.0)

    def state_key(self) -> Hashable:
        """What the game has become, and whether it has ended."""
        held = self.get_state()
        return held.digest, held.reward is not None

    def remaining(self) -> int:
        """Turns left."""
        return self.max_turns - self.get_state().turns

    def _shown(self, game: Any) -> str:
        """What the game tells, without the policy's own words."""
        _, told = game.get_observation()
        return "\n".join(str(text) for _, text, kind in told if kind != self._said)  # some games tell numbers

    def _info(self, *, valid: bool, effective: bool) -> dict[str, Any]:
        success = (self.get_state().reward or 0.0) >= self._success_at
        return {"success": success, "action_is_valid": valid, "action_is_effective": effective}


gymnasium.register("TextArena-v0", "tsr_lightning.worlds.textarena:TextArena")
