"""Ends a program on Ctrl-C and on SIGTERM with one sentence and the status that a shell expects. Standard library only,
so that it can be in force before anything else is imported."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 128 + signal.SIGINT  # exit statuses
TERMINATED = 128 + signal.SIGTERM
NAMES = {INTERRUPTED: "Ctrl-C", TERMINATED: "SIGTERM"}


class Terminated(SystemExit):
    """Raised where SIGTERM arrives, as KeyboardInterrupt is where Ctrl-C does."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Interrupted(KeyboardInterrupt):
    """Raised where Ctrl-C arrives. Python notes a plain KeyboardInterrupt that leaves `exec`, as in an import, and ends
    the process by the signal whatever its exit status would be."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of SIGINT."""
    raise Interrupted


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of SIGTERM; further ones are ignored while the program ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def exit_status(error: BaseException | None) -> int | None:
    """The exit status of a program that a signal ends: 130 for KeyboardInterrupt and for the SystemExit that Lightning
    makes of it, 143 for Terminated; None for other errors."""
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return INTERRUPTED if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt) else None


@contextmanager
def one_sentence_signals(program: str, remedy: str = "the same command begins again") -> Iterator[None]:
    """Ends the program with a sentence and status 130 or 143 where a signal ends the block.

    Args:
        program: the name that the sentence begins with.
        remedy: the end of the sentence: how to go on.
    """
    before = _handle()
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        status = exit_status(error)
        assert status is not None
        print(f"{program}: stopped by {NAMES[status]}: {remedy}", file=sys.stderr, flush=True)
        sys.exit(status)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle() -> dict[signal.Signals, Any]:
    """Handles the signals that nothing but Python handles, and returns what to restore. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: handler for number, handler in plain.items() if signal.getsignal(number) == handler}
    ours = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    for number in before:
        signal.signal(number, ours[number])
    return before


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM wait until the block has ended: for what takes seconds and is lost when it is cut."""
    if threading.current_thread() is not threading.main_thread():  # to which signals go
        yield
        return
    waiting: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in dict.fromkeys(waiting):
            signal.raise_signal(received)
