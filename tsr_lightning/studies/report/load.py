"""Reads studies, from their folders or packed: what is finished as curves, and what is missing."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.packed import read_packed
from tsr_lightning.studies.record import StudyRecord, read_folder
from tsr_lightning.studies.report.curves import Curve, Instances
from tsr_lightning.studies.result import is_result
from tsr_lightning.studies.starts import measures_its_start, start_key

_SHARED = 0.9  # of the instances of two evaluations that play the same ones
# In the settings, what makes the task of an environment
_OF_A_TASK = re.compile(r"data\.env(\.\d+\.env)?(_kwargs(\.(?P<argument>[^.]+).*)?)?")


@dataclass(frozen=True)
class ArmResults:
    """The finished runs of an arm.

    Args:
        study: the study's name.
        arm: the arm's name.
        points: the point that it stands for on each axis; empty for an arm that was named.
        results: contents of the result files, by seed.
    """

    study: str
    arm: str
    points: Mapping[str, str]
    results: Mapping[int, Mapping[str, Any]]

    def curves(self, protocol: str, environment: str = "") -> list[Curve]:
        """Returns the curve of each seed that was evaluated by this protocol.

        Args:
            protocol: of evaluation.
            environment: the name of one of a mixture, whose instances alone are counted; empty: all instances.
        """
        curves = [*self._curves.get(protocol, [])]
        if not environment:
            return curves
        places = [place for place, name in self.environments.items() if name == environment]
        return [one.within(places) for one in curves]

    @cached_property
    def _curves(self) -> Mapping[str, list[Curve]]:
        """The curve of each seed, by protocol: made once, since a report reads them a thousand times."""
        found = {name: [curve(seed, result, name) for seed, result in self.results.items()] for name in self.protocols}
        return {name: [one for one in curves if one is not None] for name, curves in found.items()}

    @property
    def held_out(self) -> Instances:
        """The instances of its evaluations, each as the place of its environment in `data.env` and its seed; those too
        that an environment's failure left out of some."""
        return _instances(next(iter(self.results.values())))

    @property
    def environments(self) -> Mapping[int, str]:
        """The environments of a mixture by their place in `data.env`; empty where there is but one."""
        settings = self._settings
        places = list(itertools.takewhile(lambda place: f"data.env.{place}.env" in settings, itertools.count()))
        if len(places) < 2:
            return {}
        return {place: settings.get(f"data.env.{place}.name") or settings[f"data.env.{place}.env"] for place in places}

    def task(self, same_task: Collection[str] = ()) -> Mapping[str, Any]:
        """What the environments are and how they are made, by dotted key of the settings; whichever of a mixture
        rollouts draw from.

        Args:
            same_task: arguments of an environment that leave the task the same.
        """
        return {
            key: value
            for key, value in self._settings.items()
            if (found := _OF_A_TASK.fullmatch(key)) and found["argument"] not in same_task and value not in (None, {})
        }

    @property
    def _settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = next(iter(self.results.values()))["settings"]
        return settings

    @property
    def protocols(self) -> list[str]:
        return list(dict.fromkeys(name for result in self.results.values() for name in result["protocols"]))


@dataclass(frozen=True)
class StudyResults:
    """What a study has so far.

    Args:
        name: of the study.
        arms: those with a finished run, in the order of the grid.
        missing: the runs that are not finished.
        baselines: the arm that each is compared with.
        pairs: arms that are compared besides, the first with the second.
        thresholds: success rates by protocol.
        same_task: arguments of the environment in which arms may differ that are compared.
    """

    name: str
    arms: tuple[ArmResults, ...]
    missing: tuple[Run, ...]
    baselines: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...]
    thresholds: Mapping[str, Sequence[float]]
    same_task: Sequence[str] = ()


def load_study(path: Path) -> StudyResults:
    """Reads a folder that `tsr study` wrote, or a packed study by its YAML.

    Raises:
        ConfigError: it is neither, has evaluations alone, or an arm of it has seeds of different held-out instances.
    """
    if not path.is_file():
        return study_results(read_folder(path))
    record = read_packed(path)
    if not all(map(is_result, record.results.values())):
        raise ConfigError(f"{path} has evaluations without the settings of their runs, so there is nothing to compare")
    return study_results(record)


