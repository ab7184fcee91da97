"""`tsr check-env`: whether an environment can be searched, in one sentence."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from tsr_lightning.cli.messages import one_line
from tsr_lightning.cli.subcommands import PLAIN, PlainParser, at_least_one


def make_parser() -> PlainParser:
    parser = PlainParser(prog="tsr check-env", description=PLAIN["check-env"], allow_abbrev=False)
    parser.add_argument("env", metavar="ID", help="a registered id, or package.module:Env-v0, a module of your own")
    parser.add_argument(
        "--env_kwargs", type=_mapping, default={}, metavar="YAML", help="its arguments, such as '{size: 3}'"
    )
    parser.add_argument("--seeds", type=at_least_one, default=6, help="episodes that are played; 6 if not given")
    parser.add_argument(
        "--response",
        action="append",
        default=[],
        metavar="TEXT",
        help="what to play where the environment has no legal_actions; may be repeated",
    )
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("--noisy", action="store_true", default=None, help="it has noise: two branches have to differ")
    noise.add_argument("--exact", dest="noisy", action="store_false", help="it has none: no two branches may differ")
    return parser


def check_env(args: Sequence[str]) -> int:
    """Runs the subcommand and returns the exit status: 1 for an environment that breaks the contract.

    Args:
        args: the command line after `tsr check-env`.
    """
    given = make_parser().parse_args(args)
    from tsr_lightning.envs.checker import BranchabilityError, check_branchable

    if "" not in sys.path:
        sys.path.insert(0, "")  # modules of the working folder
    try:
        report = check_branchable(
            given.env, kwargs=given.env_kwargs, seeds=range(given.seeds), noisy=given.noisy, responses=given.response
        )
    except BranchabilityError as error:
        print(f"{given.env} breaks the contract of search: {one_line(str(error))}")
        return 1
    for skipped in report.skipped:
        print(f"not checked: {one_line(skipped)}")
    noise = "with noise" if report.noisy else "without noise"
    print(
        f"{given.env} can be searched: {report.snapshots} states of {len(report.seeds)} episodes came back as they "
        f"were, {noise}, in {report.steps} steps"
    )
    return 0


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} is no YAML mapping such as '{{size: 3}}'")
    return value
