"""Sokoban as a text environment that search can branch. Rewards, budgets and prompts are the paper's by default."""

from pathlib import Path
from typing import Unpack, get_args

from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.sokoban.board import ACTIONS, Board, Boxes, act, legal
from tsr_lightning.envs.sokoban.generator import Difficulty, generate
from tsr_lightning.envs.sokoban.levels import read_levels
from tsr_lightning.envs.sokoban.render import LEGEND, grid, rules, show
from tsr_lightning.envs.sokoban.score import score
from tsr_lightning.envs.sokoban.solver import plan
from tsr_lightning.envs.text import (
    ObservationName,
    ask_for_words,
    format_answer,
    format_rules,
    parse_answer,
)
from tsr_lightning.envs.text_env import TextEnv, TextEnvOptions
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.envs.validate import noise_has_key, one_of
from tsr_lightning.errors import require
from tsr_lightning.rng import Key

ACTION_REWARD = -0.1  # for every action played
BOX_REWARD = 1.0  # for a box onto a target, and minus that for a box off one
FINISH_REWARD = 10.0  # when all boxes are on targets


class SokobanEnv(TextEnv[Board]):
    """Sokoban, played in turns of a few actions each.

    Args:
        size: rows and columns of generated levels, the outer wall included.
        boxes: boxes of a generated level.
        min_solution: the fewest moves of a shortest solution.
        max_solution: the most moves of a shortest solution.
        observation: the state as a symbol "grid", as "coordinates", or as "both".
        levels: a file of levels (text or .gz) to play instead of generated ones; the seed picks the level, modulo their
            number. `size`, `boxes`, `min_solution` and `max_solution` then have no effect.
        options: of `TextEnv`, by default the paper's: five turns of two actions, and its prompt.
    """

    def __init__(
        self,
        size: tuple[int, int] = (6, 6),
        boxes: int = 1,
        min_solution: int = 2,
        max_solution: int = 10,
        observation: ObservationName = "both",
        levels: str | Path | None = None,
        **options: Unpack[TextEnvOptions],
    ) -> None:
        paper = TextEnvOptions(max_turns=5, actions_per_turn=2, max_actions=10, prompt_style="paper")
        super().__init__(**(paper | options))
        one_of("SokobanEnv.observation", observation, get_args(ObservationName))
        pair = isinstance(size, tuple | list) and len(size) == 2  # YAML has lists
        require(pair, "SokobanEnv.size", size, "give rows and columns, such as [6, 6].")
        self._difficulty = Difficulty((size[0], size[1]), boxes, min_solution, max_solution)
        self._levels: tuple[Board, ...] = () if levels is None else read_levels(levels)
        if levels is None:
            require(
                min_solution <= self.max_actions,
                "SokobanEnv.min_solution",
                min_solution,
                f"no level could be solved within the {self.max_actions} actions that max_actions, max_turns "
                f"{self.max_turns} and actions_per_turn {self.actions_per_turn} allow; lower it or raise them.",
            )
            self.initial_state(0)  # a difficulty that no room can hold is refused now, not in the middle of a rollout
        self._observed: ObservationName = observation
        self.instructions = format_rules(
            self.prompt_style,
            rules=rules(observation, self.prompt_style, self.actions_per_turn),
            symbols="" if observation == "coordinates" else LEGEND,
            actions=ACTIONS,
            limit=self.max_actions,
            example=("Right", "Up")[: self.actions_per_turn],
        )
        self.asked = ask_for_words(self.prompt_style, ACTIONS, self.actions_per_turn)

    def initial_state(self, seed: int) -> Board:
        """The level that a seed names."""
        if self._levels:
            return self._levels[seed % len(self._levels)]
        return generate(Key(0).fold_in("sokoban", seed), self._difficulty)

    def read(self, response: str, limit: int) -> Answer:
        return parse_answer(response, self.prompt_style, ACTIONS, limit)

    def play(self, state: Board, actions: tuple[str, ...], noise: Draws) -> TurnResult[Board]:
        layout, player, boxes = state
        reward, played, effective = 0.0, 0, False
        for action in actions:
            played += 1
            earlier = player, boxes
            step = layout.steps[ACTIONS.index(action)]
            player, boxes = act(layout, player, boxes, step)
            reward += ACTION_REWARD
            if (player, boxes) == earlier:
                continue
            effective = True
            if boxes != earlier[1]:
                reward += BOX_REWARD * ((player + step in layout.targets) - (player in layout.targets))
                if boxes == layout.targets:
                    reward += FINISH_REWARD
                    break
        return TurnResult(Board(layout, player, boxes), reward, played, effective, success=boxes == layout.targets)

    def show(self, state: Board) -> str:
        return show(*state, self._observed, self.prompt_style)

    def render_state(self, state: Board) -> str:
        return grid(*state)

    def score(self) -> float:
        """The task's own feedback in [0, 1]: push distances and deadlocks, no solver (see score.py)."""
        return score(*self.state)

    def state_key(self) -> tuple[int, int, tuple[int, ...], Boxes, int, Boxes]:
        """The board: rows, columns, walls, targets, player and boxes."""
        layout, player, boxes = self.state
        return (layout.rows, layout.cols, tuple(sorted(layout.walls)), layout.targets, player, boxes)

    def legal_actions(self) -> list[str]:
        """Responses of a single action that changes the board (of any, if none does); none when the episode is over."""
        if self.has_ended():
            return []
        return [format_answer(self.prompt_style, [ACTIONS[index]]) for index in _options(self.state)]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response that plays the next turn of a shortest solution.

        Each action is, with probability `noise`, a random one that changes the board, drawn from `key`; the rest is
        planned again. The same holds for every action where no solution is known (without a key: the first one).
        """
        noise_has_key(noise, key)
        layout, player, boxes = self.state
        chosen: list[str] = []
        for place in range(min(self.actions_per_turn, self.remaining())):
            if boxes == layout.targets:
                break
            best = None if key is not None and key.uniform(2 * place) < noise else plan(layout, player, boxes)
            if best is None:
                options = _options(Board(layout, player, boxes))
                index = options[0 if key is None else int(key.uniform(2 * place + 1) * len(options))]
            else:
                index = best[0]
            chosen.append(ACTIONS[index])
            player, boxes = act(layout, player, boxes, layout.steps[index])
        return format_answer(self.prompt_style, chosen)


def _options(board: Board) -> tuple[int, ...]:
    """The actions that change the board; all of them if none does, so that there is always something to play."""
    return legal(*board) or tuple(range(len(ACTIONS)))
