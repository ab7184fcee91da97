"""A policy's configuration: parsing, and one sentence for each mistake before any weights are loaded."""

import json
from pathlib import Path

import pytest
import torch
from jsonargparse import ArgumentParser
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BloomConfig,
    DeepseekV32Config,
    DogeConfig,
    Llama4TextConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    WhisperConfig,
)

from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.native import building
from tsr_lightning.policy.checks import check, check_tokenizer
from tsr_lightning.policy.export import export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec, Scratch, context_length, is_quantised, model_identity
from tsr_lightning.policy.vocabulary import load_tokenizer, make_tokenizer

SCRATCH = Scratch(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=64
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    tokenizer = make_tokenizer(["Turn 1"])
    export(Policy(PolicySpec(SCRATCH), tokenizer, critic=False), tokenizer, path)
    return path


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{model: embedded/sokoban}", PolicySpec("embedded/sokoban")),
        ("{model: {num_hidden_layers: 2}}", PolicySpec(Scratch(num_hidden_layers=2))),
        ("{model: {}, dtype: bfloat16}", PolicySpec(Scratch(), dtype="bfloat16")),
        (
            "{model: a/b, adapter: {rank: 4, target_modules: [q_proj]}, quantisation: {compute_dtype: float32}}",
            PolicySpec("a/b", LoRA(rank=4, target_modules=["q_proj"]), NF4(compute_dtype="float32")),
        ),
        ("{model: a/b, adapter: {}, quantisation: null}", PolicySpec("a/b", LoRA())),
        ("{model: a/b, kernels: torch}", PolicySpec("a/b", kernels="torch")),
    ],
)
def test_yaml_builds_the_spec(text, spec):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--policy", type=PolicySpec)
    parsed = parser.parse_args([f"--policy={text}"])
    assert parser.instantiate(parsed).policy == spec


def test_a_valid_spec_passes(folder):
    check(PolicySpec(Scratch()))
    check(PolicySpec(str(folder)))
    check(PolicySpec(str(folder), LoRA(target_modules=["q_proj", "mlp.down_proj"]), NF4()))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (PolicySpec(Scratch(num_hidden_layers=0)), r"model\.num_hidden_layers is 0: give"),
        (PolicySpec(Scratch(num_attention_heads=3)), r"hidden_size is 128: .* multiple of 6 for 3 heads"),
        (PolicySpec(Scratch(), LoRA(rank=0)), "rank is 0: give"),
        (PolicySpec(Scratch(), LoRA(alpha=0)), "alpha is 0: give"),
        (PolicySpec(Scratch(), LoRA(dropout=1.0)), r"dropout is 1\.0: give"),
        (PolicySpec(Scratch(), LoRA(target_modules=[])), r"target_modules is \[\]: name"),
        (PolicySpec(Scratch(), LoRA(), NF4()), r"quantisation is NF4\(.*: a new model"),
        (PolicySpec("somewhere", None, NF4()), r"quantisation is NF4\(.* give model\.policy\.adapter a LoRA"),
        (PolicySpec("embedded/chess"), "is 'embedded/chess': not an embedded model, choose from"),
        (PolicySpec("nobody/no-such-model"), "neither a folder here nor a model in the cache or on the"),
        (PolicySpec("./no/such/folder"), "neither a folder here nor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_refused_with_one_sentence(spec, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        check(spec)
    assert str(caught.value).startswith("model.policy.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_folder_is_refused(folder, file):
    (folder / file).unlink()
    with pytest.raises(ConfigError, match=f"the folder has no {file}, so "):
        check(PolicySpec(str(folder)))


def test_a_missing_shard_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ConfigError, match="the folder has no model-00002-of-00002"):
        check(PolicySpec(str(folder)))


def test_damaged_files_are_refused_before_the_model_loads(folder):
    spec, weights = PolicySpec(str(folder)), folder / "model.safetensors"
    whole = weights.read_bytes()
    for part in (whole[:-1], whole[: len(whole) // 2], whole[:9], b"", b"no tensors"):
        weights.write_bytes(part)
        with pytest.raises(
            ConfigError, match=r"its model\.safetensors is cut short or damaged \(.*\), so write or copy it"
        ):
            check(spec)
    weights.write_bytes(whole)
    check(spec)
    for text in ("", '{"weight_map":', "{}", "[]"):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ConfigError, match=r"its model\.safetensors\.index\.json is damaged, so write"):
            check(spec)
    for text in ("", "{", "{}", '{"model": 3}'):
        (folder / "tokenizer.json").write_text(text)
        with pytest.raises(
            ConfigError, match=r"its tokenizer cannot be read: .*, so write or copy the tokenizer's files"
        ):
            load_tokenizer(spec, ())


def test_weights_of_another_model_are_refused(folder):
    """transformers would draw at random what is missing or has another shape."""
    tokenizer, path = make_tokenizer(["Turn 1"]), folder / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.down_proj.weight"
    save_file({key: value for key, value in weights.items() if key != name}, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"its weights lack {name} \(1 such tensors\), so give the folder"):
        Policy(PolicySpec(str(folder)), tokenizer, critic=False)
    save_file(weights | {name: weights[name][:, :32].contiguous()}, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"its weights hold {name} in another shape than its config\.json says \(1 "):
        Policy(PolicySpec(str(folder)), tokenizer, critic=False)


def test_the_tokenizer_of_another_model_is_refused_before_the_model_loads(folder):
    """config.json says how many rows the embedding has; the weights are not read."""
    own, other = load_tokenizer(PolicySpec(str(folder)), ()), make_tokenizer(["Turn 1: go to the kitchen"] * 2)
    assert len(own) < len(other)
    (folder / "model.safetensors").unlink()
    check_tokenizer(PolicySpec(str(folder)), own)
    check_tokenizer(PolicySpec(SCRATCH), other)  # which gets an embedding of its size
    with pytest.raises(
        ConfigError, match=f"its tokenizer has {len(other)} entries and its embedding {len(own)}, so put"
    ):
        check_tokenizer(PolicySpec(str(folder)), other)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 11 * len(own)}))
    with pytest.raises(
        ConfigError, match=f"its tokenizer has {len(own)} entries and its embedding {11 * len(own)}, so"
    ):
        check_tokenizer(PolicySpec(str(folder)), own)


