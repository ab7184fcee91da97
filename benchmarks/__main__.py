"""`python -m benchmarks`: the short version of the learning study; with `--full`, the published one."""

import argparse
from pathlib import Path

from benchmarks.report import write_report
from benchmarks.study import FULL, SHORT, run_study


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all cells and seeds, as published in docs/study.md")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, each on one thread")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="where runs lie; finished ones are kept")
    parser.add_argument("--out", type=Path, default=None, help="folder of the table; docs/ for the full study")
    args = parser.parse_args()
    cells = FULL if args.full else SHORT
    finished = run_study(cells, args.runs / ("full" if args.full else "short"), args.jobs)
    write_report(finished, args.out or (Path("docs") if args.full else args.runs))


if __name__ == "__main__":
    main()
