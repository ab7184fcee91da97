"""The model that is measured: one of Qwen2.5-0.5B's shape, or what a folder describes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.performance.workload import ModelShape, make_model, make_vocabulary
from tsr_lightning.estimate.shape import shape_of

FLOAT32_BYTES = 4  # of a recurrent state's numbers, in any type of weights
WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Reads:
    """Elements that a decode step has to read.

    Args:
        weights: parameters of all layers and the output embedding.
        token: keys and values of one token in all attention layers.
        convolutions: convolution states of one response, in the model's dtype.
        recurrences: recurrent states of one response, in float32.
    """

    weights: int
    token: int
    convolutions: int = 0
    recurrences: int = 0

    def bytes(self, itemsize: int, *, passes: int, seen: int, states: int) -> int:
        """Bytes of `passes` over the weights, `seen` cached tokens, and `states` that are read and written."""
        changed = 2 * states * (itemsize * self.convolutions + FLOAT32_BYTES * self.recurrences)
        return itemsize * (passes * self.weights + seen * self.token) + changed


@dataclass(frozen=True)
class Model:
    """A model to measure.

    Args:
        name: for the table.
        shape: the sizes that workloads carry.
        reads: of a decode step.
        write: writes it into a folder, with the benchmark's tokenizer, for so many tokens.
    """

    name: str
    shape: ModelShape
    reads: Reads
    write: Callable[[Path, int], None]


def of_shape(name: str, shape: ModelShape) -> Model:
    """A model with random weights."""
    token = 2 * shape.layers * shape.key_heads * (shape.hidden // shape.heads)
    reads = Reads(shape.parameters, token)
    return Model(name, shape, reads, lambda folder, longest: make_model(shape, folder, longest))


def of_folder(source: Path) -> Model:
    """The model in a folder. A folder with `config.json` alone stands for random weights.

    Raises:
        SystemExit: for a folder without a configuration, or a vocabulary smaller than the benchmark's.
        ConfigError: for a type of model of which no layers are known.
    """
    if not (source / "config.json").is_file():
        raise SystemExit(f"--model {source}: there is no config.json in it; name the folder of a Hugging Face model")
    known = shape_of(AutoConfig.from_pretrained(source), source)
    if known.vocab_size < len(make_vocabulary()):
        raise SystemExit(f"--model {source}: its vocabulary has {known.vocab_size} entries, the benchmark needs 1,000")
    shape = ModelShape(
        hidden=known.hidden_size,
        layers=known.num_hidden_layers,
        heads=known.num_attention_heads,
        key_heads=known.num_key_value_heads,
        intermediate=known.intermediate_size,
        vocabulary=known.vocab_size,
    )
    attentions = [layer.attention for layer in known.layers if layer.attention]
    states = [layer.state for layer in known.layers if layer.state]
    embedding = 0 if known.tie_word_embeddings else known.vocab_size * known.hidden_size  # rows that are looked up
    reads = Reads(
        known.parameters - embedding,
        sum(2 * each.key_size for each in attentions),
        sum(each.convolution for each in states),
        sum(each.recurrent for each in states),
    )
    return Model(source.name, shape, reads, lambda folder, longest: _copy(source, folder, longest))


def _copy(source: Path, folder: Path, longest: int) -> None:
    """The model with the benchmark's tokenizer, whose ids are as good as any to measure speed."""
    config = AutoConfig.from_pretrained(source).get_text_config()
    tokenizer = make_vocabulary()
    if config.max_position_embeddings < longest:
        raise SystemExit(f"--model {source}: it sees {config.max_position_embeddings} tokens, {longest} are needed")
    config.eos_token_id, config.pad_token_id, config.bos_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id, None
    if any(path for pattern in WEIGHTS for path in source.glob(pattern)):
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype="auto")
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