@pytest.mark.parametrize("name", ["./typo", "../typo", "~/typo", "-typo", "a/b/c", "typo.", "a--b"])
def test_a_folder_that_is_not_there_is_refused(name):
    with pytest.raises(ConfigError, match="neither a folder here nor a model in the cache or on the Hugging Face hub"):
        check(PolicySpec(name))


def test_a_model_that_is_not_causal_is_refused(folder):
    for encoder in (BertConfig(), BertConfig(is_decoder=True), WhisperConfig()):  # which transformers loads as decoders
        encoder.save_pretrained(folder)
        with pytest.raises(ConfigError, match=f"type is {encoder.model_type}, so name a causal"):
            check(PolicySpec(str(folder)))
    (folder / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ConfigError, match="type is t5, so name a causal"):
        check(PolicySpec(str(folder)))
    (folder / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(ConfigError, match=r"transformers cannot read its config\.json"):
        check(PolicySpec(str(folder)))
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"transformers cannot read its config\.json"):
        check(PolicySpec(str(folder)))


def test_an_unknown_target_module_is_refused(folder):
    for other in ("qproj", "mlp", "norm"):  # the last two are layers that peft cannot wrap
        with pytest.raises(ConfigError, match=rf"{other} is no layer .* takes an adapter, so choose from .*q_proj"):
            check(PolicySpec(str(folder), LoRA(target_modules=["k_proj", other])))
    check(PolicySpec(str(folder), LoRA(target_modules=["k_proj", "embed_tokens"])))


def test_a_model_whose_attention_cannot_be_replaced_is_refused(folder):
    BloomConfig(n_layer=1, hidden_size=16, n_head=2).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"bloom model, whose attention cannot be replaced: .* such as Qwen"):
        check(PolicySpec(str(folder), LoRA(target_modules=["dense"])))


def test_a_model_without_a_base_model_is_refused(folder):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    Llama4TextConfig(**sizes, intermediate_size_mlp=16, num_key_value_heads=2, num_local_experts=2).save_pretrained(
        folder
    )
    with pytest.raises(ConfigError, match=r"llama4_text model, which cannot be run without its output layer"):
        check(PolicySpec(str(folder)))


def test_native_kernels_that_cannot_be_built_are_refused(monkeypatch):
    monkeypatch.setattr(building, "load", lambda: building.Built(None, "no compiler"))
    check(PolicySpec(Scratch(), kernels="auto"))
    check(PolicySpec(Scratch(), kernels="torch"))
    with pytest.raises(ConfigError, match=r"model\.policy\.kernels is 'native': .*no compiler.* auto or torch"):
        check(PolicySpec(Scratch(), kernels="native"))


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_loaded_model_has_the_kernels_of_its_spec(kernels):
    policy = Policy(PolicySpec(SCRATCH, kernels=kernels), make_tokenizer(["Turn 1"]), critic=False)
    assert packed_forward.kernels_of(policy.causal_lm) == Kernels(kernels)