def study_results(record: StudyRecord) -> StudyResults:
    """Returns the results of a record, with the starts that runs measured for one another."""
    grid = record.grid
    by_arm: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run, result in record.results.items():
        by_arm.setdefault(run.arm, {})[run.seed] = result
    for name, results in by_arm.items():
        _check_seeds(name, results)
    arms = [
        ArmResults(grid["name"], name, arm["points"], by_arm[name])
        for name, arm in grid["arms"].items()
        if name in by_arm
    ]
    return StudyResults(
        name=grid["name"],
        arms=tuple(_with_starts(arms)),
        missing=tuple(record.missing),
        baselines=grid["baselines"],
        pairs=tuple((first, second) for first, second in grid.get("pairs", [])),  # older studies have none
        thresholds=grid["thresholds"],
        same_task=grid.get("same_task", []),
    )


def _check_seeds(arm: str, results: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuses seeds of an arm that were evaluated on other instances than its first one."""
    first = _instances(next(iter(results.values())))
    if other := [str(seed) for seed, result in results.items() if not are_alike(_instances(result), first)]:
        raise ConfigError(
            f"{arm}: seeds {', '.join(other)} were evaluated on other instances than seed {next(iter(results))}, so "
            "they make no arm: run them with the same data.held_out, or give them an arm of their own"
        )


def _with_starts(arms: Sequence[ArmResults]) -> list[ArmResults]:
    """Gives each run the start that another of the study measured for it (`starts.py`)."""
    measured = {
        start_key(result["settings"], seed): result
        for arm in arms
        for seed, result in arm.results.items()
        if measures_its_start(result)
    }
    return [
        ArmResults(
            arm.study,
            arm.arm,
            arm.points,
            {
                seed: with_start(result, measured.get(start_key(result["settings"], seed)))
                for seed, result in arm.results.items()
            },
        )
        for arm in arms
    ]


def with_start(result: Mapping[str, Any], measured: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns a result whose first evaluation is the start, taken from another result where it has none."""
    if measures_its_start(result) or measured is None or not are_alike(_instances(measured), _instances(result)):
        return result
    costs = dict.fromkeys(result["evaluations"][0]["costs"], 0)
    start = {**_start_on(measured, _instances(result)), "costs": costs}
    protocols = {**start["protocols"], **result["protocols"]}  # a run may have ended before one was due
    return {**result, "protocols": protocols, "evaluations": [start, *result["evaluations"]]}


def _start_on(measured: Mapping[str, Any], instances: Instances) -> dict[str, Any]:
    """The first evaluation of a result, on the instances of another one: with episodes of its own, none where an
    environment's failure left an instance out."""
    first = measured["evaluations"][0]
    settings = {**measured["protocols"], **first.get("protocols", {})}
    places = {instance: place for place, instance in enumerate(_instances(measured))}

    def on(counts: Sequence[int]) -> list[int]:
        return [counts[places[instance]] if instance in places else 0 for instance in instances]

    return {
        **first,
        "successes": {name: on(own) for name, own in first["successes"].items()},
        "protocols": {
            name: {**settings[name], "episodes": on(settings[name]["episodes"])} for name in first["successes"]
        },
    }


def _instances(result: Mapping[str, Any]) -> Instances:
    return tuple((env, seed) for env, seed in result["instances"])


def are_alike(first: Instances, second: Instances) -> bool:
    """True if both are the same held-out instances: an environment's failures may have left out some of either
    (`data.faults.max_share`), and those that it left out at first come last."""
    return len({*first} & {*second}) >= _SHARED * max(len(first), len(second))


def curve(seed: int, result: Mapping[str, Any], protocol: str) -> Curve | None:
    """Returns the curve of a result file; None where the protocol did not evaluate it."""
    evaluations = [one for one in result["evaluations"] if protocol in one["successes"]]
    if not evaluations:
        return None
    common = result["protocols"][protocol]
    settings = [one.get("protocols", {}).get(protocol, common) for one in evaluations]  # see callbacks.history
    episodes = np.array([each["episodes"] for each in settings], dtype=np.float64)
    played = np.all(episodes > 0, axis=0)
    successes = np.asarray([one["successes"][protocol] for one in evaluations], dtype=np.float64)
    names = [(env, number) for env, number in result["instances"]]
    costs = [run_costs(one["costs"]) for one in evaluations]
    return Curve(
        seed=seed,
        instances=tuple(name for name, is_played in zip(names, played, strict=True) if is_played),
        costs={key: np.asarray([one[key] for one in costs], dtype=np.float64) for key in costs[0]},
        rates=successes[:, played] / episodes[:, played],
        episodes=episodes[:, played],
    )


def run_costs(costs: Mapping[str, float]) -> dict[str, float]:
    """Returns the costs of a run so far, with its seconds apart from those of evaluation."""
    return {**costs, "train_seconds": costs["seconds"] - costs["evaluation_seconds"]}
