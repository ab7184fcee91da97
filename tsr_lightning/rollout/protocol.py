"""Evaluation protocols: how a policy is evaluated on held-out instances, and at which validations of a fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.strategies import Sample, Strategy


@dataclass(frozen=True, slots=True)
class ValidationSchedule:
    """When a fit validates: after every `interval` epochs."""

    interval: int
    max_epochs: int

    @property
    def last(self) -> int:
        """The epochs trained at the last validation."""
        return self.max_epochs // self.interval * self.interval


@dataclass(frozen=True)
class EvalProtocol:
    """One protocol of evaluation on the held-out instances; its figures mean nothing without it.

    Args:
        name: names its figures, as in `val/sampled/success_rate`, and the files of its episodes. Neither "rollout",
            which those of training have, nor with a slash.
        temperature: softmax temperature of the policy; 0 is greedy.
        samples: episodes per instance (1 is enough where nothing is random).
        search: a strategy to act by; null acts as the trained policy does, without search.
        every_n_validations: of a fit's validations every n-th evaluates it, and the first, before training, and the
            last always do; null: these two alone. `tsr validate` always does.

    Raises:
        ConfigError: for such a name, a temperature below 0, or a count below 1.
    """

    name: str = "sampled"
    temperature: float = 1.0
    samples: int = 1
    search: Strategy | None = None
    every_n_validations: int | None = 1

    def __post_init__(self) -> None:
        is_own = self.name not in ("", TRAINING_ROLLOUT) and self.name == PurePath(self.name).name
        remedy = f'give a word of its own, such as "sampled": {TRAINING_ROLLOUT} is what is trained on, and / a folder'
        require(is_own, "data.evaluations.name", self.name, remedy)
        key = f"data.evaluations.{self.name}"
        require(self.samples >= 1, f"{key}.samples", self.samples, "give 1 or more")
        require(self.temperature >= 0, f"{key}.temperature", self.temperature, "give 0 (greedy) or more")
        every = self.every_n_validations
        remedy = "give 1 or more, or null for the first and the last validation alone"
        require(every is None or every >= 1, f"{key}.every_n_validations", every, remedy)

    def check(self) -> None:
        """Refuses a search by a scorer that learns from training rollouts, and so knows nothing here.

        Raises:
            ConfigError: it says what to use.
        """
        scorer = self.search.traits.scored_by if self.search else None
        remedy = "it learns from the rollouts of data.plan, and knows nothing in an evaluation; use another scorer"
        learns = scorer is not None and bool(scorer.learners)
        require(not learns, f"data.evaluations.{self.name}.search.scorer", type(scorer).__name__, remedy)

    def is_due(self, epochs: int, schedule: ValidationSchedule) -> bool:
        """Whether a fit's validation after this many epochs evaluates it. It depends on the position alone, so that a
        resumed run evaluates what the uninterrupted one does."""
        every = self.every_n_validations
        if every == 1 or epochs in (0, schedule.last):
            return True
        return every is not None and epochs % (every * schedule.interval) == 0

    def settings(self) -> dict[str, Any]:
        """All but the name, as plain types for a checkpoint and JSON; figures under other settings are not compared."""
        search = None if self.search is None else repr(self.search)
        return {"temperature": self.temperature, "samples": self.samples, "search": search}

    def tasks(self, instances: Sequence[tuple[int, Instance]], held_out_seed: int) -> list[tuple[SearchTask, ...]]:
        """The searches of each instance, one per sample. Instances come with their positions in the held-out set, whose
        seed names the draws, so that every run is evaluated with the same."""
        key = Key(held_out_seed).fold_in("trial", self.name)  # data: another word would change the draws
        strategy = self.search or Sample()
        return [
            tuple(SearchTask(seed, member, strategy, key.fold_in(place, member), env) for member in range(self.samples))
            for place, (env, seed) in instances
        ]