def test_bfloat16_weights_are_not_trained_without_an_adapter():
    """AdamW's step of 1e-3 rounds away next to a weight of 1: its nearest neighbour in bfloat16 is 2^-8 away."""
    assert torch.tensor(1.0, dtype=torch.bfloat16) - torch.tensor(1e-3, dtype=torch.bfloat16) == 1.0
    with pytest.raises(ConfigError, match=r"model\.policy\.dtype is 'bfloat16': AdamW hardly moves .* take float32"):
        check(PolicySpec(Scratch(), dtype="bfloat16"))


def test_dropout_of_the_adapter_warns():
    with pytest.warns(UserWarning, match=r"dropout is 0\.1"):
        check(PolicySpec(Scratch(), LoRA(dropout=0.1)))


def test_context_length_comes_from_the_configuration(folder):
    assert context_length(PolicySpec(Scratch(max_position_embeddings=77))) == 77
    assert context_length(PolicySpec(str(folder))) == 64
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_positions": 99}')
    assert context_length(PolicySpec(str(folder))) == 99
    (folder / "config.json").write_text('{"model_type": "bloom"}')
    assert context_length(PolicySpec(str(folder))) > 10**9


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
PHI3 = {"num_attention_heads": 2, "hidden_size": 32, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (Phi3Config(**PHI3, max_position_embeddings=256, rope_parameters=LONGROPE), 32),
        (Phi3Config(**PHI3, max_position_embeddings=256), 256),
        (Qwen2MoeConfig(max_position_embeddings=99, sliding_window=33, use_sliding_window=True), 33),
        (Qwen2MoeConfig(max_position_embeddings=99, sliding_window=33, use_sliding_window=False), 99),
        (Qwen2Config(max_position_embeddings=99, sliding_window=33, use_sliding_window=True), 99),
        (DeepseekV32Config(max_position_embeddings=99, index_topk=44), 44),
    ],
    ids=["longrope", "phi3", "qwen2_moe, window", "qwen2_moe", "qwen2, window", "deepseek_v32"],
)
def test_a_context_ends_where_packed_passes_are_exact_no_more(config, tokens, tmp_path):
    config.save_pretrained(tmp_path)
    assert context_length(PolicySpec(str(tmp_path))) == tokens


@pytest.mark.parametrize(("config", "why"), [(DogeConfig(), "mask"), (PhimoeConfig(), "draws at random in training")])
def test_types_that_cannot_be_trained_are_refused_before_they_load(folder, config, why):
    config.save_pretrained(folder)
    with pytest.raises(ConfigError, match=rf"of type {config.model_type}, .*{why}.*model_types\.md has"):
        check(PolicySpec(str(folder)))


def test_weights_that_are_quantised_by_their_files_are_known(folder):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    assert not is_quantised(PolicySpec(str(folder)))
    (folder / "config.json").write_text(json.dumps(config))
    assert is_quantised(PolicySpec(str(folder)))
    assert is_quantised(PolicySpec("a/b", LoRA(), NF4()))
    with pytest.raises(ConfigError, match=r"its weights are quantised and cannot be trained, so give .* a LoRA"):
        check(PolicySpec(str(folder)))


def test_identity_depends_on_model_and_adapter_alone(folder, tmp_path):
    of = lambda *args, **kwargs: model_identity(PolicySpec(*args, **kwargs))  # noqa: E731
    ours = of(str(folder), LoRA(rank=4, target_modules=["q_proj", "k_proj"]))
    assert all(isinstance(value, str | int) for value in ours.values())
    same = [
        of(str(folder), LoRA(rank=4, target_modules=["k_proj", "q_proj"], dropout=0.1)),
        of(str(folder), LoRA(rank=4, target_modules=["q_proj", "k_proj"]), dtype="bfloat16"),
        of(str(folder.rename(tmp_path / "moved")), LoRA(rank=4, target_modules=["q_proj", "k_proj"])),
    ]
    moved = str(tmp_path / "moved")
    other = [
        of(moved),
        of(moved, LoRA(rank=4)),
        of(Scratch()),
        of(Scratch(num_hidden_layers=2)),
        of(moved, LoRA(rank=8)),
    ]
    assert all(identity == ours for identity in same)
    assert len({json.dumps(identity) for identity in [ours, *other]}) == 1 + len(other)
    config = json.loads((tmp_path / "moved" / "config.json").read_text())
    (tmp_path / "moved" / "config.json").write_text(json.dumps(config | {"transformers_version": "5.99.0"}))
    assert of(moved, LoRA(rank=4, target_modules=["q_proj", "k_proj"])) == ours


def test_only_a_new_models_tokenizer_is_made_from_text(folder):
    made = load_tokenizer(PolicySpec(Scratch()), ["Turn 1"])
    loaded = load_tokenizer(PolicySpec(str(folder)), ["something else"])
    assert made.get_vocab() == loaded.get_vocab()
