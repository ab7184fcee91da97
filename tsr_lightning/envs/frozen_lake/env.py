"""FrozenLake as a text environment that search can branch.

gymnasium's own dynamics, with draws of our own: the n-th action after a reset or a reseed slips as number n of a key
says. Key and count are part of the state, so a moment holds its whole future, and `reseed` gives it another.

Departs from RAGEN's FrozenLake: the seed means the same lake in every process (theirs falls back on Python's salted
hash), search can be given noise of its own, and "actions left" counts what the turns left allow as well.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from tsr_lightning.envs.frozen_lake.dynamics import ACTIONS, ice, land, likeliest
from tsr_lightning.envs.frozen_lake.maps import ENDS, GOAL, Rows, given_lake, random_lake, start_cell
from tsr_lightning.envs.frozen_lake.render import LEGEND, OBSERVATIONS, ObservationName, grid, picture
from tsr_lightning.envs.frozen_lake.score import best_actions, chances
from tsr_lightning.envs.text import (
    CHARSET,
    PROMPT_STYLES,
    PromptStyleName,
    read_answer,
    say_answer,
    say_rules,
    say_turn,
)
from tsr_lightning.envs.validate import one_of, share, whole
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

BY_NAME = {name.lower(): action for action, name in enumerate(ACTIONS)}
MAX_ANSWER = 8192  # characters


class Moment(NamedTuple):
    """All there is to know of a game, for an environment made with the same arguments."""

    rows: Rows
    cell: int
    turns: int  # played
    actions: int  # played
    key: int  # of the noise
    draws: int  # numbers of `key` used up


class TextFrozenLake(gymnasium.Env[str, str]):
    """Walk over slippery ice to the goal, up to `actions_per_turn` actions a turn.

    Reward +1 at the goal, else 0; an answer that cannot be read plays no action, costs `format_penalty` and uses up a
    turn. Defaults are the paper's (its released `CoordFrozenLake`).

    Args:
        size: cells a side of a random lake.
        frozen: share of its cells that are no hole.
        success_rate: probability of moving where one wants; both perpendiculars share the rest equally. 1: no slip.
        max_turns: turns in an episode.
        actions_per_turn: the most actions that a turn plays; a turn stops at a hole or a goal.
        max_actions: actions in an episode.
        observation: "grid", "coordinates" or "both".
        prompt_style: "paper" (RAGEN's prompt) or "brief" (the same in few tokens), or "bare" (brief without the rules).
        format_penalty: reward of an answer that cannot be read, at most 0.
        desc: a fixed lake in gymnasium's letters (S, F, H, G); then `size` and `frozen` say nothing.
        render_mode: "ansi" or None.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        size: int = 4,
        frozen: float = 0.9,
        success_rate: float = 0.8,
        max_turns: int = 5,
        actions_per_turn: int = 2,
        max_actions: int = 10,
        observation: ObservationName = "both",
        prompt_style: PromptStyleName = "paper",
        format_penalty: float = -0.1,
        desc: list[str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        whole("size", size, at_least=2)
        share("frozen", frozen)
        share("success_rate", success_rate)
        whole("max_turns", max_turns)
        whole("actions_per_turn", actions_per_turn)
        whole("max_actions", max_actions)
        one_of("observation", observation, OBSERVATIONS)
        one_of("prompt_style", prompt_style, tuple(PROMPT_STYLES))
        if not format_penalty <= 0:
            raise ConfigError(f"format_penalty is {format_penalty}: it is a reward, so give 0 or less, such as -0.1.")
        if render_mode is not None:
            one_of("render_mode", render_mode, ("ansi",))
        self.render_mode = render_mode
        self._size, self._frozen, self._success_rate = size, frozen, success_rate
        self._max_turns, self._actions_per_turn, self._max_actions = max_turns, actions_per_turn, max_actions
        self._horizon = min(max_actions, actions_per_turn * max_turns)
        self._observation, self._prompt_style = observation, PROMPT_STYLES[prompt_style]
        self._format_penalty = float(format_penalty)
        # a lake that hardly ever comes out is refused now and not in the middle of a rollout
        lake = random_lake(Key(0), size=size, frozen=frozen) if desc is None else given_lake(desc)
        self._fixed = None if desc is None else lake
        self._moment: Moment | None = None
        self._answers = [say_answer(self._prompt_style, [name]) for name in ACTIONS]
        cells = len("".join(lake))
        self.action_space = Text(MAX_ANSWER, min_length=0, charset=CHARSET)
        self.observation_space = Text(1024 + 32 * cells, charset=CHARSET)  # a hole is named and drawn in under 32

    @property
    def instructions(self) -> str:
        where = {
            "grid": "You see the lake as a grid of symbols.",
            "coordinates": "You see the coordinates (row, column), counted from (0, 0) at the top left.",
            "both": "You see the coordinates (row, column), counted from (0, 0) at the top left, "
            "and the lake as a grid of symbols.",
        }
        slip = "" if self._success_rate == 1 else " The ice is slippery: a move may go to one of its two sides instead."
        if self._prompt_style.terse:
            rules = "Walk to the goal G, not into a hole O."
        else:
            rules = (
                "You are solving the FrozenLake puzzle: walk over the ice to the goal and fall into no hole."
                f"{slip} {where[self._observation]} Answer with a sequence of actions, such as "
                f"{say_answer(self._prompt_style, ['Left', 'Up'])}. "
                f"A turn plays the first {self._actions_per_turn} of them."
            )
        symbols = "" if self._observation == "coordinates" else LEGEND
        return say_rules(self._prompt_style, rules=rules, symbols=symbols, actions=ACTIONS, limit=self._max_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        instance = Key(int(self.np_random.integers(1 << 63)))
        rows = self._fixed or random_lake(instance.fold_in("lake"), size=self._size, frozen=self._frozen)
        self._moment = Moment(rows, start_cell(rows), 0, 0, instance.fold_in("noise").value, 0)
        info = {"success": False, "action_is_valid": True, "action_is_effective": False}
        return self._say(reward=None, problem=""), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self._now()
        if self._over(before):
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        limit = min(self._actions_per_turn, self._max_actions - before.actions)
        answer = read_answer(action, self._prompt_style, BY_NAME, limit)
        self._moment, moved = self._played(before, answer.actions)
        letter = self._letter(self._moment)
        reward = float(letter == GOAL) if answer.valid else self._format_penalty
        terminated = letter in ENDS
        info = {"success": letter == GOAL, "action_is_valid": answer.valid, "action_is_effective": moved}
        truncated = not terminated and self.remaining() == 0
        return self._say(reward=reward, problem=answer.problem), reward, terminated, truncated, info

    def render(self) -> str | None:
        if self.render_mode is None:
            return None
        moment = self._now()
        return grid(moment.rows, moment.cell)

    def get_state(self) -> Moment:
        return self._now()

    def set_state(self, state: Moment, /) -> None:
        self._moment = state

    def reseed(self, key: Key, /) -> None:
        self._moment = self._now()._replace(key=key.value, draws=0)

    def score(self) -> float:
        """The probability of reaching the goal with the actions left, played at their best with the cell in sight."""
        moment = self._now()
        return chances(moment.rows, self._success_rate, self._horizon)[self.remaining()][moment.cell]

    def state_key(self) -> Hashable:
        moment = self._now()
        return (*ice(moment.rows, self._success_rate).ground, moment.cell)

    def remaining(self) -> int:
        """Actions that can still be played, in the turns that are left."""
        moment = self._now()
        turns = self._max_turns - moment.turns
        return min(self._max_actions - moment.actions, self._actions_per_turn * turns)

    def legal_actions(self) -> list[str]:
        """An answer for each single action; none when the episode has ended."""
        return [] if self._over(self._now()) else list(self._answers)

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """The value iteration's best turn. What follows a slippery action is planned from where it most likely ends."""
        if noise and key is None:
            raise ConfigError(f"noise is {noise}: give a key to draw it from.")
        moment = self._now()
        lake = ice(moment.rows, self._success_rate)
        best = best_actions(moment.rows, self._success_rate, self._horizon)
        cell, left, said = moment.cell, self.remaining(), list[int]()
        for place in range(min(self._actions_per_turn, left)):
            action = best[left - place][cell]
            if noise and key is not None and key.uniform(2 * place) < noise:
                action = int(key.uniform(2 * place + 1) * len(ACTIONS))
            said.append(action)
            cell = likeliest(lake, cell, action)
            if lake.letters[cell] in ENDS:
                break
        return say_answer(self._prompt_style, [ACTIONS[action] for action in said])

    def _now(self) -> Moment:
        if self._moment is None:
            raise ResetNeeded("there is no game yet: call reset() or set_state() first")
        return self._moment

    def _letter(self, moment: Moment) -> str:
        return ice(moment.rows, self._success_rate).letters[moment.cell]

    def _over(self, moment: Moment) -> bool:
        return moment.turns >= self._max_turns or moment.actions >= self._max_actions or self._letter(moment) in ENDS

    def _played(self, moment: Moment, actions: tuple[int, ...]) -> tuple[Moment, bool]:
        """The moment after a turn of `actions`, and whether any of them moved the player."""
        lake, noise = ice(moment.rows, self._success_rate), Key(moment.key)
        cell, played, moved = moment.cell, 0, False
        for action in actions:
            then = land(lake.outcomes[cell][action], noise.uniform(moment.draws + played))
            moved |= then != cell
            cell, played = then, played + 1
            if lake.letters[cell] in ENDS:
                break
        after = Moment(moment.rows, cell, moment.turns + 1, moment.actions + played, moment.key, moment.draws + played)
        return after, moved

    def _say(self, *, reward: float | None, problem: str) -> str:
        moment = self._now()
        return say_turn(
            self._prompt_style,
            turn=moment.turns + 1,
            state=picture(moment.rows, moment.cell, self._observation, self._prompt_style),
            left=self.remaining(),
            reward=reward,
            problem=problem,
        )
