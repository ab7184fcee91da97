"""A Hugging Face causal language model over packed sequences. Knows token ids, and no adapter, critic or text."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from tsr_lightning.batching.packing import Packed
from tsr_lightning.modeling import packed_forward, recurrence
from tsr_lightning.modeling.attention import OutputPositions
from tsr_lightning.modeling.training_attention import TrainingAttention

CHUNK_LOGITS = 2**25  # 128 MiB in float32; a larger batch is scored in chunks, which the backward pass recomputes


class TokenScores(NamedTuple):
    """Scores of the M distinct sampled tokens of a packed batch."""

    hidden: Tensor  # [M, H] last hidden state at the position before each token
    logprobs: Tensor  # [M] float32
    entropies: Tensor  # [M] float32, zeros unless asked for


class PackedCausalLM:
    """Scores the sampled tokens of packed batches.

    Args:
        model: the causal language model, which is not copied.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.has_linear_head = _has_linear_head(model)

    def score(self, packed: Packed, temperature: float, *, entropies: bool = False) -> TokenScores:
        """Log-probabilities of the sampled tokens, each computed at the position before it, and entropies if asked."""
        attention = TrainingAttention(packed.segments, packed.ids.device, packed_forward.kernels_of(self.model))
        positions, places = np.unique(packed.output_positions.cpu().numpy(), return_inverse=True)
        positions = positions if len(positions) else np.zeros(1, dtype=np.int64)  # a batch without sampled tokens
        outputs = OutputPositions(positions, attention.select_queries(positions))
        states = recurrence.for_training(self.model, packed.segments, packed.ids.device)
        hidden, _ = packed_forward.run(self.model.base_model, packed.ids, packed.positions, attention, outputs, states)
        hidden = hidden.index_select(0, torch.from_numpy(places).to(hidden.device))  # [M, H]
        return TokenScores(hidden, *self._score(hidden, packed.target_ids, temperature, entropies))

    def logits(self, hidden: Tensor) -> Tensor:
        """Last hidden states [M, H] -> logits [M, V], scaled or capped as the model does it."""
        if self.has_linear_head:
            return packed_forward.project(self.model, self.model.get_output_embeddings(), hidden)
        return _logits_by_model(self.model, hidden)

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [M] from hidden states [M, H], without holding all logits at once."""

        def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _logprobs_and_entropies(self.logits(hidden), targets, temperature, entropies)

        size = max(1, CHUNK_LOGITS // self.model.config.get_text_config().vocab_size)
        if len(hidden) <= size:
            return score(hidden, targets)
        chunks = [
            checkpoint(score, *chunk, use_reentrant=False) if torch.is_grad_enabled() else score(*chunk)
            for chunk in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        logprobs, spread = zip(*chunks, strict=True)
        return torch.cat(logprobs), torch.cat(spread)


def _logprobs_and_entropies(
    logits: Tensor, targets: Tensor, temperature: float, entropies: bool
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets, and entropies or zeros: logits [N, V], targets [N] -> [N], [N]."""
    logits = logits.float() / temperature
    if not entropies:
        return -functional.cross_entropy(logits, targets, reduction="none"), logits.new_zeros(len(logits))
    logprobs = logits.log_softmax(dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(dim=-1)


class _FixedBackbone(nn.Module):
    """Returns given hidden states in place of a model's backbone."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *_: object, **__: object) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.hidden[None])


def _logits_by_model(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits [M, V] of hidden states [M, H] by the model's own forward pass, with the backbone's left out."""
    name, backbone = model.base_model_prefix, model.base_model
    placeholder = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
    setattr(model, name, _FixedBackbone(hidden))
    try:
        return model(input_ids=placeholder, use_cache=False).logits[0]
    finally:
        setattr(model, name, backbone)


@torch.no_grad()
def _has_linear_head(model: PreTrainedModel) -> bool:
    """True if the logits are the output embedding of the last hidden state and nothing else.

    Some architectures scale or cap them. The logits of a fresh model are too small to show a cap, so the output
    embedding is made to return a ramp from -100 to 100. The head is linear if the ramp arrives unchanged and the
    embedding's input is the last hidden state.
    """
    head = model.get_output_embeddings()
    ids = torch.arange(4, device=model.device)[None]
    calls: list[tuple[Tensor, Tensor]] = []  # input of the output embedding, and the ramp it returned

    def return_ramp(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        ramp = torch.linspace(-100, 100, out.shape[-1], device=out.device, dtype=out.dtype).expand_as(out)
        calls.append((args[0], ramp))
        return ramp

    was_training = model.training
    model.eval()
    with head.register_forward_hook(return_ramp):
        logits = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    model.train(was_training)
    return len(calls) == 1 and torch.allclose(calls[0][0], hidden) and torch.equal(calls[0][1], logits)
