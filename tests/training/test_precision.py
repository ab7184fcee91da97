"""Each remedy that is named for bfloat16 weights trains: one layer moves as AdamW was asked to, at 1e-6."""

import lightning.pytorch as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.checks import check
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.setting_checks import check_precision

RATE, STEPS = 1e-6, 20
TOKENIZER = make_tokenizer(["Up Down"])
ADAPTER = LoRA(rank=2, alpha=2, target_modules=["q_proj"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(TOKENIZER), **sizes)).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return str(path)


def share_moved(spec: PolicySpec, precision: str) -> float:
    """Of the movement that AdamW asks for under a constant gradient, which is the learning rate in each step."""
    policy = Policy(spec, TOKENIZER, critic=False)
    trainer = pl.Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
    converted = trainer.precision_plugin.convert_module(policy)
    [weight] = [
        tensor
        for name, tensor in converted.trainable_state().items()
        if name.endswith(("q_proj.weight", "lora_A.default.weight"))
    ]
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=RATE, weight_decay=0.0)
    for _ in range(STEPS):
        parameter.grad = torch.full_like(parameter, 0.1)
        optimizer.step()
    return float((weight.float() - parameter.detach().float()).mean()) / (RATE * STEPS)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "adapter": ADAPTER}], ids=["float32", "adapter"])
def test_a_named_remedy_moves_one_layer_as_asked(settings: dict[str, object], precision: str, folder: str):
    spec = PolicySpec(folder, **settings)
    check(spec)
    assert share_moved(spec, precision) == pytest.approx(1, abs=0.02)


def test_what_is_refused_would_hardly_move(folder: str):
    with pytest.raises(ConfigError, match=r"model\.policy\.dtype is 'bfloat16': AdamW hardly moves bfloat16 weights"):
        check(PolicySpec(folder, dtype="bfloat16"))
    assert share_moved(PolicySpec(folder, dtype="bfloat16"), "32-true") < 0.5
    for spec in (PolicySpec(folder), PolicySpec(folder, ADAPTER, dtype="bfloat16")):
        assert share_moved(spec, "bf16-true") < 0.5


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_a_trainer_that_converts_trained_weights_is_refused(precision: str, folder: str):
    trainer = pl.Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=rf"trainer\.precision is '{precision}': .* so give bf16-mixed for speed"):
        check_precision(trainer)
    agent = Agent(PolicySpec(folder), GRPO())
    agent.trainer = trainer
    with pytest.raises(ConfigError, match=r"trainer\.precision is"):
        agent.configure_model()
