"""GGUF files, written here by the gguf library, become folders that plain transformers loads."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tsr_lightning.cli.import_gguf import import_gguf as command
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy import gguf as policy_gguf
from tsr_lightning.policy.gguf import PROBES, import_gguf

gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install 'tsr-lightning[gguf]'")

LAYERS, WIDTH, HEADS, INNER = 2, 32, 4, 64
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|end|>' }}{% endfor %}"
TOKENS = [*sorted(ByteLevel.alphabet()), "Ġ1", "<|end|>"]


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    scaling: str | None = None,
    frequencies: bool = False,
    parts: int = 1,
    without: str = "",
    **changed: Any,
) -> dict[str, np.ndarray]:
    """Writes a tiny model and returns its weights.

    Args:
        path: of the file.
        architecture: that it names.
        scaling: of its rotary embeddings, as its metadata name it.
        frequencies: whether it has factors of the rotary frequencies, as those of Llama 3.
        parts: of which it says that it is one.
        without: the name of a tensor that is left out.
        changed: metadata of the tokenizer, None to leave one out.
    """
    draws = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(TOKENS))
    if scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling)
        writer.add_float32(f"{architecture}.rope.scaling.factor", 4.0)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    tokenizer = {"model": "gpt2", "pre": "smollm", **changed}
    if tokenizer["model"]:
        writer.add_tokenizer_model(tokenizer["model"])
    if tokenizer["pre"]:
        writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 1) + [3])
    writer.add_token_merges(["Ġ 1"])  # which only a tokenizer makes that does not split digits off
    writer.add_eos_token_id(len(TOKENS) - 1)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}.weight": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")
        }
        shapes |= {f"blk.{layer}.{name}.weight": (INNER, WIDTH) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down.weight": (WIDTH, INNER)}
        shapes |= {f"blk.{layer}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    if frequencies:
        shapes["rope_freqs.weight"] = (WIDTH // HEADS // 2,)
    weights = {name: draws.normal(size=shape).astype(np.float32) for name, shape in shapes.items() if name != without}
    for name, values in weights.items():
        quantised = values.ndim == 2 and name.startswith("blk")
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        weights[name] = gguf.dequantize(gguf.quantize(values, kind), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_weights_and_tokenizer_are_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    weights = write_gguf(tmp_path / "tiny.gguf")
    assert command([str(tmp_path / "tiny.gguf"), str(tmp_path / "models" / "tiny")]) == 0
    assert f"--model.policy.model {tmp_path / 'models' / 'tiny'}" in capsys.readouterr().out

    folder = tmp_path / "models" / "tiny"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert not hasattr(model.config, "quantization_config")
    assert model.config.tie_word_embeddings
    state = model.state_dict()
    for theirs, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
    ):
        assert torch.equal(state[ours], torch.from_numpy(weights[theirs])), theirs  # dequantised by the gguf library
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_token == "<|end|>"
    # llama.cpp splits each digit off before it looks for words, so " 1" is a space and a digit; GPT-2's rule joins them
    assert tokenizer.tokenize("a 1  23") == ["a", "Ġ", "1", "Ġ", "Ġ", "2", "3"]
    assert all(tokenizer.decode(tokenizer.encode(probe)) == probe for probe in PROBES)
    assert not list((tmp_path / "models").glob(".*"))  # nothing partial is left


def test_gpt2s_rule_stays_where_the_file_names_it(tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", pre="gpt-2")
    import_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny")
    assert AutoTokenizer.from_pretrained(tmp_path / "tiny").tokenize("a 1") == ["a", "Ġ1"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "there is no such file, so check the path"),
        (lambda path: path.write_bytes(b"PK\3\4 a wheel"), "it is no GGUF file"),
        (lambda path: _truncated(path, 400), "truncated, damaged or of a kind"),
        (lambda path: _truncated(path, -500), "truncated, damaged or of a kind"),
        (lambda path: write_gguf(path, architecture="mamba9"), "architecture mamba9 is not supported"),
        (lambda path: write_gguf(path, pre="klingon"), "splits text by the rule 'klingon', which is not known here"),
        (lambda path: write_gguf(path, model=None), "it has no tokenizer"),
        (lambda path: write_gguf(path, parts=3), r"it is one of 3 parts, so join them first"),
        (
            lambda path: write_gguf(path, without="blk.1.ffn_down.weight"),
            r"it lacks model\.layers\.1\.mlp\.down_proj\.weight \(1 such tensors\), so give a file of the whole model",
        ),
        (lambda path: write_gguf(path, scaling="yarn"), "does not read its scaling of rotary embeddings"),
        (lambda path: write_gguf(path, frequencies=True), "does not read its scaling of rotary embeddings"),
    ],
    ids=[
        *("absent", "zip", "cut-in-the-header", "cut-in-the-weights", "architecture", "rule", "no-tokenizer"),
        *("part", "lacking-a-tensor", "scaled", "scaled-by-frequency"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_one_sentence(prepare: Any, message: str, tmp_path: Path):
    prepare(tmp_path / "tiny.gguf")
    with pytest.raises(ConfigError, match=message) as refused:
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny")
    assert str(refused.value).startswith("FILE is ")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "tiny").exists()


def test_a_scaling_of_none_is_none(tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf", scaling="none")
    import_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny")
    assert (tmp_path / "tiny" / "config.json").exists()


def test_a_folder_that_cannot_be_written_or_held_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"FOLDER is '.*file/sub': it cannot be written \(.*\), so give another one"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "file" / "sub")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        ConfigError, match=r"FOLDER is .* its weights take 0\.0 GB in float32, and its disk has 0\.0 GB"
    ):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny")
    monkeypatch.undo()
    monkeypatch.setattr(policy_gguf, "free_bytes", lambda: 1000.0)
    with pytest.raises(
        ConfigError, match=r"FILE is .* it takes 0\.0 GB of memory to import and check, and 0\.0 GB are"
    ):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "tiny.gguf"]


def _truncated(path: Path, size: int) -> None:
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:size])


def test_a_folder_that_exists_is_kept(tmp_path: Path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="it exists already, so give another one, or remove it first"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny")
    assert (tmp_path / "tiny" / "notes.txt").read_text() == "mine"
