"""`tsr`: fit, validate and export, configured by YAML and dotted flags."""

import sys
from argparse import ArgumentError
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

from tsr_lightning.agent import Agent
from tsr_lightning.checkpoints import AtomicCheckpointIO
from tsr_lightning.checks import check_run
from tsr_lightning.errors import ConfigError
from tsr_lightning.packaged import config_path
from tsr_lightning.rollouts import RolloutDataModule
from tsr_lightning.trainer import Trainer


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

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("data.sampling.temperature", "model.temperature")

    def before_fit(self) -> None:
        self._check()

    def before_validate(self) -> None:
        self._check()

    def before_export(self) -> None:
        self._check()

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        trainer = super().instantiate_trainer(**kwargs)
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def _check(self) -> None:
        ckpt_path = self.config_init[self.subcommand].get("ckpt_path")
        check_run(self.model, self.datamodule, str(ckpt_path) if ckpt_path else None)


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Bad input ends with one sentence and status 2."""
    sys.path.insert(0, "")  # environments of one's own are modules of the folder that one works in
    arguments = [_found(argument) for argument in (sys.argv[1:] if args is None else args)]
    sys.argv[1:] = arguments
    quiet = {"exit_on_error": False}
    try:
        TSRCLI(
            Agent,
            RolloutDataModule,
            trainer_class=Trainer,
            seed_everything_default=1,
            save_config_callback=SaveConfigCallback,
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            parser_kwargs={"prog": "tsr", **quiet, **dict.fromkeys(TSRCLI.subcommands(), quiet)},
        )
    except ConfigError as error:
        _refuse(str(error))
    except ArgumentError as error:
        _refuse(_sentence(error))


def _refuse(sentence: str) -> NoReturn:
    print(f"tsr: error: {sentence}", file=sys.stderr)
    sys.exit(2)


def _sentence(error: BaseException) -> str:
    """What the parser has to say: the sentence of the ConfigError that it wraps, or else its own first lines."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _found(argument: str) -> str:
    """A configuration that lies here, or else the one of that name that came with the package."""
    flag, _, path = argument.rpartition("=")
    if flag not in ("", "--config", "-c") or not path.endswith((".yaml", ".yml")) or Path(path).exists():
        return argument
    shipped = config_path(path)
    if shipped is None:
        return argument
    return f"{flag}={shipped}" if flag else str(shipped)
