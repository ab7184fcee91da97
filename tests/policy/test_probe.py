"""A model whose sequences leak into one another when they are packed is refused before it is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    Gemma3TextConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    PretrainedConfig,
    Qwen3_5TextConfig,
)

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.checks import check
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.probe import check_packing
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.strategies import Sample
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule

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
NAMED: dict[str, Callable[[int], PretrainedConfig]] = {  # refused by their type, and by the probe
    "bamba": lambda size: BambaConfig(
        vocab_size=size,
        **{key: value for key, value in SIZES.items() if key != "head_dim"},
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    "jamba": lambda size: JambaConfig(
        vocab_size=size,
        **{key: value for key, value in SIZES.items() if key != "head_dim"},
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
    ),
}
ATTENTION: dict[str, Callable[[int], PretrainedConfig]] = {
    "llama": lambda size: LlamaConfig(vocab_size=size, **SIZES),
    "gemma3_text": lambda size: Gemma3TextConfig(
        vocab_size=size, **SIZES, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


def policy_of(make: Callable[[int], PretrainedConfig], folder: Path, **settings: Any) -> Policy:
    tokenizer = make_tokenizer(["Up Down Left Right"])
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(make(len(tokenizer)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Policy(PolicySpec(str(folder), **settings), tokenizer, critic=False, device=CPU)


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_that_carry_a_state_are_refused_by_cause(name: str, tmp_path: Path):
    policy = policy_of(HYBRIDS[name], tmp_path)
    with pytest.raises(ConfigError, match=f"a model of type {name} computes other log-probabilities .* carry a state"):
        check_packing(policy, CPU)


@pytest.mark.parametrize("name", ATTENTION)
def test_layers_of_attention_pass(name: str, tmp_path: Path):
    check_packing(policy_of(ATTENTION[name], tmp_path), CPU)


LOW = {"dtype": "bfloat16", "adapter": LoRA(rank=2, alpha=2, target_modules=["q_proj"])}


@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "bamba", "jamba"])
def test_leaks_are_found_in_bfloat16_too(name: str, tmp_path: Path):
    policy = policy_of({**HYBRIDS, **NAMED}[name], tmp_path, **LOW)
    with pytest.raises(ConfigError, match=f"a model of type {name} computes other log-probabilities"):
        check_packing(policy, CPU)


@pytest.mark.parametrize("name", ATTENTION)
def test_rounding_to_bfloat16_is_no_leak(name: str, tmp_path: Path):
    check_packing(policy_of(ATTENTION[name], tmp_path, **LOW), CPU)


@pytest.mark.parametrize("name", ["bamba", "jamba", "mamba2"])
def test_known_types_are_refused_before_they_load(name: str, tmp_path: Path):
    policy_of({**HYBRIDS, **NAMED}[name], tmp_path)
    with pytest.raises(ConfigError, match=f"of type {name}, its layers carry a state"):
        check(PolicySpec(str(tmp_path)))


def test_whatever_builds_the_model_probes_it(tmp_path: Path):
    """As fit, validate and export do, each by `configure_model`."""
    policy_of(HYBRIDS["lfm2"], tmp_path)
    agent = Agent(PolicySpec(str(tmp_path)), GRPO())
    data = RolloutDataModule("tsr/FrozenLake-v0", {"prompt_style": "bare"}, plan=Uniform(Sample(), 4), instances=2)
    compat.attach(pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False), agent, data)
    with pytest.raises(ConfigError, match="a model of type lfm2 computes other log-probabilities"):
        agent.configure_model()
