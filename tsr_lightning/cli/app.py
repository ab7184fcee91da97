"""The subcommands fit, validate, rollout, play and export, configured by YAML files and dotted flags."""

import sys
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from tsr_lightning.cli.checks import check_checkpoint, check_run
from tsr_lightning.cli.config_files import CONFIG_FLAGS, config_path
from tsr_lightning.cli.defaults import DEFAULTS
from tsr_lightning.cli.first_look import look
from tsr_lightning.cli.help_texts import ShortHelp
from tsr_lightning.cli.memory_check import check_cache, check_memory, choose_sizes
from tsr_lightning.cli.messages import config_error_sentence, one_line, parser_error_sentence
from tsr_lightning.cli.overlays import Overlay, as_overlays
from tsr_lightning.cli.quiet import quiet_lightning
from tsr_lightning.cli.save_config import SaveConfig
from tsr_lightning.cli.subcommands import DESCRIPTION, EXAMPLES
from tsr_lightning.cli.trainer_keys import callbacks_of
from tsr_lightning.cli.user_callbacks import keep_callbacks_apart
from tsr_lightning.engines.vllm.spec import VLLM  # noqa: F401  (the parser knows what is imported by its short name)
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import LARGEST_SEED
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.fsdp2 import check_strategy
from tsr_lightning.training.monitored import check_monitors
from tsr_lightning.training.run_folder import task_name
from tsr_lightning.training.setting_checks import check_precision, check_processes, check_trainer
from tsr_lightning.training.trainer import Trainer

# The parsers of subcommands, and the arguments of their methods, by the class of the CLI, of the Trainer and the name.
_PARSERS: dict[tuple[type, type, str], tuple[LightningArgumentParser, list[str]]] = {}


