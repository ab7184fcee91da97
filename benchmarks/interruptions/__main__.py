"""Interrupts runs at random moments, goes on with them, and compares: `python -m benchmarks.interruptions`.

Each run is `tsr fit` of a few seconds in a process of its own, which a signal ends in a rollout, an update, a
validation, while a checkpoint is written or before it begins; every second run is interrupted twice. The same command
then goes on to the end. A table says, by logger and signal, how many ended with the status and the sentence that they
should, with the weights, optimizer state and evaluations of a run that was not interrupted, and without a stray file.
The exit status is 1 where one did not.

    python -m benchmarks.interruptions --kills 30 --sigterms 10 --ctrl_cs 10 --loggers tensorboard wandb none --jobs 2
"""

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from benchmarks.interruptions.cases import cases, run_case, run_reference, table
from benchmarks.interruptions.run import LOGGERS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--sigterms", type=int, default=10)
    parser.add_argument("--ctrl_cs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--loggers", nargs="+", choices=list(LOGGERS), default=["tensorboard", "none"])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--output", type=Path, help="a new folder for the runs; those that differ are kept there")
    given = parser.parse_args()
    if "wandb" in given.loggers and find_spec("wandb") is None:
        parser.error("--loggers has wandb, which is not installed: pip install wandb")
    root = (given.output or Path(tempfile.mkdtemp(prefix="interruptions-"))).resolve()
    references = {logger: run_reference(root, logger) for logger in dict.fromkeys(given.loggers)}
    for logger, one in references.items():
        print(f"{logger}: begins after {one.starting:.1f} s, runs for {one.running:.1f} s", flush=True)
    counts = {"kill": given.kills, "SIGTERM": given.sigterms, "Ctrl-C": given.ctrl_cs}
    results = []
    with ThreadPoolExecutor(given.jobs) as pool:
        futures = [
            pool.submit(run_case, case, root, references[case.logger], given.seed)
            for case in cases(counts, given.loggers)
        ]
        for future in futures:
            result = future.result()
            results.append(result)
            print(f"{result.case}: {', '.join(result.moments)}: {'; '.join(result.faults) or 'equal'}", flush=True)
    print(f"\n{table(results)}")
    failed = [result for result in results if result.faults]
    if not failed:
        shutil.rmtree(root)
    else:
        print(f"\n{len(failed)} of {len(results)} differ; they are kept in {root}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
