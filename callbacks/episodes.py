"""The episodes of an evaluation as a torchmetrics Metric, gathered over ranks. Knows no figure and no interval."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.trajectory import Trajectory


class Episode(NamedTuple):
    """What is kept of a trajectory."""

    env: int
    instance: int
    member: int
    succeeded: int
    turns: int
    valid: int  # turns
    effective: int  # turns
    tokens: int  # of the responses


class GatheredEpisodes(NamedTuple):
    """Every episode once, in the order of (environment, instance, member), and their cost on all ranks."""

    episodes: Sequence[Episode]
    returns: Sequence[float]
    surprisals: Sequence[float]  # minus the log-probability of all responses, in nats, as they were sampled
    tokens_generated: int
    env_steps: int
    lost: int  # episodes, to failures of the environment; they are not among `episodes`
    seconds: float  # of the slowest rank


class EpisodeMetric(Metric):
    """The episodes of one protocol. Ranks may hold different numbers of them, zero included."""

    full_state_update = False
    counts: list[Tensor]  # each [n, 8] int64, a row per `Episode`
    sums: list[Tensor]  # each [n, 2] float64: an episode's return and its surprisal
    costs: Tensor  # [3] int64
    seconds: Tensor  # [] float64

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counts", default=[], dist_reduce_fx="cat")
        self.add_state("sums", default=[], dist_reduce_fx="cat")
        self.add_state("costs", default=torch.zeros(3, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seconds", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="max")

    def update(self, result: EvalResult | None) -> None:
        """Adds a batch. None adds empty tensors, without which a rank that has no episodes cannot be gathered:
        torchmetrics would send a tensor of another shape and type in their place.
        """
        trajectories = [trajectory for group in result.groups for trajectory in group.trajectories] if result else []
        rows = [_signed(_episode(trajectory)) for trajectory in trajectories]
        self.counts.append(torch.tensor(rows, dtype=torch.int64, device=self.device).reshape(-1, len(Episode._fields)))
        sums = [(trajectory.episode_return, trajectory.surprisal) for trajectory in trajectories]
        self.sums.append(torch.tensor(sums, dtype=torch.float64, device=self.device).reshape(-1, 2))
        if result is not None:
            own = result.costs
            counts = [own.tokens_generated, own.env_steps, own.trajectories_lost]
            self.costs += torch.tensor(counts, device=self.device)
            self.seconds += result.seconds

    def compute(self) -> dict[str, Tensor]:
        # torchmetrics gives a list before the ranks are joined and a tensor after it
        counts, sums = _joined(self.counts), _joined(self.sums)
        return {"counts": counts, "sums": sums, "costs": self.costs, "seconds": self.seconds}

    def gather(self) -> GatheredEpisodes:
        """The episodes of all ranks; called on each."""
        state = self.compute()
        rows = [_unsigned(Episode(*row)) for row in state["counts"].tolist()]
        sums = state["sums"].tolist()
        # a sampler that pads its last batch repeats episodes; with keyed draws the copies are equal
        once = {(row.env, row.instance, row.member): (row, *both) for row, both in zip(rows, sums, strict=True)}
        ordered = [once[key] for key in sorted(once)]
        tokens, steps, lost = state["costs"].tolist()
        return GatheredEpisodes(
            episodes=[row for row, _, _ in ordered],
            returns=[value for _, value, _ in ordered],
            surprisals=[value for _, _, value in ordered],
            tokens_generated=tokens,
            env_steps=steps,
            lost=lost,
            seconds=state["seconds"].item(),
        )


def _episode(trajectory: Trajectory) -> Episode:
    return Episode(
        env=trajectory.env,
        instance=trajectory.instance,
        member=trajectory.member,
        succeeded=int(trajectory.succeeded),
        turns=len(trajectory.turns),
        valid=sum(turn.valid for turn in trajectory.turns),
        effective=sum(turn.effective for turn in trajectory.turns),
        tokens=trajectory.trained_tokens,
    )


def _signed(episode: Episode) -> Episode:
    """With the instance's unsigned 64-bit seed as the signed number that torch can hold."""
    return episode._replace(instance=(episode.instance + 2**63) % 2**64 - 2**63)


def _unsigned(episode: Episode) -> Episode:
    return episode._replace(instance=episode.instance % 2**64)


def _joined(parts: list[Tensor] | Tensor) -> Tensor:
    return parts if isinstance(parts, Tensor) else torch.cat(parts)
