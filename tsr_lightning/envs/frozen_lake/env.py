"""FrozenLake as a text environment that search can branch.

The dynamics are gymnasium's, the draws are ours: the n-th action after a reset or a reseed slips as number n of a key
says. Key and count are part of the state, so a state fixes its whole future, and `reseed` gives it another one.

Departs from RAGEN's FrozenLake: a seed names the same lake in every process (theirs falls back on Python's salted
hash), a branch can have noise of its own, and "actions left" counts what the turns left allow as well.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple, Unpack, get_args

from gymnasium.utils import seeding

from tsr_lightning.envs.frozen_lake.dynamics import ACTIONS, best_actions, chances, dynamics, land, likeliest, wander
from tsr_lightning.envs.frozen_lake.maps import ENDS, GOAL, Rows, given_lake, random_lake, start_cell
from tsr_lightning.envs.frozen_lake.render import LEGEND, grid, rules, show
from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.text import (
    ObservationName,
    ask_for_words,
    format_answer,
    format_rules,
    parse_answer,
)
from tsr_lightning.envs.text_env import TextEnv, TextEnvOptions
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.envs.validate import fraction, noise_has_key, one_of, whole
from tsr_lightning.rng import Key, Stream, draws_of


class LakeState(NamedTuple):
    """A lake and where the player stands."""

    rows: Rows
    cell: int


class TextFrozenLake(TextEnv[LakeState]):
    """Walk over a slippery lake to the goal. A turn stops at a hole or a goal.

    The reward is 1 at the goal, else 0. The defaults are the paper's (its released `CoordFrozenLake`).

    Args:
        size: cells a side of a random lake.
        frozen: probability that one of its cells is no hole.
        success_rate: probability of moving as intended; both perpendicular moves share the rest equally. 1: no slip.
        observation: the state as a symbol "grid", as "coordinates", or as "both".
        desc: a fixed lake in gymnasium's letters (S, F, H, G); `size`, `frozen` and `min_solution` then have no effect.
        min_solution: fewest moves from a random lake's start to its goal, without slips.
        options: of `TextEnv`, by default the paper's: five turns of two actions, and its prompt.
    """

    def __init__(
        self,
        size: int = 4,
        frozen: float = 0.9,
        success_rate: float = 0.8,
        observation: ObservationName = "both",
        desc: list[str] | None = None,
        min_solution: int = 1,
        **options: Unpack[TextEnvOptions],
    ) -> None:
        paper = TextEnvOptions(max_turns=5, actions_per_turn=2, max_actions=10, prompt_style="paper")
        super().__init__(**(paper | options))
        whole("TextFrozenLake.size", size, at_least=2)
        whole("TextFrozenLake.min_solution", min_solution, at_least=1)
        fraction("TextFrozenLake.frozen", frozen)
        fraction("TextFrozenLake.success_rate", success_rate)
        one_of("TextFrozenLake.observation", observation, get_args(ObservationName))
        self._random_lake = partial(random_lake, size=size, frozen=frozen, min_solution=min_solution)
        self._success_rate = success_rate
        self._observed: ObservationName = observation
        self._fixed = None if desc is None else given_lake(desc)
        self.initial_state(0)  # a lake that hardly ever has a path is refused now, not in the middle of a rollout
        self.instructions = format_rules(
            self.prompt_style,
            rules=rules(observation, self.prompt_style, self.actions_per_turn, slippery=success_rate != 1),
            symbols="" if observation == "coordinates" else LEGEND,
            actions=ACTIONS,
            limit=self.max_actions,
            example=("Right", "Down")[: self.actions_per_turn],
        )
        self.asked = ask_for_words(self.prompt_style, ACTIONS, self.actions_per_turn)

    def initial_state(self, seed: int) -> LakeState:
        """The lake that a seed names, with the player on its start."""
        rows = self._fixed or self._random_lake(_key(seed).fold_in("lake"))
        return LakeState(rows, start_cell(rows))

    def noise_key(self, seed: int) -> Key:
        return _key(seed).fold_in("noise")

    def read(self, response: str, limit: int) -> Answer:
        return parse_answer(response, self.prompt_style, ACTIONS, limit)

    def play(self, state: LakeState, actions: tuple[str, ...], noise: Draws) -> TurnResult[LakeState]:
        lake = dynamics(state.rows, self._success_rate)
        cell, played, effective = state.cell, 0, False
        for action in actions:
            played += 1
            target = land(lake.outcomes[cell][ACTIONS.index(action)], noise.uniform())
            effective |= target != cell
            cell = target
            if lake.letters[cell] in ENDS:
                break
        success, ended = lake.letters[cell] == GOAL, lake.letters[cell] in ENDS
        return TurnResult(state._replace(cell=cell), float(success), played, effective, success, ended)

    def show(self, state: LakeState) -> str:
        return show(*state, self._observed, self.prompt_style)

    def render_state(self, state: LakeState) -> str:
        return grid(*state)

    def score(self) -> float:
        """The probability of reaching the goal with the actions left, each chosen at its best with the cell known."""
        rows, cell = self.state
        return chances(rows, self._success_rate, self.max_actions)[self.remaining()][cell]

    def state_key(self) -> Hashable:
        """The rows without the start, and the player's cell."""
        rows, cell = self.state
        return (*dynamics(rows, self._success_rate).ground, cell)

    def legal_actions(self) -> list[str]:
        return [] if self.has_ended() else [format_answer(self.prompt_style, [name]) for name in ACTIONS]

    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        """As that of `TextEnv`, on the table of the lake."""
        rows, cell = self.state
        lake = dynamics(rows, self._success_rate)
        choices = draws_of(keys, horizon)
        slips = draws_of([key.fold_in(Stream.BRANCH) for key in keys], horizon)
        return [wander(lake, cell, *pair) for pair in zip(choices, slips, strict=True)]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """The best turn by value iteration. After a slippery action it plans from the most probable cell."""
        noise_has_key(noise, key)
        rows, cell = self.state
        lake = dynamics(rows, self._success_rate)
        best = best_actions(rows, self._success_rate, self.max_actions)
        left, chosen = self.remaining(), list[str]()
        for place in range(min(self.actions_per_turn, left)):
            action = best[left - place][cell]
            if noise and key is not None and key.uniform(2 * place) < noise:
                action = int(key.uniform(2 * place + 1) * len(ACTIONS))
            chosen.append(ACTIONS[action])
            cell = likeliest(lake, cell, action)
            if lake.letters[cell] in ENDS:
                break
        return format_answer(self.prompt_style, chosen)


def _key(seed: int) -> Key:
    """The key of an instance, drawn as `reset` of a gymnasium environment would draw it."""
    return Key(int(seeding.np_random(seed)[0].integers(1 << 63)))
