"""Tiny random models of the types with recurrent layers, built from transformers' own classes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Mamba2Config,
    NemotronHConfig,
    OlmoHybridConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
SIZE = len(TOKENIZER)
LAYERS = 4
SPECIAL = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **SPECIAL,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONV = ["conv", "full_attention"] * 2

HYBRIDS: Mapping[str, Callable[[], PretrainedConfig]] = {
    "qwen3_5_text": lambda: Qwen3_5TextConfig(**SIZES, **DELTA, head_dim=16),
    "qwen3_next": lambda: Qwen3NextConfig(**SIZES, **DELTA, **EXPERTS, head_dim=16, shared_expert_intermediate_size=32),
    "lfm2": lambda: Lfm2Config(**SIZES, layer_types=CONV),
    "lfm2_moe": lambda: Lfm2MoeConfig(**SIZES, **EXPERTS, layer_types=CONV),
    "nemotron_h": lambda: NemotronHConfig(
        **{key: value for key, value in SIZES.items() if key != "num_hidden_layers"},
        head_dim=16,
        layers_block_type=["mamba", "attention", "mlp", "mamba"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=16,
    ),
    "granitemoehybrid": lambda: GraniteMoeHybridConfig(
        **SIZES,
        **MAMBA,
        layer_types=["mamba", "attention"] * 2,
        num_local_experts=2,
        num_experts_per_tok=1,
        shared_intermediate_size=64,
    ),
    "bamba": lambda: BambaConfig(**SIZES, **MAMBA, attn_layer_indices=[1, 3]),
    "falcon_h1": lambda: FalconH1Config(**SIZES, **MAMBA, mamba_d_ssm=64),
    "olmo_hybrid": lambda: OlmoHybridConfig(**SIZES, **DELTA),
    "kimi_linear": lambda: KimiLinearConfig(
        **SIZES,
        layer_types=DELTA["layer_types"],
        mlp_layer_types=["dense"] * LAYERS,
        linear_head_dim=8,
        linear_num_heads=2,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "mamba2": lambda: Mamba2Config(
        vocab_size=SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        chunk_size=16,
        **SPECIAL,
    ),
}


def save_random(config: PretrainedConfig, folder: Path, seed: int = 1) -> Path:
    """Writes a model with random weights, whose distributions differ from prefix to prefix."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4 if "embed" in name else 0.12)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def hybrid_policy(name: str, folder: Path, seed: int = 1, adapter: LoRA | None = None, **settings: Any) -> Policy:
    """A policy with a critic, whose adapter and value head change something."""
    save_random(HYBRIDS[name](), folder, seed)
    policy = Policy(PolicySpec(str(folder), adapter, **settings), TOKENIZER, critic=True, seed=seed)
    with torch.no_grad():
        for number, (key, parameter) in enumerate(sorted(policy.named_parameters())):
            if "lora_B" in key or "value_head" in key:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(number))
    return policy
