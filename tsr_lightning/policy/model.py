"""The policy: one base model and three views of it. Knows token ids, and no text, objective or trainer.

Policy = base with its adapter (or all its weights). Reference = the same weights with the adapter off, or a frozen copy
of the starting weights. Critic = a float32 value head on the policy's last hidden state.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.base import Outputs
from tsr_lightning.policy.loading import load_model
from tsr_lightning.policy.spec import PolicySpec, context_length

_ADAPTER = "lora_"  # peft's parameters carry it in their names
_HEAD = "value_head."
_MODEL = "model."
_CHUNK = 2**25  # logits computed at once where activations are recomputed: 128 MiB in float32


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
        self._is_reference = False
        self._head_is_plain = _head_is_plain(self._base)

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The Hugging Face model to generate with: adapter on, or off within `as_reference`."""
        if self._is_reference and self._reference is not None:
            return self._reference
        return self._base

    def outputs(
        self,
        ids: Tensor,  # [R, L]
        attention: Tensor,  # [R, L] 1 where there is a token, padding on either side
        mask: Tensor,  # [R, L] bool, True on the sampled tokens; never on a row's first
        temperature: float,
        *,
        entropies: bool = False,
        detach_value: bool = True,
    ) -> Outputs:
        """Log-probabilities, entropies and values of the sampled tokens, row by row: all [N], float32.

        The token at position p, and the value of the context it was sampled in, are read at position p - 1. Entropies
        are zeros unless asked for, values are zeros without a critic and as the reference. `detach_value` keeps the
        critic's gradient out of the model.
        """
        at = mask[:, 1:]
        targets = ids[:, 1:][at]
        if self._head_is_plain:
            hidden = self._last_hidden(ids, attention)[:, :-1][at]
            logprobs, spread = self._score(hidden, targets, temperature, entropies)
        else:
            out = self.causal_lm(**_inputs(ids, attention), output_hidden_states=True)
            hidden = out.hidden_states[-1][:, :-1][at]
            logprobs, spread = _statistics(out.logits[:, :-1][at], targets, temperature, entropies)
        values = self._values(hidden.detach() if detach_value else hidden)
        return Outputs(logprobs=logprobs, entropies=spread, values=values)

    @torch.no_grad()
    def values_at_end(self, ids: Tensor, attention: Tensor) -> Tensor:
        """The critic's value after the last token of each row: [R, L] twice -> [R] float32."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        last = (attention.long() * positions).argmax(dim=1)  # [R]
        hidden = self._last_hidden(ids, attention)
        return self._values(hidden[torch.arange(len(ids), device=ids.device), last])

    @contextmanager
    def as_reference(self) -> Iterator["Policy"]:
        """Within, this policy speaks as its reference, without gradients."""
        if self.spec.adapter is None and self._reference is None:
            raise RuntimeError("A policy without an adapter has a reference only if built with keep_reference=True")
        self._is_reference = True
        try:
            with torch.no_grad():
                if isinstance(self.model, PeftModel):
                    with self.model.disable_adapter():
                        yield self
                else:
                    yield self
        finally:
            self._is_reference = False

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

    def _last_hidden(self, ids: Tensor, attention: Tensor) -> Tensor:
        if self._head_is_plain:
            out = self.causal_lm.base_model(**_inputs(ids, attention))
            return out.last_hidden_state  # [R, L, H]
        return self.causal_lm(**_inputs(ids, attention), output_hidden_states=True).hidden_states[-1]

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor]:
        head = self.causal_lm.get_output_embeddings()

        def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _statistics(head(hidden), targets, temperature, entropies)

        if not (self.spec.gradient_checkpointing and torch.is_grad_enabled()):
            return score(hidden, targets)
        size = max(1, _CHUNK // self.causal_lm.config.get_text_config().vocab_size)
        parts = [
            checkpoint(score, *part, use_reentrant=False)
            for part in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        logprobs, spread = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(spread)

    def _values(self, hidden: Tensor) -> Tensor:
        if self.value_head is None or self._is_reference:
            return hidden.new_zeros(len(hidden), dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.value_head(hidden.to(self.value_head.weight.dtype)).squeeze(-1).float()


def _inputs(ids: Tensor, attention: Tensor) -> dict[str, Tensor | bool]:
    """Positions are counted over real tokens, so that padding on either side changes nothing."""
    attention = attention.long()
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": attention, "position_ids": positions, "use_cache": False}


def _statistics(logits: Tensor, targets: Tensor, temperature: float, entropies: bool) -> tuple[Tensor, Tensor]:
    """Log-probability of the targets, and entropy if asked for: logits [N, V], targets [N] -> [N], [N]."""
    logits = logits.float() / temperature
    if not entropies:
        return -functional.cross_entropy(logits, targets, reduction="none"), logits.new_zeros(len(logits))
    logprobs = logits.log_softmax(dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(dim=-1)


@torch.no_grad()
def _head_is_plain(model: PreTrainedModel) -> bool:
    """Whether the logits are the output embedding of the backbone's last hidden state and nothing else.

    Some architectures scale or cap them. Rather than comparing logits, which are too small in a fresh model for a cap
    to show, the output embedding is made to say a ramp: it must arrive as it is, and what went in must be the hidden
    state.
    """
    head = model.get_output_embeddings()
    ids = torch.arange(4, device=model.device)[None]
    inputs = _inputs(ids, torch.ones_like(ids))
    seen: list[tuple[Tensor, Tensor]] = []  # what went in, what was made to come out

    def speak_a_ramp(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        ramp = torch.linspace(-100, 100, out.shape[-1], device=out.device, dtype=out.dtype).expand_as(out)
        seen.append((args[0], ramp))
        return ramp

    was_training = model.training
    model.eval()
    with head.register_forward_hook(speak_a_ramp):
        logits = model(**inputs).logits
    hidden = model.base_model(**inputs).last_hidden_state
    model.train(was_training)
    return len(seen) == 1 and torch.allclose(seen[0][0], hidden) and torch.equal(seen[0][1], logits)
