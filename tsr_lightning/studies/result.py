"""Tells a finished run from one that ended early, and writes and reads the file that it leaves: its settings and its
history, all that a report needs of it."""

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
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
        "versions": {name: found for name in _PACKAGES if (found := _version(name))} | {"code": _code_digest()},
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


@cache
def _code_digest() -> str:
    """A hash of this package's source, which changes more often than its version."""
    package = Path(__file__).resolve().parents[1]
    digest = blake2b(digest_size=6)
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


EARLY = "stopped_by"  # in a history's `end`: what ended the training before its last epoch


def missing_evaluations(history: Mapping[str, Any], settings: Settings) -> str:
    """Says, as part of a sentence, how far a run is from its end; empty where it is finished.

    It is finished where its history reaches the last validation of its settings, or says that a callback or another
    limit of the settings ended the training before.

    Args:
        history: of its evaluations, and its `end` where the training came to one (`callbacks.history`).
        settings: of its configuration, by dotted key.
    """
    epochs = history["evaluations"][-1]["costs"]["epochs"]
    last = last_validation(settings)
    if last is None or epochs >= last or (history.get("end") or {}).get(EARLY) is not None:
        return ""
    return f"it was evaluated after {epochs} epochs at last, of {last}"


def last_validation(settings: Settings) -> int | None:
    """Returns the epochs trained at the last validation; None where the settings do not count it in epochs."""
    epochs, interval = settings.get("trainer.max_epochs"), settings.get("trainer.check_val_every_n_epoch")
    if not isinstance(epochs, int) or not isinstance(interval, int) or epochs < 0 or interval < 1:
        return None
    return epochs // interval * interval
