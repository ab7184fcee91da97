"""A base for text games that are played by commands (interactive fiction): TextWorld, ALFWorld.

A subclass defines its game: `begin`, `obey`, `commands`, `goal`, `progress` and `plan`, and, where the game's state has
more in it than what decides its future, `game_key`. History, admissible commands, rewards, scores, oracle and prompts
are here.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, Unpack, get_args

from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.text import PromptStyle, format_answer
from tsr_lightning.envs.text_env import TextEnv, TextEnvOptions
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.envs.validate import fraction, noise_has_key, one_of, single_action, whole
from tsr_lightning.rng import Key
from tsr_lightning.worlds.command_prompts import (
    COMMAND_PROMPT_STYLES,
    Exchange,
    instructions,
    parse_command,
    show_turn,
)

GameT = TypeVar("GameT", bound=Hashable)

RewardName = Literal["sparse", "dense"]
ScoreName = Literal["progress", "oracle"]

SHORT_TRIAL, LONG_TRIAL = 12, 24  # the Guide's most turns (max_iter) of small and large games; ALFWorld has the larger


@dataclass(frozen=True, slots=True)
class Reply(Generic[GameT]):
    """The game's answer to a command."""

    game: GameT  # its state after the command
    text: str  # what it says
    won: bool = False
    lost: bool = False  # the game ended otherwise
    problem: str = ""  # why it did not take the command, which counts as invalid; "" if it did


class CommandState(NamedTuple, Generic[GameT]):
    """A game and what the prompt and the rewards need of its past."""

    game: GameT
    answer: str  # what the game said last
    history: tuple[Exchange, ...]  # the past turns that the prompt repeats, oldest first
    begun: float  # progress at the start
    best: float  # the most progress so far


class CommandEnvOptions(TextEnvOptions, total=False):
    """The arguments of `CommandEnv`, for the signature of a game that passes them on."""

    reward: RewardName
    score: ScoreName
    history: int | None
    admissible: bool


