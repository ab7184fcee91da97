"""Writes a run's whole configuration to `config.yaml` in its folder, once the run really begins, and at its end its
settings and final figures to TensorBoard's hyperparameters."""

from pathlib import Path

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from tsr_lightning.files import write_whole
from tsr_lightning.studies.settings import flat_settings

_HYPERPARAMETERS = ("model.", "data.", "seed_everything")


class SaveConfig(SaveConfigCallback):
    """Waits until the checkpoint is restored, where Lightning writes before: a refused resume would leave its settings
    in the folder of the run that it could not resume. A validation leaves the file of a run alone."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        pass

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, overwrite=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, overwrite=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, overwrite=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        final = {
            f"final/{name.removeprefix('val/')}": float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("val/") and name.endswith(("/success_rate", "/return"))
        }
        loggers = [one for one in trainer.loggers if isinstance(one, TensorBoardLogger)]
        if final and loggers and trainer.is_global_zero:
            settings = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
            flat = flat_settings(settings) | {"seed_everything": settings["seed_everything"]}
            chosen = {key: flat[key] for key in flat if key.startswith(_HYPERPARAMETERS)}
            for logger in loggers:
                logger.log_hyperparams(chosen, final)

    def _write(self, trainer: Trainer, *, overwrite: bool) -> None:
        folder = trainer.log_dir  # read on every rank, because rank 0 broadcasts it
        if self.already_saved or not trainer.is_global_zero or folder is None:
            return
        path = Path(folder) / self.config_filename
        if overwrite or not path.exists():
            write_whole(path, self.parser.dump(self.config, skip_none=False))
        self.already_saved = True
