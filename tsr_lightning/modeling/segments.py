"""Segments say which packed tokens attend to which keys. PyTorch's buckets and the native blocks derive from them.

A forward pass takes one packed sequence of tokens without padding. They are segments (prompts, training sequences), or
the last tokens of branches (a decode step); a layer's sliding window may narrow what they see. Knows no tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive packed tokens of one sequence, which attend causally to that sequence's keys."""

    length: int  # N
    path: NDArray[np.int64]  # [L] where the sequence's keys are stored, from its first token to the segment's last

    @property
    def start(self) -> int:
        """Keys before the segment's first token."""
        return len(self.path) - self.length


def select_queries(segments: Sequence[Segment], tokens: NDArray[np.int64]) -> list[Segment]:
    """Segments of the packed `tokens` [N] alone, ascending."""
    ends = np.cumsum([segment.length for segment in segments])
    owners = np.searchsorted(ends, tokens, side="right")
    starts = np.flatnonzero(np.append(True, (np.diff(tokens) != 1) | (np.diff(owners) != 0)))  # of consecutive tokens
    selected = []
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        segment, last = segments[owners[start]], tokens[end - 1]
        cut = int(ends[owners[start]] - 1 - last)
        selected.append(Segment(int(end - start), segment.path[: len(segment.path) - cut]))
    return selected


@dataclass(frozen=True)
class DecodeStep:
    """One token of each of N branches, those of a group side by side.

    A group is a prompt and the branches of its responses. It has a column for every token that its branches add; a
    branch sees the prompt and the columns of its own past, so siblings share the prompt without a copy.
    """

    groups: NDArray[np.int64]  # [N] ascending
    prompt_lengths: NDArray[np.int64]  # [N] of each branch's group
    columns: NDArray[np.bool_]  # [N, C] the columns that each branch sees, its own token's included

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """[N] of the tokens in their sequences."""
        return self.prompt_lengths + self.columns.sum(axis=1) - 1

    @property
    def scores_needed(self) -> int:
        """Products of a query and a key in each head."""
        return int(self.positions.sum()) + len(self.positions)

    def visible(self, prompt_positions: NDArray[np.int64], window: int | None) -> NDArray[np.bool_]:
        """[N, P + C] whether a branch sees the prompt's tokens at these positions [P], and each column."""
        lengths = self.prompt_lengths[:, None]
        seen = np.concatenate([prompt_positions < lengths, self.columns], axis=1)
        if window is not None:
            prompt = np.broadcast_to(prompt_positions, (len(lengths), len(prompt_positions)))
            positions = np.concatenate([prompt, lengths + self.columns.cumsum(axis=1) - 1], axis=1)
            seen &= positions > self.positions[:, None] - window
        return seen
