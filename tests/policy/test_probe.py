"""A model whose sequences leak into one another when they are packed is refused before it is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    PretrainedConfig,
    Qwen3_5TextConfig,
)

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.probe import check_packing
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
HYBRIDS: dict[str, Callable[[int], PretrainedConfig]] = {
    "qwen3_5_text": lambda size: Qwen3_5TextConfig(
        vocab_size=size,
        **SIZES,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    ),
    "lfm2": lambda size: Lfm2Config(
        vocab_size=size,
        **{key: value for key, value in SIZES.items() if key != "head_dim"},
        layer_types=["conv", "full_attention"],
    ),
    "mamba2": lambda size: Mamba2Config(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        eos_token_id=0,
    ),
}
ATTENTION: dict[str, Callable[[int], PretrainedConfig]] = {
    "llama": lambda size: LlamaConfig(vocab_size=size, **SIZES),
    "gemma3_text": lambda size: Gemma3TextConfig(
        vocab_size=size, **SIZES, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


def policy_of(make: Callable[[int], PretrainedConfig], folder: Path) -> Policy:
    tokenizer = make_tokenizer(["Up Down Left Right"])
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(make(len(tokenizer)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Policy(PolicySpec(str(folder)), tokenizer, critic=False, device=CPU)


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_that_carry_a_state_are_refused_by_cause(name: str, tmp_path: Path):
    policy = policy_of(HYBRIDS[name], tmp_path)
    with pytest.raises(ConfigError, match=f"a model of type {name} computes other log-probabilities .* carry a state"):
        check_packing(policy, CPU)


@pytest.mark.parametrize("name", ATTENTION)
def test_layers_of_attention_pass(name: str, tmp_path: Path):
    check_packing(policy_of(ATTENTION[name], tmp_path), CPU)
