"""The episodes of an evaluation, joined over ranks. Knows no figure and no interval."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tsr_lightning.costs import Costs
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.evaluation import EvalProtocol, EvalResult
from tsr_lightning.trajectory import Trajectory


class Episode(NamedTuple):
    """What is kept of a trajectory."""

    env: int
    instance: int
    member: int
    succeeded: bool
    episode_return: float
    turns: int
    valid: int  # turns
    effective: int  # turns
    tokens: int  # of the responses


@dataclass(slots=True)
class Episodes:
    """Of one protocol, and what they cost."""

    protocol: EvalProtocol
    episodes: list[Episode] = field(default_factory=list)
    costs: Costs = Costs()  # noqa: RUF009  (frozen)
    seconds: float = 0.0

    def add(self, result: EvalResult) -> None:
        self.check(result.protocol)
        self.episodes += [_episode(trajectory) for group in result.groups for trajectory in group.trajectories]
        self.costs += result.costs
        self.seconds += result.seconds

    def check(self, protocol: EvalProtocol) -> None:
        """Refuses a second protocol of the same name."""
        if protocol != self.protocol:
            raise ConfigError(f"data.evaluations has two protocols named {protocol.name!r}: rename either")


def joined(by_rank: Sequence[Episodes]) -> Episodes:
    """Every episode once, in the order of (environment, instance, member); the slowest rank's seconds."""
    first = by_rank[0]
    for own in by_rank:
        first.check(own.protocol)
    # a sampler that pads its last batch repeats episodes; with keyed draws the copies are equal
    once = {(one.env, one.instance, one.member): one for own in by_rank for one in own.episodes}
    costs = sum((own.costs for own in by_rank), Costs())
    return Episodes(first.protocol, [once[key] for key in sorted(once)], costs, max(own.seconds for own in by_rank))


def _episode(trajectory: Trajectory) -> Episode:
    return Episode(
        env=trajectory.env,
        instance=trajectory.instance,
        member=trajectory.member,
        succeeded=trajectory.succeeded,
        episode_return=trajectory.episode_return,
        turns=len(trajectory.turns),
        valid=sum(turn.valid for turn in trajectory.turns),
        effective=sum(turn.effective for turn in trajectory.turns),
        tokens=trajectory.trained_tokens,
    )
