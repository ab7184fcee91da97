"""`tsr study`: a grid of configurations x seeds, each run as `tsr fit` runs it."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tsr_lightning.cli.config_files import config_path
from tsr_lightning.cli.subcommands import PLAIN, PlainParser, at_least_one
from tsr_lightning.errors import require
from tsr_lightning.signals import one_sentence_signals
from tsr_lightning.studies.arms import Resolve, check_arms
from tsr_lightning.studies.folder import StudyFolder
from tsr_lightning.studies.grid import Grid, read_grid
from tsr_lightning.studies.packed import read_packed
from tsr_lightning.studies.record import StudyRecord, write_results
from tsr_lightning.studies.study import Outcome, run_study


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr study", description=PLAIN["study"], allow_abbrev=False)
    parser.add_argument("grid", help="a YAML file, or the name of a shipped one such as studies/stability.yaml")
    parser.add_argument("--output", type=Path, help="folder of the results and runs; runs/studies/NAME if not given")
    parser.add_argument(
        "--from", dest="packed", type=Path, metavar="YAML", help="a packed study, whose finished runs are not repeated"
    )
    parser.add_argument("--jobs", type=at_least_one, help="runs side by side, instead of the grid's jobs")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only arms that match, such as 'ppo-*' or 'ppo-beam/seed1'; may be repeated",
    )
    parser.add_argument(
        "--keep-changed", action="store_true", help="keep finished runs of arms whose settings have changed since"
    )
    return parser


def study(args: Sequence[str], resolve: Resolve) -> int:
    """Runs the subcommand and returns the exit status: 0 if all chosen runs are finished.

    Args:
        args: the command line after `tsr study`.
        resolve: gives the whole configuration of `tsr fit` by its flags, and refuses what it would refuse.
    """
    given = make_parser().parse_args(args)
    grid = read_grid(_grid_path(given.grid))
    console = Console(highlight=False)
    checked = check_arms(grid, resolve, given.only)  # of the chosen arms alone, since each takes half a second
    folder = StudyFolder(given.output or Path("runs") / "studies" / grid.name)
    if given.packed is not None:
        write_results(_packed(given.packed, grid), folder)
    with one_sentence_signals("tsr study", "its runs were ended, and the same command goes on from their checkpoints"):
        outcome = run_study(
            grid,
            checked,
            folder,
            jobs=given.jobs or grid.jobs,
            only=given.only,
            keep_changed=given.keep_changed,
            console=console,
        )
    return _conclude(outcome, folder, console)


def _grid_path(name: str) -> Path:
    """Returns a file of the working folder, or else the shipped one of that name."""
    path = Path(name)
    return path if path.exists() else config_path(name) or path


def _packed(path: Path, grid: Grid) -> StudyRecord:
    record = read_packed(path)
    require(record.grid["name"] == grid.name, "--from", str(path), f"give a packed study of the name {grid.name}")
    return record


def _conclude(outcome: Outcome, folder: StudyFolder, console: Console) -> int:
    for runs, state in ((outcome.failed, "failed"), (outcome.busy, "in the hands of another process")):
        if runs:
            console.print(Text(f"{len(runs)} {state}: {', '.join(map(str, runs))}; the same command goes on with it"))
    console.print(Text(f"{len(outcome.finished)} finished, results in {folder.results}; tsr report {folder.root}"))
    return 1 if outcome.failed or outcome.busy else 0
