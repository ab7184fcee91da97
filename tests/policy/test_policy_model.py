"""Policy, reference and critic on small models of several architectures with random weights."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from tsr_lightning.batching.packing import Packed, pack
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.policy import causal_lm, loading
from tsr_lightning.policy.causal_lm import PackedCausalLM
from tsr_lightning.policy.export import export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer

SCRATCH = Scratch(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=64
)
TOKENIZER: PreTrainedTokenizerFast = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
SIZES = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # logits far enough from zero for a cap to show
    "pad_token_id": TOKENIZER.pad_token_id,
    "eos_token_id": TOKENIZER.eos_token_id,
    "bos_token_id": TOKENIZER.eos_token_id,
}
ARCHITECTURES: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True, attention_dropout=0.5),
    "llama": LlamaConfig(**SIZES),
    "gpt2": GPT2Config(
        vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
    "gemma2, soft-capped": Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=3.0),
    "cohere, scaled": CohereConfig(**SIZES, logit_scale=0.25),
}
LINEAR_HEADS = {"qwen2", "llama", "gpt2"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    torch.manual_seed(0)
    paths = {}
    for name, config in ARCHITECTURES.items():
        path = tmp_path_factory.mktemp(name.split(",")[0])
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        TOKENIZER.save_pretrained(path)
        paths[name] = str(path)
    return paths


@pytest.fixture(params=ARCHITECTURES)
def named(request, folders) -> tuple[str, str]:
    return request.param, folders[request.param]


@pytest.fixture
def folder(folders) -> str:
    return folders["qwen2"]


def spec_of(named: tuple[str, str], adapter: LoRA | None = None, checkpointing: bool = False) -> PolicySpec:
    _, folder = named
    return PolicySpec(folder, adapter, gradient_checkpointing=checkpointing)


def perturbed(policy: Policy, scale: float = 0.1) -> Policy:
    """The policy with noise added to every trainable tensor, as if it had been trained."""
    torch.manual_seed(1)
    state = policy.trainable_state()
    with torch.no_grad():
        for tensor in {tensor.data_ptr(): tensor for tensor in state.values()}.values():
            tensor.add_(scale * torch.randn_like(tensor))
    return policy


def rows(length: int = 12) -> tuple[Tensor, Tensor]:
    """Ids and masks of three sequences: two sampled spans, one sampled token, none. The first two share a prefix."""
    ids = torch.randint(0, len(TOKENIZER) - 3, (3, length), generator=torch.Generator().manual_seed(2))
    mask = torch.zeros(3, length, dtype=torch.bool)
    mask[0, 3:6] = mask[0, 8:11] = True
    mask[1, 1] = True
    ids[1, :5] = ids[0, :5]
    return ids, mask


def batch(ids: Tensor, mask: Tensor) -> Packed:
    return pack(list(zip(ids.numpy(), mask.numpy(), strict=True)))


def naive(policy: Policy, ids: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies from the logits of the whole model, one token at a time."""
    logprobs, entropies = [], []
    logits = policy.causal_lm(input_ids=ids).logits
    for row, position in mask.nonzero().tolist():
        distribution = torch.distributions.Categorical(logits=logits[row, position - 1].float() / temperature)
        logprobs.append(distribution.log_prob(ids[row, position]))
        entropies.append(distribution.entropy())
    return torch.stack(logprobs), torch.stack(entropies)


