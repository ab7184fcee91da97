"""A model whose sequences leak into one another when they are packed is refused before it is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    Gemma3TextConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    NemotronConfig,
    PretrainedConfig,
    StableLmConfig,
)

from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import recurrence
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.checks import check
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.probe import check_packing, check_repeats
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.strategies import Sample
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
NO_WIDTH = {key: value for key, value in SIZES.items() if key != "head_dim"}
REFUSED: dict[str, Callable[[int], PretrainedConfig]] = {  # by their type, and by the probe
    "jamba": lambda size: JambaConfig(
        vocab_size=size,
        **NO_WIDTH,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
    ),
    "mamba": lambda size: MambaConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, state_size=8, eos_token_id=0, pad_token_id=0
    ),
}
CARRIED: dict[str, Callable[[int], PretrainedConfig]] = {
    "lfm2": lambda size: Lfm2Config(vocab_size=size, **NO_WIDTH, layer_types=["conv", "full_attention"]),
    "bamba": lambda size: BambaConfig(
        vocab_size=size,
        **NO_WIDTH,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
}
ATTENTION: dict[str, Callable[[int], PretrainedConfig]] = {
    "llama": lambda size: LlamaConfig(vocab_size=size, **SIZES),
    "stablelm": lambda size: StableLmConfig(vocab_size=size, **NO_WIDTH),
    "nemotron": lambda size: NemotronConfig(vocab_size=size, **SIZES),
    "gemma3_text": lambda size: Gemma3TextConfig(
        vocab_size=size, **SIZES, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


def policy_of(make: Callable[[int], PretrainedConfig], folder: Path, **settings: Any) -> Policy:
    tokenizer = make_tokenizer(["Up Down Left Right"])
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(make(len(tokenizer)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Policy(PolicySpec(str(folder), **settings), tokenizer, critic=False, device=CPU)


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_carry_a_state_in_another_way_are_refused_by_cause(name: str, tmp_path: Path):
    policy = policy_of(REFUSED[name], tmp_path)
    cause = {"jamba": "computes other .* layers carry a state", "mamba": "does not take packed sequences"}[name]
    with pytest.raises(ConfigError, match=f"a model of type {name} {cause}.*docs/model_types.md"):
        check_packing(policy, CPU)


@pytest.mark.parametrize("name", [*ATTENTION, *CARRIED])
def test_layers_of_attention_and_known_recurrences_pass(name: str, tmp_path: Path):
    check_packing(policy_of({**ATTENTION, **CARRIED}[name], tmp_path), CPU)


@pytest.mark.parametrize("name", CARRIED)
def test_a_state_that_is_not_carried_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recurrence, "for_training", lambda *_: None)
    with pytest.raises(ConfigError, match=f"a model of type {name} computes other log-probabilities"):
        check_packing(policy_of(CARRIED[name], tmp_path), CPU)


def test_a_router_that_draws_in_training_is_refused(tmp_path: Path):
    def mixtral(jitter: float) -> Policy:
        sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": jitter}
        return policy_of(lambda size: MixtralConfig(vocab_size=size, **sizes), tmp_path / str(jitter))

    quiet, noisy = mixtral(0.0), mixtral(0.05)
    check_repeats(quiet.train(), CPU)
    check_repeats(noisy.eval(), CPU)
    with pytest.raises(ConfigError, match=r"mixtral draws at random in training, .* 0 in its config\.json"):
        check_repeats(noisy.train(), CPU)


LOW = {"dtype": "bfloat16", "adapter": LoRA(rank=2, alpha=2, target_modules=["q_proj"])}


def test_leaks_are_found_in_bfloat16_too(tmp_path: Path):
    policy = policy_of(REFUSED["jamba"], tmp_path, **LOW)
    with pytest.raises(ConfigError, match="a model of type jamba computes other log-probabilities"):
        check_packing(policy, CPU)


@pytest.mark.parametrize("name", [*ATTENTION, *CARRIED])
def test_rounding_to_bfloat16_is_no_leak(name: str, tmp_path: Path):
    check_packing(policy_of({**ATTENTION, **CARRIED}[name], tmp_path, **LOW), CPU)


@pytest.mark.parametrize("name", REFUSED)
def test_known_types_are_refused_before_they_load(name: str, tmp_path: Path):
    policy_of(REFUSED[name], tmp_path)
    with pytest.raises(ConfigError, match=f"of type {name}, its layers carry a state .*model_types.md has"):
        check(PolicySpec(str(tmp_path)))


@pytest.mark.parametrize("name", [*ATTENTION, *CARRIED])
def test_states_are_refused_under_an_older_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 5.22 hybrid models crash or compute wrong log-probabilities."""
    policy_of({**ATTENTION, **CARRIED}[name], tmp_path)
    monkeypatch.setattr(transformers, "__version__", "5.22.0")
    check(PolicySpec(str(tmp_path)))
    monkeypatch.setattr(transformers, "__version__", "5.21.4")
    if name in ATTENTION:
        check(PolicySpec(str(tmp_path)))
        return
    with pytest.raises(ConfigError, match=r"takes transformers 5\.22 or newer, and 5\.21\.4 is installed: pip install"):
        check(PolicySpec(str(tmp_path)))


def test_whatever_builds_the_model_probes_it(tmp_path: Path):
    """As fit, validate and export do, each by `configure_model`."""
    policy_of(REFUSED["jamba"], tmp_path)
    agent = Agent(PolicySpec(str(tmp_path)), GRPO())
    data = RolloutDataModule("tsr/FrozenLake-v0", {"prompt_style": "bare"}, plan=Uniform(Sample(), 4), instances=2)
    compat.attach(pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False), agent, data)
    with pytest.raises(ConfigError, match="a model of type jamba computes other log-probabilities"):
        agent.configure_model()
