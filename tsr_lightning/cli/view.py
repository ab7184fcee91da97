"""`tsr view`: one HTML page of saved episodes."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tsr_lightning.cli.subcommands import PLAIN, PlainParser
from tsr_lightning.episodes.folder import files_at
from tsr_lightning.episodes.page.write import Source, write_page


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr view", description=PLAIN["view"], allow_abbrev=False)
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="the folder of a run, or a file of episodes; several are shown side by side on the same instances",
    )
    parser.add_argument("--output", type=Path, help="the page; episodes.html beside the first if not given")
    return parser


def view(args: Sequence[str]) -> int:
    """Runs the subcommand and returns the exit status.

    Args:
        args: the command line after `tsr view`.
    """
    given = make_parser().parse_args(args)
    names = _names(given.paths)
    sources = [Source(file, name) for path, name in zip(given.paths, names, strict=True) for file in files_at(path)]
    first: Path = given.paths[0]
    output = given.output or (first if first.is_dir() else first.parent) / "episodes.html"
    count, problems = write_page(sources, f"Episodes of {', '.join(map(str, given.paths))}", output)
    for problem in problems:
        print(problem, file=sys.stderr)
    size = output.stat().st_size / 2**20
    print(f"{output}: {count:,} episodes, {size:.1f} MiB; open it in a browser, or send it to somebody")
    return 0


def _names(paths: Sequence[Path]) -> Iterable[str]:
    """What the runs are called: the shortest ends of their paths that differ; nothing where there is one."""
    if len(paths) == 1:
        return [""]
    for parts in range(1, max(len(path.absolute().parts) for path in paths) + 1):
        names = ["/".join(path.absolute().parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names
