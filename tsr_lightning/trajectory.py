"""Rollout types, immutable."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

ROLES = ("system", "user", "assistant", "tool", "tools")


@dataclass(frozen=True, slots=True)
class Message:
    """One message to the policy, as chat templates take it. A response holds its calls of tools as it was sampled, and
    a tool's message answers the first call that has no answer yet.
    """

    role: str  # system, user, assistant, tool, or tools: what is offered, as JSON (`envs.tools.Offer`)
    content: str


def to_messages(observation: str | Sequence[Message], instructions: str = "") -> tuple[Message, ...]:
    """An observation as messages: a text is a user message. Instructions, if any, come first, in a system message.

    Raises:
        TypeError: where it is neither a text nor a sequence of Messages, a role is unknown, or a content is no text.
    """
    if not isinstance(observation, str | Sequence):
        raise TypeError(f"an observation is a text or a sequence of trajectory.Message, and this is {observation!r}")
    answered = (Message("user", observation),) if isinstance(observation, str) else tuple(observation)
    for message in answered:
        if not isinstance(message, Message):
            raise TypeError(f"an observation is a text or a sequence of trajectory.Message, and this holds {message!r}")
        if message.role not in ROLES:
            raise TypeError(f"a message has the role {message.role!r}; give one of {', '.join(ROLES)}")
        if not isinstance(message.content, str):
            raise TypeError(f"the content of the {message.role} message is {message.content!r}; give one string")
    return (Message("system", instructions), *answered) if instructions else answered


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages, the policy's response to them, and the outcome."""

    prompt: tuple[int, ...]  # [P] the full context that the response was sampled from
    response: tuple[int, ...]  # [R] the sampled ids; only these are trained on
    behaviour_logprobs: tuple[float, ...]  # [R] of the sampled ids at the sampling temperature; 0 in a demonstration
    finished: bool  # False: cut by a token limit; the context then closes it with an end token, not trained on
    messages: tuple[Message, ...]  # that the response answers; the first turn's begin with the instructions
    text: str  # the response as the environment received it
    reward: float
    valid: bool
    effective: bool
    action: str  # as the environment read the text; the text itself where it does not say


class Origin(Enum):
    """How a trajectory's responses were made."""

    SAMPLED = "sampled"  # by the policy, none selected: what an on-policy gradient is defined on
    SEARCHED = "searched"  # by the policy, selected among candidates
    DEMONSTRATED = "demonstrated"  # by the environment's oracle, or read from a file
    GREEDY = "greedy"  # the policy's likeliest tokens: what its samples may be compared with, and no sample itself

    @property
    def is_sampled(self) -> bool:
        """True if every response is a draw of the policy at the temperature of training, selected or not."""
        return self in (Origin.SAMPLED, Origin.SEARCHED)


class Ended(Enum):
    """Why an episode ended. A response that a token limit cut is a fact of its turn: see `Turn.finished`."""

    SUCCEEDED = "succeeded"  # the task is solved
    FAILED = "failed"  # the task ended it without success
    TURN_LIMIT = "turn limit"  # a budget of the environment ended it
    TOKEN_LIMIT = "token limit"  # a token limit left no room for another turn


