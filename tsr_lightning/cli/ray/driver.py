"""Starts Ray, and on it the workers of a run."""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer

from tsr_lightning.cli.messages import config_error_sentence, run_error
from tsr_lightning.cli.ray import worker
from tsr_lightning.cli.ray.options import RayOptions
from tsr_lightning.errors import ConfigError, require


class EndOnBadInput(UserCallback):
    """Ends a run that met bad input or broke by itself on a worker, which no other attempt would change: what is raised
    here, where Ray decides what follows a failure, is not tried again."""

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        for each in worker_exceptions.values():
            if broken := run_error(each):
                raise broken
            if sentence := config_error_sentence(each):
                raise ConfigError(sentence)


def fit(settings: dict[str, Any], options: RayOptions) -> None:
    """Runs a configuration to its end, restarted where workers die.

    Raises:
        ConfigError: no Ray answers, the machine has too few GPUs, or the workers met bad input.
        RunError: the run broke on a worker, as by a mistake in an environment's program.
        TrainingFailedError: workers failed more often than `max_failures`.
    """
    name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{os.getpid()}"
    storage = options.storage_path.resolve()
    (storage / name).mkdir(parents=True)
    job: worker.Job = {
        "settings": settings,
        "folder": str(Path.cwd()),
        "use_gpu": options.use_gpu,
        "newest": str(storage / name / "newest_checkpoint.txt"),
    }
    try:
        _start(options)
        trainer = TorchTrainer(
            worker.fit,
            train_loop_config=dict(job),
            scaling_config=ScalingConfig(
                num_workers=options.num_workers,
                use_gpu=options.use_gpu,
                resources_per_worker={"CPU": options.cpus_per_worker, **({"GPU": 1} if options.use_gpu else {})},
            ),
            run_config=RunConfig(
                name=name,
                storage_path=str(storage),
                failure_config=FailureConfig(max_failures=options.max_failures),
                callbacks=[EndOnBadInput()],
            ),
        )
        trainer.fit()
    except ControllerError as error:
        if broken := run_error(error.controller_failure):
            raise broken from error
        if sentence := config_error_sentence(error.controller_failure):
            raise ConfigError(sentence) from error
        raise
    finally:
        ray.shutdown()


def _start(options: RayOptions) -> None:
    """Connects to the cluster, or starts one here, of as many CPUs as the workers reserve: ranks may share cores."""
    if options.address is not None:
        try:
            ray.init(address=options.address)
        except ConnectionError as error:
            remedy = "no Ray answers there; start one with `ray start`, or leave the flag out for one on this machine"
            raise ConfigError(f"--ray.address is {options.address!r}: {remedy}") from error
        return
    wanted = options.num_workers * options.cpus_per_worker
    ray.init(
        address="local",  # whatever RAY_ADDRESS says
        num_cpus=max(wanted, os.cpu_count() or 1),
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": "tsr_lightning.cli.ray.logs.quieten"},
    )
    gpus = int(ray.cluster_resources().get("GPU", 0))
    remedy = f"this machine has {gpus} GPUs; give that many workers, or the --ray.address of a cluster"
    require(not options.use_gpu or gpus >= options.num_workers, "--ray.num_workers", options.num_workers, remedy)
