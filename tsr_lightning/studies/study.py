"""Runs what is not finished of a study, some runs side by side. What it leaves is described in `folder.py`."""

import fnmatch
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tsr_lightning.errors import ConfigError, RunError, require
from tsr_lightning.signals import NAMES
from tsr_lightning.studies.folder import StudyFolder, read_json, write_json
from tsr_lightning.studies.grid import Arm, Grid, Run, flag_value
from tsr_lightning.studies.result import missing_evaluations, read_result, result_contents
from tsr_lightning.studies.run_processes import AlreadyRunning, Processes, last_lines, locked
from tsr_lightning.studies.settings import Settings, differences, flat_settings
from tsr_lightning.studies.starts import SharedStarts, measures_its_start, start_key
from tsr_lightning.studies.study_progress import Progress, describe_change

Resolve = Callable[[Sequence[str]], Mapping[str, Any]]  # flags of `tsr fit` -> its whole configuration, checked

_SIZES_OF_THE_MACHINE = ("data.updates.micro_batch_tokens", "data.engine.init_args.kv_cache_mib")
_NAMES_SHOWN = 12
_LINES_OF_A_FAILURE = 12


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


@dataclass(frozen=True)
class Outcome:
    """The chosen runs by how they ended."""

    finished: tuple[Run, ...]
    failed: tuple[Run, ...]
    busy: tuple[Run, ...]  # another process works on them


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
            remedy = "a study begins its runs and goes on from their own checkpoints; leave it out"
            require(resolved.get("ckpt_path") is None, "ckpt_path", resolved.get("ckpt_path"), remedy)
            protocols = tuple(str(protocol["name"]) for protocol in resolved["data"]["evaluations"] or [])
            checked[arm.name] = CheckedArm(arm, flat_settings(resolved), _evaluation(resolved), protocols)
        except ConfigError as error:
            raise ConfigError(f"arm {arm.name}: {error}") from error
        except RunError as error:  # its environment cannot be played
            raise RunError(f"arm {arm.name}: {error}", error.details) from error
    known = dict.fromkeys(protocol for one in checked.values() for protocol in one.protocols)
    for protocol, rates in grid.thresholds.items() if len(arms) == len(grid.arms) else ():
        remedy = f"no arm is evaluated by a protocol of this name; use {' or '.join(known)}"
        require(protocol in known, f"thresholds.{protocol}", list(rates), remedy)
    return checked


def _evaluation(resolved: Mapping[str, Any]) -> str:
    callbacks = resolved["trainer"].get("callbacks") or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
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


def _refuse_sizes_of_whole_memory(checked: Mapping[str, CheckedArm], jobs: int) -> None:
    """Refuses sizes that are null, which `fit` chooses by the machine's memory as if it were alone on it."""
    for name, arm in checked.items():
        null = [key for key in _SIZES_OF_THE_MACHINE if arm.settings.get(key, "given") is None]
        if null:
            keys, are = " and ".join(null), "is" if len(null) == 1 else "are"
            raise ConfigError(
                f"arm {name}: {keys} {are} null, so each of {jobs} runs side by side would take what the whole memory "
                "allows: give numbers in the study's overrides, or --jobs 1"
            )


def _names(grid: Grid) -> str:
    names = [arm.name for arm in grid.arms]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _matches(run: Run, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (run.arm, f"{run.arm}/seed{run.seed}"))


