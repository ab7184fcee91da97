"""Keeps the episodes of rollouts and evaluations, with all candidates of their searches: what `tsr view` shows."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from callbacks.stages import of_stage
from tsr_lightning.episodes.convert import TurnCredit, to_episode
from tsr_lightning.episodes.files import write
from tsr_lightning.episodes.folder import Saved, file_of, keep_within
from tsr_lightning.episodes.schema import ROLLOUT
from tsr_lightning.errors import require
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.rollout.saved import header_of
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.credit import CreditedPiece
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.lightning_compat import (
    Position,
    datamodule,
    epochs_at_rollout,
    is_fitting,
    position_at_validation,
    run_folder,
)
from tsr_lightning.trajectory import Group, TreeTurn


class EpisodeLog(Callback):
    """Writes episodes to `episodes/` in the run's folder (docs/episodes.md): those of every evaluation, and the
    rollouts of some epochs with the credit that training gave them. It comes before callbacks that drop groups.

    Where the files outgrow `max_mib`, rollouts go first and evaluations after them, from between their neighbours, and
    the ends of each kind last; the file just written stays. `tsr validate` removes none, and writes
    `<protocol>.validate` beside what the run wrote.

    Args:
        every_n_epochs: epochs between two rollouts that are kept, the first among them; 0 keeps none. `tsr fit
            --data.replay` needs 1.
        evaluations: whether those of evaluations are kept.
        max_mib: of the folder; where it costs the first of the rollouts under `every_n_epochs` 1, the log says so.
    """

    def __init__(self, every_n_epochs: int = 10, evaluations: bool = True, max_mib: float = 256) -> None:
        super().__init__()
        require(every_n_epochs >= 0, "EpisodeLog.every_n_epochs", every_n_epochs, "give 0 or more")
        require(max_mib > 0, "EpisodeLog.max_mib", max_mib, "give more than 0, or leave the callback out")
        self.every_n_epochs = every_n_epochs
        self.evaluations = evaluations
        self.max_mib = max_mib
        self._rollout: list[Group] | None = None  # until its credit is known
        self._evaluated: dict[str, tuple[EvalProtocol, list[Group]]] = {}  # in the running validation, by protocol
        self._loaded: Position | None = None
        self._has_all_rollouts = True  # none was removed in this fit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._rollout, self._evaluated, self._loaded, self._has_all_rollouts = None, {}, None, True

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = Position.in_checkpoint(checkpoint)

    def records(self, phase: str, epoch: int) -> bool:
        """As of `hooks.RecordsTurns`."""
        if phase != TRAINING_ROLLOUT:
            return self.evaluations
        return self.every_n_epochs > 0 and epoch % self.every_n_epochs == 0

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        # what data.replay reads has no record
        is_recorded = any(each.record for group in groups for each in group.trajectories)
        self._rollout = groups if is_recorded and self.records(TRAINING_ROLLOUT, epochs_at_rollout(trainer)) else None
        return groups

    def on_credit(self, trainer: Trainer, credited: Sequence[CreditedPiece]) -> None:
        groups, self._rollout = self._rollout, None
        if groups is not None:
            self._write(trainer, ROLLOUT, epochs_at_rollout(trainer), groups, credited)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluated = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if isinstance(outputs, EvalResult) and self.evaluations:
            _, groups = self._evaluated.setdefault(outputs.protocol.name, (outputs.protocol, []))
            groups += outputs.groups

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = position_at_validation(trainer, self._loaded).epochs
        of_ranks = ProcessGroup.of(trainer).gather([self._evaluated])
        for name in dict.fromkeys(name for own in of_ranks for name in own):
            shares = [own[name] for own in of_ranks if name in own]
            groups = [group for _, share in shares for group in share]
            self._write(trainer, of_stage(trainer, name), epoch, groups, temperature=shares[0][0].temperature)
        self._evaluated = {}

    def _write(
        self,
        trainer: Trainer,
        phase: str,
        epoch: int,
        groups: Sequence[Group],
        credited: Sequence[CreditedPiece] = (),
        temperature: float | None = None,
    ) -> None:
        folder, data = run_folder(trainer), datamodule(trainer)  # the first on every rank, because rank 0 broadcasts it
        if not trainer.is_global_zero or folder is None or not isinstance(data, RolloutDataModule):
            return
        has_critic = isinstance(trainer.lightning_module, Agent) and trainer.lightning_module.objective.needs.values
        credit = {turn: each for piece in credited for turn, each in _credit_of(piece, has_critic)}
        episodes = (to_episode(each, credit) for group in groups for each in group.trajectories if each.record)
        path = file_of(folder, phase, epoch)
        write(path, header_of(data.actor, phase, epoch, temperature), episodes)
        if is_fitting(trainer):
            self._tell(keep_within(path.parent, int(self.max_mib * 2**20), path))

    def _tell(self, removed: Sequence[Saved]) -> None:
        """Says once that `data.replay` cannot train on the run, where all its rollouts were asked for."""
        first = next((saved.epoch for saved in removed if saved.phase == ROLLOUT), None)
        if first is not None and self._has_all_rollouts and self.every_n_epochs == 1:
            rank_zero_info(
                f"EpisodeLog removed the rollout of epoch {first} to stay within EpisodeLog.max_mib, which is "
                f"{self.max_mib:g}, so data.replay cannot train on all epochs: raise it to keep them"
            )
            self._has_all_rollouts = False


def _credit_of(credited: CreditedPiece, has_critic: bool) -> list[tuple[int, TurnCredit]]:
    """The credit of the turns that a piece stands for, by their identity. Equal turns of a tree share its weight."""
    piece, credit, estimates, copies = credited
    if isinstance(piece, TreeTurn):
        of_one = _turn_credit(
            credit.advantages, (credit.weights + credit.supervised_weights) / len(copies), estimates.values, has_critic
        )
        return [(id(turn), of_one) for turn in copies if turn.response]
    lengths = [len(turn.response) for turn in piece.turns]
    parts = zip(
        piece.turns,
        credit.advantages.split(lengths),
        (credit.weights + credit.supervised_weights).split(lengths),
        estimates.values.split(lengths),
        strict=True,
    )
    return [
        (id(turn), _turn_credit(own, weights, values, has_critic)) for turn, own, weights, values in parts if len(own)
    ]


def _turn_credit(advantages: Tensor, weights: Tensor, values: Tensor, has_critic: bool) -> TurnCredit:
    """The credit of one turn. Advantages, weights and values are [R], of its tokens."""
    is_trained = bool(weights.any())
    return TurnCredit(
        float(values[0]) if has_critic else None,
        float(advantages.mean()) if is_trained else None,
        float(weights.sum()) if is_trained else None,
    )
