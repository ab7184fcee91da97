"""Configurations of small models: Qwen2's layers as the model type Seed-OSS.

For the model type qwen2, AutoTokenizer of transformers 5 rebuilds the tokenizer by the rules of Qwen's own vocabulary,
whatever tokenizer.json and tokenizer_config.json contain. Seed-OSS (ByteDance 2025) has the same layers, biases and
weight names, and no tokenizer rules: the same weights compute the same function under both types, and AutoTokenizer
reads tokenizer.json unchanged.
"""

from transformers import PretrainedConfig, PreTrainedTokenizerFast, Qwen2Config, SeedOssConfig

from tsr_lightning.policy.spec import Scratch

# keys of Qwen2 that Seed-OSS lacks, and those that describe a saved file
_OTHER_KEYS = {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}
_OTHER_KEYS |= {"model_type", "architectures", "transformers_version", "_name_or_path"}
# Seed-OSS reads these. Qwen2 has them fixed, and keeps whatever a file says of them without reading it.
_FIXED = {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False, "residual_dropout": 0.0}


def small_config(sizes: Scratch, tokenizer: PreTrainedTokenizerFast) -> SeedOssConfig:
    """The configuration of a new small model."""
    return SeedOssConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_attention_heads,
        head_dim=sizes.hidden_size // sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
        max_position_embeddings=sizes.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        attention_dropout=0.0,
        residual_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def as_seed_oss(config: PretrainedConfig) -> SeedOssConfig | None:
    """Returns the model as Seed-OSS; None unless it is a Qwen2 model without a sliding window."""
    if type(config) is not Qwen2Config or config.use_sliding_window:
        return None
    values = {key: value for key, value in config.to_dict().items() if key not in _OTHER_KEYS}
    if not values.get("head_dim"):
        values["head_dim"] = config.hidden_size // config.num_attention_heads
    return SeedOssConfig(**values | _FIXED, architectures=["SeedOssForCausalLM"])
