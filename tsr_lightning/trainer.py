"""Lightning's Trainer with one more thing to do: `export`."""

import lightning.pytorch as pl
import torch

from tsr_lightning.agent import Agent
from tsr_lightning.policy.export import export
from tsr_lightning.rollouts import RolloutDataModule


class Trainer(pl.Trainer):
    """Lightning's Trainer, and `export`."""

    def export(
        self, model: Agent, datamodule: RolloutDataModule, ckpt_path: str, output: str, merge: bool = False
    ) -> None:
        """Write a trained policy as files that plain transformers and peft play.

        Args:
            model: the agent, as it was trained.
            datamodule: its data module.
            ckpt_path: a checkpoint of `fit`.
            output: the folder to write.
            merge: fold the adapter into the base weights, for plain transformers without peft.
        """
        self.strategy.connect(model)
        model.trainer = self
        datamodule.trainer = self
        self.datamodule = datamodule
        model.configure_model()
        checkpoint = torch.load(ckpt_path, map_location="cpu", weights_only=True)
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
        export(model.policy, model.tokenizer, output, merged=merge)
