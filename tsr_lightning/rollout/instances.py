"""Which instances are trained on and which are held out.

Held out means that no initial state of the held-out set occurs in training, by the hash of the state: different seeds
do not suffice (most random 4x4 lakes recur). In a mixture that holds for the held-out states of all environments, since
two may be one task: made with other arguments, or by a subclass. Both streams are pure functions of their keys, so the
epoch is the whole position in the training stream. An instance is a pair: the index of its environment in the mixture,
and a seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

from tsr_lightning.envs.base import Branchable, PreparesInstances, fingerprint
from tsr_lightning.envs.boundary import Call, bounded, name_of
from tsr_lightning.envs.process import ProcessEnv
from tsr_lightning.envs.retried import describe
from tsr_lightning.envs.waiting import Waiting
from tsr_lightning.errors import ConfigError, RunError, require
from tsr_lightning.rng import Key, Stream
from tsr_lightning.rollout.learnability import Learnability, Revisits
from tsr_lightning.rollout.mixture import choose
from tsr_lightning.search.retry import NoRetry, RetriesExhausted, Retry
from tsr_lightning.trajectory import Group

State = tuple[int, str]  # (index of the environment, fingerprint of the initial state)
ShortState = tuple[int, int]

_DIGITS = 15  # of the fingerprint that are kept: 60 bits, so that a million states differ


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a run."""

    instances: int = 0
    states: frozenset[ShortState] = frozenset()  # those that differ
    skipped: int = 0  # seeds that led to a held-out state


class DrawnStates:
    """Counts each place of an epoch once, however often it is drawn."""

    def __init__(self) -> None:
        self._earlier = Counts()  # of the run that this one resumes
        self._drawn: dict[tuple[int, int], tuple[ShortState, int]] = {}  # by epoch and place: the state, seeds skipped

    def add(self, epoch: int, place: int, state: State, skipped: int) -> None:
        self._drawn[epoch, place] = shortened(state), skipped

    def counts(self, epochs: int | None = None) -> Counts:
        """Totals over the epochs before this one, or over all."""
        known = self._drawn.copy()  # in one step, since rollouts ahead of the updates add to it in their own thread
        drawn = [one for (epoch, _), one in known.items() if epochs is None or epoch < epochs]
        return Counts(
            self._earlier.instances + len(drawn),
            self._earlier.states | {state for state, _ in drawn},
            self._earlier.skipped + sum(skipped for _, skipped in drawn),
        )

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """Totals over the epochs before this one, as plain types."""
        counts = self.counts(epochs)
        return {"instances": counts.instances, "states": sorted(counts.states), "skipped": counts.skipped}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        states = frozenset((env, state) for env, state in state_dict["states"])
        self._earlier, self._drawn = Counts(state_dict["instances"], states, state_dict["skipped"]), {}


def shortened(state: State) -> ShortState:
    """The first bits of a state's fingerprint."""
    env, fingerprint = state
    return env, int(fingerprint[:_DIGITS], 16)


Instance = tuple[int, int]  # (index of the environment, seed of the initial state)

_ATTEMPTS = 1000  # seeds tried for one instance before the environment counts as having too few initial states


@dataclass(frozen=True)
class HeldOut:
    """The held-out set. It does not depend on the run's seed, so that all runs are evaluated on the same instances.

    Args:
        instances: how many of each environment, all with different initial states within it.
        seed: names the set.
    """

    instances: int = 256
    seed: int = 123

    def __post_init__(self) -> None:
        require(self.instances >= 0, "HeldOut.instances", self.instances, "give 0 or more")


@dataclass(frozen=True, slots=True)
class TrainingInstances:
    """The training instances of one epoch."""

    instances: tuple[Instance | None, ...]  # None where the environment failed
    skipped: int  # seeds that were drawn and led to a held-out initial state


