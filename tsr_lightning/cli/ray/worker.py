"""What each of Ray's workers runs: `tsr fit` as one rank."""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

import yaml
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

from tsr_lightning.cli.app import TSRCLI, run
from tsr_lightning.cli.ray.checkpoints import Newest, Reporting
from tsr_lightning.cli.ray.environment import with_environment


class Job(TypedDict):
    """The same for all workers and all attempts, in plain types, which Ray records."""

    settings: dict[str, Any]  # the whole configuration of `tsr fit`
    folder: str  # that the run was started in
    use_gpu: bool
    newest: str  # the file that names the newest checkpoint


def fit(job: Job) -> None:
    """Goes on from the newest checkpoint of earlier attempts, or else from the configuration's own `ckpt_path`."""
    newest = Newest(Path(job["newest"]))

    class WorkerCLI(TSRCLI):
        """`tsr fit` with Ray's ranks. They are no part of the configuration that the run saves, so that `tsr fit` can
        go on from its checkpoints without Ray."""

        def instantiate_trainer(self, **kwargs: Any) -> Any:
            accelerator = "gpu" if job["use_gpu"] else "cpu"
            ranks = {"accelerator": accelerator, "devices": "auto", "strategy": RayDDPStrategy()}
            plugins = with_environment(self.config_init["fit"]["trainer"], RayLightningEnvironment())
            trainer = prepare_trainer(super().instantiate_trainer(**ranks, plugins=plugins, **kwargs))
            trainer.strategy.checkpoint_io = Reporting(trainer.strategy.checkpoint_io, newest.write)
            return trainer

    logging.getLogger("lightning").propagate = False  # Ray would print each of its lines a second time
    os.chdir(job["folder"])  # Ray has moved to a folder of its own
    with tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "config.yaml"
        config.write_text(yaml.safe_dump(job["settings"], sort_keys=False))
        checkpoint = newest.read()
        resumed = [] if checkpoint is None else ["--ckpt_path", checkpoint]
        sys.argv[:1] = ["tsr-ray"]
        run(["fit", "--config", str(config), *resumed], WorkerCLI)
