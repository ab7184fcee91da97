"""The file that `tsr rollout` and `tsr play` write, held for one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.training.locks import Held, Lock


@contextmanager
def held_output(output: Path) -> Iterator[None]:
    """Keeps other processes from a file, which need not be there yet.

    Raises:
        ConfigError: another process writes it, or none can.
    """
    require(output.name not in ("", ".."), "output", str(output), "give the name of a file, such as games.jsonl.gz")
    try:
        lock = Lock.acquire(output.with_name(f".{output.name}.lock"))
    except Held as error:
        raise ConfigError(
            f"output is {output}, which {error.holder} is writing: wait for it to end, or give another file"
        ) from error
    except OSError as error:
        raise ConfigError(f"output is {output}, which cannot be written ({error.strerror}): give another") from error
    try:
        yield
    finally:
        lock.release()
