"""Some trajectories in TensorBoard, as text and, where there are boards, as pictures, to see what the policy does."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from callbacks.boards import picture
from tsr_lightning.errors import require
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.training.lightning_compat import (
    Position,
    epochs_at_rollout,
    is_fitting,
    position_at_validation,
    validation_schedule,
)
from tsr_lightning.trajectory import Group, Message, Trajectory, Turn


class TrajectoryLog(Callback):
    """Writes one trajectory of each of the first groups, of rollouts and of every evaluation protocol: its text, and
    the boards of Sokoban and FrozenLake as an image.

    A protocol's are of the same instances every time, so that TensorBoard's sliders show how the policy changes. Of a
    rollout it writes the groups that the callbacks before it in the list have left.

    Args:
        count: trajectories per rollout and per protocol.
        every_n_epochs: epochs between two writes: rollouts of every n-th epoch, the first among them, and the first
            evaluation of every n epochs, the start among them, and the last before a fit ends, early or not.
            `tsr validate` writes its evaluation.
    """

    def __init__(self, count: int = 2, every_n_epochs: int = 1) -> None:
        super().__init__()
        require(count >= 0, "TrajectoryLog.count", count, "give 0 or more")
        require(every_n_epochs >= 1, "TrajectoryLog.every_n_epochs", every_n_epochs, "give 1 or more")
        self.count = count
        self.every_n_epochs = every_n_epochs
        self._seen: dict[str, int] = {}  # by protocol, in the running validation
        self._unwritten: dict[str, list[_Entry]] = {}  # by protocol, of its last evaluation where that was not due
        self._loaded: Position | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loaded = None
        self._unwritten = {}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = Position.in_checkpoint(checkpoint)

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        epochs = epochs_at_rollout(trainer)
        if epochs % self.every_n_epochs == 0:
            for number, group in enumerate(groups[: self.count], start=1):
                _write(trainer, _Entry(f"rollout/trajectory_{number}", group, epochs))
        return groups

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen = {}

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        epochs = position_at_validation(trainer, self._loaded).epochs
        if not isinstance(outputs, EvalResult):
            return
        name = outputs.protocol.name
        if name not in self._seen:
            self._unwritten[name] = []
        first = self._seen.get(name, 0)
        groups = outputs.groups[: self.count - first]
        self._seen[name] = first + len(groups)
        found = [
            _Entry(f"val/{name}/trajectory_{place}", group, epochs) for place, group in enumerate(groups, first + 1)
        ]
        if self._is_due(trainer, outputs.protocol, epochs):
            _write(trainer, *found)
        else:
            self._unwritten[name] += found

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the last evaluations: a callback may end a run at any epoch."""
        for found in self._unwritten.values():
            _write(trainer, *found)
        self._unwritten = {}

    def _is_due(self, trainer: Trainer, protocol: EvalProtocol, epochs: int) -> bool:
        """True for a protocol's first evaluation of every n epochs of a fit, and for any outside of a fit. It depends
        on the position alone, as the evaluations do, so that a resumed run writes what a whole one does."""
        schedule = validation_schedule(trainer)
        if not is_fitting(trainer):
            return True
        validations = range(0, epochs, trainer.check_val_every_n_epoch or 1)
        first = 0 if trainer.num_sanity_val_steps else 1
        earlier = [each for each in validations[first:] if schedule is None or protocol.is_due(each, schedule)]
        return not earlier or earlier[-1] // self.every_n_epochs < epochs // self.every_n_epochs


class _Entry(NamedTuple):
    """A group for TensorBoard, and the epochs that its policy was trained for."""

    tag: str
    group: Group
    epochs: int


def _write(trainer: Trainer, *entries: _Entry) -> None:
    for tag, group, epochs in entries if trainer.is_global_zero else ():
        if not group.trajectories:
            continue
        shown = group.trajectories[0]
        text, boards = to_markdown(shown), picture([message.content for message in _observed(shown)])
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):  # Lightning's other loggers share no method for text
                logger.experiment.add_text(tag, text, epochs)
                if boards is not None:
                    logger.experiment.add_image(f"{tag}/boards", boards, epochs, dataformats="HWC")


def _observed(trajectory: Trajectory) -> list[Message]:
    return [message for turn in trajectory.turns for message in turn.messages] + list(trajectory.final_messages)


def to_markdown(trajectory: Trajectory) -> str:
    """With messages and responses in code blocks, so that a grid keeps its shape and a tag shows as written."""
    end = "success" if trajectory.succeeded else "stopped by a limit" if trajectory.truncated else "failure"
    heading = (
        f"**{end}**, return {trajectory.episode_return:g}, {len(trajectory.turns)} turns, "
        f"{trajectory.trained_tokens} response tokens; instance {trajectory.instance}, member {trajectory.member}, "
        f"strategy {trajectory.strategy}, {trajectory.origin.value}"
    )
    turns = [_turn_to_markdown(number, turn) for number, turn in enumerate(trajectory.turns, start=1)]
    return "\n\n".join([heading, *turns, "**end**", *_messages_to_markdown(trajectory.final_messages)])


def _turn_to_markdown(number: int, turn: Turn) -> str:
    remarks = [
        f"reward {turn.reward:g}",
        "valid" if turn.valid else "invalid",
        "effective" if turn.effective else "without effect",
        *([] if turn.finished else ["cut off"]),
    ]
    parts = [
        f"**turn {number}**",
        *_messages_to_markdown(turn.messages),
        f"response: {', '.join(remarks)}",
        code_block(turn.text),
    ]
    return "\n\n".join(parts)


def _messages_to_markdown(messages: Sequence[Message]) -> list[str]:
    return [part for message in messages for part in (f"{message.role}:", code_block(message.content))]


def code_block(text: str) -> str:
    """With a fence longer than any in the text, which cannot end the block."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
