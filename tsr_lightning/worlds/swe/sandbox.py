"""Runs commands of a policy where they can do no harm.

A sandbox keeps nothing: it is given a folder and gives one back, so that a snapshot is the folder of a result, and to
restore it is to pass it on. No process outlives its command.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tsr_lightning.worlds.swe.folder import Folder


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may use.

    Args:
        seconds: of wall clock, after which all its processes are ended; each process has as many seconds of a core.
        memory: bytes of address space of a process.
        processes: at once, threads included.
        disk: bytes of the folder, and of /tmp.
        output: bytes of output that are kept, half from the beginning and half from the end.
        most_output: bytes of output after which all processes are ended.
    """

    seconds: float = 10.0
    memory: int = 512 << 20
    processes: int = 32
    disk: int = 8 << 20
    output: int = 10_000
    most_output: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    output: str  # of both streams, cut in the middle past the limit
    exit_code: int
    folder: Folder  # after it
    problem: str = ""  # the limit that ended it, or the reason why the folder is the one before; "" for none


class Sandbox(ABC):
    """Where commands run."""

    @abstractmethod
    def run(self, folder: Folder, command: str, limits: Limits) -> Result:
        """Runs a bash command in the folder, which is its working directory.

        Raises:
            EnvFault: the command could not be begun.
        """
