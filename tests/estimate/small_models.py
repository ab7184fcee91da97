"""Small models of Qwen2's kind with random weights, and packed sequences for them. No tests in here."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from tsr_lightning.batching.packing import Packed, pack
from tsr_lightning.engines.base import Prompt
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.estimate.activations import PassSize
from tsr_lightning.estimate.live_tensors import LiveTensors
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

TOKENIZER = make_tokenizer(["The box is pushed."])
LORA = LoRA(rank=8, alpha=8)
KINDS = {
    "all weights, float32": {},
    "all weights, bfloat16": {"dtype": "bfloat16"},
    "adapter, float32": {"adapter": LORA},
    "adapter, bfloat16": {"adapter": LORA, "dtype": "bfloat16"},
    "adapter of some layers": {"adapter": LoRA(8, 8, ["q_proj", "up_proj"]), "dtype": "bfloat16"},
    "NF4": {"adapter": LORA, "dtype": "bfloat16", "quantisation": NF4()},
}


def saved_model(folder: Path) -> Path:
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def policy(folder: Path, kind: str, checkpointing: bool) -> Policy:
    spec = PolicySpec(str(folder), kernels="torch", gradient_checkpointing=checkpointing, **KINDS[kind])
    return Policy(spec, TOKENIZER, critic=True).train()


def sequences(lengths: tuple[int, ...], prefix: int = 20) -> Packed:
    """Of which the second half was sampled; they share a prefix."""
    generator = np.random.default_rng(0)
    shared = generator.integers(0, 1024, prefix)
    found = []
    for length in lengths:
        ids = np.concatenate([shared, generator.integers(0, 1024, length - prefix)])
        found.append((ids, np.arange(length) >= length // 2))
    return pack(found)


def size_of(packed: Packed) -> PassSize:
    return PassSize(len(packed), len(packed.output_positions.unique()), packed.unshared_tokens)


def operators_of_a_step(engine: TransformersEngine) -> float:
    """PyTorch's operators in a decoding step of four groups of four responses."""

    def counted(tokens: int) -> int:
        prompts = [Prompt((*range(10 + i, 60 + i), tokens), tuple(range(4)), tokens) for i in range(4)]
        with LiveTensors() as live:
            engine.generate(prompts, 1.0)
        return live.operators

    counted(3)  # makes the cache
    return (counted(12) - counted(4)) / 8
