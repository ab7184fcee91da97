"""Processes that lead a group of their own and are ended with all that they started.

A process that leaves the group by a session of its own is out of reach: no operating system says whose it was.
"""

import os
import signal
import subprocess
from contextlib import suppress


def end_group(process: "subprocess.Popen[bytes]") -> int:
    """Kills a process that was started with `start_new_session=True`, and what it has started. Returns its exit status.

    It may have ended by itself, but must not have been waited for long ago: its id may be another's by then.
    """
    with suppress(ProcessLookupError, PermissionError):  # macOS's, where no more than a zombie is left
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def end_own_group() -> None:
    """Kills this process, and what it has started if it leads a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
