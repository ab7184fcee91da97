"""Sokoban as a text environment that search can branch. Rewards, budgets and prompts are the paper's by default."""

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import gymnasium
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.sokoban.board import ACTIONS, Boxes, Layout, Level, act, legal
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.levels import read_levels
from tsr_lightning.envs.sokoban.render import ObservationName, grid, rules, show, symbols
from tsr_lightning.envs.sokoban.score import score
from tsr_lightning.envs.sokoban.solver import plan
from tsr_lightning.envs.text import (
    CHARSET,
    PROMPT_STYLES,
    PromptStyleName,
    read_answer,
    say_answer,
    say_rules,
    say_turn,
)
from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

ACTION_REWARD = -0.1  # for every action played
BOX_REWARD = 1.0  # for a box onto a target, and minus that for a box off one
FINISH_REWARD = 10.0  # when all boxes are on targets

_INDICES = {name.lower(): index for index, name in enumerate(ACTIONS)}
_LONGEST_ACTION = 8192  # characters of a response


class Moment(NamedTuple):
    """The whole state of an episode."""

    layout: Layout
    player: int
    boxes: Boxes
    turns: int  # played
    actions: int  # played
    reward: float | None  # of the last turn; None before the first
    problem: str  # what was wrong with the last response; "" if nothing was
    noise: int  # the key given by `reseed`; Sokoban draws nothing from it


