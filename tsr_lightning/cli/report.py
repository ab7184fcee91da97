"""`tsr report`: tables, curves and a page of what studies measured."""

from collections.abc import Sequence
from pathlib import Path

from tsr_lightning.cli.plain_parser import PlainParser

DESCRIPTION = "Writes tables, curves and one page of what studies measured, finished or not."


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr report", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="the folder of a study")
    return parser


def report(args: Sequence[str]) -> int:
    make_parser().parse_args(args)
    return 0
