"""`tsr episodes`: saved episodes in the formats of other tools."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tsr_lightning.cli.subcommands import PLAIN, PlainParser
from tsr_lightning.episodes.conversations import conversations
from tsr_lightning.episodes.files import SUFFIX, read_header, read_lines
from tsr_lightning.episodes.folder import files_at
from tsr_lightning.episodes.schema import Episode, Header
from tsr_lightning.errors import ConfigError
from tsr_lightning.files import write_whole


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr episodes", description=PLAIN["episodes"], allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="FILE", help="a file of episodes, or the folder of a run")
    parser.add_argument(
        "--to",
        required=True,
        choices=_FORMATS,
        help="inspect: Inspect's .eval, with what was discarded as branches; messages: conversations for TRL",
    )
    parser.add_argument("--output", type=Path, help="folder of the new files; that of each file if not given")
    parser.add_argument("--successes_only", action="store_true", help="leave out episodes that did not succeed")
    return parser


def episodes(args: Sequence[str]) -> int:
    """Runs the subcommand and returns the exit status: 1 where lines were left out because they are damaged.

    Args:
        args: the command line after `tsr episodes`.
    """
    given = make_parser().parse_args(args)
    ending, write = _FORMATS[given.to]
    if given.to == "inspect" and find_spec("inspect_ai") is None:
        raise ConfigError("tsr episodes --to inspect needs inspect-ai: pip install 'tsr-lightning[inspect]'")
    is_whole = True
    for file in files_at(given.path):
        header, whole = read_header(file), list[Episode]()
        for line in read_lines(file):
            if line.problem:
                print(line.problem, file=sys.stderr)
                is_whole = False
            elif line.episode is not None and (line.episode.succeeded or not given.successes_only):
                whole.append(line.episode)
        output: Path = (given.output or file.parent) / f"{file.name.removesuffix(SUFFIX)}{ending}"
        write(output, header, whole)
        print(f"{output}: {len(whole):,} episodes")
    return 0 if is_whole else 1


def _write_inspect(path: Path, header: Header, whole: Sequence[Episode]) -> None:
    from tsr_lightning.episodes.inspect_log import write_inspect

    path.parent.mkdir(parents=True, exist_ok=True)
    write_inspect(path, header, whole)


def _write_messages(path: Path, header: Header, whole: Sequence[Episode]) -> None:
    write_whole(path, conversations(header, whole))


_FORMATS = {"inspect": (".eval", _write_inspect), "messages": (".messages.jsonl", _write_messages)}
