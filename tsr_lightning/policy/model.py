"""The policy, its reference and its critic, all on one base model. Knows token ids, and no text, objective or trainer.

Policy: the base with its adapter, or with all weights trained. Reference: the base without the adapter, or a frozen
copy of the starting weights. Critic: a float32 value head on the policy's last hidden state.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tsr_lightning.batching.packing import Packed
from tsr_lightning.batching.tensors import Outputs
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.policy.causal_lm import PackedCausalLM, TokenScores
from tsr_lightning.policy.loading import load_model
from tsr_lightning.policy.spec import PolicySpec, context_length
from tsr_lightning.policy.vocabulary import vocabulary_digest

_ADAPTER = "lora_"  # in the names of peft's parameters
_HEAD = "value_head."
_MODEL = "model."


@dataclass(frozen=True)
class Reference:
    """The policy as it was before training, without gradients and without a critic.

    Args:
        lm: the policy's model, or a frozen copy of it.
        adapter_off: the context in which `lm` has no adapter.
    """

    lm: PackedCausalLM
    adapter_off: Callable[[], AbstractContextManager[object]]

    @torch.no_grad()
    def outputs(self, packed: Packed, temperature: float) -> Outputs:
        """Log-probabilities of the N sampled tokens, sequence after sequence; entropies and values are zeros."""
        with self.adapter_off():
            scores = self.lm.score(packed, temperature)
        return _outputs(packed, scores, torch.zeros_like(scores.logprobs))


class Policy(nn.Module):
    """A causal language model, with the reference and the critic that its training may need.

    Args:
        spec: the model and how it is trained.
        tokenizer: gives the vocabulary size and the special tokens of a new model.
        critic: whether to add a value head.
        keep_reference: whether `reference` will be used; without an adapter this costs a copy of the weights.
        seed: of fresh weights.
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
        self.context_length = context_length(spec)
        self.vocabulary = vocabulary_digest(tokenizer)  # in which its token ids mean what they do
        # Zeros: the first values are 0, so the first advantages are the returns themselves.
        self.value_head: nn.Linear | None = None
        if critic:
            width = self.causal_lm.get_output_embeddings().weight.shape[-1]
            self.value_head = nn.utils.skip_init(nn.Linear, width, 1, device=device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.starting_model: PreTrainedModel | None = None
        if keep_reference and spec.adapter is None:
            self.starting_model = copy.deepcopy(self.causal_lm).requires_grad_(False)
        self._lm = PackedCausalLM(self.causal_lm)
        self._starting_lm = PackedCausalLM(self.starting_model) if self.starting_model is not None else None

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The policy's Hugging Face model, with its adapter in place."""
        base = self.model if isinstance(self.model, PreTrainedModel) else self.model.get_base_model()
        assert isinstance(base, PreTrainedModel)
        return base

    @property
    def reference(self) -> Reference:
        """The policy as it was before training."""
        if not isinstance(self.model, PreTrainedModel):  # peft's
            return Reference(self._lm, self.model.disable_adapter)
        if self._starting_lm is None:
            raise RuntimeError("A policy without an adapter has a reference only if built with keep_reference=True")
        return Reference(self._starting_lm, nullcontext)

    def outputs(self, packed: Packed, temperature: float, *, entropies: bool = False) -> Outputs:
        """Log-probabilities, entropies and values of the N sampled tokens, sequence after sequence: [N] float32.

        Each is computed at the position before its token. Entropies are zeros unless asked for, values are zeros
        without a critic. The critic's gradient stays out of the model.
        """
        scores = self._lm.score(packed, temperature, entropies=entropies)
        hidden = scores.hidden.detach()
        values = hidden.new_zeros(len(hidden), dtype=torch.float32) if self.value_head is None else self.values(hidden)
        return _outputs(packed, scores, values)

    def logits(self, hidden: Tensor) -> Tensor:
        """Last hidden states [M, H] -> logits [M, V]."""
        return self._lm.logits(hidden)

    def values(self, hidden: Tensor) -> Tensor:
        """The critic's values of last hidden states: [M, H] -> [M] float32.

        Raises:
            RunError: the policy has no critic.
        """
        if self.value_head is None:
            raise RunError(
                "values were asked of a policy that has no critic: a scorer that asks for them declares needs_critic, "
                "and the objective has to train one, as PPO does"
            )
        with torch.autocast(hidden.device.type, enabled=False):
            return self.value_head(hidden.to(self.value_head.weight.dtype)).squeeze(-1).float()

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the tensors that training changes, by name."""
        return {name: tensor.detach().clone() for name, tensor in self.trainable_state().items()}

    def frozen_copy(self) -> "Policy":
        """A policy with its own copy of what training changes, which `load_trainable_state` replaces. It shares all
        other tensors, and needs no gradients."""
        tensors = self.state_dict(keep_vars=True)
        shared = {id(tensor): tensor for name, tensor in tensors.items() if not self._is_trained(name)}
        return copy.deepcopy(self, shared).requires_grad_(False)

    @property
    def adapter_rank(self) -> int | None:
        """The rank of the adapter; None where all weights are trained."""
        return self.spec.adapter.rank if self.spec.adapter is not None else None

    def save_base(self, folder: Path) -> None:
        """Writes the model without adapter and critic as a folder that transformers loads, tied weights as copies."""
        state = self.causal_lm.state_dict()
        base = {name.replace(".base_layer.", "."): t.clone() for name, t in state.items() if _ADAPTER not in name}
        self.causal_lm.save_pretrained(folder, state_dict=base)
        config = copy.deepcopy(self.causal_lm.config)
        config.update({"tie_word_embeddings": False, "architectures": [type(self.causal_lm).__name__]})
        config.save_pretrained(folder)

    def save_adapter(self, folder: Path) -> None:
        """Writes the adapter as a folder that peft loads, from any folder where its base is one of this machine."""
        base = Path(str(self.spec.model))
        if base.is_dir():
            for config in self.model.peft_config.values():
                config.base_model_name_or_path = str(base.resolve())
        self.model.save_pretrained(str(folder), save_embedding_layers=False)

    def trainable_state(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name. `requires_grad` would not do: peft switches it off and on."""
        return {name: tensor for name, tensor in self.state_dict().items() if self._is_trained(name)}

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `trainable_state` returned for a policy of the same spec."""
        own = self.trainable_state()
        wrong = sorted(own.keys() ^ state.keys()) or sorted(n for n in own if own[n].shape != state[n].shape)
        if wrong:
            raise ConfigError(
                f"ckpt_path is a checkpoint of another model (different: {wrong[0]} and {len(wrong) - 1} more): "
                "set model.policy.model, model.policy.adapter and model.objective as they were when it was written"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def _is_trained(self, name: str) -> bool:
        if name.startswith(_HEAD):
            return True
        return name.startswith(_MODEL) and (self.spec.adapter is None or _ADAPTER in name)


def _outputs(packed: Packed, scores: TokenScores, values: Tensor) -> Outputs:
    """From the M distinct sampled tokens to all N, sequence after sequence."""
    figures = (scores.logprobs, scores.entropies, values)
    return Outputs(*(figure.index_select(0, packed.target_index) for figure in figures))
