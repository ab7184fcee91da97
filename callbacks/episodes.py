"""The torchmetrics side of an evaluation: what was played, gathered over ranks. Knows no figure and no interval."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from tsr_lightning.training.evaluation import EvalResult
from tsr_lightning.trajectory import Trajectory


class Episode(NamedTuple):
    """What an evaluation keeps of a trajectory."""

    instance: int
    member: int
    succeeded: int
    turns: int
    valid: int  # turns
    effective: int  # turns
    tokens: int  # of the responses


class Gathered(NamedTuple):
    """Every episode once, in the order of (instance, member), and what playing them cost on all ranks."""

    episodes: Sequence[Episode]
    returns: Sequence[float]
    tokens_generated: int
    env_steps: int
    seconds: float  # of the slowest rank


class Episodes(Metric):
    """The episodes of one evaluation. Ranks may hold different numbers of them, none at all included."""

    full_state_update = False
    counts: list[Tensor]  # each [n, 7] int64, a row per `Episode`
    returns: list[Tensor]  # each [n] float64
    costs: Tensor  # [2] int64
    seconds: Tensor  # [] float64

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counts", default=[], dist_reduce_fx="cat")
        self.add_state("returns", default=[], dist_reduce_fx="cat")
        self.add_state("costs", default=torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seconds", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="max")

    def update(self, played: EvalResult | None) -> None:
        """Adds a batch. None adds nothing but empty rows, without which a rank that played nothing cannot be gathered:
        torchmetrics would send a tensor of another shape and type in its place.
        """
        trajectories = [trajectory for group in played.groups for trajectory in group.trajectories] if played else []
        rows = [_signed(_episode(trajectory)) for trajectory in trajectories]
        self.counts.append(torch.tensor(rows, dtype=torch.int64, device=self.device).reshape(-1, len(Episode._fields)))
        self.returns.append(
            torch.tensor(
                [trajectory.episode_return for trajectory in trajectories], dtype=torch.float64, device=self.device
            )
        )
        if played is not None:
            self.costs += torch.tensor([played.costs.tokens_generated, played.costs.env_steps], device=self.device)
            self.seconds += played.seconds

    def compute(self) -> dict[str, Tensor]:
        # torchmetrics hands out a list before the ranks are joined and a tensor after it
        counts, returns = _joined(self.counts), _joined(self.returns)
        return {"counts": counts, "returns": returns, "costs": self.costs, "seconds": self.seconds}

    def gather(self) -> Gathered:
        """All ranks' episodes, on all ranks; call it on each."""
        state = self.compute()
        rows = [_unsigned(Episode(*row)) for row in state["counts"].tolist()]
        returns = state["returns"].reshape(-1).tolist()  # torchmetrics makes a scalar of a single one
        # A sampler that pads its last batch repeats episodes; with keyed draws the copies are equal.
        once = {(row.instance, row.member): (row, value) for row, value in zip(rows, returns, strict=True)}
        ordered = [once[key] for key in sorted(once)]
        tokens, steps = state["costs"].tolist()
        return Gathered(
            episodes=[row for row, _ in ordered],
            returns=[value for _, value in ordered],
            tokens_generated=tokens,
            env_steps=steps,
            seconds=state["seconds"].item(),
        )


def _episode(trajectory: Trajectory) -> Episode:
    return Episode(
        instance=trajectory.instance,
        member=trajectory.member,
        succeeded=int(trajectory.succeeded),
        turns=len(trajectory.turns),
        valid=sum(turn.valid for turn in trajectory.turns),
        effective=sum(turn.effective for turn in trajectory.turns),
        tokens=trajectory.trained_tokens,
    )


def _signed(episode: Episode) -> Episode:
    """A seed is an unsigned 64-bit number at most, and torch gathers signed ones."""
    return episode._replace(instance=(episode.instance + 2**63) % 2**64 - 2**63)


def _unsigned(episode: Episode) -> Episode:
    return episode._replace(instance=episode.instance % 2**64)


def _joined(parts: list[Tensor] | Tensor) -> Tensor:
    return parts if isinstance(parts, Tensor) else torch.cat(parts)
