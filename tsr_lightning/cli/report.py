"""`tsr report`: tables, curves and a page of what studies measured."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tsr_lightning.cli.subcommands import PLAIN, PlainParser
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.studies.packed import read_packed, table_path, write_packed
from tsr_lightning.studies.record import read_folder

_LIBRARIES = ("pandas", "pyarrow", "scipy", "matplotlib")  # the extra `study`


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr report", description=PLAIN["report"], allow_abbrev=False)
    parser.add_argument(
        "studies", nargs="+", type=Path, metavar="STUDY", help="the folder of a study, or the YAML of a packed one"
    )
    parser.add_argument(
        "--output", type=Path, help="folder to write to; FOLDER/report, or that of the packed one's name, if not given"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="YAML", help="also packs the study into two files: NAME.yaml and NAME.csv.gz"
    )
    parser.add_argument("--baseline", metavar="ARM", help="compares all arms with this one, instead of the grid's")
    parser.add_argument(
        "--threshold",
        type=_threshold,
        action="append",
        default=[],
        metavar="PROTOCOL=RATE",
        help="a success rate to which to tell the time, such as sampled=0.5, instead of the grid's; may be repeated",
    )
    return parser


def report(args: Sequence[str]) -> int:
    """Runs the subcommand and returns the exit status.

    Args:
        args: the command line after `tsr report`.
    """
    given = make_parser().parse_args(args)
    absent = [name for name in _LIBRARIES if find_spec(name) is None]
    if absent:
        raise ConfigError(f"tsr report needs {', '.join(absent)}: pip install 'tsr-lightning[study]'")
    from tsr_lightning.studies.report.build import write_report

    thresholds: dict[str, list[float]] = {}
    for protocol, rate in given.threshold:
        thresholds.setdefault(protocol, []).append(rate)
    output = given.output or _output(given.studies[0])
    written = write_report(given.studies, output, baseline=given.baseline, thresholds=thresholds)
    packed = [] if given.pack is None else _pack(given.studies, given.pack)
    print("\n".join(map(str, [*packed, *written])))
    return 0


def _output(study: Path) -> Path:
    return study.with_suffix("") if study.is_file() else study / "report"


def _pack(studies: Sequence[Path], packed: Path) -> list[Path]:
    require(len(studies) == 1, "--pack", str(packed), "give one study, which it packs")
    study = studies[0]
    write_packed(read_packed(study) if study.is_file() else read_folder(study), packed)
    return [packed, table_path(packed)]


def _threshold(text: str) -> tuple[str, float]:
    protocol, _, rate = text.partition("=")
    try:
        value = float(rate)
    except ValueError:
        value = 0.0
    if not protocol or not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no PROTOCOL=RATE with a rate above 0 and up to 1")
    return protocol, value
