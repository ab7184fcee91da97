"""Imports a GGUF file, llama.cpp's format, as a Hugging Face folder: dequantised weights, configuration, tokenizer.

transformers reads the file. Two things are mended here: the model it returns stays marked as quantised and cannot be
saved, and some byte-level tokenizers are split by GPT-2's rule where their vocabulary was learned by another.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from tsr_lightning.errors import ConfigError, require

_MAGIC = b"GGUF"
# names of `tokenizer.ggml.pre` that mean GPT-2's rule, which transformers takes where it knows none
_GPT2 = frozenset({"default", "gpt-2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "jais"})
# names that split off each digit first (llama.cpp, src/llama-vocab.cpp), which transformers does not know
_DIGITS_APART = frozenset({"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"})
# digits after white space, numbers, contractions, accents, an ideogram, grids: where rules for splitting differ
PROBES = (
    "What is 12 + 30?",
    "a  1\n\n 23\t\t45",
    "  ######\n#_P_O√ (3, 4) $10.00",
    "Let's push 12 boxes: É 你好",
    "<think></think><answer>Up || Down</answer>",
)


def import_gguf(file: Path, folder: Path) -> None:
    """Writes the model of a GGUF file as a folder that plain transformers loads, in float32.

    The folder is read again before it takes its name: weights and token ids are those of the file, or it is not kept.

    Args:
        file: of one causal language model, with its tokenizer.
        folder: must not exist, or be empty.

    Raises:
        ConfigError: the file is damaged or of a kind that cannot be imported, or the folder is taken.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(is_free, "FOLDER", str(folder), "it exists already, so give another one, or remove it first")
    pre_tokenizer = _checked_pre_tokenizer(file)
    with _errors_of(file):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if pre_tokenizer in _DIGITS_APART:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    model = _unquantised(loaded)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as partial:
        written = Path(partial) / "model"
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
        _check_written(written, model, tokenizer)
        if folder.exists():
            folder.rmdir()
        shutil.move(written, folder)


def _checked_pre_tokenizer(file: Path) -> str:
    """The name of the tokenizer's rule for splitting text; "" for tokenizers that have none.

    Raises:
        ConfigError: the file cannot be read, or its rule is not known.
    """
    require(file.is_file(), "FILE", str(file), "there is no such file, so check the path")
    with file.open("rb") as opened:
        require(opened.read(4) == _MAGIC, "FILE", str(file), "it is no GGUF file, whose first four bytes are GGUF")
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ConfigError("tsr import-gguf needs gguf: pip install 'tsr-lightning[gguf]'") from error
    with _errors_of(file):
        fields = GGUFReader(file).fields
    named = {key: fields[key].contents() for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre") if key in fields}
    require("tokenizer.ggml.model" in named, "FILE", str(file), "it has no tokenizer, so give a file of a whole model")
    name = str(named.get("tokenizer.ggml.pre", "default"))
    if named["tokenizer.ggml.model"] != "gpt2":  # only byte-level tokenizers have such a rule
        return ""
    known = {*_GPT2, *_DIGITS_APART, *GGUF_PRE_TOKENIZER_SPLITS}
    remedy = f"its tokenizer splits text by the rule {name!r}, which is not known here, so take the model's own folder"
    require(name in known, "FILE", str(file), remedy)
    return name


@contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    """Turns what the readers raise for a damaged file or an unknown kind of model into one sentence."""
    try:
        yield
    except (ValueError, KeyError, IndexError, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"FILE is {str(file)!r}: it is truncated, damaged or of a kind that transformers cannot import ({reason}), "
            "so fetch it again, or take the model's own folder"
        ) from error


def _unquantised(loaded: PreTrainedModel) -> PreTrainedModel:
    """Returns the weights in a model whose configuration does not say that they are quantised."""
    config = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    model: PreTrainedModel = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    return model


def _check_written(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises an error unless the folder holds these weights, and a tokenizer of the same ids and the same text."""
    written: dict[str, Any] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    differing = [name for name, value in model.state_dict().items() if not torch.equal(value, written[name])]
    if differing:
        raise RuntimeError(f"the folder's weights are not the file's: {', '.join(differing[:3])}")
    again = AutoTokenizer.from_pretrained(folder)
    for probe in PROBES:
        ids = tokenizer.encode(probe, add_special_tokens=False)
        if again.encode(probe, add_special_tokens=False) != ids or again.decode(ids) != probe:
            raise RuntimeError(f"the folder's tokenizer is not the file's: it differs on {probe!r}")
