"""`tsr replay`: saved episodes, played again."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from tsr_lightning.cli.subcommands import PLAIN, PlainParser
from tsr_lightning.episodes.files import Line, read_header, read_lines
from tsr_lightning.episodes.folder import files_at
from tsr_lightning.episodes.schema import Episode, Header
from tsr_lightning.errors import require


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr replay", description=PLAIN["replay"], allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="FILE", help="a file of episodes, or the folder of a run")
    parser.add_argument("--model", help="take the tokenizer of this model, where that of the file has moved")
    return parser


def replay(args: Sequence[str]) -> int:
    """Runs the subcommand and returns the exit status: 1 where an episode comes out otherwise.

    Args:
        args: the command line after `tsr replay`.
    """
    given = make_parser().parse_args(args)
    files = files_at(given.path)
    headers = [read_header(file) for file in files]
    sys.path.insert(0, "")  # a user's own environments are modules of the working folder
    from tsr_lightning.rollout.replaying import first_difference
    from tsr_lightning.rollout.saved import SavedTask

    count = turns = 0
    for file, header in zip(files, headers, strict=True):
        _check_model(header, given.model)
        with closing(SavedTask.of(header, given.model)) as task:
            for line in read_lines(file):
                if problem := _problem(line, file, partial(first_difference, task)):
                    print(problem)
                    return 1
                count, turns = count + 1, turns + (0 if line.episode is None else len(line.episode.nodes))
    episodes = "1 episode" if count == 1 else f"{count:,} episodes"
    print(f"{episodes} with {turns:,} responses came out as they were saved: observations, rewards, token ids")
    return 0


def _problem(line: Line, file: Path, first_difference: Callable[[Episode], str]) -> str:
    """A sentence about what came out otherwise or cannot be read; empty where nothing."""
    episode = line.episode
    difference = "" if episode is None else first_difference(episode)
    if episode is None or not difference:
        return line.problem
    return (
        f"{file}, line {line.number}, instance {episode.instance}, member {episode.member}: {difference}. "
        "Either the line was altered, or the environment, its arguments or the tokenizer are others now"
    )


def _check_model(header: Header, given: str | None) -> None:
    """Refuses a model that is nowhere, whose tokenizer no replay could take.

    Args:
        header: names the model of a file.
        given: takes its place; None for none.
    """
    from tsr_lightning.policy.model_files import NOWHERE, find_config

    model = given or header.policy["model"]
    key = "--model" if given else "the model of the episodes"
    is_there = not isinstance(model, str) or find_config(model) is not None
    require(is_there, key, model, f"{NOWHERE}, so give the folder of its tokenizer as --model FOLDER")
