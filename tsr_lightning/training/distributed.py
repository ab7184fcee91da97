"""Sharing items out to the ranks of a run, and gathering them again."""

from collections.abc import Sequence
from typing import TypeVar

import torch.distributed as dist

ItemT = TypeVar("ItemT")


def shard(items: Sequence[ItemT], rank: int, world_size: int) -> list[ItemT]:
    """Every `world_size`-th item, from `rank` on."""
    return list(items[rank::world_size])


def gather(own: Sequence[ItemT], world_size: int) -> list[ItemT]:
    """The items of all ranks, in the order they had before `shard`; called on every rank."""
    if world_size == 1:
        return list(own)
    by_rank: list[list[ItemT]] = [[] for _ in range(world_size)]
    dist.all_gather_object(by_rank, list(own))
    total = sum(map(len, by_rank))
    return [by_rank[i % world_size][i // world_size] for i in range(total)]
