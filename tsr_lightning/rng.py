"""Every random draw of a run, as a pure function of a key.

A `Key` names a draw by where it belongs: (run seed, epoch, instance, member of the group, path in the tree, stream,
index). Nothing here has a state, so wave size, row order and the number of ranks change no draw.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64's increment: Steele, Lea and Flood 2014, doi.org/10.1145/2660193.2660195
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
LARGEST_SEED = 2**32 - 1  # that NumPy takes


class Stream(StrEnum):
    """The purpose of a draw; two streams of one node share no number. A changed value would change every draw."""

    POLICY = "policy"  # the tokens of a response
    BRANCH = "branch"  # the environment's noise in a simulated branch
    REAL = "real"  # the environment's noise in the real episode
    TIES = "ties"  # the order among equal nodes
    ORACLE = "oracle"  # the noise of a demonstration
    SHUFFLE = "shuffle"  # the order of the training sequences in an update pass
    INSTANCE = "instance"  # the seeds of the instances
    CHOICE = "choice"  # what a strategy chooses by chance
    ROLLOUT = "rollout"  # the actions of random play, and the environment's noise in it
    COMPARISON = "comparison"  # the trajectories whose log-probabilities are compared with the trainer's


@dataclass(frozen=True, slots=True)
class Key:
    """A 64-bit name of a draw; equal names give equal numbers in every process."""

    value: int

    def fold_in(self, *parts: int | str) -> "Key":
        """A key derived from this one, such as `key.fold_in("epoch", 3)`."""
        digest = hashlib.blake2b(self.value.to_bytes(8, "little"), digest_size=8)
        for part in parts:
            text = str(part)
            digest.update(f"{type(part).__name__[0]}{len(text)}:{text}".encode())
        return Key(int.from_bytes(digest.digest(), "little"))

    def bits(self, index: int = 0) -> int:
        """The `index`-th 64-bit number of this key (splitmix64)."""
        z = (self.value + _GOLDEN * (index + 1)) & _MASK
        z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
        return z ^ (z >> 31)

    def uniform(self, index: int = 0) -> float:
        """The `index`-th number of this key in [0, 1), a multiple of 2^-53."""
        return (self.bits(index) >> 11) * 2.0**-53

    def generator(self) -> np.random.Generator:
        """A NumPy generator seeded by this key, where many draws of several kinds are needed."""
        return np.random.Generator(np.random.PCG64(self.value))


def uniforms(keys: NDArray[np.uint64], index: NDArray[np.uint64] | int) -> NDArray[np.float64]:
    """`Key.uniform` of many keys at once: keys [N], one index or [N] -> [N]."""
    with np.errstate(over="ignore"):
        z = keys + np.uint64(_GOLDEN) * (np.asarray(index, dtype=np.uint64) + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draws_of(keys: Sequence[Key], count: int) -> list[list[float]]:
    """The first `count` numbers of each key, as `Key.uniform` gives them."""
    values = np.array([key.value for key in keys], dtype=np.uint64)[:, None]
    drawn: list[list[float]] = uniforms(values, np.arange(count, dtype=np.uint64)[None]).tolist()
    return drawn
