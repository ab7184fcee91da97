"""Shapes of models on the Hugging Face hub, for machines that have neither the model nor the hub.

Source: the `config.json` of each model's page on the hub, as https://huggingface.co/Qwen/Qwen2.5-3B-Instruct. The
parameters that they give are those that the pages state (0.49, 1.54, 3.09 and 7.62 billion).
"""

from collections.abc import Mapping
from typing import Any

# model name -> (model type, keys of its configuration)
_QWEN = {"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768}
PUBLISHED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": (
        "qwen2",
        {**_QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": (
        "qwen2",
        {**_QWEN, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    ),
    "Qwen/Qwen2.5-3B-Instruct": (
        "qwen2",
        {**_QWEN, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        "qwen2",
        {
            **_QWEN,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
        },
    ),
}
