"""Responses as they grow: who stands at which prefix, and what of it is to be computed. Knows no tensor."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.engines.base import Response
from tsr_lightning.engines.transformers.trie import Trie


@dataclass(slots=True)
class SequenceData:
    """One response as it grows."""

    key: int
    room: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def is_over(self, end_ids: frozenset[int]) -> bool:
        return self.ids[-1] in end_ids or len(self.ids) >= self.room

    def response(self, end_ids: frozenset[int]) -> Response:
        return Response(tuple(self.ids), tuple(self.logprobs), finished=self.ids[-1] in end_ids)


@dataclass(eq=False, slots=True)
class SequenceGroup:
    """A prompt, its responses, and which of their tokens lie in which column of its row on the workbench."""

    ids: tuple[int, ...]
    rows: list[SequenceData] = field(default_factory=list)
    end: int = -1  # the slot of the whole prompt
    seen: dict[int, int] = field(default_factory=dict)  # slot -> the columns that it sees, its own included, as bits

    @property
    def room(self) -> int:
        return sum(row.room for row in self.rows)

    def missing(self, slot: int, trie: Trie) -> list[int]:
        """Prefixes from the prompt's end to this one that have no column yet, shortest first."""
        missing: list[int] = []
        while slot != self.end and slot not in self.seen:
            missing.append(slot)
            slot = trie.parent(slot)
        return missing[::-1]

    def see(self, slot: int, trie: Trie) -> int:
        """A column for a prefix whose beginning has one."""
        column = len(self.seen)
        self.seen[slot] = self.seen.get(trie.parent(slot), 0) | 1 << column
        return column


@dataclass(eq=False, slots=True)
class SequenceState:
    """A response under way, and where it stands."""

    family: SequenceGroup
    row: SequenceData
    slot: int = -1

    def __post_init__(self) -> None:
        self.slot = self.family.end


@dataclass(eq=False, slots=True)
class PendingToken:
    """A prefix that is to be computed: one more token of a response."""

    family: SequenceGroup
    token: int
    slot: int


def columns_of(chunk: Sequence[SequenceGroup]) -> int:
    """Of the widest family; the last token of a response is not computed."""
    return max(sum(row.room - 1 for row in family.rows) for family in chunk)


def unpacked(seen: Sequence[int]) -> NDArray[np.bool_]:
    """Bits -> [N, C]."""
    width = max(bits.bit_length() for bits in seen)
    size = (width + 7) // 8
    packed = np.frombuffer(b"".join(bits.to_bytes(size, "little") for bits in seen), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(seen), size), axis=1, bitorder="little")[:, :width].astype(bool)
