"""The flags of `tsr-ray` that are not those of `tsr fit`. Imports no Ray."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tsr_lightning.cli.subcommands import PlainParser, at_least_one
from tsr_lightning.errors import ConfigError

DESCRIPTION = "Runs tsr fit on the workers of Ray Train, and restarts it from its newest checkpoint where one dies."
_PREFIX = "--ray."


@dataclass(frozen=True)
class RayOptions:
    """Where the ranks of a run live, and how often they may fail.

    Args:
        num_workers: processes, each a rank with one device.
        cpus_per_worker: CPUs that Ray reserves for each, and the threads that PyTorch takes.
        use_gpu: whether each worker gets a GPU.
        address: of a Ray cluster, or `auto` for the one of this machine; None starts one that ends with the run.
        max_failures: restarts after the death of a worker; -1 for no limit.
        storage_path: folder of what Ray keeps of its runs, on a disk that all machines share.
    """

    num_workers: int = 1
    cpus_per_worker: int = 1
    use_gpu: bool = False
    address: str | None = None
    max_failures: int = 3
    storage_path: Path = Path("runs") / "ray"


def make_parser() -> PlainParser:
    parser = PlainParser(
        prog="tsr-ray fit",
        description=DESCRIPTION,
        epilog="All other flags are those of tsr fit, --config first of all.",
        allow_abbrev=False,
    )
    default = RayOptions()

    def add(name: str, text: str, **kwargs: object) -> None:
        value = getattr(default, name)
        parser.add_argument(f"{_PREFIX}{name}", dest=name, default=value, help=text, **kwargs)  # type: ignore[arg-type]

    add("num_workers", "processes, each a rank with one device; %(default)s if not given", type=at_least_one)
    add("cpus_per_worker", "CPUs of each worker, and its threads; %(default)s if not given", type=at_least_one)
    add("use_gpu", "true gives each worker a GPU; false if not given", type=_boolean, metavar="true|false")
    add("address", "of a Ray cluster, or auto; if not given, one is started on this machine and ended with the run")
    add("max_failures", "restarts after the death of a worker, -1 for no limit; %(default)s if not given", type=_limit)
    add("storage_path", "folder of Ray's records, shared by all machines; %(default)s if not given", type=Path)
    return parser


def parse(args: Sequence[str]) -> tuple[RayOptions, list[str]]:
    """The options among the flags after `tsr-ray fit`, and all other flags.

    Raises:
        ConfigError: a flag of ours is unknown, or its value cannot be used.
    """
    given, others = make_parser().parse_known_args(args)
    unknown = next((flag.partition("=")[0] for flag in others if flag.startswith(_PREFIX)), None)
    if unknown is not None:
        known = ", ".join(f"{_PREFIX}{field.name}" for field in fields(RayOptions))
        raise ConfigError(f"{unknown} is no flag of tsr-ray: use {known}")
    return RayOptions(**vars(given)), others


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ArgumentTypeError(f"{text} is neither true nor false")
    return text == "true"


def _limit(text: str) -> int:
    if text != "-1" and not text.isdecimal():
        raise ArgumentTypeError(f"{text} is no whole number of -1 or more")
    return int(text)
