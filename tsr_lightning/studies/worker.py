"""One run of a study, in a process of its own: begun, gone on with, and its result written."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsr_lightning.files import newest_checkpoint
from tsr_lightning.signals import NAMES
from tsr_lightning.studies.arms import CheckedArm
from tsr_lightning.studies.folder import StudyFolder, read_json, write_json
from tsr_lightning.studies.grid import Arm, Run, flag_value
from tsr_lightning.studies.result import missing_evaluations, read_result, result_contents
from tsr_lightning.studies.run_processes import AlreadyRunning, Processes, last_lines, locked
from tsr_lightning.studies.settings import differences
from tsr_lightning.studies.starts import SharedStarts, measures_its_start
from tsr_lightning.studies.study_progress import Progress, describe_change

_LINES_OF_A_FAILURE = 12


@dataclass(frozen=True)
class Worker:
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
        """Returns the checkpoint that a stopped run goes on from; removes what was begun without one."""
        last, begun = newest_checkpoint([self.folder.checkpoints(run)]), self.folder.begun(run)
        if last is not None and begun.is_file() and not differences(read_json(begun), checked.settings):
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
