"""What was lived and what is trained on: Turn, Trajectory, Group. Frozen, shapes beside the fields."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what the policy was shown, what it said, what came of it."""

    prompt: tuple[int, ...]  # [P] the whole context that the response was sampled from
    response: tuple[int, ...]  # [R] the sampled ids: these and no others are trained
    logprobs: tuple[float, ...]  # [R] as sampled; zeros for a demonstration
    finished: bool  # the response ended itself; otherwise the context closes it with an end token, not trained
    observation: str  # the text that was answered
    text: str  # the response, as the environment read it
    reward: float
    valid: bool
    effective: bool


class Origin(Enum):
    """Where a trajectory's responses come from."""

    SAMPLED = "sampled"  # the policy, none of them chosen: what an on-policy gradient is defined on
    SEARCHED = "searched"  # the policy, chosen among alternatives
    DEMONSTRATED = "demonstrated"  # the environment's oracle


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, from an instance's first observation to its end."""

    instance: int  # the seed of the initial state
    member: int  # which of its group
    strategy: str
    origin: Origin
    turns: tuple[Turn, ...]  # [T]
    succeeded: bool
    truncated: bool  # ended by a budget and not by the task
    final_prompt: tuple[int, ...]  # the context after the last turn, for bootstrapping where it was truncated
    final_observation: str

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def trained_tokens(self) -> int:
        return sum(len(turn.response) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one instance, each from a search of its own."""

    instance: int
    trajectories: tuple[Trajectory, ...]  # [G]

    @property
    def returns(self) -> tuple[float, ...]:
        return tuple(trajectory.episode_return for trajectory in self.trajectories)
