"""Which instances are trained on and which are held out.

Held out means that no initial state of the held-out set occurs in training, by the hash of the state: different seeds
do not suffice (most random 4x4 lakes recur). Both streams are pure functions of their keys, so the epoch is the whole
position in the training stream.
"""

from collections.abc import Container
from dataclasses import dataclass

from tsr_lightning.envs.base import Branchable, fingerprint
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key, Stream

_ATTEMPTS = 1000  # seeds tried for one instance before the environment counts as having too few initial states


@dataclass(frozen=True)
class HeldOut:
    """The held-out set. It does not depend on the run's seed, so that all runs are evaluated on the same instances.

    Args:
        instances: how many, all with different initial states.
        seed: names the set.
    """

    instances: int = 256
    seed: int = 123


@dataclass(frozen=True, slots=True)
class TrainingInstances:
    """The training instances of one epoch."""

    seeds: tuple[int, ...]
    skipped: int  # seeds that were drawn and led to a held-out initial state


class Instances:
    """Draws the instances of an environment.

    Args:
        env: any object of the environment.
        key: the run's.
        held_out: what is kept from training.
    """

    def __init__(self, env: Branchable, key: Key, held_out: HeldOut) -> None:
        self._env = env
        self._key = key
        self._spec = held_out
        self._held_out: dict[str, int] | None = None  # seeds by initial state
        self._trained: dict[str, int] = {}  # how often each initial state was drawn for training
        self._skipped = 0

    @property
    def summary(self) -> str:
        """How training and evaluation were kept apart, in words and counts."""
        held_out = self._held_out_states()
        return (
            f"instances: {len(held_out)} held out, all of different initial states; {sum(self._trained.values())} "
            f"trained on, of {len(self._trained)} different initial states, {len(held_out.keys() & self._trained)} of "
            f"them held out ({self._skipped} draws fell on held-out states and were drawn again)"
        )

    @property
    def held_out(self) -> tuple[int, ...]:
        """The seeds of the held-out instances."""
        return tuple(self._held_out_states().values())

    def training(self, epoch: int, count: int, first: int = 0) -> TrainingInstances:
        """The training instances of an epoch, from the place `first` on."""
        held_out = self._held_out_states()
        seeds = []
        skipped = 0
        for place in range(first, first + count):
            seed, initial, attempts = self._draw(
                held_out, "no initial state is left for training", self._key, Stream.INSTANCE, epoch, place
            )
            seeds.append(seed)
            skipped += attempts
            self._trained[initial] = self._trained.get(initial, 0) + 1
        self._skipped += skipped
        return TrainingInstances(tuple(seeds), skipped)

    def _held_out_states(self) -> dict[str, int]:
        if self._held_out is None:
            states: dict[str, int] = {}
            key = Key(self._spec.seed).fold_in(Stream.INSTANCE, "held out")
            for place in range(self._spec.instances):
                seed, initial, _ = self._draw(states, f"only {place} different initial states were found", key, place)
                states[initial] = seed
            self._held_out = states
        return self._held_out

    def _draw(self, taken: Container[str], problem: str, key: Key, *parts: int | str) -> tuple[int, str, int]:
        """An instance whose initial state is not taken: its seed, that state and the seeds skipped before it."""
        for attempt in range(_ATTEMPTS):
            seed = key.fold_in(*parts, attempt).bits() >> 33  # 31 bits: what every environment takes as a seed
            self._env.reset(seed=seed)
            initial = fingerprint(self._env.state_key())
            if initial not in taken:
                return seed, initial, attempt
        raise ConfigError(
            f"data.held_out.instances is {self._spec.instances}: {problem}, so hold out fewer, or make the environment "
            "more varied"
        )