@dataclass(frozen=True, slots=True)
class Candidate:
    """One response of a search tree, and the state that it led to."""

    turn: Turn
    parent: int | None  # place in the tree of the candidate that led to the state it was proposed in; None: the root
    state_key: str  # equal where states are equal
    remaining: int  # the environment's own budget
    env_score: float | None  # None where the strategy has no scorer
    score: float | None  # by the strategy's scorer, or as the strategy changed it; None without either
    ended: Ended | None  # None where the episode goes on
    drawn: bool  # sampled for its state; False: the response of another candidate, played in the real episode

    @property
    def done(self) -> bool:
        return self.ended is not None

    @property
    def succeeded(self) -> bool:
        return self.ended is Ended.SUCCEEDED

    @property
    def overlong(self) -> bool:
        """True if a token limit cut its response or left no room for another turn."""
        return self.ended is Ended.TOKEN_LIMIT or not self.turn.finished


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of a recorded search, with what it takes to show it and to play it again."""

    candidate: Candidate  # its parent is a place in `Trajectory.record`
    round: int  # the answer to its search that it was a part of
    noise: int  # names the environment's draws in it
    messages: tuple[Message, ...]  # observed after it
    demonstrated: bool = False  # by the environment's oracle or a person
    lost: bool = False  # the environment failed: there is no more of it than prompt and response


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, from an instance's first observation to its end."""

    instance: int  # the seed of the initial state; of a demonstration from a file, its line
    member: int  # index in its group
    strategy: str
    origin: Origin
    turns: tuple[Turn, ...]  # [T]
    ended: Ended | None  # None where its search stopped before the end
    final_prompt: tuple[int, ...]  # the context after the last turn, for bootstrapping; empty unless truncated
    final_messages: tuple[Message, ...]  # after the last turn
    tree: tuple[Candidate, ...] = ()  # all that its search proposed, parents first; empty unless asked for
    env: int = 0  # index of the environment in the mixture
    state_keys: tuple[str, ...] = ()  # [T] equal where turns were taken in equal states; empty unless asked for
    policy_epochs: int | None = None  # that the policy of all its turns was trained for; None where that is not known
    record: tuple[RecordedTurn, ...] = ()  # all turns of its search, parents first; empty unless asked for

    @property
    def succeeded(self) -> bool:
        return self.ended is Ended.SUCCEEDED

    @property
    def truncated(self) -> bool:
        """True if a budget ended it, and not the task."""
        return self.ended in (Ended.TURN_LIMIT, Ended.TOKEN_LIMIT)

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards [T] of the turns."""
        return tuple(turn.reward for turn in self.turns)

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return sum(self.rewards)

    @property
    def surprisal(self) -> float:
        """Minus the log-probability of all responses, in nats, at the temperature that they were sampled at."""
        return -sum(sum(turn.behaviour_logprobs) for turn in self.turns)

    @property
    def overlong(self) -> bool:
        """True if a token limit cut its last response or left no room for another turn."""
        return self.ended is Ended.TOKEN_LIMIT or not self.turns[-1].finished

    @property
    def trained_tokens(self) -> int:
        return sum(len(turn.response) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one instance, each from a search of its own."""

    instance: int
    trajectories: tuple[Trajectory, ...]  # [G]
    env: int = 0  # index of the environment in the mixture

    @property
    def members(self) -> "tuple[Member, ...]":
        """What the group compares, as in a `Comparison`: its trajectories."""
        return self.trajectories

    @property
    def weight(self) -> float:
        """The weight of each trajectory in the loss, as in a `Comparison`: 1."""
        return 1.0

    @property
    def returns(self) -> tuple[float, ...]:
        return tuple(trajectory.episode_return for trajectory in self.trajectories)


class State(NamedTuple):
    """A place in the search trees of an instance, which are one graph; only the root, which all share, has depth 0."""

    depth: int  # turns played before it
    state_key: str
    remaining: int  # the environment's own budget


@dataclass(frozen=True, slots=True)
class TreeTurn:
    """One turn of a search tree. Equal responses to equal prompts in equal states are the same turn of the tree."""

    turn: Turn
    state: State  # its place in the tree: the state that it was proposed in

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (self.turn,)

    @property
    def origin(self) -> Origin:
        """Sampled: all responses drawn in a state are compared, so none was selected."""
        return Origin.SAMPLED

    @property
    def final_prompt(self) -> tuple[int, ...]:
        """Empty: nothing is bootstrapped."""
        return ()

    @property
    def final_messages(self) -> tuple[Message, ...]:
        """Empty: by chance, different ones may follow it."""
        return ()

    @property
    def trained_tokens(self) -> int:
        return len(self.turn.response)


@dataclass(frozen=True, slots=True)
class TreePath:
    """Responses of a search tree with a value: a single response, or those that lead to a leaf.

    A turn of the tree is trained once, with the sum of the weights of all paths through it.

    Examples:
        A response in the root's state that is worth 0.9:
        `TreePath((turn,), (State(0, "", 0),), value=0.9, succeeded=True, overlong=False)`.
    """

    turns: tuple[Turn, ...]  # [T] each with its prompt and response
    states: tuple[State, ...]  # [T] its place in the tree: the state that it was proposed in
    value: float  # what is compared, in units of the return
    succeeded: bool  # a success was found at its end or below
    overlong: bool  # its last response was cut by a token limit, or no further one had room

    @property
    def origin(self) -> Origin:
        """Sampled: all responses drawn in a state are compared, so none was selected."""
        return Origin.SAMPLED

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards [T] whose sum is the value: the last response earns it."""
        return (*[0.0] * (len(self.turns) - 1), self.value)

    @property
    def truncated(self) -> bool:
        """False: the value stands for all that is still to come, so nothing is bootstrapped."""
        return False

    @property
    def state_keys(self) -> tuple[str, ...]:
        """Keys [T], equal where turns were taken in equal states."""
        return tuple(state.state_key for state in self.states)

    @property
    def trained_tokens(self) -> int:
        return sum(len(turn.response) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Responses of an instance's search trees, or paths to their leaves, whose values are compared with one another."""

    members: tuple[TreePath, ...]  # [M]
    weight: float  # of each member in the loss, where a trajectory of a `Group` weighs 1


Member = Trajectory | TreePath  # what has a return to be compared
Piece = Trajectory | TreeTurn  # what is estimated and trained as one
