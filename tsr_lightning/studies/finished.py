"""Tells a finished run from one that ended early, by what its history holds."""

from collections.abc import Mapping
from typing import Any

from tsr_lightning.studies.settings import Settings

EARLY = "stopped_by"  # in a history's `end`: what ended the training before its last epoch


def missing_evaluations(history: Mapping[str, Any], settings: Settings) -> str:
    """Says, as part of a sentence, how far a run is from its end; empty where it is finished.

    It is finished where its history reaches the last validation of its settings, or says that a callback or another
    limit of the settings ended the training before.

    Args:
        history: of its evaluations, and its `end` where the training came to one (`callbacks.history`).
        settings: of its configuration, by dotted key.
    """
    epochs = history["evaluations"][-1]["costs"]["epochs"]
    last = last_validation(settings)
    if last is None or epochs >= last or (history.get("end") or {}).get(EARLY) is not None:
        return ""
    return f"it was evaluated after {epochs} epochs at last, of {last}"


def last_validation(settings: Settings) -> int | None:
    """Returns the epochs trained at the last validation; None where the settings do not count it in epochs."""
    epochs, interval = settings.get("trainer.max_epochs"), settings.get("trainer.check_val_every_n_epoch")
    if not isinstance(epochs, int) or not isinstance(interval, int) or epochs < 0 or interval < 1:
        return None
    return epochs // interval * interval
