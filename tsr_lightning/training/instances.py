"""Which instances are trained on and which are held out.

Held out means that no initial state of the held-out set occurs in training, by the hash of the state: different seeds
alone do not do it (most random 4x4 lakes recur). Both streams are pure functions of their keys, so the position in the
training stream is the epoch and nothing else.
"""

from dataclasses import dataclass

from tsr_lightning.envs.base import Branchable, fingerprint
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key, Stream

_ATTEMPTS = 1000  # draws for one instance before the environment is said to have too few of them


@dataclass(frozen=True)
class HeldOut:
    """The held-out set. It does not depend on the run's seed, so that all runs are measured on the same instances.

    Args:
        instances: how many, all with different initial states.
        seed: names the set.
    """

    instances: int = 256
    seed: int = 123


@dataclass(frozen=True, slots=True)
class Drawn:
    """The training instances of one epoch."""

    seeds: tuple[int, ...]
    skipped: int  # draws that fell on a held-out initial state


class Instances:
    """Draws instances of an environment.

    Args:
        env: any object of the environment.
        key: the run's.
        held_out: what is kept from training.
    """

    def __init__(self, env: Branchable, key: Key, held_out: HeldOut) -> None:
        self._env = env
        self._key = key
        self._spec = held_out
        self._held_out: dict[str, int] | None = None
        self._trained: dict[str, int] = {}  # initial states that were drawn for training, and how often
        self._skipped = 0

    @property
    def account(self) -> str:
        """How training and evaluation were kept apart, in words and counts."""
        held = self._held()
        return (
            f"instances: {len(held)} held out, all of different initial states; {sum(self._trained.values())} trained "
            f"on, of {len(self._trained)} different initial states, {len(held.keys() & self._trained)} of them held "
            f"out ({self._skipped} draws fell on held-out states and were drawn again)"
        )

    @property
    def held_out(self) -> tuple[int, ...]:
        """The seeds of the held-out instances."""
        return tuple(self._held().values())

    def training(self, epoch: int, count: int) -> Drawn:
        """The seeds of an epoch's training instances."""
        held = self._held()
        seeds = []
        skipped = 0
        for place in range(count):
            for attempt in range(_ATTEMPTS):
                seed = _seed(self._key.fold_in(Stream.INSTANCE, epoch, place, attempt))
                initial = self._initial(seed)
                if initial not in held:
                    seeds.append(seed)
                    self._trained[initial] = self._trained.get(initial, 0) + 1
                    break
                skipped += 1
            else:
                raise ConfigError(
                    f"data.held_out.instances is {len(held)}, which leaves no initial state for training: "
                    "hold out fewer, or make the environment more varied"
                )
        self._skipped += skipped
        return Drawn(tuple(seeds), skipped)

    def _held(self) -> dict[str, int]:
        if self._held_out is None:
            self._held_out = {}
            stream = Key(self._spec.seed).fold_in(Stream.INSTANCE, "held out")
            for place in range(self._spec.instances):
                for attempt in range(_ATTEMPTS):
                    seed = _seed(stream.fold_in(place, attempt))
                    initial = self._initial(seed)
                    if initial not in self._held_out:
                        self._held_out[initial] = seed
                        break
                else:
                    raise ConfigError(
                        f"data.held_out.instances is {self._spec.instances}, but only {place} different initial states "
                        "were found: hold out fewer, or make the environment more varied"
                    )
        return self._held_out

    def _initial(self, seed: int) -> str:
        self._env.reset(seed=seed)
        return fingerprint(self._env.state_key())


def _seed(key: Key) -> int:
    return key.bits() >> 33  # 31 bits: what every environment takes as a seed