@pytest.mark.parametrize("adapter", [None, LoRA(rank=4, alpha=8)], ids=["all weights", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_outputs_match_those_of_the_whole_models_logits(named, adapter, checkpointing, monkeypatch):
    name, _ = named
    monkeypatch.setattr("tsr_lightning.policy.causal_lm.CHUNK_LOGITS", 3 * len(TOKENIZER))  # of seven tokens
    spec = spec_of(named, adapter, checkpointing)
    policy = perturbed(Policy(spec, TOKENIZER, critic=True), 0.05).train()
    assert policy._lm.has_linear_head == (name in LINEAR_HEADS)
    ids, mask = rows()
    outputs = policy.outputs(batch(ids, mask), 0.7, entropies=True)
    logprobs, entropies = naive(policy, ids, mask, 0.7)
    torch.testing.assert_close(outputs.logprobs, logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs.entropies, entropies, atol=1e-5, rtol=1e-5)

    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    ours = torch.autograd.grad(outputs.logprobs.sum() + outputs.entropies.sum(), parameters)
    theirs = torch.autograd.grad(logprobs.sum() + entropies.sum(), parameters)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_values_come_from_the_hidden_state_before_each_token(named):
    policy = perturbed(Policy(spec_of(named), TOKENIZER, critic=True))
    ids, mask = rows()
    values = policy.outputs(batch(ids, mask), 1.0).values
    assert policy.value_head is not None
    for value, (row, position) in zip(values, mask.nonzero().tolist(), strict=True):
        context = ids[row, :position]
        hidden = policy.causal_lm(input_ids=context[None], output_hidden_states=True).hidden_states[-1][0, -1]
        torch.testing.assert_close(value, policy.value_head(hidden).squeeze(), atol=1e-5, rtol=1e-4)
    assert len({round(value, 4) for value in values.tolist()}) > 3


def test_batch_composition_does_not_change_outputs(named):
    """A sequence has the same outputs alone as packed among others that share its prefix."""
    policy = perturbed(Policy(spec_of(named), TOKENIZER, critic=True)).train()
    ids, mask = rows()
    together = policy.outputs(batch(ids, mask), 1.0, entropies=True)
    alone = [policy.outputs(batch(ids[i, None], mask[i, None]), 1.0, entropies=True) for i in range(len(ids))]
    for name in ("logprobs", "entropies", "values"):
        apart = torch.cat([getattr(outputs, name) for outputs in alone])
        torch.testing.assert_close(getattr(together, name), apart, atol=1e-5, rtol=1e-4)


def test_a_policy_without_critic_has_no_values(named):
    """Zeros would rank the nodes of a search by ties."""
    policy = Policy(spec_of(named), TOKENIZER, critic=False)
    with pytest.raises(RunError, match=r"values were asked of a policy that has no critic: .* declares needs_critic"):
        policy.values(torch.zeros(2, policy.causal_lm.config.hidden_size))
    assert not policy.outputs(batch(*rows()), 1.0).values.any()  # of which an objective without critic reads none


def test_logits_are_computed_in_chunks(named, monkeypatch):
    """Seven sampled tokens in chunks of three, with and without gradients."""
    monkeypatch.setattr("tsr_lightning.policy.causal_lm.CHUNK_LOGITS", 3 * len(TOKENIZER))
    policy = Policy(spec_of(named), TOKENIZER, critic=False).train()
    sizes, logits = [], PackedCausalLM.logits

    def recorded(self, hidden):
        sizes.append(len(hidden))
        return logits(self, hidden)

    monkeypatch.setattr(PackedCausalLM, "logits", recorded)
    outputs = policy.outputs(batch(*rows()), 1.0)
    assert sizes == [3, 3, 1]
    outputs.logprobs.sum().backward()
    assert sorted(sizes) == [1, 1, 3, 3, 3, 3]
    with torch.no_grad():
        policy.outputs(batch(*rows()), 1.0)
    assert sizes[6:] == [3, 3, 1]


@pytest.mark.parametrize("adapter", [None, LoRA(rank=4)], ids=["all weights", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_gradients_under_autocast_are_close_to_float32(named, adapter, checkpointing):
    policy = perturbed(Policy(spec_of(named, adapter, checkpointing), TOKENIZER, critic=True)).train()
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logprobs = policy.outputs(batch(*rows()), 1.0).logprobs
        assert logprobs.dtype == torch.float32
        gradients = torch.autograd.grad(logprobs.sum(), parameters)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.98


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_a_batch_without_sampled_tokens_has_zero_gradients(named, checkpointing):
    """As on a rank that has nothing to train on while the others do."""
    policy = Policy(spec_of(named, LoRA(rank=4), checkpointing), TOKENIZER, critic=True).train()
    ids, mask = rows()
    outputs = policy.outputs(batch(ids, torch.zeros_like(mask)), 1.0, entropies=True)
    assert outputs.logprobs.shape == outputs.entropies.shape == outputs.values.shape == (0,)
    (outputs.logprobs.sum() + outputs.entropies.sum() + outputs.values.sum()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters() if p.requires_grad)


def test_training_mode_gives_the_logprobs_of_evaluation_mode(folder):
    """The model's own dropout is off: an update's log-probabilities must equal the rollout's."""
    policy = Policy(PolicySpec(folder), TOKENIZER, critic=False)
    args = (batch(*rows()), 1.0)
    torch.testing.assert_close(policy.train().outputs(*args).logprobs, policy.eval().outputs(*args).logprobs)


def test_the_critics_gradient_stays_out_of_the_model(folder):
    policy = perturbed(Policy(PolicySpec(folder, LoRA()), TOKENIZER, critic=True))
    policy.outputs(batch(*rows()), 1.0).values.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in policy.model.parameters())
    assert policy.value_head is not None
    assert policy.value_head.weight.grad.any()


@pytest.mark.parametrize("adapter", [None, LoRA(rank=4)], ids=["all weights", "lora"])
def test_the_reference_keeps_the_starting_weights(named, adapter):
    ids, mask = rows()
    base = Policy(spec_of(named), TOKENIZER, critic=False).outputs(batch(ids, mask), 1.0).logprobs
    policy = Policy(spec_of(named, adapter), TOKENIZER, critic=True, keep_reference=True)
    torch.testing.assert_close(policy.outputs(batch(ids, mask), 1.0).logprobs, base)
    perturbed(policy)
    trained = policy.outputs(batch(ids, mask), 1.0).logprobs
    outputs = policy.reference.outputs(batch(ids, mask), 1.0)
    torch.testing.assert_close(outputs.logprobs, base)
    assert not outputs.logprobs.requires_grad
    assert not outputs.values.any()
    assert (trained - base).abs().max() > 0.01
    torch.testing.assert_close(policy.outputs(batch(ids, mask), 1.0).logprobs, trained)
    trained.sum().backward()  # the reference changes no gradient
    assert all(p.grad is not None for p in policy.model.parameters() if p.requires_grad)


def test_a_reference_without_adapter_must_be_kept():
    policy = Policy(PolicySpec(SCRATCH), TOKENIZER, critic=False)
    with pytest.raises(RuntimeError, match="keep_reference"):
        _ = policy.reference


@pytest.mark.parametrize("adapter", [None, LoRA(rank=4)], ids=["all weights", "lora"])
def test_trainable_state_restores_a_trained_policy(folder, adapter):
    def fresh() -> Policy:
        return Policy(PolicySpec(folder, adapter), TOKENIZER, critic=True, keep_reference=True)

    trained, resumed = perturbed(fresh()), fresh()
    with trained.model.disable_adapter() if adapter else nullcontext():  # peft switches requires_grad off
        state = {name: tensor.clone() for name, tensor in trained.trainable_state().items()}
    assert {"value_head.weight", "value_head.bias"} <= state.keys()
    assert all(name.startswith(("model.", "value_head.")) for name in state)
    assert adapter is None or all("lora_" in name for name in state if not name.startswith("value_head."))
    resumed.load_trainable_state(state)
    for mine, other in zip(trained.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert mine[0] == other[0]
        assert torch.equal(mine[1], other[1])


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # of PEFT
def test_dropout_on_the_output_layer_draws_the_same_in_both_passes(folder, monkeypatch):
    """Large batches are scored in chunks, which the backward pass computes again: the gradient is that of the numbers
    that the forward pass gave, by central differences."""
    policy = Policy(PolicySpec(folder, LoRA(rank=4, dropout=0.5, target_modules=["lm_head"])), TOKENIZER, critic=False)
    monkeypatch.setattr(causal_lm, "CHUNK_LOGITS", 3 * policy.causal_lm.config.vocab_size)
    weights = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for weight in weights.values():
            weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(5, 25).numpy()
    packed = pack([(ids, ids > 8)])

    def total() -> torch.Tensor:
        torch.manual_seed(0)
        return policy.outputs(packed, 1.0).logprobs.double().sum()

    policy.train()
    total().backward()
    for weight in weights.values():
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
        ends = []
        for step in (1e-3, -2e-3):
            weight.data.add_(direction, alpha=step)
            ends.append(total().item())
        weight.data.add_(direction, alpha=1e-3)
        assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(float((weight.grad * direction).sum()), rel=0.02, abs=0.02)


def test_a_state_of_another_model_is_refused(folder):
    policy = Policy(PolicySpec(folder, LoRA(rank=4)), TOKENIZER, critic=True)
    for other in (
        Policy(PolicySpec(folder, LoRA(rank=2)), TOKENIZER, critic=True),
        Policy(PolicySpec(folder, LoRA(rank=4)), TOKENIZER, critic=False),
        Policy(PolicySpec(folder), TOKENIZER, critic=True),
    ):
        with pytest.raises(ConfigError, match="checkpoint of another model"):
            policy.load_trainable_state(other.trainable_state())


def test_fresh_weights_depend_only_on_the_seed(folder):
    for spec in (PolicySpec(SCRATCH), PolicySpec(folder, LoRA(rank=4))):
        states = []
        for seed, noise in ((3, 0), (3, 1), (4, 0)):
            torch.manual_seed(noise)
            before = torch.get_rng_state()
            states.append(Policy(spec, TOKENIZER, critic=True, seed=seed).trainable_state())
            assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_the_small_model_has_about_a_million_parameters():
    policy = Policy(PolicySpec(Scratch()), TOKENIZER, critic=False)
    assert 0.8e6 < sum(p.numel() for p in policy.parameters()) < 1.2e6
    assert policy.causal_lm.config.tie_word_embeddings
    assert policy.context_length == 1024


def test_an_adapter_on_bfloat16_is_float32(folder):
    policy = Policy(PolicySpec(folder, LoRA(rank=4), dtype="bfloat16"), TOKENIZER, critic=True)
    assert {tensor.dtype for tensor in policy.trainable_state().values()} == {torch.float32}
    assert policy.causal_lm.dtype == torch.bfloat16
    outputs = policy.outputs(batch(*rows()), 1.0)
    assert outputs.logprobs.dtype == outputs.values.dtype == torch.float32


def test_a_tokenizer_larger_than_the_embedding_is_refused(folder):
    larger = make_tokenizer(["Turn <answer> more words in here"])
    larger.add_tokens([f"<extra_{i}>" for i in range(50)])
    with pytest.raises(ConfigError, match="its tokenizer has 329 entries and its embedding 273"):
        Policy(PolicySpec(folder), larger, critic=False)


def test_export_and_load_keep_the_weights(tmp_path: Path):
    policy = perturbed(Policy(PolicySpec(SCRATCH), TOKENIZER, critic=False))
    export(policy, TOKENIZER, tmp_path)
    again = Policy(PolicySpec(str(tmp_path)), TOKENIZER, critic=False, seed=9)
    for name, tensor in policy.trainable_state().items():
        assert torch.equal(tensor, again.trainable_state()[name])


@pytest.mark.parametrize("adapter", [None, LoRA(rank=4, alpha=8)], ids=["all weights", "lora"])
def test_a_frozen_copy_has_trained_weights_of_its_own_and_shares_the_others(adapter: LoRA | None) -> None:
    policy = Policy(PolicySpec(SCRATCH, adapter=adapter), TOKENIZER, critic=True, keep_reference=True)
    frozen, trained = policy.frozen_copy(), policy.trainable_state().keys()
    ours, theirs = policy.state_dict(keep_vars=True), frozen.state_dict(keep_vars=True)
    assert theirs.keys() == ours.keys() > trained
    assert {name for name in ours if theirs[name] is not ours[name]} == set(trained)
    assert not any(tensor.requires_grad for tensor in theirs.values())

    first, packed = policy.snapshot(), batch(*rows())
    before = policy.outputs(packed, 1.0)
    perturbed(policy, 0.5)
    after = policy.outputs(packed, 1.0)
    assert not torch.allclose(before.logprobs, after.logprobs)
    assert not torch.allclose(before.values, after.values)
    for weights, expected in ((None, before), (policy.snapshot(), after), (first, before)):
        if weights is not None:
            frozen.load_trainable_state(weights)
        found = frozen.outputs(packed, 1.0)
        assert torch.equal(found.logprobs, expected.logprobs)
        assert torch.equal(found.values, expected.values)
    assert torch.equal(policy.outputs(packed, 1.0).logprobs, after.logprobs)


def test_bfloat16_on_a_processor_without_it_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    spec = PolicySpec(folder, adapter=LoRA(), dtype="bfloat16")
    for has_it, times in ((True, 0), (False, 1)):
        monkeypatch.setattr(loading, "multiplies_bfloat16", lambda has_it=has_it: has_it)
        Policy(spec, TOKENIZER, critic=False)
        assert caplog.text.count("model.policy.dtype is bfloat16, which this processor multiplies no faster") == times
