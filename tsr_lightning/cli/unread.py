"""Ends a command whose output nobody reads any more, as under `| head`, as a shell's own commands end."""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNREAD = 128 + signal.SIGPIPE  # the exit status


@contextmanager
def quiet_if_unread() -> Iterator[None]:
    """Ends the program with status 141 and no message where the reader of its output has gone. Other broken pipes, such
    as those to an environment's process, pass."""
    try:
        try:
            yield
        finally:
            print(end="", flush=True)  # else Python does at its exit, where nothing can be caught
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        sys.exit(UNREAD)


def _nobody_reads() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are told whatever is asked for
    return any(event & select.POLLERR for _, event in poll.poll(0))
