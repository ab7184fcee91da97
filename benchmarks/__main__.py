"""`python -m benchmarks`: the short version of the learning study; with `--full` or `--webshop`, the published ones."""

import argparse
from pathlib import Path

from benchmarks.report import STUDY, WEBSHOP_STUDY, write_report
from benchmarks.study import FULL, SHORT, WEBSHOP, run_study


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="all cells and seeds, as published in docs/study.md")
    which.add_argument("--webshop", action="store_true", help="WebShop, as published in docs/webshop_study.md")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, each on one thread")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="where runs lie; finished ones are kept")
    parser.add_argument("--out", type=Path, default=None, help="folder of the table; docs/ for the published ones")
    args = parser.parse_args()
    name, cells, report = "short", SHORT, STUDY
    if args.full:
        name, cells = "full", FULL
    elif args.webshop:
        name, cells, report = "webshop", WEBSHOP, WEBSHOP_STUDY
    finished = run_study(cells, args.runs / name, args.jobs)
    write_report(report, finished, args.out or (args.runs if name == "short" else Path("docs")))


if __name__ == "__main__":
    main()
