"""Reads studies, from their folders or packed: what is finished as curves, and what is missing."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.packed import read_packed
from tsr_lightning.studies.record import StudyRecord, read_folder
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.result import is_result
from tsr_lightning.studies.starts import measures_its_start, start_key


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
        found = (curve(seed, result, protocol) for seed, result in self.results.items())
        curves = [one for one in found if one is not None]
        if not environment:
            return curves
        places = [place for place, name in self.environments.items() if name == environment]
        return [one.within(places) for one in curves]

    @property
    def held_out(self) -> tuple[tuple[int, int], ...]:
        """The instances of its evaluations, each as the place of its environment in `data.env` and its seed; those too
        that an environment's failure left out of some."""
        return tuple((env, seed) for env, seed in next(iter(self.results.values()))["instances"])

    @property
    def environments(self) -> Mapping[int, str]:
        """The environments of a mixture by their place in `data.env`; empty where there is but one."""
        settings = next(iter(self.results.values()))["settings"]
        named = itertools.takewhile(lambda place: f"data.env.{place}.env" in settings, itertools.count())
        return {place: settings.get(f"data.env.{place}.name") or settings[f"data.env.{place}.env"] for place in named}

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
    """

    name: str
    arms: tuple[ArmResults, ...]
    missing: tuple[Run, ...]
    baselines: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...]
    thresholds: Mapping[str, Sequence[float]]


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
        _check_alike(name, results)
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
    )


def _check_alike(arm: str, results: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuses seeds of an arm that were evaluated on other instances than its first one."""
    first = next(iter(results.values()))["instances"]
    if other := [str(seed) for seed, result in results.items() if result["instances"] != first]:
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
    first = result["evaluations"][0]
    if measures_its_start(result) or measured is None or measured["instances"] != result["instances"]:
        return result
    start = {**measured["evaluations"][0], "costs": dict.fromkeys(first["costs"], 0)}
    protocols = {**measured["protocols"], **result["protocols"]}  # a run may have ended before one was due
    return {**result, "protocols": protocols, "evaluations": [start, *result["evaluations"]]}


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
