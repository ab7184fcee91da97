"""Names the files of a study, and writes JSON whole or not at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsr_lightning.files import write_whole
from tsr_lightning.studies.grid import Run


@dataclass(frozen=True)
class StudyFolder:
    """The paths of a study's files.

    `grid.json` and `results/` are small and all that a report or another machine needs; `runs/` has logs and
    checkpoints, and may be deleted once its runs are finished.
    """

    root: Path

    @property
    def grid(self) -> Path:
        return self.root / "grid.json"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def result(self, run: Run) -> Path:
        return self.results / run.arm / f"seed{run.seed}.json"

    def work(self, run: Run) -> Path:
        """The folder that the run's logger writes to."""
        return self.runs / run.arm / f"seed{run.seed}"

    def checkpoints(self, run: Run) -> Path:
        return self.work(run) / "checkpoints"

    def log(self, run: Run) -> Path:
        return self.runs / run.arm / f"seed{run.seed}.log"

    def lock(self, run: Run) -> Path:
        return self.runs / run.arm / f".seed{run.seed}.lock"

    def begun(self, run: Run) -> Path:
        """The file of the settings that an unfinished run was begun with."""
        return self.runs / run.arm / f"seed{run.seed}.settings.json"


def write_json(path: Path, contents: Any) -> None:
    """Writes a whole file or none, without spaces."""
    write_whole(path, json.dumps(contents, separators=(",", ":"), allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
