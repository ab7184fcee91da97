"""What a run learns from its rollouts, by the epochs that had been rolled out."""

from typing import Generic, TypeVar

T = TypeVar("T")


class ByEpoch(Generic[T]):
    """A value as each rollout left it, as far back as a checkpoint may still ask: rollouts may be ahead of updates.

    Args:
        initial: the value before any rollout.
    """

    def __init__(self, initial: T) -> None:
        self._known = {0: initial}  # by the epoch before which it is so; rebound, since a checkpoint's thread reads it

    def before(self, epoch: int) -> T:
        """The value that the rollouts of earlier epochs left."""
        return self._known[self._latest(epoch)]

    def note(self, epoch: int, value: T, trained: int) -> None:
        """Sets the value after an epoch's rollout.

        Args:
            epoch: of the rollout.
            value: that it left.
            trained: epochs that its policy has been trained for; nothing is asked of before.
        """
        oldest = self._latest(min(trained, epoch))
        self._known = {e: kept for e, kept in self._known.items() if oldest <= e <= epoch} | {epoch + 1: value}

    def _latest(self, epoch: int) -> int:
        return max(known for known in self._known if known <= epoch)
