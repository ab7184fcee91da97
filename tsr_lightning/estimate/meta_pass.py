"""Counts what a pass through each layer of a model with recurrent layers keeps, works with and dispatches.

One layer of each kind is built from transformers' own class and run on PyTorch's meta device, where tensors have sizes
and no memory: its scans save some twenty tensors that a formula could only copy from its code. Counts are of PyTorch's
own operators; fused kernels of other packages need less. What attention keeps is left out, since it depends on the
device (`activations.RecurrentActivations`).
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tsr_lightning.estimate.layers import Layer
from tsr_lightning.estimate.live_tensors import LiveTensors
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.estimate.weights import DTYPES
from tsr_lightning.modeling import attention, recurrence
from tsr_lightning.modeling.attention import ScoreParams, packed_inputs
from tsr_lightning.modeling.recurrence import MixerState, run_rows
from tsr_lightning.policy.spec import LoRA, PolicySpec

_CHUNKS = 4, 8  # of a scan in each row, in the two passes whose difference is counted
_LEAST = 64  # tokens of a chunk: a short convolution has none
_ROWS = 4  # of mixers: for one alone some products need fewer copies
_AFTER = -1  # the number of what comes after the layers


@dataclass(frozen=True)
class LayerCounts:
    """Counts of a layer; all but operators are bytes per token."""

    saved: float  # kept for the backward pass, outside of a mixer
    saved_rows: float  # and in a mixer, of a token of its rows
    working: float  # more than that, at the highest of a forward and backward pass
    prefill: float  # at the highest of a pass without gradients
    operators: int  # of a decoding step, without attention's own


@dataclass(frozen=True)
class ModelCounts:
    """Counts of a whole model."""

    first: LayerCounts  # the model's first layer, whose input needs no gradient if embeddings are frozen
    layers: Mapping[Layer, LayerCounts]
    norm: float  # bytes per token that the last norm keeps
    angles: float  # and of rotary embeddings, which layers share


def counts_of(shape: ModelShape, spec: PolicySpec) -> ModelCounts:
    """The counts of a model with this adapter, or with all weights trained.

    Weights in NF4 count as frozen ones, of which autograd keeps nothing either.
    """
    model = _Model(shape.config.to_json_string(), repr(spec.adapter), spec.dtype, shape.config, spec.adapter)
    (first, *layers), norm, angles = _counts(model, shape.chunk)
    return ModelCounts(first, dict(zip(shape.kinds, layers, strict=True)), norm, angles)


@dataclass(frozen=True)
class _Model:
    """Cache key of `_counts`, compared by its texts and dtype."""

    config_text: str
    adapter_text: str
    dtype: str
    config: PretrainedConfig = field(compare=False)
    adapter: LoRA | None = field(compare=False)


@lru_cache
def _counts(given: _Model, chunk: int) -> tuple[list[LayerCounts], float, float]:
    """Counts of the first layer and of one of each kind, and bytes per token of the last norm and of angles."""
    model = _build(given)
    short, long = (_ROWS * size * max(chunk, _LEAST) for size in _CHUNKS)
    less, more = (_passes(model, tokens) for tokens in (short, long))
    operators = _operators(model)

    def slope(name: str, layer: int) -> float:
        return (more[name, layer] - less[name, layer]) / (long - short)

    names = ("saved", "saved_rows", "working", "prefill")
    layers = [
        LayerCounts(**{name: slope(name, i) for name in names}, operators=count) for i, count in enumerate(operators)
    ]
    return layers, slope("saved", _AFTER), slope("angles", _AFTER)


def _build(given: _Model) -> PreTrainedModel:
    """The first layer again and one of each kind, without weights."""
    config: Any = copy.deepcopy(given.config)
    kinds = [config.layer_types[0], *dict.fromkeys(config.layer_types)]
    changes = {"num_hidden_layers": len(kinds), "layer_types": kinds}
    config.update({key: value for key, value in changes.items() if key in config.to_dict()})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[given.dtype])
        attention.install(model)
        recurrence.install(model)
        if given.adapter is not None:
            from tsr_lightning.policy.lora import with_adapter

            with_adapter(model, given.adapter)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None  # held all the time
    return model.train()


class _Nothing(torch.autograd.Function):
    """Attention that keeps nothing."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.given = query.shape, key.shape, value.shape
        return value.new_empty(query.shape[1], query.shape[0], value.shape[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.new_empty(shape) for shape in ctx.given)


class _Pass:
    """Attention that saves nothing for the backward pass, and mixers in rows from zero or given states."""

    def __init__(self, states: dict[nn.Module, MixerState] | None = None) -> None:
        self.states: dict[nn.Module, MixerState] = {}  # at the ends of the rows
        self.is_mixing = False
        self._given = states

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        out: Tensor = _Nothing.apply(query, key, value)
        return out

    def mix(self, mixer: nn.Module, hidden: Tensor) -> Tensor:
        self.is_mixing = True
        self.states[mixer] = MixerState() if self._given is None else self._given[mixer].map(lambda tensor: tensor)
        out = run_rows(mixer, hidden.view(_ROWS, -1, hidden.shape[-1]), self.states[mixer])
        self.is_mixing = False
        return out.flatten(0, 1)


@dataclass
class _Calls:
    """Records the layer calls of a forward pass, each as a function of hidden states."""

    layers: list[Callable[[Tensor], Any]] = field(default_factory=list)
    given: set[int] = field(default_factory=set)  # memory of the tensors among that
    now: int = _AFTER  # the layer that runs

    def enter(self, layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        hidden, *others = args
        if self.layers and torch.is_grad_enabled() and not hidden.requires_grad:
            hidden.requires_grad_()  # the layer before has no adapter, and others of its kind follow one that has
        self.now = len(self.layers)
        self.layers.append(lambda x: layer(x, *others, **named))
        self.given |= {_memory(value) for value in tree_iter((others, named)) if isinstance(value, Tensor)}

    def leave(self, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self.now = _AFTER


def _run(model: PreTrainedModel, within: _Pass, tokens: int, calls: _Calls) -> None:
    """A pass through the whole model."""
    backbone: Any = model.base_model
    hooks = [layer.register_forward_pre_hook(calls.enter, with_kwargs=True) for layer in backbone.layers]
    hooks += [layer.register_forward_hook(calls.leave) for layer in backbone.layers]
    ids = torch.zeros(tokens, dtype=torch.int64, device="meta")
    backbone(**packed_inputs(ids, ids, within, within))
    for hook in hooks:
        hook.remove()


def _passes(model: PreTrainedModel, tokens: int) -> Counter[tuple[str, int]]:
    """Bytes of a pass over this many tokens, by category and layer index."""
    states = {mixer: state.map(Tensor.requires_grad_) for mixer, state in _states(model).items()}
    calls, within, found = _Calls(), _Pass(states), Counter[tuple[str, int]]()
    known = {_memory(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: list[Tensor] = []  # so that no memory's address is used twice

    def pack(tensor: Tensor) -> Tensor:
        memory = _memory(tensor)
        if memory not in known:
            known.add(memory)
            kept.append(tensor)
            name = "saved_rows" if within.is_mixing else "saved"
            which = ("angles", _AFTER) if memory in calls.given else (name, calls.now)
            found[which] += tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        _run(model, within, tokens, calls)
    width, dtype = model.config.hidden_size, model.dtype
    for i, layer in enumerate(calls.layers):
        x = torch.empty(1, tokens, width, dtype=dtype, device="meta", requires_grad=True)
        with LiveTensors() as live:
            out = _hidden(layer(x))
            before = live.now
            out.backward(torch.empty_like(out))
        found["working", i] = live.highest - before
        del out
        with LiveTensors() as live, torch.no_grad():
            _hidden(layer(torch.empty_like(x)))
        found["prefill", i] = live.highest
    return found


@torch.no_grad()
def _states(model: PreTrainedModel) -> dict[nn.Module, MixerState]:
    """States of the mixers after rows of a few tokens."""
    within = _Pass()
    _run(model, within, 2 * _ROWS, _Calls())
    return within.states


@torch.no_grad()
def _operators(model: PreTrainedModel) -> list[int]:
    """Operators of each layer in a decoding step, without attention's own."""
    calls = _Calls()
    _run(model, _Pass(_states(model)), _ROWS, calls)
    found = []
    for layer in calls.layers:
        x = torch.empty(1, _ROWS, model.config.hidden_size, dtype=model.dtype, device="meta")
        with LiveTensors() as live:
            layer(x)
        found.append(live.operators)
    return found


def _hidden(out: Any) -> Tensor:
    """The output of a layer, which some give in a tuple."""
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
