"""Proof, by property, that an environment can be branched. Public: run it over an environment of your own.

    check_branchable("tsr/FrozenLake-v0")
    check_branchable("my_package.envs:Garden-v0", kwargs={"size": 3})
    check_branchable(lambda: Garden(size=3), noisy=True)

Each seed's episode is stopped at several moments. At each of them random legal and unreadable answers are played, taken
back, played again, played in an environment made alike, and under noise of their own; all that shows (observation,
reward, flags, info, score, situation, budget, legal actions) must come out as the contract in `branchable.py` says.
"""

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium
from gymnasium.utils.env_checker import data_equivalence

from tsr_lightning.draws import Key
from tsr_lightning.envs.branchable import Branchable, Solvable
from tsr_lightning.envs.elsewhere import check_elsewhere
from tsr_lightning.envs.source import BranchabilityError, Source, find_source

INFO_KEYS = ("success", "action_is_valid", "action_is_effective")
UNREADABLE = "\t??\t"
UNREADABLE_SHARE = 0.15  # of the answers
DEPTHS = (0, 1, 3)  # turns into the episode at which it is stopped
COPIES = 3  # a noisy environment agrees with itself by luck, but hardly this often


@dataclass(frozen=True, slots=True)
class BranchabilityReport:
    """What was checked."""

    environment: str
    seeds: tuple[int, ...]
    moments: int  # at which an episode was stopped
    steps: int  # of the environment
    noisy: bool  # two keys gave two futures somewhere
    skipped: tuple[str, ...]  # properties that could not be checked, and why


@dataclass(frozen=True)
class Standing:
    """What a moment shows without a step."""

    score: float
    state_key: Hashable
    remaining: int
    legal: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """All that a step shows."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    standing: Standing

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def check_branchable(
    env: str | gymnasium.Env[str, str] | Callable[[], Any],
    *,
    kwargs: dict[str, Any] | None = None,
    seeds: Iterable[int] = range(6),
    turns: int = 12,
    keys: int = 16,
    noisy: bool | None = None,
) -> BranchabilityReport:
    """Raise a BranchabilityError if the environment breaks the contract.

    Args:
        env: a registered id, `package.module:Env-v0`, a function that makes the environment, or the environment. Of a
            mere object without a spec no second one can be made, here or in another process: those parts are skipped.
        kwargs: arguments of an environment given by id.
        seeds: of the episodes.
        turns: the most that are played from a moment.
        keys: branches of a moment whose noise is compared.
        noisy: whether chance plays a part. If said, it is held to it; unsaid, an environment of which no two keys ever
            give two futures passes for one without.
    """
    source = find_source(env, kwargs or {})
    seeds = tuple(seeds)
    stage = _Stage(source.env, turns)
    scripts = [(seed, _check_episode(source, stage, seed)) for seed in seeds]
    stops = [_stop(source, stage, seed, depth) for seed in seeds for depth in DEPTHS]
    moments = [moment for moment in stops if moment is not None]
    differing = []
    for moment in moments:
        _check_standing(moment)
        # noise before restoring: it tells a generator that is shared from a state that is not brought back
        differing.append(_check_noise(moment, keys))
        _check_restore(moment)
        _check_twin(moment)
        _check_isolation(moment)
    if noisy is True and not any(differing):
        raise BranchabilityError(
            f"reseed: it does nothing, {keys} keys gave one and the same future at each of {len(moments)} moments "
            f"of {source.name}, which is said to be noisy (seeds {seeds})"
        )
    if noisy is False and any(differing):
        moments[differing.index(True)].fail("reseed", "two keys gave two futures; the environment is said to be exact")
    skipped = check_elsewhere(source, scripts)
    if source.make is None:
        skipped = ["another environment: only this one object is given", *skipped]
    return BranchabilityReport(source.name, seeds, len(moments), stage.steps, any(differing), tuple(skipped))


# ---- playing, with all that shows taken down


class _Stage:
    """An environment, watched."""

    def __init__(self, env: Branchable, turns: int) -> None:
        self.env, self.turns, self.steps = env, turns, 0

    def stand(self) -> Standing:
        env = self.env
        return Standing(env.score(), env.state_key(), env.remaining(), tuple(env.legal_actions()))

    def step(self, action: str) -> Seen:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        # a copy: an environment that hands out its own dictionary must not rewrite what was seen
        return Seen(observation, reward, terminated, truncated, copy.deepcopy(info), self.stand())

    def play(self, actions: Iterable[str]) -> list[Seen]:
        """Answers that could be played before, up to the end of the episode; an exception is seen like an end."""
        seen: list[Seen] = []
        for action in actions:
            try:
                seen.append(self.step(action))
            except Exception as error:
                seen.append(Seen(f"step() raised {error!r}", 0.0, False, True, {}, self.stand()))
            if seen[-1].done:
                break
        return seen

    def wander(self, key: Key, turns: int | None = None) -> tuple[list[str], list[Seen]]:
        """Random answers, most of them legal, up to the end of the episode."""
        actions, seen = list[str](), list[Seen]()
        for turn in range(self.turns if turns is None else turns):
            actions.append(self._random_answer(key.fold(turn)))
            seen.append(self.step(actions[-1]))
            if seen[-1].done:
                break
        return actions, seen

    def solve(self, solver: Solvable) -> tuple[list[str], list[Seen]]:
        """The solver's answers, up to the end of the episode."""
        actions, seen = list[str](), list[Seen]()
        while len(seen) < self.turns and not (seen and seen[-1].done):
            actions.append(solver.oracle())
            seen.append(self.step(actions[-1]))
        return actions, seen

    def _random_answer(self, key: Key) -> str:
        legal = self.env.legal_actions()
        if key.uniform(0) < UNREADABLE_SHARE or not legal:
            return UNREADABLE
        return legal[int(key.uniform(1) * len(legal))]


