"""Gathering items and tensors of the ranks of a run, by torch.distributed."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:  # credit needs no Lightning
    from lightning.pytorch import Trainer

ItemT = TypeVar("ItemT")


class ProcessGroup(NamedTuple):
    """This process among those of a Trainer's run (`rollout.groups.Ranks`)."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of(cls, trainer: "Trainer") -> "ProcessGroup":
        return cls(trainer.global_rank, trainer.world_size)

    def shard(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Every `world_size`-th item, from `rank` on."""
        return list(items[self.rank :: self.world_size])

    def gather(self, own: Sequence[ItemT], shares: Sequence[Sequence[int]] | None = None) -> list[ItemT]:
        """The items of all ranks in their order; called on every rank.

        Args:
            own: of this rank.
            shares: of every rank, the indices of its items; those of `shard` if not given.
        """
        if self.world_size == 1:
            return list(own)
        by_rank: list[list[ItemT]] = [[] for _ in range(self.world_size)]
        dist.all_gather_object(by_rank, list(own))
        total = sum(map(len, by_rank))
        if shares is None:
            shares = [range(rank, total, self.world_size) for rank in range(self.world_size)]
        found = dict(zip(chain.from_iterable(shares), chain.from_iterable(by_rank), strict=True))
        return [found[i] for i in range(total)]

    def gather_tensors(self, own: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The tensors of all ranks, without pickling; called on every rank.

        Args:
            own: [lengths[rank]] float32, on the CPU.
            lengths: of every rank's.

        Returns:
            For each rank its tensor, on the CPU.
        """
        device = torch.device("cpu")
        if dist.get_backend() == dist.Backend.NCCL:  # which knows no tensors of the CPU
            device = torch.device("cuda", torch.cuda.current_device())
        padded = torch.zeros(max(lengths), dtype=torch.float32, device=device)
        padded[: len(own)] = own
        received = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(received, padded)
        return [numbers[:length].cpu() for numbers, length in zip(received, lengths, strict=True)]
