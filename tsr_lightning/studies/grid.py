"""A grid: arms x seeds. An arm is a configuration under a name, as overlays and overrides of the command line."""

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.studies.grid_file import check_keys, mapping, positive, read_yaml, seeds_of, texts, yes_or_no
from tsr_lightning.studies.settings import is_under

_KEYS = (
    *("name", "configs", "overrides", "arms", "axes", "seeds", "jobs", "threads"),
    *("baseline", "pairs", "same_task", "thresholds", "share_start"),
)
_ARM_KEYS = ("like", "configs", "overrides", "seeds")
_POINT_KEYS = ("like", "configs", "overrides")
# What a study sets for each of its runs, and what says it in a grid.
_OWN = {
    "seed_everything": "seeds",
    "ckpt_path": "nothing: a stopped run goes on by itself",
    "trainer.logger": "nothing: --output says where runs are written",
    "trainer.default_root_dir": "nothing: --output says where runs are written",
    "trainer.run_folder": "nothing: --output says where runs are written",
}


@dataclass(frozen=True)
class Run:
    """One run of a study: an arm with a seed."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True)
class Arm:
    """A configuration that is run with several seeds.

    Args:
        name: of its folder and in the report.
        configs: files as `--config` takes them, each laid over those before it.
        overrides: values by dotted key, laid over all files.
        seeds: of its runs.
        points: the point that it stands for on each axis, where it comes from axes.
    """

    name: str
    configs: tuple[str, ...]
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...]
    points: Mapping[str, str] = field(default_factory=dict)

    def flags(self) -> list[str]:
        """Returns what a user would write after `tsr fit`."""
        files = [f"--config={path}" for path in self.configs]
        return [*files, *(f"--{key}={flag_value(value)}" for key, value in self.overrides.items())]


@dataclass(frozen=True)
class Grid:
    """A study to run.

    Args:
        name: of its folder.
        arms: in the order of the file, then those of the axes.
        jobs: runs side by side.
        threads: of each run.
        baselines: the arm that each arm is compared with, by name; empty for none.
        pairs: arms that are compared besides, the first with the second.
        thresholds: success rates by protocol, to which the report tells the time.
        same_task: arguments of the environment, such as its reward, in which arms may differ that are compared; where
            another differs, arms play other tasks.
        share_start: evaluate equal starts once (`starts.py`), and not in every run. Leave it off where a callback
            judges by the start, as a CollapseGuard that stops or restores does.
    """

    name: str
    arms: tuple[Arm, ...]
    jobs: int
    threads: int
    baselines: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...]
    thresholds: Mapping[str, tuple[float, ...]]
    same_task: tuple[str, ...] = ()
    share_start: bool = False

    def runs(self) -> list[Run]:
        """Returns all runs, seed after seed, so that the first ones cover all arms."""
        seeds = dict.fromkeys(seed for arm in self.arms for seed in arm.seeds)
        return [Run(arm.name, seed) for seed in seeds for arm in self.arms if seed in arm.seeds]


def flag_value(value: Any) -> str:
    """Returns a value of YAML as the command line takes it: a text as it stands, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def read_grid(path: Path) -> Grid:
    """Reads a grid.

    Raises:
        ConfigError: with the file's name, the key, the value and the remedy.
    """
    try:
        return parse_grid(read_yaml(path), path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_grid(given: Mapping[str, Any], name: str) -> Grid:
    """Returns the grid that a mapping describes; `name` names it where the mapping does not."""
    check_keys(given, _KEYS, "")
    configs, overrides = texts(given.get("configs"), "configs"), _overrides(given.get("overrides"), "overrides")
    if "seeds" not in given:
        raise ConfigError("seeds is missing: give a list of whole numbers, such as [1, 2, 3]")
    seeds = seeds_of(given["seeds"], "seeds")
    arms = [*_named_arms(given.get("arms"), seeds), *_product(given.get("axes"), seeds)]
    require(len(arms) > 0, "arms", [], "give at least one arm, or axes")
    laid = [
        Arm(arm.name, (*configs, *arm.configs), {**overrides, **arm.overrides}, arm.seeds, arm.points) for arm in arms
    ]
    names = [arm.name for arm in laid]
    for arm in laid:
        require(names.count(arm.name) == 1, "arms", arm.name, "give every arm a name of its own, axes included")
    return Grid(
        name=_name(given.get("name", name), "name"),
        arms=tuple(laid),
        jobs=positive(given.get("jobs", 1), "jobs"),
        threads=positive(given.get("threads", 1), "threads"),
        baselines=_baselines(given.get("baseline"), laid),
        pairs=tuple(_pairs(given.get("pairs"), laid)),
        thresholds=_thresholds(given.get("thresholds")),
        same_task=texts(given.get("same_task"), "same_task"),
        share_start=yes_or_no(given.get("share_start", False), "share_start"),
    )


def _named_arms(given: Any, seeds: tuple[int, ...]) -> Iterator[Arm]:
    for name, keys, likeness in _entries(given, "arms", _ARM_KEYS):
        own_seeds = seeds_of(keys["seeds"], f"arms.{name}.seeds") if "seeds" in keys else seeds
        yield Arm(name, likeness.configs, likeness.overrides, own_seeds)


@dataclass(frozen=True)
class _Point:
    name: str
    configs: tuple[str, ...]
    overrides: Mapping[str, Any]


def _entries(given: Any, key: str, known: Collection[str]) -> Iterator[tuple[str, dict[str, Any], _Point]]:
    """Each entry of a mapping: its name, its own keys, and its files and overrides over those of the one it is like."""
    before: dict[str, _Point] = {}
    for name, entry in mapping(given, key).items():
        where = f"{key}.{name}"
        keys = mapping(entry, where)
        check_keys(keys, known, f"{where}.")
        base = _Point("", (), {})
        if "like" in keys:
            remedy = f"name one of those before it: {', '.join(before) or 'there is none'}"
            require(str(keys["like"]) in before, f"{where}.like", keys["like"], remedy)
            base = before[str(keys["like"])]
        configs = (*base.configs, *texts(keys.get("configs"), f"{where}.configs"))
        overrides = {**base.overrides, **_overrides(keys.get("overrides"), f"{where}.overrides")}
        point = _Point(_name(name, key), configs, overrides)
        before[point.name] = point
        yield point.name, keys, point


def _product(given: Any, seeds: tuple[int, ...]) -> Iterator[Arm]:
    """Yields an arm for every combination of one point from each axis."""
    axes = {axis: _points(points, f"axes.{axis}") for axis, points in mapping(given, "axes").items()}
    if not axes:
        return
    for points in itertools.product(*axes.values()):
        yield Arm(
            "-".join(point.name for point in points),
            tuple(path for point in points for path in point.configs),
            {key: value for point in points for key, value in point.overrides.items()},
            seeds,
            {axis: point.name for axis, point in zip(axes, points, strict=True)},
        )


def _points(given: Any, key: str) -> list[_Point]:
    """Returns the points of an axis, from a list of files (named by their stems) or from a mapping of names to keys."""
    if isinstance(given, list):
        files = texts(given, key)
        points = [_Point(_name(PurePosixPath(path).stem, key), (path,), {}) for path in files]
    else:
        points = [point for _, _, point in _entries(given, key, _POINT_KEYS)]
    require(len(points) > 0, key, given, "give at least one point")
    return points


def _overrides(given: Any, key: str) -> dict[str, Any]:
    overrides = mapping(given, key)
    for name, value in overrides.items():
        if not _is_plain(value):
            raise ConfigError(
                f"{key}.{name} is {value}, which a run's command cannot hold: write it as a text in quotes"
            )
        for own, instead in _OWN.items():
            if is_under(name, [own]):
                raise ConfigError(f"{key} has {name}, which a study sets by itself: use {instead}")
        if name in ("config", "c", "print_config", "help"):
            raise ConfigError(f"{key} has {name}, which is no setting: use configs")
    return overrides


def _is_plain(value: Any) -> bool:
    """True of what JSON can hold, and so a command: no dates, and texts as keys."""
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _name(given: Any, key: str) -> str:
    is_plain = isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", given) is not None
    require(is_plain, key, given, "give names of letters, digits and . _ + = -, since folders are named by them")
    return str(given)


def _baselines(given: Any, arms: Sequence[Arm]) -> dict[str, str]:
    """Returns the arm that each is compared with: one for all by its name, or by points, such as {search: sample}, the
    one that has those and is the same on all other axes."""
    if given is None:
        return {}
    names = [arm.name for arm in arms]
    if isinstance(given, str):
        require(given in names, "baseline", given, f"give one of {', '.join(names)}")
        return dict.fromkeys(names, given)
    points = {axis: str(point) for axis, point in mapping(given, "baseline").items()}
    known = {(axis, point) for arm in arms for axis, point in arm.points.items()}
    for axis, point in points.items():
        require((axis, point) in known, f"baseline.{axis}", point, "give an axis and one of its points")
    named = {frozenset(arm.points.items()): arm.name for arm in arms if arm.points}
    return {arm.name: named[frozenset({**arm.points, **points}.items())] for arm in arms if arm.points}


def _pairs(given: Any, arms: Sequence[Arm]) -> Iterator[tuple[str, str]]:
    """Yields pairs of arms: those of a list of names, or by axis, such as {search: [[beam, sample]]}, the arms that
    have those points and are the same on all other axes."""
    if given is None:
        return
    if isinstance(given, list):
        names = [arm.name for arm in arms]
        for pair in given:
            yield _two_of(pair, names, "pairs")
        return
    named = {frozenset(arm.points.items()): arm.name for arm in arms if arm.points}
    for axis, several in mapping(given, "pairs").items():
        points = list(dict.fromkeys(arm.points[axis] for arm in arms if axis in arm.points))
        remedy = "give an axis and a list of pairs of its points, such as {search: [[beam, sample]]}"
        require(bool(points) and isinstance(several, list), f"pairs.{axis}", several, remedy)
        pairs = [_two_of(pair, points, f"pairs.{axis}") for pair in several]
        for arm in arms:
            for first, second in pairs:
                if arm.points.get(axis) == first:
                    yield arm.name, named[frozenset({**arm.points, axis: second}.items())]


def _two_of(given: Any, known: Sequence[str], key: str) -> tuple[str, str]:
    names = [str(name) for name in given] if isinstance(given, list) else []
    require(len(set(names)) == len(names) == 2 and {*names} <= {*known}, key, given, f"give two of {', '.join(known)}")
    return names[0], names[1]


def _thresholds(given: Any) -> dict[str, tuple[float, ...]]:
    found = {}
    for protocol, rates in mapping(given, "thresholds").items():
        several = rates if isinstance(rates, list) else [rates]
        is_rates = all(isinstance(rate, int | float) and 0 < rate <= 1 for rate in several)
        require(is_rates, f"thresholds.{protocol}", rates, "give success rates above 0 and up to 1, such as [0.5]")
        found[protocol] = tuple(float(rate) for rate in several)
    return found
