"""Lightning's Trainer with the subcommand `export`; the docstrings here are the help texts of `tsr`."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.types import _PATH

from tsr_lightning.policy.export import export
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.lightning_compat import attach


class Trainer(pl.Trainer):
    """Where and how long to train: Lightning's Trainer."""

    def fit(
        self,
        model: pl.LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: _PATH | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train a policy on trajectories built by search, and evaluate it on held-out instances.

        Args:
            ckpt_path: a checkpoint to resume from, or "last" for the newest of this run's folder, if there is one.
            weights_only: true loads only tensors and plain values, all that our checkpoints hold; null is Lightning's.
        """
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)

    def validate(
        self,
        model: pl.LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: _PATH | None = None,
        verbose: bool = True,
        datamodule: pl.LightningDataModule | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Evaluate a policy on held-out instances, without search.

        Args:
            ckpt_path: a checkpoint of `fit`; null evaluates the policy that training begins with.
            verbose: print Lightning's own table of the figures too.
            weights_only: true loads only tensors and plain values, all that our checkpoints hold; null is Lightning's.
        """
        return super().validate(model, dataloaders, ckpt_path, verbose, datamodule, weights_only)

    def export(
        self,
        model: Agent,
        datamodule: RolloutDataModule,
        ckpt_path: str,
        output: str,
        merge: bool = False,
        weights_only: bool | None = None,
    ) -> None:
        """Write a trained policy as files that plain transformers and peft load.

        Args:
            ckpt_path: a checkpoint of `fit`.
            output: the folder to write.
            merge: merge the adapter into the base weights, for plain transformers without peft.
            weights_only: as of `fit`, whose `config.yaml` has it; null is true.
        """
        attach(self, model, datamodule)
        model.configure_model()
        checkpoint = torch.load(ckpt_path, map_location="cpu", weights_only=weights_only is not False)
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
        export(model.policy, model.tokenizer, output, merged=merge)
