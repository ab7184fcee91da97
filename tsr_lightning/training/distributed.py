"""Sharing items out to the ranks of a run, and gathering them again."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch.distributed as dist
from lightning.pytorch import Trainer

ItemT = TypeVar("ItemT")


class Ranks(NamedTuple):
    """This process among those of a run."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of(cls, trainer: Trainer) -> "Ranks":
        return cls(trainer.global_rank, trainer.world_size)

    def shard(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Every `world_size`-th item, from `rank` on."""
        return list(items[self.rank :: self.world_size])

    def gather(self, own: Sequence[ItemT]) -> list[ItemT]:
        """The items of all ranks, in the order they had before `shard`; called on every rank."""
        if self.world_size == 1:
            return list(own)
        by_rank: list[list[ItemT]] = [[] for _ in range(self.world_size)]
        dist.all_gather_object(by_rank, list(own))
        total = sum(map(len, by_rank))
        return [by_rank[i % self.world_size][i // self.world_size] for i in range(total)]