class Instances:
    """Draws the instances of a mixture of environments.

    Args:
        envs: any objects of the environments.
        key: the run's.
        held_out: what is kept from training.
        weights: the environments' chances of a training instance in an epoch, up to a common factor; null for equal
            ones.
        retry: repeats resets that fail.
        learnability: draws a share of the instances again; None draws new ones alone.
    """

    def __init__(
        self,
        envs: Sequence[Branchable],
        key: Key,
        held_out: HeldOut,
        weights: Callable[[int], Sequence[float]] | None = None,
        retry: Retry | None = None,
        learnability: Learnability | None = None,
    ) -> None:
        self._revisits = None if learnability is None else Revisits(learnability, key)
        self._envs = envs
        self._retry = NoRetry() if retry is None else retry
        self._weights = weights
        self._key = key
        self._spec = held_out
        self._drawn = DrawnStates()

    @property
    def summary(self) -> str:
        """How training and evaluation were kept apart, in words and counts."""
        drawn = self._drawn.counts()
        held_out = {fingerprint for _, fingerprint in map(shortened, self._held_out)}
        overlap = sum(fingerprint in held_out for _, fingerprint in drawn.states)
        in_two = "; a state of two environments counts as two" if len(self._envs) > 1 else ""
        return (
            f"instances: {len(self._held_out)} held out, all of different initial states; "
            f"{drawn.instances} rolled out for training, of {len(drawn.states)} different initial states, {overlap} of "
            f"them held out ({drawn.skipped} draws fell on held-out states and were drawn again){in_two}"
        )

    def reset(self) -> None:
        """Forgets what was drawn, and what it said about the instances, as where a run begins."""
        self._drawn = DrawnStates()
        if self._revisits is not None:
            self._revisits.reset()

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """What was drawn for this many epochs, and what it says about the instances, for a run that goes on."""
        revisits = {} if self._revisits is None else {"revisits": self._revisits.state_dict(epochs)}
        return self._drawn.state_dict(epochs) | revisits

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._drawn.load_state_dict(state_dict)
        if self._revisits is not None and "revisits" in state_dict:  # not of a run without
            self._revisits.load_state_dict(state_dict["revisits"], range(len(self._envs)))

    @property
    def held_out(self) -> tuple[Instance, ...]:
        """Held-out instances of the first environment, then of the next; each has those that it has
        without the others."""
        return tuple((env, seed) for (env, _), seed in self._held_out.items())

    def is_held_out(self, state: str) -> bool:
        """True of the fingerprint of an initial state that is held out of any environment."""
        return state in self._held_out_fingerprints

    def add_replayed(self, epoch: int, states: Sequence[State]) -> None:
        """Counts instances that are trained on and were not drawn here, by their initial states."""
        for place, state in enumerate(states):
            self._drawn.add(epoch, place, state, 0)

    def observe(self, epoch: int, groups: Sequence[Group], trained: int) -> None:
        """Notes what the rollout of an epoch says about its instances; the policy has been `trained` for so many."""
        if self._revisits is not None:
            envs = {env for env, weight in enumerate(self._weights_in(epoch + 1)) if weight > 0}
            self._revisits.observe(epoch, groups, trained, envs)

    def training(self, epoch: int, count: int, first: int = 0) -> TrainingInstances:
        """The training instances of an epoch, from the place `first` on. Where the environment cannot be reset, so that
        nobody knows whether the state is held out, there is none. Those that are drawn again have the first places."""
        again = () if self._revisits is None else self._revisits.of(epoch, count)
        instances: list[Instance | None] = []
        skipped = 0
        self._announce_training(epoch, range(first, first + count))
        for place in range(first, first + count):
            problem = "no initial state is left for training"
            try:
                if place < len(again) and (known := self._trainable(epoch, *again[place])) is not None:
                    (env, seed), initial, attempts = again[place], known, 0
                else:
                    env = self._env(epoch, place)
                    seed, initial, attempts = self._draw(
                        env, lambda state: self.is_held_out(state[1]), problem, self._key, Stream.INSTANCE, epoch, place
                    )
            except RetriesExhausted:
                instances.append(None)
                continue
            instances.append((env, seed))
            skipped += attempts
            self._drawn.add(epoch, place, initial, attempts)
        self._announce_training(epoch + 1, range(count))  # made while this epoch is rolled out
        return TrainingInstances(tuple(instances), skipped)

    def _trainable(self, epoch: int, env: int, seed: int) -> State | None:
        """The initial state of an instance that may be trained on in an epoch; None of another."""
        if self._weights_in(epoch)[env] <= 0:
            return None
        initial = self._initial(env, seed)
        return None if self.is_held_out(initial[1]) else initial

    def _weights_in(self, epoch: int) -> Sequence[float]:
        return [1.0] * len(self._envs) if self._weights is None else self._weights(epoch)

    def _env(self, epoch: int, place: int) -> int:
        """The environment of a training instance."""
        return choose(self._weights_in(epoch), self._key.fold_in(Stream.INSTANCE, epoch, place, "environment"))

    def _announce_training(self, epoch: int, places: Iterable[int]) -> None:
        self._announce(
            (self._env(epoch, place), _seed(self._key, Stream.INSTANCE, epoch, place, 0)) for place in places
        )

    def _announce(self, instances: Iterable[Instance]) -> None:
        """Tells environments that prepare instances which ones are likely to come."""
        instances = list(instances)
        for number, env in enumerate(self._envs):
            if isinstance(env, PreparesInstances):
                seeds = [seed for index, seed in instances if index == number]
                with suppress(RetriesExhausted):  # what was not prepared is made when it is drawn
                    self._retry(partial(bounded, Call(env, "prepare"), partial(env.prepare, seeds)))

    @cached_property
    def _held_out_fingerprints(self) -> frozenset[str]:
        return frozenset(fingerprint for _, fingerprint in self._held_out)

    @cached_property
    def _held_out(self) -> dict[State, int]:
        """Seeds by initial state."""
        seeds: dict[State, int] = {}
        key = Key(self._spec.seed).fold_in(Stream.INSTANCE, "held out")
        places = product(range(len(self._envs)), range(self._spec.instances))
        self._announce((env, _seed(key, place, 0)) for env, place in places)
        with Waiting() as waiting:
            for env, place in product(range(len(self._envs)), range(self._spec.instances)):
                name = name_of(self._envs[env])
                problem = f"only {place} different initial states were found"
                try:
                    with waiting.on(f"held-out instance {place} of {name}"):
                        seed, initial, _ = self._draw(env, seeds.__contains__, problem, key, place)
                except RetriesExhausted as error:
                    cause = error.__cause__ or error
                    raise RunError(
                        f"reset of {name} failed for held-out instance {place}: {describe(cause)}; fix the "
                        "environment, or raise data.faults.retries"
                    ) from error
                seeds[initial] = seed
        return seeds

    def _initial(self, env: int, seed: int) -> State:
        """The initial state of an instance."""
        call = Call(self._envs[env], "reset", seed)
        return env, self._retry(partial(bounded, call, partial(_initial_state, self._envs[env], seed)))

    def _draw(
        self, env: int, is_taken: Callable[[State], bool], problem: str, key: Key, *parts: int | str
    ) -> tuple[int, State, int]:
        """An instance whose initial state is not taken: its seed, that state and the seeds skipped before it."""
        for attempt in range(_ATTEMPTS):
            seed = _seed(key, *parts, attempt)
            initial = self._initial(env, seed)
            if not is_taken(initial):
                return seed, initial, attempt
        raise ConfigError(
            f"data.held_out.instances is {self._spec.instances}: {problem}, so hold out fewer, or make "
            f"{_class_name(self._envs[env])} more varied: its state_key() tells initial states apart, in Replayed "
            "with `hidden`"
        )


def _initial_state(env: Branchable, seed: int) -> str:
    env.reset(seed=seed)
    return fingerprint(env.state_key())


def _class_name(env: Branchable) -> str:
    return env.class_name if isinstance(env, ProcessEnv) else type(env).__name__


def _seed(key: Key, *parts: int | str) -> int:
    """31 bits: what every environment takes as a seed."""
    return key.fold_in(*parts).bits() >> 33
