"""Exports have the same logits in plain peft and transformers."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, PreTrainedModel, Qwen2Config

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.architecture import as_seed_oss
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.export import export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.model_card import Card
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.trajectory import Message

SCRATCH = Scratch(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, max_position_embeddings=64
)
TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
IDS = torch.randint(0, len(TOKENIZER), (3, 12), generator=torch.Generator().manual_seed(2))
EXACT = NF4(compute_dtype="float32")


@pytest.fixture(scope="module", params=["new", "gpt2"])
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "gpt2":  # whose layers are transposed
        config = GPT2Config(
            vocab_size=len(TOKENIZER), n_embd=64, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        TOKENIZER.save_pretrained(path)
    else:
        export(Policy(PolicySpec(SCRATCH), TOKENIZER, critic=False), TOKENIZER, path)
    return str(path)


def trained(spec: PolicySpec) -> Policy:
    policy = Policy(spec, TOKENIZER, critic=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for tensor in policy.trainable_state().values():
            tensor.add_(0.1 * torch.randn_like(tensor))
    return policy.eval()


@torch.no_grad()
def logits(model: PreTrainedModel | PeftModel) -> torch.Tensor:
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False  # plain transformers on such a CPU computes in bfloat16
    return model.eval()(input_ids=IDS).logits


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call
@pytest.mark.parametrize("quantisation", [None, EXACT, NF4()], ids=str)
def test_an_adapter_has_the_same_logits_in_peft(folder, quantisation, tmp_path):
    policy = trained(PolicySpec(folder, LoRA(rank=4, alpha=8), quantisation))
    export(policy, TOKENIZER, tmp_path)
    config = policy.causal_lm.config.quantization_config if quantisation else None
    base = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, tmp_path)
    torch.testing.assert_close(logits(loaded), logits(policy.causal_lm), atol=2e-5, rtol=1e-4)
    assert {path.suffix for path in tmp_path.glob("*model*")} <= {".safetensors", ".json"}


@pytest.mark.parametrize("quantisation", [None, EXACT], ids=str)
def test_a_merged_model_has_the_same_logits_in_transformers(folder, quantisation, tmp_path):
    policy = trained(PolicySpec(folder, LoRA(rank=4, alpha=8), quantisation))
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    export(policy, TOKENIZER, tmp_path, merged=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any(isinstance(module, Linear4bit) for module in plain.modules())
    assert plain.dtype == torch.float32
    torch.testing.assert_close(logits(plain), logits(policy.causal_lm), atol=2e-5, rtol=1e-4)
    for name, tensor in policy.state_dict().items():  # exporting does not change the policy
        assert torch.equal(tensor, before[name]), name


def test_a_model_merged_from_bfloat16_arithmetic_differs_by_rounding(folder, tmp_path):
    policy = trained(PolicySpec(folder, LoRA(rank=4, alpha=8), NF4()))
    export(policy, TOKENIZER, tmp_path, merged=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), logits(policy.causal_lm), atol=0.05, rtol=0.05)


def test_a_policy_without_adapter_has_the_same_logits_in_transformers(folder, tmp_path):
    policy = trained(PolicySpec(folder))
    export(policy, TOKENIZER, tmp_path)
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(policy.causal_lm), atol=1e-6, rtol=1e-5
    )


def test_the_tokenizer_is_exported_with_the_weights(folder, tmp_path):
    export(trained(PolicySpec(folder, LoRA(rank=4))), TOKENIZER, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>user\nTurn 1: ####_P √<|im_end|>\n"
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.chat_template == TOKENIZER.chat_template
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == folder


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call
def test_an_adapter_finds_its_base_from_another_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(folder).parent)
    export(trained(PolicySpec(Path(folder).name, LoRA(rank=4))), TOKENIZER, tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    AutoPeftModelForCausalLM.from_pretrained("adapter")


@pytest.mark.parametrize(
    "template",
    [None, "{% for m in messages %}{{ strftime_now('%d %b %Y') + m['content'] + '<|im_end|>' }}{% endfor %}"],
    ids=["none", "with the date"],
)
def test_the_exported_template_is_the_one_that_prompts_were_written_by(template, folder, tmp_path):
    own = copy.deepcopy(TOKENIZER)
    own.chat_template = template
    spec = PolicySpec(folder, LoRA(rank=4))
    export(trained(spec), own, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    said = (Message("user", "Turn 1"),)
    shown = loaded.apply_chat_template(
        [{"role": "user", "content": "Turn 1"}], tokenize=False, add_generation_prompt=True
    )
    assert tuple(loaded.encode(shown, add_special_tokens=False)) == Chat.of(spec, own).prompt((), said)
    assert own.chat_template == template


@pytest.mark.parametrize("key_value_heads", [2, 1])
def test_qwen2_and_seed_oss_compute_the_same_function(key_value_heads: int):
    config = Qwen2Config(
        **{"vocab_size": len(TOKENIZER), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": key_value_heads, "intermediate_size": 128, "max_position_embeddings": 64},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "rms_norm_eps": 1e-4},
        **{"attention_bias": False, "mlp_bias": True, "residual_dropout": 0.1},  # kept by Qwen2, and without effect
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases too, which begin at 0
    other = as_seed_oss(model.config)
    assert other is not None
    same = AutoModelForCausalLM.from_config(other)
    same.load_state_dict(model.state_dict())
    assert torch.equal(logits(same), logits(model))


def test_a_tokenizer_that_autotokenizer_changes_warns(tmp_path: Path):
    """A Qwen2 model with a sliding window cannot be written as Seed-OSS."""
    config = Qwen2Config(
        **{"vocab_size": len(TOKENIZER), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64},
        **{"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "windowed")
    TOKENIZER.save_pretrained(tmp_path / "windowed")
    policy = trained(PolicySpec(str(tmp_path / "windowed")))
    with pytest.warns(UserWarning, match="changes the tokenizer of a qwen2 model, so load it with PreTrained"):
        export(policy, TOKENIZER, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call
@pytest.mark.parametrize("quantisation", [None, EXACT, NF4(double_quant=False)], ids=str)
def test_the_card_loads_an_adapter_on_the_base_that_it_was_trained_on(folder, quantisation, tmp_path, monkeypatch):
    policy = trained(PolicySpec(folder, LoRA(rank=4, alpha=8), quantisation))
    export(policy, TOKENIZER, tmp_path / "adapter")
    ends = tuple(Chat.of(policy.spec, TOKENIZER).end_ids)
    card = Card("adapter", folder, "adapter", quantisation, "float32", ("a task",), (), 1, 1, (), 1.0, 4, "1.0", ends)
    [code] = re.findall(r"```python\n(.*?)```", card.text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = dict[str, Any]()
    loads, chat, answers = code.partition("chat = ")
    exec(loads, names)
    torch.testing.assert_close(logits(names["model"]), logits(policy.causal_lm), atol=2e-5, rtol=1e-4)
    exec(chat + answers, names)


def test_an_adapter_on_a_new_model_is_only_exported_merged(tmp_path: Path):
    policy = trained(PolicySpec(SCRATCH, LoRA(rank=4, alpha=8)))
    with pytest.raises(ConfigError, match="export it merged"):
        export(policy, TOKENIZER, tmp_path)
    export(policy, TOKENIZER, tmp_path, merged=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), logits(policy.causal_lm), atol=2e-5, rtol=1e-4)