def run_study(
    grid: Grid,
    checked: Mapping[str, CheckedArm],
    folder: StudyFolder,
    *,
    jobs: int,
    only: Sequence[str],
    keep_changed: bool,
    console: Console,
) -> Outcome:
    """Runs what is not finished yet; stopped runs go on from their last checkpoint.

    Args:
        grid: the study.
        checked: its arms.
        folder: where results and runs are written.
        jobs: runs side by side.
        only: shell patterns of arms or runs; empty for all.
        keep_changed: keep finished runs that were made with other settings.
        console: where to print.

    Raises:
        ConfigError: a finished run was made with other settings, or runs side by side would each take the whole memory.
    """
    if jobs > 1:
        _refuse_sizes_of_whole_memory(checked, jobs)
    runs = chosen_runs(grid, only)
    results = _results(grid, folder)
    done = {run: results[run] for run in runs if run in results}
    if not keep_changed:
        _refuse_changed(done, checked, folder)
    _write_grid(grid, folder)
    todo = [run for run in runs if run not in done]
    _refuse_to_lose(todo, checked, folder)
    durations: dict[str, list[float]] = {}
    for run, result in done.items():
        durations.setdefault(run.arm, []).append(result["evaluations"][-1]["costs"]["seconds"])
    progress = Progress(todo, durations, jobs, console)
    progress.say(f"{grid.name}: {len(runs)} runs, {len(done)} finished, {len(todo)} to do, {jobs} side by side")
    starts = SharedStarts(lambda: _measured_starts(grid, folder)) if grid.share_start else None
    worker = _Worker(checked, folder, jobs, grid.threads, starts, Processes(), progress)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(worker.run, run) for run in todo]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:  # an interrupt or an error here: what runs dies with the study
            worker.processes.close()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    states = dict(zip(todo, (future.result() for future in futures), strict=True))
    return Outcome(
        finished=tuple(run for run in runs if states.get(run, "finished") == "finished"),
        failed=tuple(run for run in todo if states[run] == "failed"),
        busy=tuple(run for run in todo if states[run] == "busy"),
    )


def _results(grid: Grid, folder: StudyFolder) -> dict[Run, dict[str, Any]]:
    """Reads the results of all finished runs, in whichever process they were. A run that ended early, by a signal that
    an earlier version took for its end, is not finished."""
    results = {run: read_result(folder.result(run)) for run in grid.runs() if folder.result(run).is_file()}
    return {run: result for run, result in results.items() if not missing_evaluations(result, result["settings"])}


def _measured_starts(grid: Grid, folder: StudyFolder) -> set[str]:
    results = _results(grid, folder)
    return {start_key(result["settings"], run.seed) for run, result in results.items() if measures_its_start(result)}


def _refuse_changed(
    done: Mapping[Run, Mapping[str, Any]], checked: Mapping[str, CheckedArm], folder: StudyFolder
) -> None:
    for run, result in done.items():
        changes = differences(result["settings"], checked[run.arm].settings)
        if changes:
            raise ConfigError(
                f"{run} was run with other settings ({changes}): give the arm another name, delete "
                f"{folder.result(run)} to run it again, or keep it with --keep-changed"
            )


def _refuse_to_lose(todo: Sequence[Run], checked: Mapping[str, CheckedArm], folder: StudyFolder) -> None:
    """Refuses to begin a stopped run anew that has checkpoints of other settings."""
    for run in todo:
        begun = folder.begun(run)
        if folder.last_checkpoint(run).is_file() and begun.is_file():
            changes = differences(read_json(begun), checked[run.arm].settings)
            if changes:
                raise ConfigError(
                    f"{run} was begun with other settings ({changes}) and has a checkpoint: rename the arm, or "
                    f"delete {folder.work(run)} to begin it anew"
                )


def _write_grid(grid: Grid, folder: StudyFolder) -> None:
    """Writes the grid for the report, which says what is missing. The result files say all else."""
    plain = {
        "name": grid.name,
        "arms": {arm.name: {"seeds": list(arm.seeds), "points": dict(arm.points)} for arm in grid.arms},
        "baselines": dict(grid.baselines),
        "pairs": [list(pair) for pair in grid.pairs],
        "thresholds": {protocol: list(rates) for protocol, rates in grid.thresholds.items()},
    }
    if not folder.grid.is_file() or read_json(folder.grid) != plain:
        write_json(folder.grid, plain)


