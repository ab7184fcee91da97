"""The training data of Lightning's loop: iterating over it once rolls out an epoch and yields its updates."""

from collections.abc import Iterator
from dataclasses import dataclass

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.batching.schedule import Batch, Updates
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.answer_notice import check_valid
from tsr_lightning.rollout.collect import RolloutSpec
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.rollout.groups import TRAINING_ROLLOUT
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.epoch import Comparisons, select, updates_of
from tsr_lightning.training.notices import ChanceNotice, ResponseNotices
from tsr_lightning.training.rollouts import RolloutSource


@dataclass(frozen=True)
class EpochSpec:
    """How every epoch of a fit is rolled out and trained on. Arguments as of the RolloutDataModule.

    Args:
        replays: whether rollouts are those of an earlier run, as `data.replay` names it.
        micro_batches: the fewest of an optimizer step, as `trainer.accumulate_grad_batches` asks for.
    """

    rollout: RolloutSpec
    updates: Updates
    staleness: int
    replays: bool
    demonstrations: Demonstrations | None
    min_valid: float
    micro_batches: int


class TrainLoader:
    """Epochs, each a rollout and then the micro-batches of its updates.

    Args:
        trainer: of the fit.
        agent: that is trained.
        actor: plays its policy.
        rollouts: gives those of the epochs.
        spec: of the epochs.
        notices: about the responses.
    """

    def __init__(
        self,
        trainer: Trainer,
        agent: Agent,
        actor: Actor,
        rollouts: RolloutSource,
        spec: EpochSpec,
        notices: ResponseNotices,
    ) -> None:
        self._trainer = trainer
        self._agent = agent
        self._actor = actor
        self._rollouts = rollouts
        self._spec = spec
        self._notices = notices
        self._chance = ChanceNotice()
        self._begun: tuple[int, list[list[Batch]]] | None = None  # an epoch of which one batch was taken at most

    def __iter__(self) -> Iterator[Batch | None]:
        """The micro-batches of the current epoch; a single None where nothing is left to train on, and nothing where
        the epoch will not be trained. Lightning asks twice for the first epoch of a Trainer that fits on, which is
        rolled out once."""
        trainer, agent = self._trainer, self._agent
        if reason := compat.nothing_to_train(trainer):
            rank_zero_info(reason)
            return
        epoch = compat.epochs_at_rollout(trainer)
        if self._begun is None or self._begun[0] != epoch:
            self._begun = epoch, self._steps(epoch)
        _, steps = self._begun
        if not steps:
            compat.prepare_empty_epoch(trainer)
            yield None
            self._begun = None
            return
        trainer.accumulate_grad_batches = len(steps[0])
        for step in steps:
            if agent.has_moved_past:
                return
            for batch in step:
                yield batch
                self._begun = None

    def _steps(self, epoch: int) -> list[list[Batch]]:
        """Rolls an epoch out; its micro-batches by optimizer step."""
        trainer, agent, spec = self._trainer, self._agent, self._spec
        drawn, rolled_out = self._rolled_out(epoch)
        demonstrated = self._demonstrated(epoch)
        self._actor.release()
        agent.begin_updates(epoch, spec.updates.target_kl)
        return updates_of(
            trainer,
            agent,
            rolled_out,
            demonstrated,
            spec.updates,
            spec.rollout.key.fold_in("epoch", epoch),
            epoch=epoch,
            drawn=drawn,
            staleness=spec.staleness,
            replays=spec.replays,
            at_least=spec.micro_batches,
            following=self._actor.following,
        )

    def _rolled_out(self, epoch: int) -> tuple[int, Comparisons]:
        """How many groups were drawn in an epoch, by all ranks, and the comparisons of each that is trained on."""
        collected = self._rollouts.take(epoch, self._actor)
        if collected is None:
            return 0, []
        groups, form = collected.rollout.groups, self._actor.answer_form
        check_valid(groups, self._spec.min_valid, self._actor.spec.sampling.max_response_tokens, form)
        self._notices.log(TRAINING_ROLLOUT, groups, self._actor)
        self._chance.log(TRAINING_ROLLOUT, groups, self._agent.objective.at(epoch))
        return len(groups), select(self._trainer, self._agent, collected, self._spec.rollout, epoch)

    def _demonstrated(self, epoch: int) -> Comparisons:
        """Comparisons of a file's demonstrations; neither callbacks nor the rollout's figures see them."""
        if self._spec.demonstrations is None:
            return []
        objective, actor = self._agent.objective.at(epoch), self._actor
        groups = self._spec.demonstrations.groups(self._spec.rollout.key, epoch, actor.chat, actor.context_tokens)
        self._notices.log("demonstrations", groups, actor)
        return [objective.comparisons(group) for group in groups]