class CommandEnv(TextEnv[CommandState[GameT]], Generic[GameT]):
    """A game of one command a turn, until it is won or lost.

    Args:
        reward: "sparse" is 1 for winning; "dense" pays each turn the progress beyond the most so far, as a share of
            what was open at the start, so that it sums to 1 in a game that is won and to less in one that is not.
        score: what search ranks by: "progress", or "oracle", 1 / (1 + commands left of the oracle's plan).
        history: past turns that every observation repeats, after the goal; for contexts that do not show them. None: an
            observation is the game's answer alone, and the conversation is the history.
        admissible: lists the admissible commands in observations.
        options: of `TextEnv`, by default without a penalty and with the Guide's prompt. A `prompt_style` may also be
            "guide" (that prompt) or "game" (the game's text alone, and the response is the command).
    """

    prompt_styles: ClassVar[Mapping[str, PromptStyle]] = COMMAND_PROMPT_STYLES
    verbs: ClassVar[Sequence[str]]  # forms of the game's commands, for prompt styles that list actions
    example: ClassVar[str] = "open door"  # a command, for prompt styles that show one
    asked = "Answer with one command, such as: open door"
    most_places = 2_000  # of some kilobytes each

    def __init__(
        self,
        *,
        reward: RewardName = "sparse",
        score: ScoreName = "progress",
        history: int | None = None,
        admissible: bool = False,
        **options: Unpack[TextEnvOptions],
    ) -> None:
        super().__init__(**(TextEnvOptions(prompt_style="guide", format_penalty=0.0) | options))
        name = type(self).__name__
        single_action(f"{name}.actions_per_turn", self.actions_per_turn)
        one_of(f"{name}.reward", reward, get_args(RewardName))
        one_of(f"{name}.score", score, get_args(ScoreName))
        if history is not None:
            whole(f"{name}.history", history, at_least=0)
        self._dense, self._by_plan = reward == "dense", score == "oracle"
        self.repeated_turns = history or 0
        self._tells_goal = history is not None
        self._admissible = admissible
        self.instructions = ""

    # What a game defines

    @abstractmethod
    def begin(self, seed: int) -> tuple[GameT, str]:
        """The game that a seed names, the same in every process, and what it says first."""

    @abstractmethod
    def obey(self, game: GameT, command: str) -> Reply[GameT]:
        """Plays a command, which may be any text that is not empty, and never raises for one."""

    @abstractmethod
    def commands(self, game: GameT) -> Sequence[str]:
        """The admissible commands, in an order that depends on the state alone; at least one until the game ends."""

    @abstractmethod
    def goal(self, game: GameT) -> str:
        """Returns the goal in the game's own words."""

    @abstractmethod
    def progress(self, game: GameT) -> float:
        """The game's own feedback on a state, in [0, 1], 1 when won."""

    @abstractmethod
    def plan(self, game: GameT) -> Sequence[str] | None:
        """Commands that win from here, none if it is won; None where no plan is known."""

    def game_key(self, game: GameT) -> Hashable:
        """Returns the part of the state that decides how a game goes on; see `Branchable.state_key`."""
        return game

    # What is the same for all games

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        begun = super().reset(seed=seed, options=options)
        goal = self.goal(self.state.game)
        self.instructions = instructions(self.prompt_style, goal, self.verbs, self.max_actions, self.example)
        return begun

    def initial_state(self, seed: int) -> CommandState[GameT]:
        game, text = self.begin(seed)
        progress = self.progress(game)
        return CommandState(game, text, (), progress, progress)

    def read(self, response: str, limit: int) -> Answer:
        return parse_command(response, self.prompt_style, self.verbs)

    def play(
        self, state: CommandState[GameT], actions: tuple[str, ...], noise: Draws
    ) -> TurnResult[CommandState[GameT]]:
        (command,) = actions
        reply = self.obey(state.game, command)
        best = max(state.best, self.progress(reply.game))
        history = state.history
        if self.repeated_turns:
            history = (*history, Exchange(state.answer, command))[-self.repeated_turns :]
        after = CommandState(reply.game, reply.text, history, state.begun, best)
        gained = (best - state.best) / (1 - state.begun) if best > state.best else 0.0
        effective = reply.game is not state.game and self.game_key(reply.game) != self.game_key(state.game)
        return TurnResult(
            after,
            gained if self._dense else float(reply.won),
            effective=effective,
            success=reply.won,
            terminated=reply.lost,
            problem=reply.problem,
        )

    def show(self, state: CommandState[GameT]) -> str:
        commands = self.commands(state.game) if self._admissible else ()
        goal = self.goal(state.game) if self._tells_goal else ""
        return show_turn(goal, state.history, state.answer, commands)

    def render_state(self, state: CommandState[GameT]) -> str:
        return state.answer

    def extra_info(self, state: CommandState[GameT]) -> dict[str, Any]:
        """The share of the goal that is reached, a second measure beside `success`."""
        return {"progress": self.progress(state.game)}

    def score(self) -> float:
        """The progress, or with score "oracle" 1 / (1 + commands left of the plan), 0 where no plan is known."""
        game = self.state.game
        if not self._by_plan:
            return self.progress(game)
        plan = self.plan(game)
        return 0.0 if plan is None else 1 / (1 + len(plan))

    def state_key(self) -> Hashable:
        """The game's key, and under a dense reward the most progress so far, on which further rewards depend."""
        state = self.state
        key = self.game_key(state.game)
        return (key, state.begun, state.best) if self._dense else key

    def legal_actions(self) -> list[str]:
        """Responses of an admissible command; none at the end."""
        if self.has_ended():
            return []
        return [format_answer(self.prompt_style, [command]) for command in self.commands(self.state.game)]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response with the next command of a winning plan.

        With probability `noise`, and where no plan is known, it is a random admissible command, drawn from `key`
        (without a key: the first one).
        """
        fraction("noise", noise)
        noise_has_key(noise, key)
        game = self.state.game
        plan = None if key is not None and key.uniform(0) < noise else self.plan(game)
        if plan:
            return format_answer(self.prompt_style, [plan[0]])
        commands = self.commands(game)
        index = 0 if key is None else int(key.uniform(1) * len(commands))
        return format_answer(self.prompt_style, [commands[index]])
