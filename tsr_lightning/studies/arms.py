"""Checks a study before its first run: its arms' configurations, and what was run of them before."""

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tsr_lightning.errors import ConfigError, RunError, require
from tsr_lightning.files import newest_checkpoint
from tsr_lightning.studies.folder import StudyFolder, read_json
from tsr_lightning.studies.grid import Arm, Grid, Run
from tsr_lightning.studies.settings import Settings, differences, flat_settings

Resolve = Callable[[Sequence[str]], Mapping[str, Any]]  # flags of `tsr fit` -> its whole configuration, checked

_SIZES_OF_THE_MACHINE = ("data.updates.micro_batch_tokens", "data.engine.init_args.kv_cache_mib")
_NAMES_SHOWN = 12


@dataclass(frozen=True)
class CheckedArm:
    """An arm whose configuration `tsr fit` would take.

    Args:
        arm: from the grid.
        settings: of its configuration, by dotted key.
        evaluation: the name of its `callbacks.Evaluation`, which names the file of the history.
        protocols: names of its evaluations.
    """

    arm: Arm
    settings: Settings
    evaluation: str
    protocols: tuple[str, ...]


def check_arms(grid: Grid, resolve: Resolve, only: Sequence[str] = ()) -> dict[str, CheckedArm]:
    """Checks the configurations of the arms that have runs to make, and returns them by name.

    Args:
        grid: the study.
        resolve: gives the whole configuration of `tsr fit` by its flags, and refuses what it would refuse.
        only: shell patterns of arms or runs; empty for all.

    Raises:
        ConfigError: of the first that `tsr fit` would refuse or that would measure nothing; or of a threshold for what
            none would measure, where all arms are checked.
    """
    names = {run.arm for run in chosen_runs(grid, only)}
    arms = [arm for arm in grid.arms if arm.name in names]
    checked = {}
    for arm in arms:
        try:
            resolved = resolve([*arm.flags(), f"--seed_everything={arm.seeds[0]}"])
            _refuse_own_places(resolved)
            protocols = tuple(str(protocol["name"]) for protocol in resolved["data"]["evaluations"] or [])
            checked[arm.name] = CheckedArm(arm, _finite(flat_settings(resolved)), _evaluation(resolved), protocols)
        except ConfigError as error:
            raise ConfigError(f"arm {arm.name}: {error}") from error
        except RunError as error:  # its environment cannot be played
            raise RunError(f"arm {arm.name}: {error}", error.details) from error
    known = dict.fromkeys(protocol for one in checked.values() for protocol in one.protocols)
    for protocol, rates in grid.thresholds.items() if len(arms) == len(grid.arms) else ():
        remedy = f"no arm is evaluated by a protocol of this name; use {' or '.join(known)}"
        require(protocol in known, f"thresholds.{protocol}", list(rates), remedy)
    return checked


def _refuse_own_places(resolved: Mapping[str, Any]) -> None:
    """Refuses what would begin a run elsewhere, or write it where the study does not look for it."""
    remedy = "a study begins its runs and goes on from their own checkpoints; leave it out"
    require(resolved.get("ckpt_path") is None, "ckpt_path", resolved.get("ckpt_path"), remedy)
    remedy = "--output of the study says where its runs are written; leave it out"
    for key in ("run_folder", "default_root_dir"):
        require(resolved["trainer"].get(key) is None, f"trainer.{key}", resolved["trainer"].get(key), remedy)
    for callback in _callbacks(resolved):
        folder = (callback.get("init_args") or {}).get("dirpath")
        is_other = callback["class_path"].endswith("ModelCheckpoint") and folder is not None
        require(
            not is_other, "ModelCheckpoint.dirpath", folder, "a run's checkpoints lie in its own folder; leave it out"
        )


def _finite(settings: Settings) -> Settings:
    for key, value in settings.items():
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise ConfigError(f"{key} is {value}, which JSON cannot hold: leave it out, or give a number") from error
    return settings


def _callbacks(resolved: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    callbacks = resolved["trainer"].get("callbacks") or []
    return callbacks if isinstance(callbacks, list) else [callbacks]


def _evaluation(resolved: Mapping[str, Any]) -> str:
    for callback in _callbacks(resolved):
        if callback["class_path"] in ("callbacks.Evaluation", "callbacks.evaluation.Evaluation"):
            require(bool(resolved["data"]["evaluations"]), "data.evaluations", [], "give at least one protocol")
            return str((callback.get("init_args") or {}).get("name", "evaluation"))
    raise ConfigError("trainer.callbacks has no callbacks.Evaluation, so nothing would be measured: add it")


def chosen_runs(grid: Grid, only: Sequence[str]) -> list[Run]:
    """Returns the runs whose arm, or whose arm and seed as in `ppo-beam/seed1`, matches any of some shell patterns; all
    without patterns."""
    runs = grid.runs()
    chosen: set[Run] = set()
    for pattern in only:
        matching = {run for run in runs if _matches(run, pattern)}
        require(bool(matching), "--only", pattern, f"no arm has that name: give a pattern of {_names(grid)}")
        chosen |= matching
    return [run for run in runs if run in chosen] if only else runs


def _names(grid: Grid) -> str:
    names = [arm.name for arm in grid.arms]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _matches(run: Run, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (run.arm, f"{run.arm}/seed{run.seed}"))


def refuse_sizes_of_whole_memory(checked: Mapping[str, CheckedArm], jobs: int) -> None:
    """Refuses sizes that are null, which `fit` chooses by the machine's memory as if it were alone on it."""
    for name, arm in checked.items():
        null = [key for key in _SIZES_OF_THE_MACHINE if arm.settings.get(key, "given") is None]
        if null:
            keys, are = " and ".join(null), "is" if len(null) == 1 else "are"
            raise ConfigError(
                f"arm {name}: {keys} {are} null, so each of {jobs} runs side by side would take what the whole memory "
                "allows: give numbers in the study's overrides, or --jobs 1"
            )


def refuse_changed(
    done: Mapping[Run, Mapping[str, Any]], checked: Mapping[str, CheckedArm], folder: StudyFolder
) -> None:
    """Refuses to count finished runs that were made with other settings."""
    for run, result in done.items():
        changes = differences(result["settings"], checked[run.arm].settings)
        if changes:
            raise ConfigError(
                f"{run} was run with other settings ({changes}): give the arm another name, delete "
                f"{folder.result(run)} to run it again, or keep it with --keep-changed"
            )


def refuse_to_lose(todo: Sequence[Run], checked: Mapping[str, CheckedArm], folder: StudyFolder) -> None:
    """Refuses to restart a stopped run whose checkpoint has other settings."""
    for run in todo:
        begun = folder.begun(run)
        if newest_checkpoint([folder.checkpoints(run)]) is not None and begun.is_file():
            changes = differences(read_json(begun), checked[run.arm].settings)
            if changes:
                raise ConfigError(
                    f"{run} was begun with other settings ({changes}) and has a checkpoint: rename the arm, or "
                    f"delete {folder.work(run)} to begin it anew"
                )
