"""The validation data of Lightning's loop: held-out instances in batches, which a validation step plays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from lightning.pytorch import Trainer

from tsr_lightning.errors import require
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.evaluate import EvalResult, evaluate_actor
from tsr_lightning.rollout.faults import Faults
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.hooks import is_recorded, report_wave
from tsr_lightning.training.notices import ResponseNotices


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """Some held-out instances under one protocol."""

    protocol: EvalProtocol
    places: tuple[int, ...]  # of the instances in the held-out set
    instances: tuple[Instance, ...]
    seed: int  # of the held-out set
    actor: Actor
    notices: ResponseNotices
    max_lost: int | None = None  # past which the rest of the batch is given up

    def run(self, trainer: Trainer) -> EvalResult:
        """Plays the instances with the policy as it is now, and reports the progress to the callbacks."""
        result = evaluate_actor(
            self.actor,
            self.instances,
            self.protocol,
            seed=self.seed,
            places=self.places,
            max_lost=self.max_lost,
            report=partial(report_wave, trainer),
            record=is_recorded(trainer, self.protocol.name, compat.position_at_validation(trainer, None).epochs),
        )
        self.notices.log(self.protocol.name, result.groups, self.actor)
        return result


class EvalLoader:
    """The validation data of one protocol: this rank's share of the held-out instances, or nothing at a validation
    where it is not due. Not a list, which Lightning would take for several loaders.

    Args:
        trainer: that validates.
        protocol: of the evaluation.
        held_out: the instances.
        seed: of the held-out set.
        actor: plays them; a batch is as many as it plays side by side.
        notices: about their responses.
        faults: how many episodes may be lost.
    """

    def __init__(
        self,
        trainer: Trainer,
        protocol: EvalProtocol,
        held_out: Sequence[Instance],
        seed: int,
        actor: Actor,
        notices: ResponseNotices,
        faults: Faults,
    ) -> None:
        self._trainer = trainer
        self._protocol = protocol
        places = ProcessGroup.of(trainer).shard(range(len(held_out)))
        size = max(1, actor.spec.concurrency // protocol.samples)
        max_lost = faults.max_lost(len(held_out) * protocol.samples)
        parts = [tuple(places[start : start + size]) for start in range(0, len(places), size)]
        self._batches = [
            EvalBatch(protocol, part, tuple(held_out[place] for place in part), seed, actor, notices, max_lost)
            for part in parts
        ]

    def __iter__(self) -> Iterator[EvalBatch]:
        return iter(self._batches if self._is_due() else ())

    def __len__(self) -> int:
        """The most batches that a validation has: Lightning asks once. At least one, so that a rank without a held-out
        instance takes part too: Lightning would call none of its hooks, and the others wait for them."""
        return max(1, len(self._batches))

    def _is_due(self) -> bool:
        schedule = compat.validation_schedule(self._trainer)
        if schedule is None or not compat.is_fitting(self._trainer):
            return True
        return self._protocol.is_due(compat.position_at_validation(self._trainer, None).epochs, schedule)


def check_names(evaluations: Sequence[EvalProtocol]) -> None:
    """Refuses two protocols of one name, which would share figures and files."""
    names = [protocol.name for protocol in evaluations]
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, "data.evaluations", names, f"two are named {twice!r}: give each a name of its own")


def check_schedule(trainer: Trainer, evaluations: Sequence[EvalProtocol]) -> None:
    """Refuses protocols that are due at some validations alone, where no validation is known to be the last."""
    if compat.validation_schedule(trainer) is not None:
        return
    for protocol in evaluations:
        every = protocol.every_n_validations
        remedy = (
            "without trainer.check_val_every_n_epoch and trainer.max_epochs no validation is known to be the last; "
            "give both, or 1 to evaluate it at every validation"
        )
        require(every == 1, f"data.evaluations.{protocol.name}.every_n_validations", every, remedy)
