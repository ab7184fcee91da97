"""Processes of tests: `tsr` in those forked from one that has only imported it, so that none imports PyTorch again."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        log: the file for its standard output and error; a terminal is its standard input too.
        imports: further folders that it can import from.
    """

    def __init__(
        self,
        args: Sequence[object],
        cwd: Path,
        environment: Mapping[str, str],
        log: Path,
        imports: Sequence[Path] = (),
    ) -> None:
        self.log = log
        paths = [str(path) for path in (cwd, ROOT, ROOT / "tests", *imports)]
        arguments = ([str(arg) for arg in args], cwd, {**os.environ, **environment}, log, paths)
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

    def terminate(self) -> None:
        """Asks it to stop, by SIGTERM."""
        self.process.terminate()

    @property
    def is_running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        """Kills it if it still runs."""
        self.process.kill()
        self.process.join()

    def output(self) -> str:
        return self.log.read_text()


def run_as_ranks(
    args: Sequence[object], cwd: Path, seconds: float, imports: Sequence[Path] = (), ranks: int = 2
) -> list[str]:
    """Runs `tsr` as processes that get their rank, as from `torchrun`, and returns what each printed.

    Raises:
        RuntimeError: one of them failed.
        TimeoutError: one of them did not end in time and was killed.
    """
    return finished(start_ranks(args, cwd, imports, ranks), seconds)


def start_ranks(args: Sequence[object], cwd: Path, imports: Sequence[Path] = (), ranks: int = 2) -> list[Forked]:
    """Starts `tsr` as processes that get their rank."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    return start_processes(args, cwd, [{**common, "LOCAL_RANK": str(rank)} for rank in range(ranks)], imports)


def start_processes(
    args: Sequence[object], cwd: Path, environments: Sequence[Mapping[str, str]], imports: Sequence[Path] = ()
) -> list[Forked]:
    """Starts `tsr` once with each environment, on one thread each."""
    return [
        Forked(args, cwd, {**environment, "OMP_NUM_THREADS": "1"}, cwd / f"output{rank}.txt", imports)
        for rank, environment in enumerate(environments)
    ]


def finished(runs: Sequence[Forked], seconds: float) -> list[str]:
    """What processes that need one another printed. Raises as `run_as_ranks`."""
    try:
        for run in runs:
            if run.wait(seconds) != 0:
                raise RuntimeError("".join(run.output() for run in runs))
    finally:
        for run in runs:  # the other rank may wait for one that failed
            run.kill()
    return [run.output() for run in runs]


@contextmanager
def child_after(work: Callable[[], object]) -> Iterator[int]:
    """A process that has done some work and lives on until the end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        result = work()
        os.write(writer, b"x")
        time.sleep(60)
        os._exit(result is None)
    os.read(reader, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _run(args: list[str], cwd: Path, environment: dict[str, str], log: Path, paths: list[str]) -> None:
    import torch

    from tsr_lightning.cli.command import main

    with open(os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        if file.isatty():
            os.dup2(file.fileno(), 0)
            sys.stdin = os.fdopen(0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.path[:0] = paths
    sys.argv = ["tsr", *args]
    main(args)
