"""Seconds of decoding steps, whose kernels start one by one or are replayed as a CUDA graph. Pure functions."""

from collections import Counter

import torch

from tsr_lightning.engines.transformers.static_backend import StepRounding
from tsr_lightning.estimate.caches import kv_shape
from tsr_lightning.estimate.cards import Card
from tsr_lightning.estimate.flops import Flops, forward_flops
from tsr_lightning.estimate.meta_pass import counts_of
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.estimate.weights import DTYPES, ITEMSIZE, adapter_parameters, plain_bytes, quantised_bytes
from tsr_lightning.estimate.workload import Wave
from tsr_lightning.modeling import flex
from tsr_lightning.modeling.flex import HeadShape
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.policy.spec import PolicySpec

# PyTorch operators of a step, which tests/estimate/test_decode_steps.py counts: of a layer, of all else, and those that
# bfloat16 adds
_LAYER_OPERATORS, _ADAPTER_OPERATORS, _NF4_OPERATORS, _OTHER_OPERATORS = 78, 42, 7, 117
_ATTENTION_OPERATORS = 18  # of an attending layer, in the engine's own attention
_LAYER_CASTS, _ADAPTER_CASTS, _OTHER_CASTS = 4, 14, 7
# Further host time of an NF4 layer with an adapter, measured on an H200 with bitsandbytes 0.50 (docs/estimate.md)
NF4_LAYER_SECONDS = 4.4e-3
CAPTURE_STEPS = 2  # uncaptured steps that a capture takes as long as


def decode_seconds(setup: Setup, wave: Wave, responses: float, longest: int, batches: int, card: Card) -> float:
    """Seconds of all decoding steps of a wave.

    Args:
        setup: model and policy.
        wave: its prompts, and how many responses each has.
        responses: unfinished ones in a step, on average.
        longest: tokens of the longest response; the last token of a response is not computed.
        batches: one after the other, each of `longest` steps.
        card: whose speeds count.
    """
    steps = max(0, longest - 1)
    started, replayed = launches(wave, steps, batches) if is_captured(setup, card) else (steps * batches, 0)
    device = device_seconds(setup, wave, responses, longest, card)
    one_by_one = max(device, host_seconds(setup.shape, setup.spec, card))
    seconds = started * one_by_one + replayed * (device + card.replay_seconds)
    return seconds + steps * batches * responses * card.response_seconds


def is_captured(setup: Setup, card: Card) -> bool:
    """True if the engine captures decoding steps: on a GPU, where flex_attention takes the model's heads, no layer
    carries a state, the rotary embedding does not read positions, and the run is not deterministic
    (`engines.transformers.cache`)."""
    shape, kernels = setup.shape, Kernels(setup.spec.kernels)
    heads = HeadShape(
        DTYPES[setup.spec.dtype], shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim, shape.head_dim
    )
    is_static = kernels in (Kernels.AUTO, Kernels.FLEX) and flex.supports(torch.device("cuda"), heads)
    is_static &= not shape.is_recurrent
    return card.is_gpu and is_static and not shape.has_dynamic_rope and not setup.is_deterministic


def launches(wave: Wave, steps: int, batches: int) -> tuple[int, int]:
    """Counts the steps of equal batches: those whose kernels start one by one, and replayed graphs.

    A step's shape grows with the columns of a group, rounded up. The first step of a shape runs as it is, the second is
    captured, which counts as `CAPTURE_STEPS` further ones, and later ones are replayed.
    """
    lengths, siblings = StepRounding().lengths, max(1, round(wave.responses / wave.prompts))
    shapes = Counter(lengths.up(siblings * step) for step in range(1, steps + 1))
    counts = [count * batches for count in shapes.values()]
    captured = sum(count > 1 for count in counts)
    return len(counts) + CAPTURE_STEPS * captured, sum(counts) - len(counts)


def device_seconds(setup: Setup, wave: Wave, responses: float, longest: int, card: Card) -> float:
    """Seconds that the card takes for one step: it reads the weights and the visible keys and values (siblings share
    their prompt's), and reads and writes states, or it computes, whichever takes longer."""
    siblings = max(1.0, wave.responses / wave.prompts)
    seen = responses / siblings * wave.prompt_tokens + responses * longest / 2
    states = 2 * responses * setup.shape.state_bytes(ITEMSIZE[setup.spec.dtype])
    read = weights_read(setup.shape, setup.spec) + seen * kv_shape(setup).token_bytes + states
    scores = responses * (wave.prompt_tokens + longest / 2)
    flops = forward_flops(setup.shape, setup.spec, responses, responses, scores)
    return max(read / (card.bandwidth * card.bandwidth_share), flop_seconds(flops, setup, card))


def weights_read(shape: ModelShape, spec: PolicySpec) -> float:
    """Bytes of memory traffic for the weights of a forward pass: each is read once.

    Those in NF4 are first written in the compute dtype and then read again, as bitsandbytes does for more than a few
    rows.
    """
    dense = plain_bytes(shape, spec) + 4 * adapter_parameters(shape, spec.adapter)
    if spec.quantisation is None:
        return dense
    return dense + quantised_bytes(shape, spec) + 2 * ITEMSIZE[spec.quantisation.compute_dtype] * shape.linear_weights


def host_seconds(shape: ModelShape, spec: PolicySpec, card: Card) -> float:
    """Host time of a step whose kernels start one by one."""
    # measured on layers of seven linear layers, of which each has an operator of NF4
    nf4 = 0.0 if spec.quantisation is None else len(shape.linears) * NF4_LAYER_SECONDS / _NF4_OPERATORS
    return operators(shape, spec) * card.operator_seconds + nf4


def operators(shape: ModelShape, spec: PolicySpec) -> int:
    """Counts PyTorch's operators in one step."""
    casts = spec.dtype == "bfloat16"
    if shape.is_recurrent:
        return _recurrent_operators(shape, spec) + _OTHER_OPERATORS + casts * _OTHER_CASTS
    layer = _LAYER_OPERATORS + casts * _LAYER_CASTS
    if spec.adapter is not None:
        layer += _ADAPTER_OPERATORS + casts * _ADAPTER_CASTS
    if spec.quantisation is not None:
        layer += _NF4_OPERATORS
    return shape.num_hidden_layers * layer + _OTHER_OPERATORS + casts * _OTHER_CASTS


def _recurrent_operators(shape: ModelShape, spec: PolicySpec) -> int:
    """Counts those of the layers of a model that runs transformers' own code."""
    nf4 = len(shape.linears) if spec.quantisation is not None else 0
    counts = counts_of(shape, spec).layers
    return nf4 + sum(
        count * (counts[layer].operators + _ATTENTION_OPERATORS * (layer.attention is not None))
        for layer, count in shape.kinds.items()
    )


def flop_seconds(flops: Flops, setup: Setup, card: Card) -> float:
    """Seconds at the attainable share: the base in its compute dtype and an adapter in float32; both in bfloat16 under
    autocast."""
    spec = setup.spec
    dtype = spec.dtype if spec.quantisation is None else spec.quantisation.compute_dtype
    rate = card.bfloat16 if dtype == "bfloat16" or setup.autocast else card.float32
    of_adapter = card.bfloat16 if setup.autocast else card.float32
    return (flops.base / rate + flops.adapter / of_adapter) / card.compute_share
