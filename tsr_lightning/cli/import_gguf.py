"""`tsr import-gguf`: a GGUF file as a folder that `--model.policy.model` and plain transformers take."""

from collections.abc import Sequence
from pathlib import Path

from tsr_lightning.cli.subcommands import PLAIN, PlainParser
from tsr_lightning.errors import ConfigError


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr import-gguf", description=PLAIN["import-gguf"], allow_abbrev=False)
    parser.add_argument("file", type=Path, metavar="FILE", help="a causal language model in llama.cpp's format")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="written in float32; must not exist yet")
    return parser


def import_gguf(args: Sequence[str]) -> int:
    """Runs the subcommand and returns the exit status.

    Args:
        args: the command line after `tsr import-gguf`.
    """
    given = make_parser().parse_args(args)
    try:
        from tsr_lightning.policy import gguf  # which imports torch and transformers
    except ImportError as error:  # 5.17 has no table of pre-tokenisers, 5.23 has
        raise ConfigError(f"{error}: pip install --upgrade 'transformers>=5.23,<6'") from error

    gguf.import_gguf(given.file, given.folder)
    print(f"{given.folder}: use it as --model.policy.model {given.folder}")
    return 0
