"""Says what a run has saved and how to go on, where Ctrl-C or SIGTERM ends it."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.utilities.exceptions import SIGTERMException

from tsr_lightning.signals import NAMES, TERMINATED, exit_status
from tsr_lightning.training.lightning_compat import Position

VALIDATION = "a validation saves nothing, and the same command begins it again"


@contextmanager
def says_how_to_go_on(state: Callable[[], str], *, is_first_rank: bool) -> Iterator[None]:
    """Ends the process with one sentence and status 130 or 143 where a signal ends a run.

    Args:
        state: gives the end of the sentence: what is saved, and how to go on.
        is_first_rank: print it; the other ranks end without a word.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        status = TERMINATED if isinstance(error, SIGTERMException) else exit_status(error)
        if status is None:
            raise
        if is_first_rank:
            print(f"tsr: stopped by {NAMES[status]}: {state()}", file=sys.stderr, flush=True)
        raise SystemExit(status) from None


def state_of_fit(
    folder: Path | None, newest: Path | None, written: tuple[Path, Position] | None, resumed: Path | None
) -> str:
    """Says what a fit has saved and how to go on.

    Args:
        folder: of the run; None where it has none yet.
        newest: checkpoint in it.
        written: the checkpoint that the process wrote last, and the position in it.
        resumed: the checkpoint that the run went on from.
    """
    if folder is None or newest is None:
        return (
            f"no checkpoint was written yet, and the same command goes on from {resumed} again"
            if resumed is not None
            else "no checkpoint was written yet, and the same command begins again"
        )
    trained = f" (epochs trained: {written[1].epochs})" if written is not None and written[0] == newest else ""
    return f"saved is {newest}{trained}; go on with {how_to_go_on(folder)}"


def how_to_go_on(folder: Path, *further: str) -> str:
    """The command that goes on with the run of a folder, from its newest checkpoint.

    Args:
        folder: of the run.
        further: flags after it.
    """
    flags = ["--trainer.run_folder", str(folder), "--ckpt_path", "last", *further]
    config = folder / "config.yaml"
    if not config.is_file():  # of a run from Python
        return f"the same run and {shlex.join(flags)}"
    return shlex.join(["tsr", "fit", "--config", str(config), *flags])
