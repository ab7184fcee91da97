"""Responses as they grow: the prefix that each has reached, and what of it is to be computed. Knows no tensor."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.engines.base import Response
from tsr_lightning.engines.transformers.trie import Trie


@dataclass(slots=True)
class SequenceData:
    """A response as it grows."""

    seed: int
    max_new_tokens: int
    excluded: tuple[Response, ...] = ()  # not sampled again
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def is_over(self, end_ids: frozenset[int]) -> bool:
        return self.ids[-1] in end_ids or len(self.ids) >= self.max_new_tokens

    def response(self, end_ids: frozenset[int]) -> Response:
        return Response(tuple(self.ids), tuple(self.logprobs), finished=self.ids[-1] in end_ids)


@dataclass(eq=False, slots=True)
class SequenceGroup:
    """A prompt and its responses, and the columns of their tokens (`modeling.segments.DecodeStep`)."""

    ids: tuple[int, ...]
    sequences: list[SequenceData] = field(default_factory=list)
    prompt_slot: int = -1  # of the whole prompt
    visible: dict[int, int] = field(default_factory=dict)  # slot -> the columns that it sees, its own included, as bits

    @property
    def max_new_tokens(self) -> int:
        return sum(data.max_new_tokens for data in self.sequences)

    def without_column(self, slot: int, trie: Trie) -> list[int]:
        """Prefixes from the prompt to this one that have no column yet, shortest first."""
        missing: list[int] = []
        while slot != self.prompt_slot and slot not in self.visible:
            missing.append(slot)
            slot = trie.parent(slot)
        return missing[::-1]

    def add_column(self, slot: int, trie: Trie) -> int:
        """A column for a prefix whose parent is the prompt or has one."""
        column = len(self.visible)
        self.visible[slot] = self.visible.get(trie.parent(slot), 0) | 1 << column
        return column


@dataclass(eq=False, slots=True)
class SequenceState:
    """An unfinished response, and the slot of the prefix that it has reached."""

    group: SequenceGroup
    data: SequenceData
    slot: int


def unpack_bits(rows: Sequence[int]) -> NDArray[np.bool_]:
    """Bits of N numbers -> [N, C]."""
    width = max(bits.bit_length() for bits in rows)
    size = (width + 7) // 8
    packed = np.frombuffer(b"".join(bits.to_bytes(size, "little") for bits in rows), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(rows), size), axis=1, bitorder="little")[:, :width].astype(bool)
