"""Holds what a study has recorded, whichever files keep it: its grid and the results of its runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.folder import StudyFolder, read_json, write_json
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.result import missing_evaluations, read_result


@dataclass(frozen=True)
class StudyRecord:
    """The record of a study, in plain types.

    Args:
        grid: the contents of `grid.json`.
        results: contents of the result files.
    """

    grid: Mapping[str, Any]
    results: Mapping[Run, Mapping[str, Any]]

    @property
    def missing(self) -> list[Run]:
        """The runs of the grid that are not finished."""
        return [run for run in runs_of(self.grid) if run not in self.results]


def runs_of(grid: Mapping[str, Any]) -> list[Run]:
    """Returns the runs that a `grid.json` names, arm by arm."""
    return [Run(name, seed) for name, arm in grid["arms"].items() for seed in arm["seeds"]]


def read_folder(root: Path) -> StudyRecord:
    """Reads the record of a folder that `tsr study` wrote: the results of its finished runs.

    Raises:
        ConfigError: it is none, or a file of it is no result.
    """
    folder = StudyFolder(root)
    if not folder.grid.is_file():
        raise ConfigError(f"{root} has no grid.json: give a folder that tsr study wrote to, or a packed YAML")
    try:
        grid = read_json(folder.grid)
    except ValueError as error:
        raise ConfigError(f"{folder.grid} is damaged ({error}): run tsr study again, which writes it anew") from error
    return StudyRecord(grid, finished_results(folder, runs_of(grid)))


def finished_results(folder: StudyFolder, runs: Iterable[Run]) -> dict[Run, dict[str, Any]]:
    """Reads the results of those runs that are finished, in whichever process they were. A run that ended early, by a
    signal that an earlier version took for its end, is not finished."""
    results = {run: read_result(folder.result(run)) for run in runs if folder.result(run).is_file()}
    return {run: result for run, result in results.items() if not missing_evaluations(result, result["settings"])}


def write_results(record: StudyRecord, folder: StudyFolder) -> None:
    """Writes the result files of a record that the folder has not."""
    for run, result in record.results.items():
        if not folder.result(run).is_file():
            write_json(folder.result(run), result)
