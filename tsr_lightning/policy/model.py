"""The policy: one base model and three views of it. Knows token ids, and no text, objective or trainer.

Policy = base with its adapter (or all its weights). Reference = the same weights with the adapter off, or a frozen copy
of the starting weights. Critic = a float32 value head on the policy's last hidden state.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutputWithPast

from tsr_lightning.batching.packing import Packed
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import OutputPositions
from tsr_lightning.modeling.training_attention import TrainingAttention
from tsr_lightning.objectives.base import Outputs
from tsr_lightning.policy.loading import load_model
from tsr_lightning.policy.spec import PolicySpec, context_length

_ADAPTER = "lora_"  # peft's parameters carry it in their names
_HEAD = "value_head."
_MODEL = "model."
_CHUNK = 2**25  # logits that are there at once, 128 MiB in float32; where there are more, they are computed twice


class Policy(nn.Module):
    """A causal language model that acts, with the reference and the critic that training it may need.

    Args:
        spec: the model and how it is trained.
        tokenizer: its tokenizer, for the size of a new model's vocabulary and the ids of padding and end.
        critic: whether there is a value head.
        keep_reference: whether `as_reference` will be asked for; without an adapter this costs a copy of the weights.
        seed: all that fresh weights depend on.
        device: where the weights are loaded.
    """

    def __init__(
        self,
        spec: PolicySpec,
        tokenizer: PreTrainedTokenizerFast,
        *,
        critic: bool,
        keep_reference: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.spec = spec
        self.model = load_model(spec, tokenizer, seed=seed, device=device)
        self.eos_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.context_length = context_length(spec)
        # Zero at first: the critic then says nothing, and the first advantages are the returns themselves.
        self.value_head: nn.Linear | None = None
        if critic:
            width = self._base.get_output_embeddings().weight.shape[-1]
            self.value_head = nn.utils.skip_init(nn.Linear, width, 1, device=device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self._reference: PreTrainedModel | None = None
        if keep_reference and spec.adapter is None:
            self._reference = copy.deepcopy(self._base).requires_grad_(False)
        self.is_reference = False
        self.head_is_plain = _head_is_plain(self._base)

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The Hugging Face model to generate with: adapter on, or off within `as_reference`."""
        if self.is_reference and self._reference is not None:
            return self._reference
        return self._base

    def outputs(
        self, packed: Packed, temperature: float, *, entropies: bool = False, detach_value: bool = True
    ) -> Outputs:
        """Log-probabilities, entropies and values of the sampled tokens, row by row: all [N], float32.

        A token, and the value of the context it was sampled in, are read at the position before it. Entropies are
        zeros unless asked for, values are zeros without a critic and as the reference. `detach_value` keeps the
        critic's gradient out of the model.
        """
        kernels = packed_forward.kernels_of(self.causal_lm)
        attention = TrainingAttention(packed.segments, packed.ids.device, kernels)
        read, places = np.unique(packed.reads.cpu().numpy(), return_inverse=True)
        read = read if len(read) else np.zeros(1, dtype=np.int64)  # of rows without a sampled token
        reads = OutputPositions(read, attention.select_queries(read))
        hidden, _ = packed_forward.run(self.causal_lm.base_model, packed.ids, packed.positions, attention, reads)
        hidden = hidden.index_select(0, torch.from_numpy(places).to(hidden.device))  # [M, H]
        logprobs, spread = self._score(hidden, packed.sampled, temperature, entropies)
        values = self.value_of(hidden.detach() if detach_value else hidden)
        return Outputs(*(figure.index_select(0, packed.places) for figure in (logprobs, spread, values)))

    def logits(self, hidden: Tensor) -> Tensor:
        """Last hidden states [M, H] -> [M, V]: the output embedding, and whatever else the model does to them."""
        model = self.causal_lm
        if self.head_is_plain:
            return model.get_output_embeddings()(hidden)
        return _logits_by_the_model(model, hidden)

    def value_of(self, hidden: Tensor) -> Tensor:
        """The critic's value after last hidden states: [M, H] -> [M] float32."""
        if self.value_head is None or self.is_reference:
            return hidden.new_zeros(len(hidden), dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.value_head(hidden.to(self.value_head.weight.dtype)).squeeze(-1).float()

    @contextmanager
    def as_reference(self) -> Iterator["Policy"]:
        """Within, this policy speaks as its reference, without gradients."""
        if self.spec.adapter is None and self._reference is None:
            raise RuntimeError("A policy without an adapter has a reference only if built with keep_reference=True")
        self.is_reference = True
        try:
            with torch.no_grad():
                if isinstance(self.model, PeftModel):
                    with self.model.disable_adapter():
                        yield self
                else:
                    yield self
        finally:
            self.is_reference = False

    def trainable_state(self) -> dict[str, Tensor]:
        """What training changes, by name: peft turns `requires_grad` off and on, so that would not tell."""
        return {name: tensor for name, tensor in self.state_dict().items() if self._is_trained(name)}

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """What `trainable_state` returned, in a policy of the same spec."""
        own = self.trainable_state()
        wrong = sorted(own.keys() ^ state.keys()) or sorted(n for n in own if own[n].shape != state[n].shape)
        if wrong:
            raise ConfigError(
                f"ckpt_path is a checkpoint of another model: it disagrees on {wrong[0]} and {len(wrong) - 1} more, so "
                "set model.policy.model, model.policy.adapter and the objective to what it was written with"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    @property
    def _base(self) -> PreTrainedModel:
        base = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        assert isinstance(base, PreTrainedModel)
        return base

    def _is_trained(self, name: str) -> bool:
        if name.startswith(_HEAD):
            return True
        return name.startswith(_MODEL) and (self.spec.adapter is None or _ADAPTER in name)

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [M] after hidden states [M, H]; the logits of all are never there at once."""

        def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _statistics(self.logits(hidden), targets, temperature, entropies)

        size = max(1, _CHUNK // self.causal_lm.config.get_text_config().vocab_size)
        if len(hidden) <= size:
            return score(hidden, targets)
        parts = [
            checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else score(*part)
            for part in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        logprobs, spread = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(spread)


def _statistics(logits: Tensor, targets: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor]:
    """Log-probability of the targets, and entropy if asked for: logits [N, V], targets [N] -> [N], [N]."""
    logits = logits.float() / temperature
    if not entropies:
        return -functional.cross_entropy(logits, targets, reduction="none"), logits.new_zeros(len(logits))
    logprobs = logits.log_softmax(dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(dim=-1)


class _Said(nn.Module):
    """Stands where a model's body stood, and says what it said."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *_: object, **__: object) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.hidden[None])


def _logits_by_the_model(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits [M, V] of hidden states [M, H] by the model's own forward pass, without its body's."""
    name, body = model.base_model_prefix, model.base_model
    nothing = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
    setattr(model, name, _Said(hidden))
    try:
        return model(input_ids=nothing, use_cache=False).logits[0]
    finally:
        setattr(model, name, body)


@torch.no_grad()
def _head_is_plain(model: PreTrainedModel) -> bool:
    """Whether the logits are the output embedding of the backbone's last hidden state and nothing else.

    Some architectures scale or cap them. Rather than comparing logits, which are too small in a fresh model for a cap
    to show, the output embedding is made to say a ramp: it must arrive as it is, and what went in must be the hidden
    state.
    """
    head = model.get_output_embeddings()
    ids = torch.arange(4, device=model.device)[None]
    seen: list[tuple[Tensor, Tensor]] = []  # what went in, what was made to come out

    def speak_a_ramp(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        ramp = torch.linspace(-100, 100, out.shape[-1], device=out.device, dtype=out.dtype).expand_as(out)
        seen.append((args[0], ramp))
        return ramp

    was_training = model.training
    model.eval()
    with head.register_forward_hook(speak_a_ramp):
        logits = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    model.train(was_training)
    return len(seen) == 1 and torch.allclose(seen[0][0], hidden) and torch.equal(seen[0][1], logits)
