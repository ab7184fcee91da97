"""What the ranks of a run tell each other."""

from collections.abc import Sequence
from typing import TypeVar

import torch.distributed as dist

ItemT = TypeVar("ItemT")


def shard(items: Sequence[ItemT], rank: int, ranks: int) -> list[ItemT]:
    """This rank's share: every `ranks`-th item, from `rank` on."""
    return list(items[rank::ranks])


def gather(mine: Sequence[ItemT], ranks: int) -> list[ItemT]:
    """The items of all ranks in the order they were in before `dealt` shared them out."""
    if ranks == 1:
        return list(mine)
    everyone: list[list[ItemT]] = [[] for _ in range(ranks)]
    dist.all_gather_object(everyone, list(mine))
    total = sum(map(len, everyone))
    return [everyone[i % ranks][i // ranks] for i in range(total)]
