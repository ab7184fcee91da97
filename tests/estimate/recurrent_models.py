"""Tiny models with recurrent layers that estimates know. No tests in here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import FalconH1Config, GraniteMoeHybridConfig, Lfm2Config, PretrainedConfig, Qwen3_5TextConfig

from tests.hybrid_models import CONV, DELTA, MAMBA, SIZES, TOKENIZER, save_random
from tsr_lightning.batching.packing import Packed
from tsr_lightning.estimate.activations import PassSize
from tsr_lightning.modeling.state_rows import plan_rows
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec

# as wide as `small_models`, so that what formulas leave out is as small
WIDE = {
    **SIZES,
    **{"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "vocab_size": 1024},
}
STATES = {**MAMBA, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16}
HEADS = {"linear_num_key_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32}
TINY: Mapping[str, Callable[[], PretrainedConfig]] = {
    "lfm2": lambda: Lfm2Config(**WIDE, layer_types=CONV),
    "qwen3_5_text": lambda: Qwen3_5TextConfig(**{**WIDE, **DELTA, **HEADS}, head_dim=64),
    "granitemoehybrid": lambda: GraniteMoeHybridConfig(
        **WIDE, **STATES, layer_types=["mamba", "attention"] * 2, num_local_experts=0, shared_intermediate_size=384
    ),
    "falcon_h1": lambda: FalconH1Config(**WIDE, **STATES, mamba_d_ssm=256),
}


def recurrent_policy(config: PretrainedConfig, folder: Path, **settings: Any) -> Policy:
    """A policy with a critic on a model of random weights."""
    save_random(config, folder)
    return Policy(PolicySpec(str(folder), kernels="torch", **settings), TOKENIZER, critic=True).train()


def recurrent_size(packed: Packed) -> PassSize:
    """The counts of a pass, with the rows in which mixers compute it."""
    rows = sum(batch.tokens.size for batch in plan_rows(packed.segments).batches)
    outputs = len(packed.output_positions.unique())
    return PassSize(len(packed), outputs, packed.unshared_tokens, rows)
