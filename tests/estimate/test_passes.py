"""Bytes and operations of a real forward and backward pass, as PyTorch counts them, beside the formulas."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_models import KINDS, policy, saved_model, sequences, size_of
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tsr_lightning.batching.packing import Packed
from tsr_lightning.estimate.activations import Activations
from tsr_lightning.estimate.flops import forward_flops, update_flops
from tsr_lightning.estimate.live_tensors import LiveTensors
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.policy.model import Policy

PACKED = sequences((320, 321, 322))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


def loss(policy: Policy, packed: Packed = PACKED) -> Tensor:
    out = policy.outputs(packed, 1.0, entropies=True)
    return out.logprobs.sum() + out.values.sum() + out.entropies.sum()


def owned(policy: Policy) -> Iterator[Tensor]:
    """What the model holds anyway; a quantised layer's scales are plain attributes."""
    yield from (*policy.parameters(), *policy.buffers())
    for module in policy.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def saved_bytes(policy: Policy, packed: Packed = PACKED) -> int:
    """Of all that autograd keeps from the forward to the backward pass, each tensor once."""
    known = {tensor.untyped_storage().data_ptr() for tensor in owned(policy)}
    saved: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes(), tensor  # kept, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(policy, packed)
    assert result.requires_grad
    return sum(size for size, _ in saved.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", [False, True])
class TestActivations:
    """The formulas leave out indices, and one number a token here and there."""

    def test_saved_bytes_within_half_a_percent(self, kind: str, checkpointing: bool, folder: Path):
        model = policy(folder, kind, checkpointing)
        activations = Activations(shape_of(model.causal_lm.config), model.spec)
        expected = activations.saved(size_of(PACKED)) + activations.saved_logits(size_of(PACKED))
        assert saved_bytes(model) == pytest.approx(expected, rel=0.005)

    def test_peak_within_a_seventh(self, kind: str, checkpointing: bool, folder: Path):
        """Live tensors over forward and backward pass; a layer's gradients are counted with the largest only."""
        model = policy(folder, kind, checkpointing)
        activations, size = Activations(shape_of(model.causal_lm.config), model.spec), size_of(PACKED)
        with LiveTensors() as live:
            loss(model).backward()
        expected = activations.saved(size) + max(activations.working(size), activations.logits(size))
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        assert live.highest <= 1.02 * (expected + gradients)
        assert live.highest >= 0.85 * expected


def test_logits_in_chunks_keep_nothing_and_work_on_one(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tsr_lightning.policy.causal_lm.CHUNK_LOGITS", 100 * 1024)
    monkeypatch.setattr("tsr_lightning.estimate.activations.CHUNK_LOGITS", 100 * 1024)
    model = policy(folder, "adapter, bfloat16", False)
    activations = Activations(shape_of(model.causal_lm.config), model.spec)
    assert activations.rows_at_once == 100 < size_of(PACKED).outputs
    assert activations.saved_logits(size_of(PACKED)) == 0
    assert saved_bytes(model) == pytest.approx(activations.saved(size_of(PACKED)), rel=0.005)
    hidden = torch.randn(size_of(PACKED).outputs, 128, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(len(hidden), dtype=torch.int64)
    with LiveTensors() as live:
        logprobs, entropies = model._lm._score(hidden, targets, 1.0, True)
        (logprobs.sum() + entropies.sum()).backward()
    assert live.highest == pytest.approx(activations.logits(size_of(PACKED)), rel=0.25)


@pytest.mark.parametrize("kind", ["all weights, float32", "adapter, float32"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_flops_are_those_that_pytorch_counts(kind: str, checkpointing: bool, folder: Path):
    """Without attention, for which PyTorch counts whole squares and CPUs' kernels not at all. The last layer of our own
    pass computes less, so transformers' pass is counted."""
    model = policy(folder, kind, checkpointing)
    shape, size = shape_of(model.causal_lm.config), size_of(PACKED)
    model.causal_lm.base_model.forward = type(model.causal_lm.base_model).forward.__get__(model.causal_lm.base_model)
    with FlopCounterMode(display=False) as counter:
        result = loss(model)
        forward = products(counter)
        result.backward()
    critic = 2 * size.outputs * shape.hidden_size
    expected = forward_flops(shape, model.spec, size.tokens, size.outputs, 0)
    assert forward == pytest.approx(expected.total + critic, rel=1e-9)
    whole = update_flops(shape, model.spec, size.tokens, size.outputs, 0, chunked=False)
    first = 0  # the embeddings of a frozen model need no gradient, so neither do the first layer's q, k and v of them
    if model.spec.adapter is not None and not checkpointing:
        rank, linears = model.spec.adapter.rank, shape.layers[0].linears[:3]
        first = sum(2 * size.tokens * (one.weights + rank * one.inputs) for one in linears)
    assert products(counter) == pytest.approx(whole.total + 2 * critic - first, rel=1e-9)


def products(counter: FlopCounterMode) -> int:
    names = {"aten.mm", "aten.addmm", "aten.bmm"}
    return sum(count for name, count in counter.get_flop_counts()["Global"].items() if str(name) in names)
