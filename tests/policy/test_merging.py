"""A merged export computes what the policy computes, whatever layers have adapters, with embeddings tied or not."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from tsr_lightning.policy.export import export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

TARGETS = [
    ["q_proj"],
    ["embed_tokens"],
    ["lm_head"],
    ["embed_tokens", "lm_head"],
    ["q_proj", "down_proj", "embed_tokens"],
]


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # peft's advice on merging
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
def test_logits_of_a_merged_export(targets: list[str], tied: bool, tmp_path: Path):
    tokenizer = make_tokenizer(["Up Down Left Right"])
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=tied, **sizes))
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    spec = PolicySpec(str(tmp_path / "base"), adapter=LoRA(rank=2, alpha=2, target_modules=targets))
    policy = Policy(spec, tokenizer, critic=False)
    for name, parameter in policy.named_parameters():
        if "lora_" in name:  # an adapter begins as zero
            nn.init.normal_(parameter, std=0.5)
    ids = torch.randint(len(tokenizer), (2, 9))
    with torch.no_grad():
        expected = policy.causal_lm(input_ids=ids).logits
        export(policy, tokenizer, tmp_path / "merged", merged=True)
        actual = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(input_ids=ids).logits
        unchanged = base(input_ids=ids).logits
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert (expected - unchanged).abs().max() > 0.01  # the adapter does something
