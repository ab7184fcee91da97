"""A stand-in for the processes of `tsr fit` that trains nothing, so that a study of many runs takes a second."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tsr_lightning.studies.arms import CheckedArm
from tsr_lightning.studies.folder import StudyFolder
from tsr_lightning.studies.grid import parse_grid
from tsr_lightning.studies.study import Outcome, run_study

SETTINGS = {
    "model.policy.model": "embedded/sokoban",
    "trainer.num_sanity_val_steps": -1,
    "trainer.max_epochs": 2,
    "trainer.check_val_every_n_epoch": 1,
}
# Its flags beside those of `tsr fit`: --fails_while=FILE raises an error where the file exists, --stops_while=FILE ends
# after the first epoch with status 0 there, and --waits_for=FILE writes FILE.begun and waits for the file.
PROGRAM = """#!{python} -IS
import json, sys, time
from pathlib import Path

given = dict(flag.removeprefix("--").split("=", 1) for flag in sys.argv[4:])
logger = json.loads(given["trainer.logger"])["init_args"]
folder = Path(logger["save_dir"], logger["name"], logger["version"])
folder.mkdir(parents=True)
if "fails_while" in given and Path(given["fails_while"]).exists():
    raise RuntimeError("this arm is broken on purpose")
if "waits_for" in given:
    Path(given["waits_for"] + ".begun").touch()
    while not Path(given["waits_for"]).exists():
        time.sleep(0.01)
epochs = [2] if given.get("trainer.num_sanity_val_steps") == "0" else [0, 2]
if "stops_while" in given and Path(given["stops_while"]).exists():
    epochs = [0, 1]
history = {{
    "instances": [[0, 1]],
    "protocols": {{"sampled": {{"settings": {{}}, "episodes": [1]}}}},
    "evaluations": [
        {{
            "costs": {{"epochs": epoch, "seconds": 1.0}},
            "figures": {{"sampled": {{"success_rate": 1.0}}}},
            "successes": {{"sampled": [1]}},
        }}
        for epoch in epochs
    ],
}}
(folder / "evaluation.history.json").write_text(json.dumps(history))
"""


def stand_in(folder: Path) -> str:
    """The path of the program, for `sys.executable` of the process that runs a study."""
    program = folder / "stand_in"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return str(program)


def run(
    root: Path,
    arms: Mapping[str, Mapping[str, Any]],
    *,
    only: Sequence[str] = (),
    jobs: int = 1,
    seeds: int = 1,
    console: Console | None = None,
) -> Outcome:
    """Runs a study whose arms begin alike.

    Args:
        root: of its folder.
        arms: the overrides of each.
        only: as `--only`.
        jobs: runs side by side.
        seeds: of each arm.
        console: where to print, if anywhere.
    """
    given = {"arms": {name: {"overrides": dict(own)} for name, own in arms.items()}}
    grid = parse_grid({**given, "seeds": list(range(1, seeds + 1)), "share_start": True}, "mine")
    checked = {arm.name: CheckedArm(arm, SETTINGS, "evaluation", ("sampled",)) for arm in grid.arms}
    console = console or Console(quiet=True)
    return run_study(grid, checked, StudyFolder(root), jobs=jobs, only=only, keep_changed=False, console=console)


if __name__ == "__main__":  # as a process that a test can kill: the program, the folder, the file to wait for
    sys.executable = sys.argv[1]
    run(Path(sys.argv[2]), {"waits": {"waits_for": sys.argv[3]}})
