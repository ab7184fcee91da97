"""Finds runs that begin alike: the evaluation of their start is the same, number for number, and needs to be made once.

An evaluation's draws are named by the seed of the held-out set and not by that of the run. So the start depends on the
policy, the engine, the environment, the held-out set, the protocols and the limits of a response, and on the run's seed
only where the policy is made anew from it.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.settings import is_under

_DECIDES = (
    *("model.policy", "data.env", "data.env_kwargs", "data.held_out", "data.evaluations", "data.context"),
    *("data.sampling.max_response_tokens", "data.context_tokens", "data.episode_tokens", "trainer.precision"),
    "data.engine.class_path",
)


class SharedStarts:
    """Decides, when a run begins, if it measures its start. Safe to call from several threads.

    Of the runs that begin alike one at a time does, until one of them is finished: if it fails, the next that begins
    does.

    Args:
        measured: gives the keys of the starts that finished runs have measured by now, in any process.
    """

    def __init__(self, measured: Callable[[], Collection[str]]) -> None:
        self._measured = measured
        self._measuring: dict[Run, str] = {}
        self._mutex = threading.Lock()

    def begin(self, run: Run, settings: Mapping[str, Any], earlier: bool | None) -> bool:
        """Returns True if the run measures its start.

        Args:
            run: that begins or goes on.
            settings: of its configuration, by dotted key.
            earlier: of a run that goes on, whether it measured its start before it was stopped; else None.
        """
        key = start_key(settings, run.seed)
        with self._mutex:
            known = self._measuring.values()
            if earlier is None:
                is_asked = settings.get("trainer.num_sanity_val_steps") == -1
                earlier = is_asked and key not in known and key not in self._measured()
            if earlier:
                self._measuring[run] = key
            return earlier

    def end(self, run: Run) -> None:
        """Notes that the run has ended: a finished one has its result file by now."""
        with self._mutex:
            self._measuring.pop(run, None)


def measures_its_start(result: Mapping[str, Any]) -> bool:
    """True if a result or a history has the evaluation before training."""
    evaluations = result["evaluations"]
    return bool(evaluations) and bool(evaluations[0]["costs"]["epochs"] == 0)


def start_key(settings: Mapping[str, Any], seed: int) -> str:
    """Returns a key that is equal for runs whose policies are evaluated alike before they are trained.

    Args:
        settings: of the run, by dotted key.
        seed: of the run.
    """
    deciding = {key: value for key, value in settings.items() if is_under(key, _DECIDES)}
    is_made_anew = any(key.startswith("model.policy.model.") for key in settings)
    return json.dumps([deciding, seed if is_made_anew else None], sort_keys=True)
