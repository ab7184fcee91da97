"""The lines that a run without a terminal writes to its log, and when. Knows no Lightning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tsr_lightning.durations import duration
from tsr_lightning.search.progress import Progress

INTERVAL = 30.0  # seconds between lines of a rollout or an evaluation that is under way


@dataclass
class Interval:
    """Says when the next line of a rollout under way is due."""

    began: float | None = None  # the rollout or evaluation
    next: float = INTERVAL  # its seconds

    def is_due(self, progress: Progress) -> bool:
        if progress.began != self.began:
            self.began, self.next = progress.began, INTERVAL
        if progress.seconds < self.next:
            return False
        self.next = progress.seconds + INTERVAL
        return True


@dataclass
class Rate:
    """Held-out success by one protocol, counted while it is evaluated."""

    successes: int = 0
    episodes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f"{self.successes / self.episodes:.3f}" if self.episodes else "unknown"
        return f"{rate} ({self.episodes} episodes in {duration(self.seconds)})"


def under_way(progress: Progress) -> str:
    """How far a rollout or an evaluation is, with its rate and the time left."""
    tokens = progress.costs.tokens_generated
    left = progress.seconds * (1 / progress.spent - 1) if progress.spent else None
    about = "" if left is None else f", about {duration(left)} left"
    rate = tokens / progress.seconds if progress.seconds > 0 else 0.0
    return (
        f"{progress.phase}: {progress.done} of {progress.total} searches after {duration(progress.seconds)}, "
        f"{tokens:,} tokens ({rate:,.0f}/s){about}"
    )


def epoch_ended(epochs: int, limit: int | None, success: Mapping[str, float], seconds: Sequence[float]) -> str:
    """What a training epoch came to, and how long the run still takes.

    Args:
        epochs: trained.
        limit: of them; None where there is none.
        success: of its rollout, by the origin of trajectories.
        seconds: of the epochs of this process, evaluations included.
    """
    rates = ", ".join(f"{origin} {rate:.3f}" for origin, rate in success.items())
    each = sum(seconds) / len(seconds)
    left = "" if limit is None or epochs >= limit else f", about {duration(each * (limit - epochs))} left"
    done = f"{epochs} epochs" if limit is None else f"{epochs} of {limit} epochs"
    success_of = f": success {rates}" if rates else ""  # demonstrations tell nothing of the policy
    return f"{done}{success_of}; {duration(each)} an epoch{left}"


def evaluation_ended(epochs: int, rates: Mapping[str, Rate]) -> str:
    """Held-out success by protocol."""
    return f"evaluation after {epochs} epochs: success {', '.join(f'{name} {rate}' for name, rate in rates.items())}"
