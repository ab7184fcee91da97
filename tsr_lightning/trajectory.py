"""Rollout types, immutable."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation, the policy's response to it, and the outcome."""

    prompt: tuple[int, ...]  # [P] the full context that the response was sampled from
    response: tuple[int, ...]  # [R] the sampled ids; only these are trained on
    behaviour_logprobs: tuple[float, ...]  # [R] of the sampled ids at the sampling temperature; 0 in a demonstration
    finished: bool  # False: cut by a token limit; the context then closes it with an end token, not trained on
    observation: str  # the text that the response answers
    text: str  # the response as the environment received it
    reward: float
    valid: bool
    effective: bool


class Origin(Enum):
    """How a trajectory's responses were made."""

    SAMPLED = "sampled"  # by the policy, none selected: what an on-policy gradient is defined on
    SEARCHED = "searched"  # by the policy, selected among candidates
    DEMONSTRATED = "demonstrated"  # by the environment's oracle


@dataclass(frozen=True, slots=True)
class Candidate:
    """One response that a search proposed for a turn, and its outcome in the search."""

    prompt: tuple[int, ...]  # [P]
    response: tuple[int, ...]  # [R]
    behaviour_logprobs: tuple[float, ...]  # [R]
    env_score: float | None  # of the state that it led to; None where the strategy has no scorer
    score: float  # by the strategy's scorer, or as the strategy changed it; 0 without either
    reward: float
    episode_return: float  # up to and including this turn
    done: bool
    succeeded: bool
    kept: bool  # whether it is the response of the trajectory's turn


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, from an instance's first observation to its end."""

    instance: int  # the seed of the initial state
    member: int  # index in its group
    strategy: str
    origin: Origin
    turns: tuple[Turn, ...]  # [T]
    succeeded: bool
    truncated: bool  # ended by a budget and not by the task
    final_prompt: tuple[int, ...]  # the context after the last turn, for bootstrapping; empty unless truncated
    final_observation: str
    siblings: tuple[tuple[Candidate, ...], ...] = ()  # [T][C] all candidates of each turn; empty unless asked for
    state_keys: tuple[str, ...] = ()  # [T] equal where turns were taken in equal states; empty unless asked for

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
