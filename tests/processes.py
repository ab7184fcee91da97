"""`tsr` in processes of their own that need not import PyTorch again: each is forked from one that has imported the
command, and has done nothing else."""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from commands import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tsr_lightning.cli.app", "tsr_lightning.policy.model", "callbacks"])


class Forked:
    """A running `tsr`, which finds the modules of its folder and of the tests.

    Args:
        args: what is typed after `tsr`.
        cwd: its folder.
        environment: variables besides those of this process.
        log: the file that it writes both its outputs to.
    """

    def __init__(self, args: Sequence[object], cwd: Path, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        typed = [str(arg) for arg in args]
        told = (typed, cwd, {**os.environ, **environment}, log)
        self.process = CONTEXT.Process(target=_run, args=told, daemon=True)  # does not outlive this process
        self.process.start()

    def wait(self, seconds: float) -> int:
        """Its exit status, that of a signal negative.

        Raises:
            TimeoutError: it did not end in time, and was killed.
        """
        self.process.join(seconds)
        status = self.process.exitcode
        if status is None:
            self.end()
            raise TimeoutError(f"no end within {seconds} seconds:\n{self.said()}")
        return status

    def end(self) -> None:
        """Kills it, if it still runs."""
        self.process.kill()
        self.process.join()

    def said(self) -> str:
        return self.log.read_text()


def _run(args: list[str], cwd: Path, environment: dict[str, str], log: Path) -> None:
    import torch

    from tsr_lightning.cli.app import main

    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.path[:0] = [str(cwd), str(ROOT), str(ROOT / "tests")]
    sys.argv = ["tsr", *args]
    main(args)