class TSRCLI(LightningCLI):
    """LightningCLI with this project's subcommands, argument links and checks."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's fit and validate, rollout, play and export. There is no test set, so no test or predict."""
        lightning = LightningCLI.subcommands()
        own = {name: {"model", "datamodule"} for name in ("rollout", "play", "export")}
        return {"fit": lightning["fit"], "validate": lightning["validate"], **own}

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Without arguments for those that are not run, and once in a process, since reading them from signatures takes
        time."""
        if subcommand not in sys.argv:
            return self.init_parser(**kwargs)
        key = type(self), klass, subcommand
        if key not in _PARSERS:
            parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
            _PARSERS[key] = parser, self._subcommand_method_arguments[subcommand]
        parser, self._subcommand_method_arguments[subcommand] = _PARSERS[key]
        return parser

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Lightning's parser, with a --config whose files merge `data.env_kwargs` key by key."""
        header = [f"lightning.pytorch=={pl.__version__}"]
        parser = LightningArgumentParser(dump_header=header, formatter_class=ShortHelp, **kwargs)
        parser.add_argument("-c", "--config", action=Overlay, help="A YAML file, laid over those before it.")
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.set_defaults(dict(DEFAULTS))
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("data.sampling.temperature", "model.temperature")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            keys = {action.dest for known in self._subcommand_parsers.values() for action in known._actions}
            sentence = config_error_sentence(error) or parser_error_sentence(str(error), keys)
            raise ConfigError(sentence) from error
        seed = self.config[self.config.subcommand].seed_everything
        remedy = f"give a whole number from 0 to {LARGEST_SEED}"
        require(0 <= int(seed) <= LARGEST_SEED, "seed_everything", seed, remedy)

    def before_instantiate_classes(self) -> None:
        """Names the folder of the loggers' runs after the task, where nobody named it."""
        config = self.config[self.subcommand]
        env, given = config["data.env"], config["trainer.logger"]
        task = "_".join(dict.fromkeys(map(task_name, [env] if isinstance(env, str) else [one["env"] for one in env])))
        for logger in given if isinstance(given, list) else [given]:
            if isinstance(logger, Namespace) and logger.get("init_args.name", task) is None:
                logger["init_args.name"] = task

    def _dump_config(self) -> None:
        """Dumps nothing: Lightning would take a fifth of the start for `save_hyperparameters`, which nobody calls."""
        self.config_dump: dict[str, Any] = {}

    def _parse_ckpt_path(self) -> None:
        """Does nothing: Lightning would load the checkpoint for hyperparameters, which ours do not hold."""

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Makes the Trainer, or closes what the checks opened."""
        try:
            return self.checked_trainer(**kwargs)
        except BaseException:
            self.datamodule.close()  # an environment may hold a container, or a place on a server
            raise

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        finally:
            self.datamodule.close()  # also what was opened for checks, where Lightning never began

    def checked_trainer(self, **kwargs: Any) -> Trainer:
        """Makes the Trainer after the checks, so that bad input is refused before a model or a device is touched."""
        ckpt_path = self.config_init[self.subcommand].get("ckpt_path")
        check_run(self.model, self.datamodule, str(ckpt_path) if ckpt_path else None, str(self.subcommand))
        if self.subcommand == "fit":
            check_monitors(callbacks_of(self.config_init["fit"]["trainer"]), self.model, self.datamodule)
        try:
            trainer = cast(Trainer, super().instantiate_trainer(**kwargs))
        except (MisconfigurationException, ValueError, TypeError, ModuleNotFoundError) as error:
            sentence = config_error_sentence(error) or f"trainer cannot be made: {one_line(str(error))}"
            raise ConfigError(sentence) from error
        check_processes(trainer, together=self.subcommand in ("fit", "validate"))
        check_strategy(trainer, self.model.spec)
        check_precision(trainer)
        if self.subcommand == "fit":
            check_trainer(trainer)
        if ckpt_path == "last" and (newest := trainer.resumed_from(ckpt_path)) is not None:
            check_checkpoint(self.model, self.datamodule, str(newest), resumes=self.subcommand == "fit")
        self.fit_to_machine(trainer)
        return trainer

    def fit_to_machine(self, trainer: Trainer) -> None:
        """Chooses the sizes that are left to the device of this rank, and refuses what does not fit on it."""
        settings = self.config_init[self.subcommand]["trainer"]
        device = trainer.strategy.root_device
        if self.subcommand != "export":
            choose_sizes(self.model, self.datamodule, settings, device, trainer.world_size)
            check_cache(self.datamodule, device)
        if self.subcommand == "fit":
            check_memory(self.model, self.datamodule, settings, device, trainer.world_size)


class CheckingCLI(TSRCLI):
    """Parses, builds and checks as `tsr` does, and runs nothing: no model is loaded and no file written."""

    def _run_subcommand(self, subcommand: str) -> None:
        self.datamodule.close()


class ParsingCLI(TSRCLI):
    """Parses and builds the agent and the data module, and nothing else: no Trainer, whose machine may be another."""

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return None

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def resolved_settings(flags: Sequence[str], cli: type[TSRCLI] = CheckingCLI) -> dict[str, Any]:
    """The whole configuration that `tsr fit` would run with these flags.

    Args:
        flags: after `tsr fit`.
        cli: what validates them; ParsingCLI parses and builds alone.

    Raises:
        ConfigError: `tsr fit` would refuse it.
    """
    try:
        with quiet_lightning():
            checked = run(["fit", *flags], cli)
        return dict(yaml.safe_load(checked._parser("fit").dump(checked.config["fit"], skip_none=False)))
    except (ArgumentError, ValueError, ModuleNotFoundError) as error:
        sentence = config_error_sentence(error)
        if sentence is None:
            raise
        raise ConfigError(sentence) from error


def parsed_run(flags: Sequence[str]) -> tuple[Agent, RolloutDataModule, Mapping[str, Any]]:
    """The agent, the data module, and the keys and callbacks of the Trainer that `tsr fit` would have."""
    with quiet_lightning():
        cli = run(["fit", *flags], ParsingCLI)
    return cli.model, cli.datamodule, cli.config_init["fit"]["trainer"]


def run(args: Sequence[str], cli: type[TSRCLI] = TSRCLI) -> TSRCLI:
    """Runs the command and returns its CLI, which holds the agent, the data module and the Trainer."""
    look(args)
    keep_callbacks_apart()
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's own environments and strategies are modules of the working folder
    start = next((i for i, argument in enumerate(args, start=1) if argument in EXAMPLES), len(args))
    sys.argv[1:] = [_resolved(argument) for argument in (*args[:start], *as_overlays(args[start:]))]
    strict = {"exit_on_error": False, "allow_abbrev": False}
    return cli(
        Agent,
        RolloutDataModule,
        trainer_class=Trainer,
        seed_everything_default=1,
        save_config_callback=SaveConfig,
        auto_configure_optimizers=False,
        parser_kwargs={
            **{"prog": "tsr", "description": DESCRIPTION, **strict},
            **{name: {"description": text, **strict} for name, text in EXAMPLES.items()},
        },
    )


def _resolved(argument: str) -> str:
    """A configuration file of the working folder, or else the shipped one of that name."""
    flag, _, path = argument.rpartition("=")
    if flag not in ("", *CONFIG_FLAGS) or not path.endswith((".yaml", ".yml")) or Path(path).exists():
        return argument
    shipped = config_path(path)
    if shipped is None:
        return argument
    return f"{flag}={shipped}" if flag else str(shipped)
