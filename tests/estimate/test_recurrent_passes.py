"""Estimated bytes and FLOPs of models with recurrent layers against those of a real pass."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from recurrent_models import TINY, recurrent_policy, recurrent_size
from small_models import KINDS, sequences
from test_passes import loss, products, saved_bytes
from torch.utils.flop_counter import FlopCounterMode

from tsr_lightning.estimate.flops import forward_flops, update_flops
from tsr_lightning.estimate.live_tensors import LiveTensors
from tsr_lightning.estimate.recurrent_activations import activations_of
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA

PACKED = sequences((320, 320, 320), prefix=64)  # rows of 64 and 256 tokens, which are whole chunks
SOME_LAYERS = "adapter of some layers"
SOME = {("all weights, float32", False), ("adapter, bfloat16", True)}

every_kind = pytest.mark.parametrize(
    ("kind", "checkpointing"),
    [
        pytest.param(kind, checkpointing, marks=() if (kind, checkpointing) in SOME else pytest.mark.exhaustive)
        for kind in KINDS
        if kind != SOME_LAYERS
        for checkpointing in (False, True)
    ],
)
every_type = pytest.mark.parametrize("name", TINY)
Make = Callable[[str, str, bool], Policy]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @cache
    def policy(name: str, kind: str, checkpointing: bool) -> Policy:
        folder = tmp_path_factory.mktemp("model")
        return recurrent_policy(TINY[name](), folder, gradient_checkpointing=checkpointing, **KINDS[kind])

    return policy


@every_kind
@every_type
class TestRecurrentActivations:
    def test_saved_bytes_within_half_a_percent(self, name: str, kind: str, checkpointing: bool, make: Make):
        model = make(name, kind, checkpointing)
        activations, size = activations_of(shape_of(model.causal_lm.config), model.spec), recurrent_size(PACKED)
        expected = activations.saved(size) + activations.saved_logits(size)
        assert saved_bytes(model, PACKED) == pytest.approx(expected, rel=0.005)

    def test_peak_within_a_seventh(self, name: str, kind: str, checkpointing: bool, make: Make):
        model = make(name, kind, checkpointing)
        activations, size = activations_of(shape_of(model.causal_lm.config), model.spec), recurrent_size(PACKED)
        with LiveTensors() as live:
            loss(model, PACKED).backward()
        expected = activations.saved(size) + max(activations.working(size), activations.logits(size))
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        model.zero_grad()
        assert live.highest <= 1.02 * (expected + gradients)
        assert live.highest >= 0.85 * expected


def test_layers_before_the_first_adapter_keep_nothing_so_that_the_estimate_is_a_bound(tmp_path: Path):
    adapter = LoRA(8, 8, ["q_proj"])  # of layers 1 and 3, while the convolution of layer 0 needs no gradient
    model = recurrent_policy(TINY["lfm2"](), tmp_path, adapter=adapter)
    activations, size = activations_of(shape_of(model.causal_lm.config), model.spec), recurrent_size(PACKED)
    expected = activations.saved(size) + activations.saved_logits(size)
    assert 0.75 * expected < saved_bytes(model, PACKED) < expected


@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@every_type
def test_flops_within_3_percent_of_those_that_pytorch_counts(name: str, checkpointing: bool, make: Make):
    """PyTorch counts matrix products; not solutions of triangular systems, nor convolutions, which are small. The
    estimate leaves out products of the states at the starts of chunks."""
    model = make(name, "all weights, float32", checkpointing)
    shape, packed = shape_of(model.causal_lm.config), sequences((512, 512, 512), prefix=0)
    size = recurrent_size(packed)
    with FlopCounterMode(display=False) as counter:
        result = loss(model, packed)
        forward = products(counter)
        result.backward()
    model.zero_grad()
    expected = forward_flops(shape, model.spec, size.tokens, size.outputs, 0)
    assert forward == pytest.approx(expected.total, rel=0.03)
    whole = update_flops(shape, model.spec, size.tokens, size.outputs, 0, chunked=False)
    assert products(counter) == pytest.approx(whole.total, rel=0.03)
