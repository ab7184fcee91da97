"""Every export is loaded again and equals the policy, or is refused: all forms, targets and embeddings."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.export import export
from tsr_lightning.policy.export_check import check_export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

TOKENIZER = make_tokenizer(["Up Down Left Right"])
TARGETS = ["all-linear", ["q_proj"], ["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"], ["q_proj", "lm_head"]]
IDS = torch.arange(8)[None]


def trained(folder: Path, *, tied: bool, targets: list[str] | str | None, **settings: object) -> Policy:
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(TOKENIZER), tie_word_embeddings=tied, **sizes))
    for parameter in base.parameters():
        nn.init.normal_(parameter, std=0.2)
    base.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    adapter = None if targets is None else LoRA(rank=2, alpha=2, target_modules=targets)
    policy = Policy(PolicySpec(str(folder), adapter, **settings), TOKENIZER, critic=True)
    with torch.no_grad():
        for parameter in policy.trainable_state().values():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # peft's advice on merging
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`:UserWarning")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("merged", [True, False], ids=["merged", "adapter"])
@pytest.mark.parametrize("targets", [*TARGETS, None], ids=str)
def test_what_is_written_equals_the_policy(targets, merged: bool, tied: bool, tmp_path: Path):
    policy = trained(tmp_path / "base", tied=tied, targets=targets)
    expected = policy.eval().causal_lm(input_ids=IDS).logits
    out = tmp_path / "out"
    export(policy, TOKENIZER, out, merged=merged)
    is_adapter = (out / "adapter_config.json").is_file()
    assert is_adapter == (targets is not None and not merged)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base" if is_adapter else out)
    if is_adapter:
        loaded = PeftModel.from_pretrained(loaded, out)
    torch.testing.assert_close(loaded.eval()(input_ids=IDS).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    "settings", [{}, {"quantisation": NF4(compute_dtype="float32")}, {"dtype": "bfloat16"}], ids=str
)
@pytest.mark.parametrize("merged", [True, False], ids=["merged", "adapter"])
def test_weights_that_are_not_the_policys_are_refused(merged: bool, settings: dict[str, object], tmp_path: Path):
    policy = trained(tmp_path / "base", tied=False, targets=["q_proj", "down_proj"], **settings)
    out = tmp_path / "out"
    export(policy, TOKENIZER, out, merged=merged)  # rounding to fewer bits is none
    [path] = out.glob("*.safetensors")
    state = load_file(path)
    save_file(
        {name: 2 * tensor if "down_proj" in name else tensor for name, tensor in state.items()}, path, {"format": "pt"}
    )
    sentence = r"the export of an adapter on \['q_proj', 'down_proj'\] computes other logits .* so it was removed: "
    with pytest.raises(ConfigError, match=sentence):
        check_export(policy, out)
    path.write_bytes(b"cut")
    with pytest.raises(ConfigError, match=r"cannot be loaded again \("):
        check_export(policy, out)


def test_an_export_that_loads_as_another_model_leaves_no_weights(tmp_path: Path):
    policy = trained(tmp_path / "base", tied=True, targets=None)
    policy.causal_lm.config.rms_norm_eps = 10.0  # written, and not what the layers have
    with pytest.raises(ConfigError, match="the export of the whole model computes other logits than the policy"):
        export(policy, TOKENIZER, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.safetensors*"))
