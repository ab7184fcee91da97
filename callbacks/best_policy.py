"""Keeps the policy with the best success so far in a checkpoint, for `CollapseGuard` to restore."""

from dataclasses import astuple, dataclass, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from callbacks.levels import Level
from tsr_lightning.errors import ConfigError
from tsr_lightning.training import checkpoints
from tsr_lightning.training import lightning_compat as compat


@dataclass(frozen=True, slots=True)
class BestPolicy:
    """The checkpoint of the best policy so far."""

    path: str
    epochs: int  # that it had been trained for
    held_out: bool  # measured by an evaluation, which outranks any rollout
    success: float  # the lower end of its success rate's 95% interval


class BestCheckpoint:
    """The file of the best policy so far, which the next best one takes over."""

    def __init__(self) -> None:
        self.policy: BestPolicy | None = None
        self._was_written_here = False  # in the folder of this run

    def state_dict(self) -> list[Any] | None:
        return None if self.policy is None else list(astuple(self.policy))

    def load_state_dict(self, state: list[Any] | None) -> None:
        self.policy = None if state is None else BestPolicy(*state)

    def find(self, trainer: Trainer) -> None:
        """Looks for the file of a resumed run's best policy, and forgets one that is gone. Called on every rank."""
        if self.policy is None:
            return
        found = _found(self.policy, Path(trainer.ckpt_path or "")) if trainer.is_global_zero else None
        path = trainer.strategy.broadcast(found)
        if path is None:
            rank_zero_warn(
                f"CollapseGuard: {self.policy.path} is no checkpoint of the policy after {self.policy.epochs} epochs, "
                "which was the best; the next best one gets a file of its own"
            )
            self.policy, self._was_written_here = None, False
            return
        self.policy = replace(self.policy, path=str(path))
        self._was_written_here = path.parent == _folder(trainer)  # the same run goes on

    def keep(self, trainer: Trainer, epochs: int, success: Level, *, held_out: bool) -> None:
        """Saves the policy as it is now, if it is the best.

        Args:
            trainer: of the run.
            epochs: that the policy has been trained for.
            success: its success rate.
            held_out: measured by an evaluation, which outranks any rollout.
        """
        if self.policy is not None and (self.policy.held_out, self.policy.success) >= (held_out, success.low):
            return
        path = self.policy.path if self.policy is not None and self._was_written_here else _new_path(trainer)
        self.policy = BestPolicy(path, epochs, held_out, success.low)
        self._was_written_here = True
        trainer.save_checkpoint(path)

    def forget_success(self, *, held_out: bool) -> None:
        """Lets the next policy take the best one's place, whose success was measured by what is gone.

        Args:
            held_out: that by an evaluation; otherwise that in a rollout.
        """
        if self.policy is not None and self.policy.held_out == held_out:
            self.policy = replace(self.policy, held_out=False, success=-inf)


def _found(best: BestPolicy, resumed: Path) -> Path | None:
    """The best policy's checkpoint, in its folder or that of the resumed one; None if a later policy replaced it."""
    written = Path(best.path)
    places = (written, resumed.absolute().parent / written.name)
    return next((place for place in places if _holds(place, best.epochs)), None)


def _holds(path: Path, epochs: int) -> bool:
    """True if a file is a checkpoint after `epochs` epochs."""
    try:
        checkpoint = checkpoints.load(path, mmap=True)
    except ConfigError:
        return False
    return compat.Position.in_checkpoint(checkpoint).epochs == epochs


def _folder(trainer: Trainer) -> Path:
    return Path(trainer.log_dir or trainer.default_root_dir).absolute() / "checkpoints"


def _new_path(trainer: Trainer) -> str:
    """A path in the run's folder that no earlier run has written to; absolute, because a resume may run elsewhere."""
    folder = _folder(trainer)
    best = compat.BEST_POLICY
    names = (f"{best}.ckpt" if number == 0 else f"{best}-v{number}.ckpt" for number in count())
    return trainer.strategy.broadcast(str(next(folder / name for name in names if not (folder / name).exists())))
