"""What each evaluation of a run measured and what the run had cost by then, small enough to be kept for good."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from callbacks.costs import RunCosts
from callbacks.measurement import Measurement
from tsr_lightning.rollout.instances import Instance


class History:
    """The evaluations of a run in the order of epochs, as plain types for a checkpoint and JSON.

    `plain` has `instances`: [I] of (environment, seed); `protocols`: by name, its `settings` and `episodes`, [I] counts
    (0 where it did not play an instance); `evaluations`: the costs of the run so far (`RunCosts`), and by protocol its
    `figures` and `successes`, [I] counts. A run may go on with other settings of a protocol, such as more samples: an
    evaluation by those has a `protocols` of its own, with them and its episodes. `end` is there once the training has
    come to its end: the `epochs` trained, and in `stopped_by` what ended it before the last epoch, if anything did.
    """

    def __init__(self) -> None:
        self._end: dict[str, Any] | None = None
        self._instances: list[Instance] = []
        self._protocols: dict[str, dict[str, Any]] = {}
        self._evaluations: list[dict[str, Any]] = []

    def add(self, costs: RunCosts, measured: Mapping[str, Measurement], training: Mapping[str, float]) -> None:
        """Adds an evaluation; a second one after as many epochs and updates, as that of a loaded policy may be, is left
        out.

        Args:
            costs: of the run so far.
            measured: by protocol.
            training: figures of the last rollout and update, which stand beside those of each protocol.
        """
        moment = (costs.epochs, costs.updates)
        if not measured or any((c["epochs"], c["updates"]) == moment for c in (e["costs"] for e in self._evaluations)):
            return
        self._add_instances({instance for one in measured.values() for instance in one.outcomes})
        counts = {
            name: [one.outcomes.get(instance, (0, 0)) for instance in self._instances] for name, one in measured.items()
        }
        protocols = {
            name: {"settings": one.protocol, "episodes": [episodes for _, episodes in counts[name]]}
            for name, one in measured.items()
        }
        self._protocols = {**protocols, **self._protocols}
        changed = {name: own for name, own in protocols.items() if own != self._protocols[name]}
        self._evaluations.append(
            {
                "costs": asdict(costs),
                "figures": {name: {**one.figures, **training} for name, one in measured.items()},
                "successes": {name: [successes for successes, _ in own] for name, own in counts.items()},
                **({"protocols": changed} if changed else {}),
            }
        )

    def end(self, epochs: int, stopped_by: str | None) -> None:
        """Notes that the training has come to its end."""
        self._end = {"epochs": epochs, "stopped_by": stopped_by}

    def go_on(self) -> None:
        """Notes that it has not: the run trains further."""
        self._end = None

    def _add_instances(self, played: Collection[Instance]) -> None:
        """Adds the instances that are new, as where a run goes on with others; what was measured
        before did not play them."""
        new = sorted(set(played) - set(self._instances))
        self._instances = [*self._instances, *new]
        none = [0] * len(new)
        own = [self._protocols, *(past.get("protocols", {}) for past in self._evaluations)]
        for counts in [protocol for several in own for protocol in several.values()]:
            counts["episodes"] = [*counts["episodes"], *none]
        for past in self._evaluations:
            past["successes"] = {name: [*counts, *none] for name, counts in past["successes"].items()}

    def plain(self) -> dict[str, Any]:
        return {
            "instances": [list(instance) for instance in self._instances],
            "protocols": self._protocols,
            "evaluations": self._evaluations,
            **({} if self._end is None else {"end": self._end}),
        }

    def load(self, plain: Mapping[str, Any]) -> None:
        """Takes up the history of a run that goes on, so that an end of it is none."""
        self._instances = [(env, seed) for env, seed in plain["instances"]]
        self._protocols = dict(plain["protocols"])
        self._evaluations = list(plain["evaluations"])

    def to_json(self) -> str:
        return json.dumps(self.plain(), separators=(",", ":"), allow_nan=False) + "\n"
