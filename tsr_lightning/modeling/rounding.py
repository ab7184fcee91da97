"""Sizes rounded up, so that few different ones occur: what is compiled or captured for a size is used again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rounding:
    """Multiples of a step, which grows with the size.

    Args:
        least: the smallest step.
        per_octave: steps from a power of two to the next, where that makes them larger; so at most a share of 1 to
            this number is added.
    """

    least: int
    per_octave: int

    def up(self, size: int) -> int:
        """The next size that occurs."""
        step = self._step(size)
        return -(-size // step) * step

    def most(self, total: int) -> int:
        """The most that two sizes of this total are together, each rounded up."""
        return total + 2 * (self._step(total) - 1)

    def _step(self, size: int) -> int:
        below = 1 << max(size - 1, 1).bit_length() >> 1  # the largest power of two that is less
        return max(self.least, below // self.per_octave)