@dataclass(frozen=True)
class _Worker:
    """The work of a study's threads."""

    checked: Mapping[str, CheckedArm]
    folder: StudyFolder
    jobs: int
    threads: int
    starts: SharedStarts | None  # None where every run measures its own
    processes: Processes
    progress: Progress

    def run(self, run: Run) -> str:
        """Runs one run to its end: `finished`, `failed` or `busy`."""
        try:
            with locked(self.folder.lock(run)) as lock:
                if self._is_finished(run):
                    self.progress.begin(run, "is left out")
                    self.progress.skip(run, "was finished by another study of this folder")
                    return "finished"
                return self._run(run, self.checked[run.arm], lock)
        except AlreadyRunning:
            self.progress.begin(run, "is left out")
            self.progress.fail(run, "is being run by another process", [])
            return "busy"

    def _is_finished(self, run: Run) -> bool:
        """True where another process of this study has finished it meanwhile."""
        written = self.folder.result(run)
        result = read_result(written) if written.is_file() else None
        return result is not None and not missing_evaluations(result, result["settings"])

    def _run(self, run: Run, checked: CheckedArm, lock: int) -> str:
        checkpoint = self._checkpoint(run, checked)
        write_json(self.folder.begun(run), checked.settings)
        evaluate_start = True
        if self.starts is not None:
            earlier = measures_its_start(self._history(run, checked)) if checkpoint else None
            evaluate_start = self.starts.begin(run, checked.settings, earlier)
        self.progress.begin(run, "goes on from its last checkpoint" if checkpoint else "begins")
        environment = {"OMP_NUM_THREADS": str(self.threads), "PL_GLOBAL_SEED": str(run.seed)}
        command = fit_command(run, checked.arm, self.folder, checkpoint, evaluate_start=evaluate_start)
        try:
            return self._finish(run, checked, self.processes.run(command, environment, self.folder.log(run), lock))
        finally:
            if self.starts is not None:
                self.starts.end(run)

    def _history(self, run: Run, checked: CheckedArm) -> dict[str, Any]:
        """Reads what the run's evaluations have measured so far."""
        written = self.folder.work(run) / f"{checked.evaluation}.history.json"
        return dict(read_json(written)) if written.is_file() else {"evaluations": []}

    def _finish(self, run: Run, checked: CheckedArm, status: int) -> str:
        log = self.folder.log(run)
        if self.processes.closed:
            return "failed"  # ended with the study, which says so once
        if status in NAMES:
            note = f"was stopped by {NAMES[status]}, and the same command goes on from its last checkpoint"
            self.progress.fail(run, note, [])
            return "failed"
        if status != 0:
            how = f"was killed by signal {-status}" if status < 0 else f"FAILED with exit status {status}"
            self.progress.fail(run, f"{how}; the end of {log}:", last_lines(log, _LINES_OF_A_FAILURE))
            return "failed"
        history = self._history(run, checked)
        if not history["evaluations"]:
            self.progress.fail(run, f"FAILED: it ended without an evaluation; the end of {log}:", last_lines(log, 5))
            return "failed"
        if shortfall := missing_evaluations(history, checked.settings):
            note = f"FAILED: {shortfall}, so the same command goes on with it; the end of {log}:"
            self.progress.fail(run, note, last_lines(log, 5))
            return "failed"
        contents = result_contents(run, checked.settings, history, jobs=self.jobs, threads=self.threads)
        write_json(self.folder.result(run), contents)
        evaluations = history["evaluations"]
        self.progress.finish(run, evaluations[-1]["costs"]["seconds"], describe_change(evaluations))
        return "finished"

    def _checkpoint(self, run: Run, checked: CheckedArm) -> Path | None:
        """Returns the last checkpoint of a stopped run; removes what was begun without one."""
        last, begun = self.folder.last_checkpoint(run), self.folder.begun(run)
        if last.is_file() and begun.is_file() and read_json(begun) == checked.settings:
            return last
        shutil.rmtree(self.folder.work(run), ignore_errors=True)  # which need not exist
        self.folder.log(run).unlink(missing_ok=True)
        return None


def fit_command(
    run: Run, arm: Arm, folder: StudyFolder, checkpoint: Path | None, *, evaluate_start: bool = True
) -> list[str]:
    """Returns the command line of a run.

    Args:
        run: the arm and the seed.
        arm: its configuration.
        folder: of the study.
        checkpoint: to go on from, if there is one.
        evaluate_start: as the configuration says; false where another run measures the same start.
    """
    logger = {
        "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
        "init_args": {
            "save_dir": str(folder.runs),
            "name": run.arm,
            "version": f"seed{run.seed}",
            "default_hp_metric": False,
        },
    }
    own = {
        "seed_everything": run.seed,
        "trainer.enable_progress_bar": False,
        "trainer.logger": logger,
        **({"ckpt_path": str(checkpoint)} if checkpoint else {}),
        **({} if evaluate_start else {"trainer.num_sanity_val_steps": 0}),
    }
    flags = [f"--{key}={flag_value(value)}" for key, value in own.items()]
    return [sys.executable, "-m", "tsr_lightning", "fit", *arm.flags(), *flags]
