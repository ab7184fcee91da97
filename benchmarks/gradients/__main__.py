"""`python -m benchmarks.gradients`: kinds of credit against the policy gradient, by enumeration: docs/gradients.md."""

import argparse
from pathlib import Path

from benchmarks.gradients.page import write_page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the page")
    write_page(parser.parse_args().out)


if __name__ == "__main__":
    main()
