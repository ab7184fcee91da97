"""A base for text environments: states, budgets, format penalties and observations.

A subclass defines its task: `instructions`, `initial_state`, `read`, `play`, `show` and `score`; where they apply,
also `noise_key`, `state_key`, `extra_info` and `render_state`, and the optional `legal_actions` and `oracle`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict

import gymnasium
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.base import HasLegalActions
from tsr_lightning.envs.place_map import PlaceMap
from tsr_lightning.envs.reading import READERS, Answer, ReaderName
from tsr_lightning.envs.text import CHARSET, PROMPT_STYLES, PromptStyle, read_by
from tsr_lightning.envs.turns import Draws, StateT, TurnResult
from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.errors import require
from tsr_lightning.rng import Key

_LONGEST_OBSERVATION = 1 << 20  # characters
_LONGEST_RESPONSE = 8192


class AnyText(spaces.Text):
    """Text of any characters: a task may quote text of others."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class Episode(NamedTuple, Generic[StateT]):
    """All of an episode that `set_state` needs, immutable."""

    state: StateT  # the task's own
    key: Key  # of the noise
    draws: int = 0  # numbers of `key` used up
    turns: int = 0  # played
    actions: int = 0  # played
    terminated: bool = False


class TextEnvOptions(TypedDict, total=False):
    """The arguments of `TextEnv`, for the signature of a task that passes them on: `**options: Unpack[TextEnvOptions]`.

    A task gives its own defaults as `super().__init__(**(TextEnvOptions(max_turns=9) | options))`.
    """

    max_turns: int
    actions_per_turn: int
    max_actions: int | None
    prompt_style: str
    reader: ReaderName | None
    format_penalty: float
    render_mode: str | None


