"""What a Trainer is connected to: callbacks, data module, run folder, loggers, ranks."""

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from tsr_lightning.training.run_folder import HasRunFolder


def callbacks(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined]


def datamodule(trainer: Trainer) -> LightningDataModule | None:
    return trainer.datamodule  # type: ignore[attr-defined]


def is_fitting(trainer: Trainer) -> bool:
    """Whether `fit` runs, its validations included."""
    return trainer.state.fn == TrainerFn.FITTING


def run_folder(trainer: Trainer) -> Path | None:
    """The folder of a run's own files, called on every rank; None under a Trainer of Lightning's without a logger."""
    if isinstance(trainer, HasRunFolder):
        return trainer.run_folder()
    folder = trainer.log_dir  # which Lightning broadcasts
    return Path(folder) if trainer.loggers and folder is not None else None


def log_figures(trainer: Trainer, figures: Mapping[str, float], epochs: int) -> None:
    """Writes figures by tag to all loggers at once, on rank 0, against the epochs that the policy had been trained for:
    `LightningModule.log` would write against optimizer steps."""
    if not trainer.is_global_zero:
        return
    for logger in trainer.loggers:
        logger.log_metrics(dict(figures), step=epochs)
        logger.save()


def leave_buffers_alone(module: LightningModule) -> None:
    """DDP would broadcast rank 0's buffers in every forward pass, those of a validation too: a rank without a held-out
    instance makes none, and all others would wait for it. Ours are constants, which every rank computes."""
    names = [name for name, _ in module.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)


def sharding_mesh(module: LightningModule) -> DeviceMesh | None:
    """The ranks over which the strategy shards the weights; None where it does not."""
    mesh = module.device_mesh
    return None if mesh is None else mesh["data_parallel"]


def attach(trainer: Trainer, model: LightningModule, data: LightningDataModule) -> None:
    """Connects model and data to a trainer that runs no loop, as `fit` and `validate` do for theirs."""
    trainer.strategy.connect(model)
    model.trainer = trainer
    data.trainer = trainer
    trainer.datamodule = data  # type: ignore[attr-defined]
