"""Runs what is not finished of a study, some runs side by side. What it leaves is described in `folder.py`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from rich.console import Console

from tsr_lightning.studies.arms import (
    CheckedArm,
    chosen_runs,
    refuse_changed,
    refuse_sizes_of_whole_memory,
    refuse_to_lose,
)
from tsr_lightning.studies.folder import StudyFolder, read_json, write_json
from tsr_lightning.studies.grid import Grid, Run
from tsr_lightning.studies.record import finished_results
from tsr_lightning.studies.run_processes import Processes
from tsr_lightning.studies.starts import SharedStarts, measures_its_start, start_key
from tsr_lightning.studies.study_progress import Progress
from tsr_lightning.studies.worker import Worker


@dataclass(frozen=True)
class Outcome:
    """The chosen runs by how they ended."""

    finished: tuple[Run, ...]
    failed: tuple[Run, ...]
    busy: tuple[Run, ...]  # another process works on them


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
        refuse_sizes_of_whole_memory(checked, jobs)
    runs = chosen_runs(grid, only)
    results = finished_results(folder, grid.runs())
    done = {run: results[run] for run in runs if run in results}
    if not keep_changed:
        refuse_changed(done, checked, folder)
    _write_grid(grid, folder)
    todo = [run for run in runs if run not in done]
    refuse_to_lose(todo, checked, folder)
    durations: dict[str, list[float]] = {}
    for run, result in done.items():
        durations.setdefault(run.arm, []).append(result["evaluations"][-1]["costs"]["seconds"])
    progress = Progress(todo, durations, jobs, console)
    progress.say(f"{grid.name}: {len(runs)} runs, {len(done)} finished, {len(todo)} to do, {jobs} side by side")
    starts = SharedStarts(lambda: _measured_starts(grid, folder)) if grid.share_start else None
    worker = Worker(checked, folder, jobs, grid.threads, starts, Processes(), progress)
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


def _measured_starts(grid: Grid, folder: StudyFolder) -> set[str]:
    results = finished_results(folder, grid.runs())
    return {start_key(result["settings"], run.seed) for run, result in results.items() if measures_its_start(result)}


def _write_grid(grid: Grid, folder: StudyFolder) -> None:
    """Writes the grid for the report, which says what is missing. The result files say all else."""
    plain = {
        "name": grid.name,
        "arms": {arm.name: {"seeds": list(arm.seeds), "points": dict(arm.points)} for arm in grid.arms},
        "baselines": dict(grid.baselines),
        "pairs": [list(pair) for pair in grid.pairs],
        "same_task": list(grid.same_task),
        "thresholds": {protocol: list(rates) for protocol, rates in grid.thresholds.items()},
    }
    if not folder.grid.is_file() or read_json(folder.grid) != plain:
        write_json(folder.grid, plain)