class SokobanEnv(gymnasium.Env[str, str]):
    """Sokoban, played in turns of a few actions each.

    Args:
        size: rows and columns of the levels, the outer wall included.
        boxes: boxes of a level.
        min_solution: moves that a shortest solution takes at least.
        max_solution: moves that a shortest solution takes at most.
        max_turns: turns before the episode is truncated; an invalid response uses one up.
        actions_per_turn: actions that a turn plays; further ones in the response are left unplayed.
        max_actions: actions before the episode is truncated.
        observation: the state as a symbol grid, as coordinates, or as both.
        prompt_style: `paper` is RAGEN's prompt, `brief` says the same in a fraction of the tokens, `bare` leaves
            the rules out too.
        format_penalty: reward of a turn whose response could not be read.
        levels: a file of levels (text or .gz) to play instead of made ones; the seed picks the level, modulo their
            number. The four arguments of difficulty then have no effect.
        render_mode: `ansi` for the grid as text.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012, gymnasium's own form

    def __init__(
        self,
        size: tuple[int, int] = (6, 6),
        boxes: int = 1,
        min_solution: int = 2,
        max_solution: int = 10,
        max_turns: int = 5,
        actions_per_turn: int = 2,
        max_actions: int = 10,
        observation: ObservationName = "both",
        prompt_style: PromptStyleName = "paper",
        format_penalty: float = -0.1,
        levels: str | Path | None = None,
        render_mode: Literal["ansi"] | None = None,
    ) -> None:
        whole("max_turns", max_turns)
        whole("actions_per_turn", actions_per_turn)
        whole("max_actions", max_actions)
        one_of("observation", observation, get_args(ObservationName))
        one_of("prompt_style", prompt_style, tuple(PROMPT_STYLES))
        if render_mode is not None:
            one_of("render_mode", render_mode, ("ansi",))
        if not isinstance(format_penalty, int | float) or not format_penalty <= 0:
            raise ConfigError(f"format_penalty is {format_penalty!r}: it is a reward, so give 0 or less, such as -0.1.")
        self._difficulty = Difficulty(_pair(size), boxes, min_solution, max_solution)
        self._levels: tuple[Level, ...] = () if levels is None else read_levels(levels)
        if levels is None:
            budget = min(max_actions, max_turns * actions_per_turn)
            if min_solution > budget:
                raise ConfigError(
                    f"min_solution is {min_solution}: no level could be solved within the {budget} actions that "
                    f"max_actions {max_actions}, max_turns {max_turns} and actions_per_turn {actions_per_turn} allow."
                )
            generate(_key(0), self._difficulty)  # what no room can hold is refused now, not in the middle of a rollout
        self.render_mode = render_mode
        self._max_turns, self._actions_per_turn, self._max_actions = max_turns, actions_per_turn, max_actions
        self._observation: ObservationName = observation
        self._prompt_style = PROMPT_STYLES[prompt_style]
        self._format_penalty = format_penalty
        self._instructions = say_rules(
            self._prompt_style,
            rules=rules(observation, self._prompt_style, actions_per_turn),
            symbols=symbols(observation),
            actions=ACTIONS,
            limit=max_actions,
        )
        rows, cols = self._difficulty.size
        cells = max((level.layout.rows * level.layout.cols for level in self._levels), default=rows * cols)
        self.observation_space = spaces.Text(max_length=1024 + 32 * cells, charset=CHARSET)
        self.action_space = spaces.Text(max_length=_LONGEST_ACTION, min_length=0, charset=CHARSET)
        self._now: Moment | None = None

    @property
    def instructions(self) -> str:
        """The rules, told once: the system message."""
        return self._instructions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first observation of the level that `seed` names."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 63))
        level = self._levels[seed % len(self._levels)] if self._levels else generate(_key(seed), self._difficulty)
        self._now = Moment(*level, turns=0, actions=0, reward=None, problem="", noise=0)
        return self._say(self._now), {"success": False, "action_is_valid": True, "action_is_effective": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays a turn."""
        now = self._moment()
        layout, player, boxes, turns, actions, _, _, noise = now
        left = self._left(now)
        if not left:
            raise ResetNeeded("the episode is over; call reset before the next step")
        answer = read_answer(action, self._prompt_style, _INDICES, min(self._actions_per_turn, left))
        reward = 0.0 if answer.valid else self._format_penalty
        effective = False
        for index in answer.actions:
            earlier = player, boxes
            player, boxes = act(layout, player, boxes, layout.steps[index])
            actions += 1
            reward += ACTION_REWARD
            if (player, boxes) == earlier:
                continue
            effective = True
            if boxes != earlier[1]:
                reward += BOX_REWARD * (_on_target(layout, boxes) - _on_target(layout, earlier[1]))
                if boxes == layout.targets:
                    reward += FINISH_REWARD
                    break
        now = Moment(layout, player, boxes, turns + 1, actions, reward, answer.problem, noise)
        self._now = now
        success = boxes == layout.targets
        info = {"success": success, "action_is_valid": answer.valid, "action_is_effective": effective}
        return self._say(now), reward, success, not success and not self._left(now), info

    def render(self) -> str | None:
        """The grid, in render mode `ansi`."""
        if self.render_mode is None:
            return None
        return grid(*self._moment()[:3])

    def get_state(self) -> Moment:
        """The whole moment, immutable."""
        return self._moment()

    def set_state(self, state: Moment, /) -> None:
        """Back to a moment that `get_state` returned."""
        self._now = state

    def reseed(self, key: Key, /) -> None:
        """Accepted and remembered; there is no noise in Sokoban that could change."""
        self._now = self._moment()._replace(noise=key.value)

    def score(self) -> float:
        """The task's own feedback in [0, 1]: push distances and deadlocks, no solver (see progress.py)."""
        return score(*self._moment()[:3])

    def state_key(self) -> tuple[int, int, tuple[int, ...], Boxes, int, Boxes]:
        """The board: rows, columns, walls, targets, player and boxes."""
        layout, player, boxes = self._moment()[:3]
        return (layout.rows, layout.cols, tuple(sorted(layout.walls)), layout.targets, player, boxes)

    def remaining(self) -> int:
        """Actions that can still be played: those left, or those that the turns left can hold, if fewer."""
        now = self._moment()
        return self._actions_left(now)

    def legal_actions(self) -> list[str]:
        """Responses of a single action that changes the board (of any, if none does); none when the episode is over."""
        now = self._moment()
        return (
            [say_answer(self._prompt_style, [ACTIONS[index]]) for index in _options(now[:3])] if self._left(now) else []
        )

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response that plays the next turn of a shortest solution.

        Each action is, with probability `noise`, a random one that changes the board, drawn from `key`; what follows is
        planned anew. The same holds for every action where no solution is known (without a key: the first one).
        """
        if noise and key is None:
            raise ConfigError(f"noise {noise}: needs a key to draw from.")
        now = self._moment()
        layout, player, boxes = now[:3]
        chosen: list[str] = []
        for place in range(min(self._actions_per_turn, self._left(now))):
            if boxes == layout.targets:
                break
            best = None if key is not None and key.uniform(2 * place) < noise else plan(layout, player, boxes)
            if best is None:
                options = _options((layout, player, boxes))
                index = options[0 if key is None else int(key.uniform(2 * place + 1) * len(options))]
            else:
                index = best[0]
            chosen.append(ACTIONS[index])
            player, boxes = act(layout, player, boxes, layout.steps[index])
        return say_answer(self._prompt_style, chosen)

    def _moment(self) -> Moment:
        if self._now is None:
            raise ResetNeeded("call reset before anything else")
        return self._now

    def _actions_left(self, now: Moment) -> int:
        return min(self._max_actions - now.actions, (self._max_turns - now.turns) * self._actions_per_turn)

    def _left(self, now: Moment) -> int:
        """Actions that this episode may still play: none once it is solved."""
        return 0 if now.boxes == now.layout.targets else self._actions_left(now)

    def _say(self, now: Moment) -> str:
        return say_turn(
            self._prompt_style,
            turn=now.turns + 1,
            state=show(now.layout, now.player, now.boxes, self._observation, self._prompt_style),
            left=self._actions_left(now),
            reward=now.reward,
            problem=now.problem,
        )


def _key(seed: int) -> Key:
    """The key of the level that a seed names."""
    return Key(0).fold_in("sokoban", seed)


def _pair(size: object) -> tuple[int, int]:
    """Rows and columns as a tuple, also from a list, which is what YAML has."""
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ConfigError(f"size is {size!r}: give rows and columns, such as [6, 6].")
    return (size[0], size[1])


def _options(board: tuple[Layout, int, Boxes]) -> tuple[int, ...]:
    """The actions that change the board; all of them if none does, so that there is always something to say."""
    return legal(*board) or tuple(range(len(ACTIONS)))


def _on_target(layout: Layout, boxes: Boxes) -> int:
    return sum(box in layout.targets for box in boxes)
