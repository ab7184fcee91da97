"""`tsr`: fit, validate and export, configured by YAML and dotted flags."""

import sys
from argparse import ArgumentError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tsr_lightning.cli.checks import check_run
from tsr_lightning.cli.messages import complaint, one_line, own_sentence
from tsr_lightning.cli.overlays import Overlay, as_overlays
from tsr_lightning.cli.shipped_configs import config_path
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.lightning_compat import use_atomic_checkpoints
from tsr_lightning.training.trainer import Trainer

DESCRIPTION = "Trains language-model agents with reinforcement learning on trajectories built by search."
SUBCOMMANDS = {
    "fit": "Trains a policy: tsr fit --config quickstart.yaml --trainer.max_epochs 10",
    "validate": "Plays the held-out instances, without search: tsr validate --config ... --ckpt_path ...",
    "export": "Writes a trained policy for transformers and peft: tsr export --config ... --ckpt_path ... --output ...",
}


class TSRCLI(LightningCLI):
    """LightningCLI with this project's subcommands, links and checks."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Those that do something here; testing and prediction are what `validate` does."""
        everything = LightningCLI.subcommands()
        return {
            "fit": everything["fit"],
            "validate": everything["validate"],
            "export": {"model", "datamodule"},
        }

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Lightning's, with overlays that merge what they say of the environment."""
        parser = LightningArgumentParser(dump_header=[f"lightning.pytorch=={pl.__version__}"], **kwargs)
        parser.add_argument("-c", "--config", action=Overlay, help="A YAML file, laid over those before it.")
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("data.sampling.temperature", "model.temperature")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            keys = {action.dest for known in self._subcommand_parsers.values() for action in known._actions}
            raise ConfigError(own_sentence(error) or complaint(str(error), keys)) from error

    def _parse_ckpt_path(self) -> None:
        """Lightning would read the whole checkpoint here, for hyperparameters that ours do not hold."""

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Only after the checks: neither a model nor a device has been touched when bad input is refused."""
        ckpt_path = self.config_init[self.subcommand].get("ckpt_path")
        check_run(self.model, self.datamodule, str(ckpt_path) if ckpt_path else None, str(self.subcommand))
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError) as error:
            raise ConfigError(own_sentence(error) or f"trainer cannot be made: {one_line(str(error))}") from error
        use_atomic_checkpoints(trainer)
        return trainer


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Bad input ends with one sentence and status 2."""
    try:
        run(sys.argv[1:] if args is None else args)
    except (ConfigError, ArgumentError, ValueError) as error:
        sentence = own_sentence(error)
        if sentence is None:
            raise
        print(f"tsr: error: {sentence}", file=sys.stderr)
        sys.exit(2)


def run(args: Sequence[str]) -> TSRCLI:
    """Does what the arguments say, and returns who did it."""
    sys.path.insert(0, "")  # environments of one's own are modules of the folder that one works in
    begun = next((i for i, argument in enumerate(args, start=1) if argument in SUBCOMMANDS), len(args))
    sys.argv[1:] = [_found(argument) for argument in (*args[:begun], *as_overlays(args[begun:]))]
    strict = {"exit_on_error": False, "allow_abbrev": False}
    return TSRCLI(
        Agent,
        RolloutDataModule,
        trainer_class=Trainer,
        seed_everything_default=1,
        save_config_callback=SaveConfigCallback,
        save_config_kwargs={"overwrite": True},
        auto_configure_optimizers=False,
        parser_kwargs={
            **{"prog": "tsr", "description": DESCRIPTION, **strict},
            **{name: {"description": text, **strict} for name, text in SUBCOMMANDS.items()},
        },
    )


def _found(argument: str) -> str:
    """A configuration that lies here, or else the one of that name that came with the package."""
    flag, _, path = argument.rpartition("=")
    if flag not in ("", "--config", "-c") or not path.endswith((".yaml", ".yml")) or Path(path).exists():
        return argument
    shipped = config_path(path)
    if shipped is None:
        return argument
    return f"{flag}={shipped}" if flag else str(shipped)