def _differing(expected: Standing | Seen, got: Standing | Seen) -> dict[str, str]:
    """By name, what differs: "3 instead of 5"."""
    names: dict[str, str] = {}
    for part in dataclasses.fields(expected):
        mine, theirs = getattr(expected, part.name), getattr(got, part.name)
        if isinstance(mine, Standing):
            names |= _differing(mine, theirs)
        elif not data_equivalence(mine, theirs, exact=True):
            names[part.name] = f"{theirs!r} instead of {mine!r}"
    return names


def _first_difference(expected: Sequence[Seen], got: Sequence[Seen]) -> dict[str, str]:
    """What differs at the first step that differs; empty if none does. Who ends earlier differs in a flag before."""
    return next((names for pair in zip(expected, got, strict=False) if (names := _differing(*pair))), {})


def _told(names: dict[str, str]) -> str:
    return "; ".join(f"{name} {difference}" for name, difference in names.items())


# ---- moments


@dataclass(frozen=True)
class _Moment:
    """An episode, stopped, and what came of it when it was played on."""

    source: Source
    stage: _Stage
    seed: int
    path: list[str]  # the answers that lead here
    state: Any
    copied: Any  # a deep copy of the state, which later steps cannot reach
    standing: Standing
    actions: list[str]  # of the real episode, from here
    future: list[Seen]  # of the real episode, from here

    def key(self, *parts: int | str) -> Key:
        return Key(self.seed).fold(len(self.path), *parts)

    def fail(self, name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({_where(self.source, self.seed, self.path)})")

    def back(self, key: Key | None = None) -> None:
        """To this moment, with its own noise or that of a key."""
        self.stage.env.set_state(self.state)
        if key is not None:
            self.stage.env.reseed(key)

    def branch(self, *keys: Key, state: Any = None) -> list[Seen]:
        """The same answers once more, reseeded with one key after another."""
        self.stage.env.set_state(self.state if state is None else state)
        for key in keys:
            self.stage.env.reseed(key)
        return self.stage.play(self.actions)

    def reject(self, names: dict[str, str]) -> NoReturn:
        """The moment did not come back as it was: say why."""
        told = f"{_told(names)}, when {self.actions} were played again"
        copies = [self.branch(state=copy.deepcopy(self.copied)) for _ in range(COPIES)]
        if not any(_first_difference(self.future, other) for other in copies):
            self.fail("aliased state", f"later steps changed a state that get_state had returned: {told}")
        if _of_counters(names):
            self.fail("counters", f"a turn or step limit is not restored with the state: {told}")
        self.fail("restore", f"set_state does not bring a moment back exactly: {told}")


def _where(source: Source, seed: int, path: list[str]) -> str:
    return f"{source.name}, seed {seed}, " + (f"after {path}" if path else "after the reset")


def _of_counters(names: dict[str, str]) -> bool:
    """Whether the task stands where it stood and only the budget does not."""
    return bool({"remaining", "truncated"} & names.keys()) and not {"state_key", "terminated"} & names.keys()


def _stop(source: Source, stage: _Stage, seed: int, depth: int) -> _Moment | None:
    """The moment `depth` turns into an episode, which is then played on; None if it ends before."""
    stage.env.reset(seed=seed)
    path, seen = stage.wander(Key(seed).fold("path"), depth)
    if seen and seen[-1].done:
        return None
    state = stage.env.get_state()
    try:
        hash(state)
    except TypeError as error:
        where = _where(source, seed, path)
        raise BranchabilityError(f"state: {error}, so it could be changed: return what cannot ({where})") from error
    copied, standing = copy.deepcopy(state), stage.stand()
    actions, future = stage.wander(Key(seed).fold("future", depth))
    return _Moment(source, stage, seed, path, state, copied, standing, actions, future)


def _check_standing(moment: _Moment) -> None:
    moment.back()
    if names := _differing(moment.standing, moment.stage.stand()):
        moment.reject(names)


def _check_noise(moment: _Moment, keys: int) -> bool:
    """Equal keys, equal futures, whatever noise was there before. Returns whether two keys gave two futures."""
    first = moment.key("noise", 0)
    futures = [moment.branch(moment.key("noise", index)) for index in range(keys)]
    if names := _first_difference(futures[0], moment.branch(first)):
        # once more from states that nothing can have touched: else it is the state that is at fault
        copies = [moment.branch(first, state=copy.deepcopy(moment.copied)) for _ in range(COPIES + 1)]
        if _of_counters(names) or not any(_first_difference(copies[0], other) for other in copies[1:]):
            moment.reject(names)
        moment.fail(
            "shared noise",
            "set_state and reseed with equal keys gave two futures, so chance comes from somewhere else, "
            f"perhaps a generator that all branches share: {_told(names)}, when {moment.actions} were played",
        )
    if names := _first_difference(futures[0], moment.branch(moment.key("old"), first)):
        moment.fail("reseed", f"the noise of before shows after it: {_told(names)}, when {moment.actions} were played")
    return any(_first_difference(futures[0], future) for future in futures[1:])


def _check_restore(moment: _Moment) -> None:
    """Snapshot, roll A, restore, roll B, restore, roll A: exactly as before."""
    if names := _first_difference(moment.future, moment.branch()):
        moment.reject(names)
    moment.back()
    moment.stage.wander(moment.key("other"))
    if names := _first_difference(moment.future, moment.branch()):
        moment.reject(names)


def _check_isolation(moment: _Moment) -> None:
    """Branches between the steps of the real episode, here and in an environment made alike, change nothing in it."""
    stage = moment.stage
    twin = None if moment.source.make is None else _Stage(moment.source.make(), stage.turns)

    def branch(aside: _Stage, state: Any, *name: int | str) -> None:
        aside.env.set_state(state)
        aside.env.reseed(moment.key("aside", *name))
        aside.wander(moment.key("aside answers", *name))

    moment.back()
    for turn, (action, expected) in enumerate(zip(moment.actions, moment.future, strict=True)):
        real = stage.env.get_state()
        branch(stage, real, turn, "here")
        stage.env.set_state(real)
        if twin is not None:
            branch(twin, real, turn, "there")  # and nothing is put back here
        if names := _differing(expected, stage.step(action)):
            moment.fail("shared noise", f"playing branches changed the real episode: {_told(names)}, at {action!r}")


def _check_twin(moment: _Moment) -> None:
    """A state goes on in another environment that was made alike."""
    if moment.source.make is None:
        return
    twin = _Stage(moment.source.make(), moment.stage.turns)
    try:
        twin.env.set_state(moment.state)
    except Exception as error:
        moment.fail("another environment", f"set_state raised {error!r} in one made alike, before any reset")
    names = _differing(moment.standing, twin.stand()) or _first_difference(moment.future, twin.play(moment.actions))
    if names:
        moment.fail("another environment", f"the state goes on otherwise in one made alike: {_told(names)}")


# ---- episodes


def _check_episode(source: Source, stage: _Stage, seed: int) -> list[str]:
    """What must hold in an episode of random answers and, where there is a solver, in a solved one.

    Returns the random answers.
    """
    actions: list[str] = []

    def fail(name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({source.name}, seed {seed}, actions {actions})")

    first, _ = stage.env.reset(seed=seed)
    standing = stage.stand()
    again, _ = stage.env.reset(seed=seed)
    if names := {"observation": again} if first != again else _differing(standing, stage.stand()):
        fail("reset", f"a seed gave two beginnings: {_told(names)}")
    if not standing.legal:
        fail("contract", "legal_actions() is empty at the beginning")
    if standing.remaining <= 0:
        fail("budget", f"remaining() is {standing.remaining} at the beginning")
    if isinstance(stage.env, Solvable):
        solution, seen = stage.solve(stage.env)
        for before, action, now in zip([standing, *(step.standing for step in seen)], solution, seen, strict=False):
            if problem := _step_problem(before, action, now):
                fail(*problem)
        stage.env.reset(seed=seed)
        stage.stand()
    actions, seen = stage.wander(Key(seed).fold("episode"))
    for before, action, now in zip([standing, *(step.standing for step in seen)], actions, seen, strict=False):
        if problem := _step_problem(before, action, now):
            fail(*problem)
    stage.env.reset(seed=seed)
    stage.stand()
    if names := _first_difference(seen, stage.play(actions)):
        fail("shared noise", f"a seed gave two episodes, so chance comes from somewhere else: {_told(names)}")
    # once more, never asked for its score
    stage.env.reset(seed=seed)
    unasked = [stage.env.step(action)[0] for action in actions]
    if unasked != [now.observation for now in seen]:
        fail("score", "asking for it, the situation or the budget changes the observations")
    return actions


def _step_problem(before: Standing, action: str, now: Seen) -> tuple[str, str] | None:
    """The property that a step breaks, and how."""
    after = now.standing
    if missing := [name for name in INFO_KEYS if not isinstance(now.info.get(name), bool)]:
        return "contract", f"info lacks {', '.join(missing)}, or it is no bool, at {action!r}"
    valid = now.info["action_is_valid"]
    if action in before.legal and not valid:
        return "contract", f"step() calls {action!r} invalid, which legal_actions() offers"
    if not 0.0 <= after.score <= 1.0:
        return "score", f"{after.score} is not in [0, 1], at {action!r}"
    if now.info["success"] and after.score != 1.0:
        return "score", f"it is {after.score}, not 1, in a success, at {action!r}"
    if _shown(now):
        return "score", f"{after.score} stands in the observation, at {action!r}"
    if not _plain(after.state_key):
        return "state_key", f"{after.state_key!r} is not made of numbers, strings and tuples alone"
    if after.remaining > before.remaining or (valid and after.remaining == before.remaining):
        return "budget", f"remaining() went from {before.remaining} to {after.remaining}, at {action!r}"
    if not now.done and after.remaining <= 0:
        return "budget", f"remaining() is {after.remaining} and the episode goes on, at {action!r}"
    return None


def _shown(seen: Seen) -> bool:
    """Whether the observation tells the score. Short numbers such as 0.5 may well stand there for something else."""
    score = seen.standing.score
    if score in (round(score, 2), seen.reward):
        return False
    return any(said in seen.observation for said in (repr(score), f"{score:.4f}", f"{score:.3f}"))


def _plain(key: object) -> bool:
    if isinstance(key, tuple):
        return all(_plain(part) for part in key)
    return key is None or isinstance(key, bool | int | float | str | bytes)
