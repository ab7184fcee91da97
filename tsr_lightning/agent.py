"""Agent: policy, reference and critic as three views of one model, and the updates by an objective."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfigType, OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerFast

from tsr_lightning.envs.branchable import fingerprint
from tsr_lightning.errors import ConfigError
from tsr_lightning.evaluation import Exam, Played
from tsr_lightning.generation.transformers import TransformersEngine
from tsr_lightning.objectives.base import Estimates, Objective, Outputs
from tsr_lightning.policy.chat import Chat, Context
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, model_identity
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rows import Batch, Row, batched
from tsr_lightning.trajectory import Trajectory


@dataclass(frozen=True)
class Optimizer:
    """AdamW, one group for the policy and one for the critic.

    Args:
        learning_rate: of the policy.
        critic_learning_rate: of the value head.
        weight_decay: of both.
        betas: AdamW's averages.
        warmup_updates: optimizer steps over which both rates rise linearly from zero.
    """

    learning_rate: float = 1e-5
    critic_learning_rate: float = 1e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_updates: int = 0


@runtime_checkable
class Talks(Protocol):
    """A data module that can show the text of its task."""

    def texts(self) -> Iterable[str]: ...


class Agent(LightningModule):
    """Holds the model and trains it on what was rolled out.

    Args:
        policy: which model, with which adapter.
        objective: credit and loss.
        optimizer: step sizes.
        temperature: of the log-probabilities; set by `data.sampling.temperature`.
        seed: of new weights; set by `seed_everything`.
    """

    def __init__(
        self,
        policy: PolicySpec,
        objective: Objective,
        optimizer: Optimizer = Optimizer(),
        temperature: float = 1.0,
        seed: int = 1,
    ) -> None:
        super().__init__()
        self.spec = policy
        self.objective = objective
        self.optimizer = optimizer
        self.temperature = temperature
        self.seed = seed
        self.strict_loading = False  # a checkpoint holds what is trained, not the base
        self._policy: Policy | None = None
        self._tokenizer: PreTrainedTokenizerFast | None = None
        self._chats: dict[Context, Chat] = {}
        self._stats: dict[str, Tensor] = {}
        self._kl = 0.0

    # -- model ------------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        if self._policy is None:
            self._tokenizer = load_tokenizer(self.spec, self._texts())
            self._policy = Policy(
                self.spec,
                self._tokenizer,
                critic=self.objective.needs.values,
                keep_reference=self.objective.needs.reference,
                seed=self.seed,
                device=self.trainer.strategy.root_device,
            )
            self._policy.train()  # a loaded model comes in evaluation mode, and Lightning leaves that as it is

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            raise RuntimeError("the model is not built yet: Lightning's configure_model does it")
        return self._policy

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        if self._tokenizer is None:
            raise RuntimeError("the tokenizer is not loaded yet: Lightning's configure_model does it")
        return self._tokenizer

    def _texts(self) -> Iterable[str]:
        """What a new model's vocabulary is made from."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        return data.texts() if isinstance(data, Talks) else ()

    def chat(self, context: Context) -> Chat:
        if context not in self._chats:  # reading a template and a large vocabulary takes a second
            self._chats[context] = Chat(self.tokenizer, context)
        return self._chats[context]

    def engine(self, context: Context, max_rows: int) -> TransformersEngine:
        return TransformersEngine(
            model=self.policy.causal_lm,
            pad_id=self.policy.pad_id,
            end_ids=self.chat(context).end_ids,
            values_at_end=self.policy.values_at_end,
            max_rows=max_rows,
        )

    # -- before the updates -----------------------------------------------------------------------------------------

    def estimates(self, played: Sequence[tuple[Trajectory, Sequence[Row]]], micro_tokens: int) -> list[Estimates]:
        """Old log-probabilities, values and the reference's log-probabilities of trajectories, in training mode and
        before any update, so that the first update's ratio is 1."""
        rows = [row for _, own in played for row in own]
        needs = self.objective.needs
        if not (needs.logprobs or needs.values or needs.reference):
            return [_unknown(trajectory.trained_tokens) for trajectory, _ in played]
        logprobs: list[Tensor] = [torch.empty(0)] * len(rows)
        values = list(logprobs)
        reference = list(logprobs)
        for indices, batch in batched(rows, micro_tokens):
            batch = batch.to(self.device)
            sizes = [rows[i].trained for i in indices]
            with torch.no_grad():
                now = self._outputs(batch, entropies=False)
            for i, part, value in zip(
                indices, now.logprobs.cpu().split(sizes), now.values.cpu().split(sizes), strict=True
            ):
                logprobs[i], values[i] = part, value
                reference[i] = torch.zeros_like(part)
            if needs.reference:
                with self.policy.as_reference():
                    theirs = self._outputs(batch, entropies=False).logprobs.cpu().split(sizes)
                for i, part in zip(indices, theirs, strict=True):
                    reference[i] = part
        finals = self._final_values([trajectory for trajectory, _ in played])
        spans = _spans([len(own) for _, own in played])
        return [
            Estimates(torch.cat(logprobs[span]), torch.cat(values[span]), torch.cat(reference[span]), final)
            for span, final in zip(spans, finals, strict=True)
        ]

    def _final_values(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """The critic after the last turn, where an episode was cut and its context is known."""
        values = [0.0] * len(trajectories)
        if self.objective.needs.values:
            for i, trajectory in enumerate(trajectories):
                if trajectory.final_prompt:
                    ids = torch.tensor([trajectory.final_prompt], device=self.device)
                    with torch.no_grad():
                        values[i] = float(self.policy.values_at_end(ids, torch.ones_like(ids)))
        return values

    def _outputs(self, batch: Batch, *, entropies: bool) -> Outputs:
        return self.policy.outputs(batch.ids, batch.attention, batch.mask, self.temperature, entropies=entropies)

    # -- updates ----------------------------------------------------------------------------------------------------

    def begin_updates(self) -> None:
        """A new rollout: the policy has not moved from it yet."""
        self._kl = 0.0
        self._stats = {}

    def has_moved_past(self, stop_kl: float | None) -> bool:
        """Whether the last optimizer step found the policy further from the rollout's than this."""
        return stop_kl is not None and self._kl > stop_kl

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.objective.loss(batch.targets, self._outputs(batch, entropies=True))
        for name, value in {"loss": loss.total.detach(), **loss.stats}.items():
            self._stats[name] = self._stats.get(name, torch.zeros_like(value)) + value
        if batch.closes_step:
            self._report()
        # Lightning divides by the micro-batches of a step and DDP by the ranks; the weights already sum to 1 over both
        return loss.total * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def _report(self) -> None:
        names = list(self._stats)
        stacked = self.trainer.strategy.reduce(torch.stack([self._stats[name] for name in names]), reduce_op="sum")
        figures = dict(zip(names, stacked.tolist(), strict=True))
        self._kl = figures.get("approx_kl", 0.0) / (figures["policy_weight"] or 1.0)
        self._stats = {}
        self.log_dict({f"train/{name}": value for name, value in figures.items()}, rank_zero_only=True)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        norms = {
            f"train/grad_norm_{group['name']}": _grad_norm(group["params"])
            for group in optimizer.param_groups
            if any(parameter.grad is not None for parameter in group["params"])
        }
        self.log_dict(norms, rank_zero_only=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        settings = self.optimizer
        head = list(self.policy.value_head.parameters()) if self.policy.value_head is not None else []
        body = [p for p in self.policy.model.parameters() if p.requires_grad]
        groups = [
            {"params": body, "lr": settings.learning_rate, "name": "policy"},
            {"params": head, "lr": settings.critic_learning_rate, "name": "critic"},
        ]
        optimizer = AdamW(
            [group for group in groups if group["params"]], betas=settings.betas, weight_decay=settings.weight_decay
        )
        warmup = settings.warmup_updates
        schedule = LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / (warmup + 1)))
        return OptimizerLRSchedulerConfig(
            optimizer=optimizer, lr_scheduler=LRSchedulerConfigType(scheduler=schedule, interval="step")
        )

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """The warm-up counts optimizer steps; Lightning would count an epoch without any as one."""
        if scheduler.last_epoch < self.trainer.global_step:
            scheduler.step()

    # -- evaluation -------------------------------------------------------------------------------------------------

    def validation_step(  # type: ignore[override]  # Lightning hands on whatever it is
        self, batch: Exam, batch_idx: int, dataloader_idx: int = 0
    ) -> Played:
        return batch.played()

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """What is trained: adapter and value head, or all weights where there is no adapter."""
        return self.policy.trainable_state()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        self.policy.load_trainable_state(state_dict)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["model_identity"] = model_identity(self.spec)
        checkpoint["vocabulary"] = _digest(self.tokenizer)
        checkpoint["rng_state"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_identity(checkpoint, self.spec)
        if checkpoint["vocabulary"] != _digest(self.tokenizer):
            raise ConfigError(
                f"model.policy.model = {self.spec.model} has another vocabulary than the one that ckpt_path was "
                "trained with: give the tokenizer, or for a new model the environment's arguments, of that run"
            )
        torch.set_rng_state(checkpoint["rng_state"])


def check_identity(checkpoint: dict[str, Any], spec: PolicySpec) -> None:
    """Refuses a checkpoint that was written of another model."""
    theirs, ours = checkpoint.get("model_identity"), model_identity(spec)
    if theirs != ours:
        differing = sorted(key for key in ours if not theirs or theirs.get(key) != ours[key])
        raise ConfigError(
            f"ckpt_path holds another model than model.policy.model = {spec.model} (different: "
            f"{', '.join(differing)}): give the model and adapter that the checkpoint was trained with"
        )


def _unknown(tokens: int) -> Estimates:
    return Estimates(torch.zeros(tokens), torch.zeros(tokens), torch.zeros(tokens), 0.0)


def _digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """What tokens mean: a checkpoint's embeddings are worth nothing under other ids."""
    return fingerprint(tuple(sorted(tokenizer.get_vocab().items())))


def _grad_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(p.grad.float()) for p in parameters if p.grad is not None])
    )


def _spans(lengths: Sequence[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length
