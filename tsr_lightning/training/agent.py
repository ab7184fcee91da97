"""Agent: policy, reference and critic as three views of one model, and the updates by an objective."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import LRSchedulerConfigType, OptimizerLRSchedulerConfig
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tsr_lightning.batching.schedule import Batch
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.objectives.base import Objective
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.probe import check_packing, check_repeats
from tsr_lightning.policy.sharding import Weights, weights_of, whole
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rollout.evaluate import EvalResult
from tsr_lightning.rollout.memory import HeapTrimmer, PeakMemory
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.checkpoint_identity import check_identity, check_vocabulary, identity_entries
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.estimates import estimates
from tsr_lightning.training.fsdp2 import check_strategy
from tsr_lightning.training.metrics import step_metrics
from tsr_lightning.training.optimizer import Optimizer, clip_by_group
from tsr_lightning.training.random_state import RandomState
from tsr_lightning.training.setting_checks import check_precision


@runtime_checkable
class HasVocabularyText(Protocol):
    """A data module that has text of its task, from which the vocabulary of a new model is made."""

    def texts(self) -> Iterable[str]: ...


class ValidationBatch(Protocol):
    """Held-out instances, which play themselves with the policy as it is now."""

    def run(self, trainer: Trainer) -> EvalResult: ...


class Agent(LightningModule):
    """Holds the model and trains it on trajectories.

    Args:
        policy: which model, with which adapter.
        objective: credit and loss.
        optimizer: learning rates and the rest of AdamW.
        temperature: of the log-probabilities; set by `data.sampling.temperature`.
        seed: of new weights; set by `seed_everything`.
    """

    def __init__(
        self,
        policy: PolicySpec,
        objective: Objective,
        optimizer: Optimizer = Optimizer(),  # noqa: B008  (frozen)
        temperature: float = 1.0,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.spec = policy
        self.objective = objective
        self.optimizer = optimizer
        self.temperature = temperature
        self.seed = seed
        self.strict_loading = False  # a checkpoint holds the trained weights, without the base model's
        self._policy: Policy | None = None
        self._weights: Weights | None = None
        self._tokenizer: PreTrainedTokenizerFast | None = None
        self._stats: dict[str, Tensor] = {}  # of the micro-batches of an optimizer step: sums
        self._maxima: dict[str, Tensor] = {}
        self._target_kl: float | None = None
        self._has_moved_past = False  # the policy of the rollout, by more than the target
        self._update_memory: PeakMemory | None = None  # while updates run
        self._heap = HeapTrimmer()
        self._epoch = 0  # of the updates
        self._updates_began = 0.0
        self._saved_optimizer: Optimizer | None = None  # settings of the run that is resumed, until it goes on

    # -- model ------------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        if self._policy is None:
            check_strategy(self.trainer, self.spec)
            check_precision(self.trainer)
            data = compat.datamodule(self.trainer)
            self._tokenizer = load_tokenizer(self.spec, data.texts() if isinstance(data, HasVocabularyText) else ())
            self._policy = Policy(
                self.spec,
                self._tokenizer,
                critic=self.objective.needs.values,
                keep_reference=self.objective.needs.reference,
                seed=self.seed,
                device=self.trainer.strategy.root_device,
            )
            check_packing(self._policy, self.trainer.strategy.root_device)
            self._policy.train()  # a loaded model is in evaluation mode, which Lightning does not change
            check_repeats(self._policy, self.trainer.strategy.root_device)
            self._weights = weights_of(self._policy, compat.sharding_mesh(self))
            compat.leave_buffers_alone(self)

    @property
    def policy(self) -> Policy:
        """With whole weights on every rank, except while updates run and shard them."""
        if self._policy is None:
            raise RuntimeError("the model is not built yet: Lightning's configure_model does it")
        return self._policy

    @property
    def weights(self) -> Weights:
        """The policy's, as they are trained."""
        if self._weights is None:
            raise RuntimeError("the model is not built yet: Lightning's configure_model does it")
        return self._weights

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        if self._tokenizer is None:
            raise RuntimeError("the tokenizer is not loaded yet: Lightning's configure_model does it")
        return self._tokenizer

    def teardown(self, stage: str) -> None:
        self._update_memory = None

    # -- before the updates -----------------------------------------------------------------------------------------

    def estimates(self, asked: Sequence[ToEstimate], micro_batch_tokens: int) -> list[Estimates]:
        """Old log-probabilities, values and the reference's log-probabilities of trajectories, in the precision of the
        updates (`training.estimates`)."""
        precision = partial(compat.training_precision, self.trainer)
        return estimates(
            self.policy, asked, self.objective.needs, self.temperature, micro_batch_tokens, precision=precision
        )

    # -- updates ----------------------------------------------------------------------------------------------------

    def begin_updates(self, epoch: int, target_kl: float | None = None) -> None:
        """Gives memory back between the rollout of an epoch and its updates, and resets the figures.

        Args:
            epoch: of the rollout.
            target_kl: no optimizer step is taken at a KL to the rollout's policy above it; None for any KL.
        """
        self._heap.trim()
        self._epoch = epoch
        self._update_memory = PeakMemory(self.device)
        self._updates_began = time.perf_counter()
        self._target_kl, self._has_moved_past = target_kl, False
        self._stats, self._maxima = {}, {}

    @property
    def has_moved_past(self) -> bool:
        """Whether an optimizer step of this epoch was left out, because the policy has moved past the target KL."""
        return self._has_moved_past

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.weights.release()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        outputs = self.weights.trained.outputs(batch.packed, self.temperature, entropies=True)
        loss = self.objective.at(self._epoch).loss(batch.targets, outputs)
        for name, value in {"loss": loss.total.detach(), "policy_weight": loss.policy_weight, **loss.stats}.items():
            self._stats[name] = self._stats.get(name, torch.zeros_like(value)) + value
        for name, value in loss.maxima.items():
            self._maxima[name] = torch.maximum(self._maxima.get(name, value), value)
        if batch.is_last_micro_batch:
            self._report()
        return compat.summed_loss(self.trainer, loss.total)  # the weights sum to 1 over the step and all ranks

    def _report(self) -> None:
        sums, maxima = self._reduced(self._stats, "sum"), self._reduced(self._maxima, "max")
        if self._target_kl is not None and "binary_kl" not in sums:
            raise ConfigError(
                f"data.updates.target_kl is {self._target_kl}: the loss of {type(self.objective).__name__} has no "
                "statistic binary_kl, which it limits; use null"
            )
        kl = sums.get("binary_kl", 0.0) / (sums["policy_weight"] or 1.0)
        if self._target_kl is not None and kl > self._target_kl and not self._has_moved_past:
            self._has_moved_past = True
            rank_zero_info(
                f"epoch {self._epoch}: no further updates, the KL to the rollout's policy, {kl:.3g}, is above "
                f"data.updates.target_kl = {self._target_kl}"
            )
        self._stats, self._maxima = {}, {}
        self._require_finite({**sums, **maxima})
        self.log_dict(step_metrics(sums, maxima), rank_zero_only=True)

    def _reduced(self, figures: Mapping[str, Tensor], operation: str) -> dict[str, float]:
        """Over all ranks, which have the same names."""
        if not figures:
            return {}
        stacked = self.trainer.strategy.reduce(torch.stack(list(figures.values())), reduce_op=operation)
        return dict(zip(figures, stacked.tolist(), strict=True))

    def on_validation_start(self) -> None:
        self._end_updates()

    def on_validation_end(self) -> None:
        self._heap.trim()

    def on_train_epoch_end(self) -> None:
        self._end_updates()

    def _end_updates(self) -> None:
        """Makes the weights whole, and logs the updates' seconds and memory once an epoch: a validation may come before
        the epoch's end or not at all. Called on every rank."""
        if self._update_memory is not None:
            self._update_memory.stop()
            figures = {
                "cost/update_peak_mib": max(ProcessGroup.of(self.trainer).gather([self._update_memory.highest_mib])),
                "cost/seconds_updates": time.perf_counter() - self._updates_began,
            }
            compat.log_figures(self.trainer, figures, self._epoch)
            self._update_memory = None
            self._heap.trim()
        self.weights.gather()

    def _require_finite(self, figures: Mapping[str, float]) -> None:
        """Ends the run before a step that would destroy the weights.

        Raises:
            RunError: a figure of the step is not finite.
        """
        broken = {name: value for name, value in figures.items() if not math.isfinite(value)}
        if broken:
            term = next((name for name in broken if name != "loss"), "loss")  # the total has it from a term
            update = self.trainer.global_step + 1
            raise RunError(
                f"epoch {self._epoch}, update {update}: {term} is {broken[term]}, so no step is taken and the "
                "last checkpoint stays as it is; lower model.optimizer.learning_rate, or set trainer.gradient_clip_val"
            )

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self._has_moved_past:
            compat.uncount_step(self.trainer)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._has_moved_past:  # without gradients AdamW leaves weights, averages and counts as they are
            optimizer.zero_grad(set_to_none=True)
            return
        norms = {
            f"train/grad_norm_{group['name']}": _grad_norm(group["params"])
            for group in optimizer.param_groups
            if any(parameter.grad is not None for parameter in group["params"])
        }
        if not compat.skips_overflows(self.trainer):
            self._require_finite({name.removeprefix("train/"): float(norm) for name, norm in norms.items()})
        self.log_dict(norms, rank_zero_only=True)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if gradient_clip_val and gradient_clip_algorithm != "value":
            clip_by_group(optimizer, gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        adamw = self.optimizer.adamw(self.weights.trained)
        schedule = LRSchedulerConfigType(scheduler=self.optimizer.schedule(adamw), interval="step")
        return OptimizerLRSchedulerConfig(optimizer=adamw, lr_scheduler=schedule)

    def on_train_start(self) -> None:
        """Lightning has restored the settings of a resumed run's optimizer with its state."""
        saved, self._saved_optimizer = self._saved_optimizer, None
        if saved is None or saved == self.optimizer:
            return
        [adamw], [schedule] = self.trainer.optimizers, self.trainer.lr_scheduler_configs
        self.optimizer.take_over(saved, adamw, schedule.scheduler)
        changes = (
            f"{key} {value} (was {before})"
            for key, before, value in zip(asdict(saved), astuple(saved), astuple(self.optimizer), strict=True)
            if value != before
        )
        rank_zero_info(f"the optimizer goes on with model.optimizer.{', '.join(changes)}")

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Counts optimizer steps; Lightning would count an epoch without a step as one."""
        if scheduler.last_epoch < self.trainer.global_step:
            scheduler.step()

    # -- evaluation -------------------------------------------------------------------------------------------------

    def validation_step(  # type: ignore[override]  # Lightning passes any output on to the callbacks
        self, batch: ValidationBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> EvalResult:
        return batch.run(self.trainer)

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """The trained weights: adapter and value head, or all weights where there is no adapter."""
        self.weights.gather()
        return self.policy.trainable_state()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        self.weights.gather()
        self.policy.load_trainable_state(state_dict)
        self.weights.take_over()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        weights = checkpoint["state_dict"]
        broken = next((name for name, weight in weights.items() if not weight.isfinite().all()), None)
        if broken is not None:
            raise RunError(
                f"epoch {self._epoch}: {broken} is not finite, so no checkpoint is written and the last one stays as "
                "it is; lower model.optimizer.learning_rate, or set trainer.gradient_clip_val"
            )
        checkpoint.update(identity_entries(self.spec, self.tokenizer))
        checkpoint["optimizer_settings"] = asdict(self.optimizer)
        own = RandomState.now(self.trainer.strategy.root_device)
        checkpoint["rng_states"] = [asdict(each) for each in ProcessGroup.of(self.trainer).gather([own])]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if compat.is_fitting(self.trainer):
            compat.begin_epoch_anew(checkpoint)
        check_identity(checkpoint, self.spec)
        check_vocabulary(checkpoint, self.spec, self.tokenizer)
        if "optimizer_settings" in checkpoint:  # which earlier versions did not keep
            self._saved_optimizer = Optimizer(**checkpoint["optimizer_settings"])
        device = self.trainer.strategy.root_device  # the module may still be on the CPU
        RandomState.of_rank(checkpoint, self.trainer.global_rank).restore(device)


def _grad_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    return torch.linalg.vector_norm(
        torch.stack([whole(torch.linalg.vector_norm(p.grad.float())) for p in parameters if p.grad is not None])
    )
