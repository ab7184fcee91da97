"""The `tsr-ray` command: validates the run here, then starts its workers. Imports Ray only to start them."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lightning.pytorch.plugins.environments import LightningEnvironment

from tsr_lightning.cli.app import CheckingCLI, resolved_settings
from tsr_lightning.cli.messages import one_sentence_errors
from tsr_lightning.cli.ray.environment import with_environment
from tsr_lightning.cli.ray.options import RayOptions, make_parser, parse
from tsr_lightning.cli.unread import quiet_if_unread
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.signals import one_sentence_signals
from tsr_lightning.training.setting_checks import check_staleness
from tsr_lightning.training.trainer import Trainer

VERSION = "2.60"  # that was tested
ENVIRONMENT = {  # of Ray Train, which reads it when it is imported
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # it would print every line twice
}
_STRATEGIES = ("auto", "ddp")


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Bad input ends it with one sentence and status 2."""
    with (
        one_sentence_signals("tsr-ray", "newest_checkpoint.txt in its storage names what to go on from"),
        quiet_if_unread(),
        one_sentence_errors("tsr-ray"),
    ):
        run(list(sys.argv[1:] if args is None else args))


def run(args: Sequence[str]) -> None:
    if args[:1] in (["--help"], ["-h"]):
        make_parser().print_help()
        return
    if args[:1] != ["fit"]:
        given = f"{args[0]} is given" if args else "no subcommand is given"
        raise ConfigError(f"{given}: tsr-ray runs fit alone, as in tsr-ray fit --config ...; all else is tsr's")
    options, flags = parse(args[1:])
    check_installation()
    settings = checked_settings(flags, options)
    os.environ.update(ENVIRONMENT)
    from tsr_lightning.cli.ray.driver import fit

    fit(settings, options)


def check_installation() -> None:
    try:
        installed = version("ray")
    except PackageNotFoundError:
        raise ConfigError("Ray is not installed: pip install 'tsr-lightning[ray]'") from None
    remedy = f"tsr-ray was tested with {VERSION}.*, and Ray Train changes with each: pip install 'tsr-lightning[ray]'"
    require(installed.startswith(f"{VERSION}."), "the version of Ray", installed, remedy)


def checked_settings(flags: Sequence[str], options: RayOptions) -> dict[str, Any]:
    """The whole configuration of the run, validated as `tsr fit` validates it, for as many ranks.

    Raises:
        ConfigError: `tsr fit` would refuse it, or Ray's workers cannot have it.
    """

    class RanksCLI(CheckingCLI):
        """Makes the Trainer of as many ranks on CPUs, since this machine may have no device of its workers."""

        def checked_trainer(self, **kwargs: Any) -> Trainer:
            check_trainer(self.config["fit"]["trainer"], options)
            ranks = {"accelerator": "cpu", "devices": options.num_workers, "strategy": "ddp"}
            plugins = with_environment(self.config_init["fit"]["trainer"], LightningEnvironment())
            trainer = super().checked_trainer(**ranks, plugins=plugins, **kwargs)
            data = self.datamodule
            check_staleness(data.staleness, data.updates, options.num_workers, str(trainer.precision))
            return trainer

        def fit_to_machine(self, trainer: Trainer) -> None:
            """Does nothing: each worker looks at its own device."""

    return resolved_settings(flags, RanksCLI)


def check_trainer(trainer: Any, options: RayOptions) -> None:
    """Refuses what a YAML says of devices where Ray gives something else."""
    strategy, devices, accelerator = trainer["strategy"], trainer["devices"], trainer["accelerator"]
    require(strategy in _STRATEGIES, "trainer.strategy", strategy, "Ray's workers run DDP; use auto or ddp")
    remedy = "each of Ray's workers has one device; use 1 or auto, and give their number to --ray.num_workers"
    require(devices in (1, "1", "auto"), "trainer.devices", devices, remedy)
    remedy = "Ray knows the machines; use 1, and give the number of all ranks to --ray.num_workers"
    require(trainer["num_nodes"] == 1, "trainer.num_nodes", trainer["num_nodes"], remedy)
    wanted = ("auto", "gpu", "cuda") if options.use_gpu else ("auto", "cpu")
    remedy = f"--ray.use_gpu is {str(options.use_gpu).lower()}; change that, or use {' or '.join(wanted)}"
    require(accelerator in wanted, "trainer.accelerator", accelerator, remedy)