class TextEnv(gymnasium.Env[str, str], ABC, Generic[StateT]):
    """A task that is played in turns, each of one or a few actions, and whose state is an immutable `StateT`.

    Args:
        max_turns: turns before the episode is truncated; an unreadable response uses one up.
        actions_per_turn: actions that a turn plays; further ones in the response are ignored.
        max_actions: actions before the episode is truncated; None for all that the turns allow.
        prompt_style: "paper" (RAGEN's prompt), "instruct" (plain words and an example, for pretrained instruct models),
            "brief" (few tokens) or "bare" (brief without the rules); see `text.py`.
        reader: "strict" (RAGEN's rule) or "lenient" (what instruct models say, where it names one answer); None: the
            prompt style's own, which is lenient for "instruct" alone; see `reading.py`.
        format_penalty: reward of a turn whose response cannot be read, at most 0.
        render_mode: "ansi" for the state as text, or None.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012, gymnasium's own form
    prompt_styles: ClassVar[Mapping[str, PromptStyle]] = PROMPT_STYLES
    instructions: str  # the system message, see `text.format_rules`
    repeated_turns: int = 0  # past turns that an observation repeats
    most_places: ClassVar[int] = 50_000  # states that random play remembers; see `PlaceMap`
    asked: str = "Answer with your action alone."  # how to answer, with which the prompt style "instruct" ends a turn

    def __init__(
        self,
        *,
        max_turns: int,
        actions_per_turn: int = 1,
        max_actions: int | None = None,
        prompt_style: str = "brief",
        reader: ReaderName | None = None,
        format_penalty: float = -0.1,
        render_mode: str | None = None,
    ) -> None:
        name = type(self).__name__
        whole(f"{name}.max_turns", max_turns)
        whole(f"{name}.actions_per_turn", actions_per_turn)
        if max_actions is not None:
            whole(f"{name}.max_actions", max_actions)
        one_of(f"{name}.prompt_style", prompt_style, tuple(self.prompt_styles))
        if reader is not None:
            one_of(f"{name}.reader", reader, tuple(READERS))
        if render_mode is not None:
            one_of(f"{name}.render_mode", render_mode, self.metadata["render_modes"])
        valid = isinstance(format_penalty, int | float) and format_penalty <= 0
        require(valid, f"{name}.format_penalty", format_penalty, "it is a reward, so give 0 or less, such as -0.1.")
        self.max_turns, self.actions_per_turn = max_turns, actions_per_turn
        within_turns = max_turns * actions_per_turn
        self.max_actions = within_turns if max_actions is None else min(max_actions, within_turns)
        style = self.prompt_styles[prompt_style]
        self.prompt_style = style if reader is None else read_by(style, READERS[reader])
        self.format_penalty = float(format_penalty)
        self.render_mode = render_mode
        self.observation_space = AnyText(_LONGEST_OBSERVATION, min_length=0, charset=CHARSET)
        self.action_space = spaces.Text(_LONGEST_RESPONSE, min_length=0, charset=CHARSET)
        self._episode: Episode[StateT] | None = None
        self._map: PlaceMap[StateT] = PlaceMap(self._legal_in, self._play_in, self.most_places)

    # What a task defines

    @abstractmethod
    def initial_state(self, seed: int) -> StateT:
        """The state that a seed begins with, the same in every process."""

    @abstractmethod
    def read(self, response: str, limit: int) -> Answer:
        """The first `limit` actions of a response, or what is wrong with it; see `text.parse_answer`."""

    @abstractmethod
    def play(self, state: StateT, actions: tuple[str, ...], noise: Draws) -> TurnResult[StateT]:
        """Plays the actions of a turn, at least one. All chance comes from `noise`."""

    @abstractmethod
    def show(self, state: StateT) -> str:
        """The state as an observation shows it, without turns and budget."""

    @abstractmethod
    def score(self) -> float:
        """The task's own feedback on the state in [0, 1], 1 when solved; see `Branchable.score`."""

    def state_key(self) -> Hashable:
        """The state, budget and noise left out; see `Branchable.state_key`."""
        return self.state

    def noise_key(self, seed: int) -> Key:
        """The key of the noise of the episode that a seed names."""
        return Key(0).fold_in("noise", seed)

    def extra_info(self, state: StateT) -> dict[str, Any]:
        """Returns the entries of `info` beside `success`, `action_is_valid` and `action_is_effective`."""
        return {}

    def render_state(self, state: StateT) -> str:
        """The state in render mode `ansi`."""
        return self.show(state)

    # What is the same for all tasks

    @property
    def episode(self) -> Episode[StateT]:
        """The current episode."""
        if self._episode is None:
            raise ResetNeeded("there is no episode yet: call reset() or set_state() first")
        return self._episode

    @property
    def state(self) -> StateT:
        """The task's current state."""
        return self.episode.state

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins the episode that `seed` names."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        begun = TurnResult(self.initial_state(seed), effective=False)
        self._episode = Episode(begun.state, self.noise_key(seed))
        return self._shown(begun)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.episode
        if self.has_ended():
            raise ResetNeeded("the episode has ended: call reset() or set_state() before step()")
        answer = self.read(action, min(self.actions_per_turn, self.remaining()))
        noise = Draws(before.key, before.draws)
        if answer.problem:
            result = TurnResult(before.state, self.format_penalty, 0, effective=False, problem=answer.problem)
        else:
            result = self.play(before.state, answer.actions, noise)
        terminated = result.success or result.terminated
        actions = before.actions + result.played
        self._episode = Episode(result.state, before.key, noise.count, before.turns + 1, actions, terminated)
        truncated = not terminated and not self.remaining()
        observation, info = self._shown(result)
        info["parsed_action"] = " || ".join(answer.actions)
        return observation, result.reward, terminated, truncated, info

    def render(self) -> str | None:
        """The state as text, in render mode `ansi`."""
        return None if self.render_mode is None else self.render_state(self.state)

    def get_state(self) -> Episode[StateT]:
        return self.episode

    def set_state(self, state: Episode[StateT], /) -> None:
        self._episode = state

    def reseed(self, key: Key, /) -> None:
        self._episode = self.episode._replace(key=key, draws=0)

    def remaining(self) -> int:
        """Actions that can still be played: those left, or those that the turns left can hold, if fewer."""
        episode = self.episode
        return min(self.max_actions - episode.actions, (self.max_turns - episode.turns) * self.actions_per_turn)

    def has_ended(self) -> bool:
        """True if the episode is terminated or truncated."""
        return self.episode.terminated or not self.remaining()

    def play_randomly(self, keys: Sequence[Key], horizon: int, /) -> list[int | None]:
        """See `HasRandomPlay`; the task needs `legal_actions`."""
        before = self.episode
        found = self._map.play(before.state, keys, horizon)
        self._episode = before
        return found

    def _legal_in(self, state: StateT) -> list[tuple[str, ...]]:
        """The legal actions in a state with the whole budget left."""
        assert isinstance(self, HasLegalActions)
        self._episode = Episode(state, Key(0))
        return [self.read(response, 1).actions for response in self.legal_actions()]

    def _play_in(self, state: StateT, actions: tuple[str, ...], noise: Draws) -> TurnResult[StateT]:
        """A turn in a state with the whole budget left."""
        self._episode = Episode(state, noise.key, noise.count)
        return self.play(state, actions, noise)

    def _shown(self, result: TurnResult[StateT]) -> tuple[str, dict[str, Any]]:
        """The observation and info of the current turn."""
        style, turns = self.prompt_style, self.episode.turns
        observation = style.turn.format(
            reward=style.reward.format(reward=round(result.reward, 3)) if turns else "",
            warning=f"No valid action provided previously: {result.problem}.\n" if result.problem else "",
            turn=turns + 1,
            state=self.show(result.state),
            left=self.remaining(),
            asked=self.asked,
        )
        return observation, {
            "success": result.success,
            "action_is_valid": not result.problem,
            "action_is_effective": result.effective,
            **self.extra_info(result.state),
        }
