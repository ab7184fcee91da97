"""What goes with rollouts that are collected while the updates run."""

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.errors import require

_PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")  # which set nothing for the whole process


def check_staleness(staleness: int, updates: Updates, world_size: int, precision: str) -> None:
    """Refuses a `data.staleness` that a run cannot have."""
    key, is_ahead = "data.staleness", staleness > 0
    require(staleness >= 0, key, staleness, "give 0 to collect before the updates, or the epochs that may lie between")
    remedy = (
        "data.updates.reuse_logprobs takes the sampler's log-probabilities for the trainer's, and a stale sampler's "
        "are others; set that to false, or use 0"
    )
    require(not (is_ahead and updates.reuse_logprobs), key, staleness, remedy)
    tolerance = updates.mismatch_tolerance
    remedy = (
        f"data.updates.mismatch_tolerance {tolerance} would stop the run, since a stale sampler's log-probabilities "
        "are not the trainer's; set that to auto or null, or use 0"
    )
    require(not is_ahead or tolerance in ("auto", None), key, staleness, remedy)
    remedy = f"rollouts beside updates need a single process, and there are {world_size}; use 0, or one device"
    require(not is_ahead or world_size == 1, key, staleness, remedy)
    remedy = (
        f"trainer.precision {precision} sets a default type for the whole process, which rollouts and updates share; "
        f"use 0, or one of {', '.join(_PRECISIONS)}"
    )
    require(not is_ahead or precision in _PRECISIONS, key, staleness, remedy)
