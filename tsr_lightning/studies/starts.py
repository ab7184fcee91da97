"""Which runs begin alike: the evaluation of their start is the same, number for number, and needs to be made once.

An evaluation's draws are named by the seed of the held-out set and not by that of the run. So the start depends on the
policy, the environment, the held-out set, the protocols and the limits of a response, and on the run's seed only where
the policy is made anew from it.
"""

import json
from collections.abc import Mapping
from typing import Any

_DECIDES = (
    *("model.policy", "data.env", "data.env_kwargs", "data.held_out", "data.evaluations", "data.context"),
    *("data.sampling.max_response_tokens", "data.context_tokens", "data.episode_tokens", "trainer.precision"),
)


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
