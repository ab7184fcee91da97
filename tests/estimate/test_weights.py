"""Parameters and bytes against the libraries that hold them: transformers, peft and bitsandbytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, get_peft_model
from recurrent_models import TINY, WIDE, recurrent_policy
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FalconH1Config,
    Lfm2Config,
    PretrainedConfig,
    Qwen3_5Config,
)

from tests.hybrid_models import CONV
from tsr_lightning.errors import ConfigError
from tsr_lightning.estimate.lookup import PUBLISHED, find_shape, published_config
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.estimate.weights import adapter_parameters, nf4_bytes, plain_bytes, quantised_bytes, trained_bytes
from tsr_lightning.policy.model_files import load_config
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec

# Qwen3.5's page counts its part for images too, and the sum of its text model is written here
STATED = 0.49e9, 1.54e9, 3.09e9, 7.62e9, 4.02e9, 8.19e9, 0.752e9, 1_170_340_608
EMBEDDED = ("sokoban", "frozen_lake", "webshop", "alfworld")
SIZES = {
    **{"hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 97},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 16},
}
OPTIONAL = {"attention_bias": True, "mlp_bias": True, "projectors_bias": True, "mamba_proj_bias": True}
BIASES = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
# of the sizes of granite-4.0-h-micro and Falcon-H1-1.5B
LARGE = {
    "granitemoehybrid": {
        **{"hidden_size": 2048, "shared_intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "vocab_size": 100352, "tie_word_embeddings": True, "num_local_experts": 0},
        **{"mamba_n_heads": 64, "mamba_d_state": 128},
        "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
    },
    "falcon_h1": {
        **{"hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 8},
        **{"num_key_value_heads": 2, "head_dim": 128, "vocab_size": 65537, "mamba_d_ssm": 3072, "mamba_n_heads": 48},
    },
}
CONFIGS = {
    **{f"large {kind}": lambda kind=kind: AutoConfig.for_model(kind, **LARGE[kind]) for kind in LARGE},
    **{f"tiny {kind}": TINY[kind] for kind in TINY},
    "falcon_h1 with all that is optional": lambda: FalconH1Config(
        **{**SIZES, **OPTIONAL, "mamba_d_ssm": None, "mamba_n_heads": 6, "mamba_rms_norm": True}
    ),
    "lfm2 with all that is optional": lambda: Lfm2Config(
        **{**WIDE, "block_auto_adjust_ff_dim": False, "conv_bias": True}, layer_types=CONV
    ),
    "qwen3_5 with a part for images": lambda: Qwen3_5Config(
        text_config=TINY["qwen3_5_text"]().to_dict() | {"attention_bias": True}
    ),
    **{name: lambda name=name: published_config(name) for name in PUBLISHED},
    **{name: lambda name=name: load_config(f"embedded/{name}") for name in EMBEDDED},
    **{
        f"{kind}, tied {tied}": lambda kind=kind, tied=tied: AutoConfig.for_model(
            kind, **SIZES, **(BIASES if kind != "mistral" else {}), tie_word_embeddings=tied
        )
        for kind in ("llama", "mistral", "qwen3", "seed_oss")
        for tied in (False, True)
    },
}


def on_meta(config: PretrainedConfig) -> nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def count(model: nn.Module, *, trained: bool = False) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad or not trained)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_transformers(name: str):
    config = CONFIGS[name]()
    assert shape_of(config).parameters == count(on_meta(config))


@pytest.mark.parametrize(
    ("name", "parameters"),
    list(zip(PUBLISHED, (0.49e9, 1.54e9, 3.09e9, 7.62e9, 4.02e9, 8.19e9, 0.75e9, 1_170_340_608), strict=True)),
)
def test_published_shapes_have_the_parameters_that_their_pages_state(name: str, parameters: float):
    assert shape_of(published_config(name)).parameters == pytest.approx(parameters, abs=0.006e9)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "all-linear"),
        ("Qwen/Qwen2.5-0.5B-Instruct", ["q_proj", "down_proj"]),
        *[(f"tiny {kind}", "all-linear") for kind in TINY if kind != "falcon_h1"],
        ("tiny qwen3_5_text", ["in_proj_qkv", "k_proj"]),
    ],
)
def test_an_adapter_has_the_parameters_of_peft(name: str, targets: Any):
    config = CONFIGS[name]()
    adapted = get_peft_model(on_meta(config), LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=targets))
    assert adapter_parameters(shape_of(config), LoRA(8, 8, targets)) == count(adapted, trained=True)


def test_an_adapter_of_falcon_h1_leaves_out_what_the_policy_leaves_out(tmp_path: Path):
    policy = recurrent_policy(TINY["falcon_h1"](), tmp_path, adapter=LoRA(8, 8))
    trained = sum(p.numel() for name, p in policy.named_parameters() if "lora_" in name)
    assert adapter_parameters(shape_of(policy.causal_lm.config), policy.spec.adapter) == trained


@pytest.mark.parametrize("double_quant", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (96, 50), (33, 7), (128, 1000)])
def test_nf4_takes_the_bytes_of_bitsandbytes(inputs: int, outputs: int, double_quant: bool):
    layer = Linear4bit(inputs, outputs, bias=False, quant_type="nf4", compress_statistics=double_quant).to("cpu")
    state = layer.weight.quant_state
    tensors = [layer.weight.data, state.absmax, state.code]
    if double_quant:
        tensors += [state.offset.reshape(1), state.state2.absmax, state.state2.code]
    assert nf4_bytes(inputs * outputs, double_quant) == sum(tensor.nbytes for tensor in tensors)


def test_bytes_by_kind_of_policy():
    """Qwen2.5-0.5B has 494,032,768 parameters, of which 24 · 14,909,440 are weights of linear layers."""
    shape = shape_of(published_config("Qwen/Qwen2.5-0.5B-Instruct"))
    assert shape.linear_weights == 24 * 14_909_440
    whole = PolicySpec("x")
    assert (plain_bytes(shape, whole), quantised_bytes(shape, whole)) == (4 * 494_032_768, 0)
    assert trained_bytes(shape, whole) == 4 * 494_032_768
    nf4 = PolicySpec("x", adapter=LoRA(16, 16), quantisation=NF4(), dtype="bfloat16")
    assert plain_bytes(shape, nf4) == 2 * (494_032_768 - 24 * 14_909_440)
    assert quantised_bytes(shape, nf4) == pytest.approx(24 * 14_909_440 * 4.127 / 8, rel=2e-3)  # QLoRA, section 3
    assert trained_bytes(shape, nf4) == 4 * adapter_parameters(shape, nf4.adapter)


def test_other_models_are_refused_in_one_sentence():
    with pytest.raises(ConfigError, match=r"model.policy.model is 'mine': its type is gpt2, and estimates know llama"):
        shape_of(AutoConfig.for_model("gpt2"), "mine")
    with pytest.raises(
        ConfigError, match=r"model.policy.model is 'mine': its type is mamba2, and estimates know llama"
    ):
        shape_of(AutoConfig.for_model("mamba2"), "mine")
    with pytest.raises(ConfigError, match=r"is 'mine': it has 8 experts in a layer, and estimates know none; name a"):
        shape_of(AutoConfig.for_model("granitemoehybrid"), "mine")
    with pytest.raises(ConfigError, match=r"model.policy.model is 'some/model': its shape is neither .* give a folder"):
        find_shape(PolicySpec("some/model"), None)
    with pytest.raises(ConfigError, match=r"target_modules is 'lm_head': estimates know q_proj, .* choose from these"):
        adapter_parameters(shape_of(published_config("Qwen/Qwen2.5-0.5B-Instruct")), LoRA(8, 8, ["lm_head"]))
