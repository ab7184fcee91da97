"""NF4 with LoRA on a CPU: the base does not change by a bit, and evaluation does not change later gradients."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from bitsandbytes.nn import Linear4bit
from torch import Tensor

from tsr_lightning.batching.packing import Packed, pack
from tsr_lightning.modeling import packed_forward
from tsr_lightning.policy.export import export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer

SCRATCH = Scratch(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, max_position_embeddings=64
)
TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
FORMATS = [NF4(), NF4(double_quant=False, compute_dtype="float32")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("base")
    policy = Policy(PolicySpec(SCRATCH), TOKENIZER, critic=False, seed=5)
    with torch.no_grad():
        for parameter in policy.parameters():  # biases too: bitsandbytes casts them at a layer's first forward
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    export(policy, TOKENIZER, path)
    return str(path)


@pytest.fixture(params=FORMATS, ids=str)
def build(request, folder) -> Callable[[], Policy]:
    return lambda: Policy(PolicySpec(folder, LoRA(rank=4, alpha=8), request.param), TOKENIZER, critic=True, seed=1)


def rows() -> Packed:
    ids = torch.randint(0, len(TOKENIZER) - 3, (3, 16), generator=torch.Generator().manual_seed(2))
    ids[1, :5] = ids[0, :5]
    return pack([(row, np.arange(16) >= 6) for row in ids.numpy()])


def update(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """One step in training mode, and its gradients."""
    policy.train()
    optimizer.zero_grad()
    outputs = policy.outputs(rows(), 1.0, entropies=True)
    (outputs.logprobs.mean() + 0.01 * outputs.entropies.mean() + (outputs.values - 1).square().mean()).backward()
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    optimizer.step()
    return gradients


@torch.no_grad()
def evaluate(policy: Policy) -> None:
    """Generates and scores as a rollout and a validation do: evaluation mode, no gradients, several batch sizes."""
    policy.eval()
    ids = rows().ids[:12].view(3, 4)
    policy.causal_lm.generate(input_ids=ids, attention_mask=ids * 0 + 1, max_new_tokens=4, do_sample=False)
    policy.reference.outputs(rows(), 1.0)


def optimizer_of(policy: Policy) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2)


def frozen_bits(policy: Policy) -> dict[str, Tensor]:
    state = policy.state_dict()
    return {name: tensor.clone() for name, tensor in state.items() if name not in policy.trainable_state()}


def test_linear_layers_are_quantised_to_4_bits(build):
    policy = build()
    layers = [module for module in policy.modules() if isinstance(module, Linear4bit)]
    assert len(layers) == 2 * 7
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    assert {tensor.dtype for tensor in policy.trainable_state().values()} == {torch.float32}


def test_base_weights_do_not_change_by_a_bit(build):
    policy = build()
    before, start = frozen_bits(policy), {name: t.clone() for name, t in policy.trainable_state().items()}
    optimizer = optimizer_of(policy)
    for _ in range(3):
        evaluate(policy)
        update(policy, optimizer)
    after = frozen_bits(policy)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype, name
        assert torch.equal(tensor, after[name]), name
    assert all(not torch.equal(start[name], tensor) for name, tensor in policy.trainable_state().items())


def test_evaluation_does_not_change_later_gradients(build):
    evaluated, untouched = build(), build()
    optimizers = optimizer_of(evaluated), optimizer_of(untouched)
    for _ in range(3):
        evaluate(evaluated)
        mine, other = update(evaluated, optimizers[0]), update(untouched, optimizers[1])
        assert mine.keys() == other.keys() == evaluated.trainable_state().keys()
        for name in mine:
            assert torch.equal(mine[name], other[name]), name


def test_evaluation_mode_gives_the_logprobs_of_training_mode(build):
    policy = build()
    evaluate(policy)
    train, evaluation = policy.train().outputs(rows(), 1.0), policy.eval().outputs(rows(), 1.0)
    torch.testing.assert_close(train.logprobs, evaluation.logprobs)
    with torch.no_grad():  # as in a rollout, where bitsandbytes may take another kernel
        torch.testing.assert_close(train.logprobs, policy.outputs(rows(), 1.0).logprobs)


def test_the_reference_is_the_quantised_base(build):
    policy = build()
    with torch.no_grad():  # with gradients other operators run
        base = policy.outputs(rows(), 1.0).logprobs  # B of LoRA is zero at first
    update(policy, optimizer_of(policy))
    assert torch.equal(policy.reference.outputs(rows(), 1.0).logprobs, base)
    assert not torch.equal(policy.outputs(rows(), 1.0).logprobs, base)


def test_recomputed_activations_give_the_same_gradients(build, monkeypatch):
    """Gradient checkpointing hands every layer the segments of the packed sequence too. Both policies use transformers'
    own forward pass here: 4-bit rounding would amplify another order of summation."""
    monkeypatch.setattr(packed_forward, "is_supported", lambda body: False)
    kept = build()
    spec = replace(kept.spec, gradient_checkpointing=True)
    recomputed = Policy(spec, TOKENIZER, critic=True, seed=1)
    mine, other = update(kept, optimizer_of(kept)), update(recomputed, optimizer_of(recomputed))
    assert mine.keys() == other.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], other[name], atol=1e-6, rtol=1e-5, msg=name)


def test_a_frozen_copy_shares_the_base_and_not_the_adapter(build: Callable[[], Policy]) -> None:
    policy = build()
    frozen, before = policy.frozen_copy(), policy.outputs(rows(), 1.0).logprobs
    adapter = {name for name, _ in policy.named_parameters() if "lora_" in name or name.startswith("value_head")}
    theirs = dict(frozen.named_parameters())
    assert {name for name, own in policy.named_parameters() if theirs[name] is not own} == adapter
    update(policy, optimizer_of(policy))
    after = policy.outputs(rows(), 1.0).logprobs
    assert not torch.equal(after, before)
    assert torch.equal(frozen.outputs(rows(), 1.0).logprobs, before)
    frozen.load_trainable_state(policy.snapshot())
    assert torch.equal(frozen.outputs(rows(), 1.0).logprobs, after)
