"""`python -m benchmarks`: the short version of the learning study; with a flag, one of the published ones."""

import argparse
from pathlib import Path

from benchmarks.curves import write_curves
from benchmarks.gradients.page import write_page
from benchmarks.objectives import OBJECTIVES
from benchmarks.report import STUDY, WEBSHOP_STUDY, write_report
from benchmarks.stability import STABILITY
from benchmarks.study import FULL, SHORT, WEBSHOP, finished_runs, run_study


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="all cells and seeds, as published in docs/study.md")
    which.add_argument("--webshop", action="store_true", help="WebShop, as published in docs/webshop_study.md")
    which.add_argument(
        "--stability", action="store_true", help="does a run ever end below its start: docs/stability.md"
    )
    which.add_argument("--objectives", action="store_true", help="every objective as shipped: docs/objectives_study.md")
    which.add_argument("--gradients", action="store_true", help="kinds of credit, by enumeration: docs/gradients.md")
    report_help = "with --stability or --objectives: write what is finished, run nothing"
    parser.add_argument("--report", action="store_true", help=report_help)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, each on one thread")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="where runs lie; finished ones are kept")
    parser.add_argument("--out", type=Path, default=None, help="folder of the table; docs/ for the published ones")
    args = parser.parse_args()
    if args.gradients:
        write_page(args.out or Path("docs"))
        return
    for chosen, curves in ((args.stability, STABILITY), (args.objectives, OBJECTIVES)):
        if chosen:
            runs = args.runs / curves.name
            finished = finished_runs(curves.cells, runs) if args.report else run_study(curves.cells, runs, args.jobs)
            write_curves(curves, finished, runs, args.out or Path("docs"))
            return
    name, cells, report = "short", SHORT, STUDY
    if args.full:
        name, cells = "full", FULL
    elif args.webshop:
        name, cells, report = "webshop", WEBSHOP, WEBSHOP_STUDY
    finished = run_study(cells, args.runs / name, args.jobs)
    write_report(report, finished, args.out or (args.runs if name == "short" else Path("docs")))


if __name__ == "__main__":
    main()
