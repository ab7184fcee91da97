"""Imports a GGUF file, llama.cpp's format, as a Hugging Face folder: dequantised weights, configuration, tokenizer.

transformers reads the file. Two things are mended here: the model it returns stays marked as quantised and cannot be
saved, and some byte-level tokenizers are split by GPT-2's rule where their vocabulary was learned by another.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.free_memory import free_bytes

_MAGIC = b"GGUF"
_GB = 10**9
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
    header = _checked_header(file)
    with _beside(folder) as beside:
        size, disk, memory = header.float32_bytes, shutil.disk_usage(beside).free, free_bytes()
        remedy = f"its weights take {size / _GB:.1f} GB in float32, and its disk has {disk / _GB:.1f} GB left"
        require(size < disk, "FOLDER", str(folder), remedy)
        remedy = f"it takes {2 * size / _GB:.1f} GB of memory to import and check, and {memory / _GB:.1f} GB are free"
        require(2 * size < memory, "FILE", str(file), remedy)
        with _errors_of(file):
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            both: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
            )
        loaded, report = both
        _check_whole(file, loaded, report, header)
        if header.pre_tokenizer in _DIGITS_APART:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        model = _unquantised(loaded)
        written = beside / "model"
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
        _check_written(written, model, tokenizer)
        if folder.exists():
            folder.rmdir()
        shutil.move(written, folder)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A temporary folder in FOLDER's parent, so that the result is moved and not copied."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent)
    except OSError as error:
        remedy = f"it cannot be written ({error.strerror}), so give another one"
        raise ConfigError(f"FOLDER is {str(folder)!r}: {remedy}") from error
    with made as path:
        yield Path(path)


@dataclass(frozen=True)
class _Header:
    """Fields of a GGUF file's header."""

    pre_tokenizer: str  # the tokenizer's rule for splitting text; "" for tokenizers that have none
    scales_positions: bool  # rotary embeddings are scaled for longer contexts
    float32_bytes: int  # of its weights


def _checked_header(file: Path) -> _Header:
    """Reads a file's header.

    Raises:
        ConfigError: the file cannot be read, is a part of a model, or its tokenizer's rule is not known.
    """
    require(file.is_file(), "FILE", str(file), "there is no such file, so check the path")
    with file.open("rb") as opened:
        require(opened.read(4) == _MAGIC, "FILE", str(file), "it is no GGUF file, whose first four bytes are GGUF")
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ConfigError("tsr import-gguf needs gguf: pip install 'tsr-lightning[gguf]'") from error
    with _errors_of(file):
        reader = GGUFReader(file)
        fields, tensors = reader.fields, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    keys = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "split.count", "general.architecture")
    named = {key: fields[key].contents() for key in keys if key in fields}
    parts = int(named.get("split.count", 1))
    remedy = f"it is one of {parts} parts, so join them first (llama-gguf-split --merge of llama.cpp)"
    require(parts <= 1, "FILE", str(file), remedy)
    scaling = fields.get(f"{named.get('general.architecture')}.rope.scaling.type")
    scales = "rope_freqs.weight" in tensors or (scaling is not None and scaling.contents() not in ("", "none"))
    rest = partial(_Header, scales_positions=scales, float32_bytes=4 * sum(tensors.values()))
    require("tokenizer.ggml.model" in named, "FILE", str(file), "it has no tokenizer, so give a file of a whole model")
    name = str(named.get("tokenizer.ggml.pre", "default"))
    if named["tokenizer.ggml.model"] != "gpt2":  # only byte-level tokenizers have such a rule
        return rest("")
    known = {*_GPT2, *_DIGITS_APART, *GGUF_PRE_TOKENIZER_SPLITS}
    remedy = f"its tokenizer splits text by the rule {name!r}, which is not known here, so take the model's own folder"
    require(name in known, "FILE", str(file), remedy)
    return rest(name)


def _check_whole(file: Path, model: PreTrainedModel, report: Mapping[str, Collection[Any]], header: _Header) -> None:
    """transformers draws at random what a file lacks, and leaves out how most models scale their positions."""
    lacking = sorted([*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])])
    remedy = f"it lacks {(lacking or [''])[0]} ({len(lacking)} such tensors), so give a file of the whole model"
    require(not lacking, "FILE", str(file), remedy)
    rotary = model.config.to_dict().get("rope_parameters") or {}
    remedy = "transformers does not read its scaling of rotary embeddings, so take the model's own folder"
    is_read = not header.scales_positions or rotary.get("rope_type", "default") != "default"
    require(is_read, "FILE", str(file), remedy)


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
    with torch.device("meta"):
        model: PreTrainedModel = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
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
