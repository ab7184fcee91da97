"""Which runs begin alike: the evaluation of their start is the same, number for number, and needs to be made once.

An evaluation's draws are named by the seed of the held-out set and not by that of the run. So the start depends on the
policy, the environment, the held-out set, the protocols and the limits of a response, and on the run's seed only where
the policy is made anew from it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tsr_lightning.studies.grid import Run

_DECIDES = (
    *("model.policy", "data.env", "data.env_kwargs", "data.held_out", "data.evaluations", "data.context"),
    *("data.sampling.max_response_tokens", "data.context_tokens", "data.episode_tokens", "trainer.precision"),
)


def runs_that_measure_the_start(
    runs: Sequence[Run], settings: Mapping[str, Mapping[str, Any]], measured: Collection[str]
) -> set[Run]:
    """The first of the runs that begin alike, where none of them was measured before.

    Args:
        runs: in the order in which they will begin.
        settings: of each arm, by its name.
        measured: the keys of the starts that finished runs measured.
    """
    known, chosen = set(measured), set()
    for run in runs:
        own = settings[run.arm]
        key = start_key(own, run.seed)
        if own.get("trainer.num_sanity_val_steps") == -1 and key not in known:
            known.add(key)
            chosen.add(run)
    return chosen


def measures_its_start(result: Mapping[str, Any]) -> bool:
    """Whether a result file has the evaluation before training."""
    return bool(result["evaluations"][0]["costs"]["epochs"] == 0)


def start_key(settings: Mapping[str, Any], seed: int) -> str:
    """Equal for runs whose policies are evaluated alike before they are trained.

    Args:
        settings: of the run, by dotted key.
        seed: of the run.
    """
    deciding = {
        key: value
        for key, value in settings.items()
        if any(key == name or key.startswith(f"{name}.") for name in _DECIDES)
    }
    is_made_anew = any(key.startswith("model.policy.model.") for key in settings)
    return json.dumps([deciding, seed if is_made_anew else None], sort_keys=True)
