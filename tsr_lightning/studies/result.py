"""Writes and reads the file that a finished run leaves: its settings and its history, all that a report needs of it."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.folder import read_json
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.settings import Settings

FORMAT = 1
_PACKAGES = ("tsr-lightning", "torch", "transformers")


def result_contents(run: Run, settings: Settings, history: Mapping[str, Any], *, jobs: int, threads: int) -> Any:
    """Returns plain types for the result file.

    Args:
        run: the finished run.
        settings: of its configuration.
        history: what `callbacks.Evaluation` wrote: `instances`, `protocols`, `evaluations` (`callbacks.history`).
        jobs: runs that ran side by side, to judge the seconds by.
        threads: of this run.
    """
    return {
        "format": FORMAT,
        "arm": run.arm,
        "seed": run.seed,
        "jobs": jobs,
        "threads": threads,
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "settings": settings,
        **history,
    }


def read_result(path: Path) -> dict[str, Any]:
    """Reads the contents of a result file.

    Raises:
        ConfigError: it is none, or of a later version.
    """
    try:
        contents = read_json(path)
        is_known = is_result(contents)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is no result of a run: delete it, and tsr study runs it again") from error
    if not is_known:
        raise ConfigError(f"{path} is no result of this version: delete it, and tsr study runs it again")
    return dict(contents)


def is_result(contents: Mapping[str, Any]) -> bool:
    """True if the contents are those of a result file of this version."""
    return contents.get("format") == FORMAT and {"settings", "evaluations", "protocols"} <= contents.keys()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
