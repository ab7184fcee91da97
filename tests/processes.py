"""Runs `tsr` in processes forked from one that has only imported it, so that none imports PyTorch again."""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from commands import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tsr_lightning.cli.app", "tsr_lightning.policy.model", "callbacks"])


class Forked:
    """A running `tsr`, which can import from its folder and from tests/.

    Args:
        args: the command line after `tsr`.
        cwd: its working folder.
        environment: variables to set besides those of this process.
        log: the file for its standard output and error.
    """

    def __init__(self, args: Sequence[object], cwd: Path, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        arguments = ([str(arg) for arg in args], cwd, {**os.environ, **environment}, log)
        self.process = CONTEXT.Process(target=_run, args=arguments, daemon=True)  # does not outlive this process
        self.process.start()

    def wait(self, seconds: float) -> int:
        """Returns its exit status, negative for a signal.

        Raises:
            TimeoutError: it did not end in time and was killed.
        """
        self.process.join(seconds)
        status = self.process.exitcode
        if status is None:
            self.kill()
            raise TimeoutError(f"still running after {seconds} seconds:\n{self.output()}")
        return status

    def kill(self) -> None:
        """Kills it if it still runs."""
        self.process.kill()
        self.process.join()

    def output(self) -> str:
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
