"""Says where a run that has ended is, and what to do with it."""

import shlex
from pathlib import Path


def after_fit(folder: Path, checkpoint: Path | None, tensorboard: Path | None) -> str:
    """Lines that say where a fit's files are, with the commands that come next.

    Args:
        folder: of the run.
        checkpoint: its newest; None where none was kept.
        tensorboard: the folder of TensorBoard's runs, if it was logged to.
    """
    config = folder / "config.yaml"
    kept = "" if checkpoint is None else f", its policy in {checkpoint}"
    run = ["--config", str(config), "--ckpt_path", str(checkpoint)]
    can_run = checkpoint is not None and config.is_file()  # a run from Python has no configuration
    commands = [
        *([] if tensorboard is None else [["tensorboard", "--logdir", str(tensorboard)]]),
        *([["tsr", "validate", *run], ["tsr", "export", *run, "--output", "my_policy"]] if can_run else []),
    ]
    return "\n".join([f"the run is in {folder}{kept}", *(f"  {shlex.join(command)}" for command in commands)])


def after_validation(folder: Path) -> str | None:
    """The line that says where a validation's figures are; None where nothing was measured."""
    written = sorted(folder.glob("*.validate.json"))
    return f"the figures are in {', '.join(map(str, written))}" if written else None
