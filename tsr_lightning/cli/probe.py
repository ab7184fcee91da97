"""`tsr probe`: whether model, objective and search of a configuration learn tasks that leave nothing else to fail."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tsr_lightning.cli.config_files import names_config
from tsr_lightning.cli.quiet import quiet_lightning
from tsr_lightning.cli.subcommands import PLAIN, PlainParser, refuse_checkpoint
from tsr_lightning.errors import ConfigError
from tsr_lightning.probe.ladder import probe as climb
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule

# The configuration of `tsr fit` by its flags: the agent, the data module, and the keys and callbacks of the Trainer
Parse = Callable[[Sequence[str]], "tuple[Agent, RolloutDataModule, Mapping[str, Any]]"]

_TRAINER = ("accelerator", "devices", "precision", "gradient_clip_val")  # arguments that a rung's Trainer takes over


def make_parser() -> PlainParser:
    return PlainParser(
        prog="tsr probe",
        description=PLAIN["probe"],
        epilog="Its flags are those of tsr fit, --config first of all. Status 1 if a task is not learnt.",
        allow_abbrev=False,
    )


def probe(args: Sequence[str], parse: Parse) -> int:
    """Runs the subcommand and returns the exit status: 1 where a rung is not reached.

    Args:
        args: the command line after `tsr probe`.
        parse: reads the flags of a fit.
    """
    _, flags = make_parser().parse_known_args(args)
    refuse_checkpoint("tsr probe", flags, "trains tiny tasks from the start of model.policy.model")
    if not names_config(flags):
        raise ConfigError("tsr probe needs a configuration: give --config FILE, such as --config quickstart.yaml")
    agent, data, trainer = parse(flags)
    failed = False
    with quiet_lightning():
        for outcome in climb(agent, data, {key: trainer[key] for key in _TRAINER if key in trainer}):
            print(outcome, flush=True)
            failed = bool(outcome.fault)
    print("the probe found a fault, and went no further" if failed else "the probe found no fault")
    return int(failed)
