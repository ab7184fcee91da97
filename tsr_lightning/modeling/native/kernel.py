"""Calls the attention kernel with tensors."""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.native.blocks import Blocks
from tsr_lightning.modeling.native.building import load
from tsr_lightning.modeling.native.profiled import recorded
from tsr_lightning.modeling.native.step_blocks import StepBlocks

DTYPES = {torch.float32: 0, torch.bfloat16: 1}  # as in numbers.h


class _Inputs(ctypes.Structure):
    """`inputs` of rows.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "out")),
        *((name, ctypes.c_void_p) for name in ("new_keys", "new_values", "new_slots")),
        *((name, ctypes.c_int64) for name in ("query_head", "query_token", "new_key_head", "new_key_token")),
        *((name, ctypes.c_int64) for name in ("new_value_head", "new_value_token", "tokens", "new_tokens")),
        *((name, ctypes.c_int64) for name in ("key_heads", "group", "stored", "width", "value_width")),
        *((name, ctypes.c_int32) for name in ("dtype", "threads")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
    )


class _Packed(ctypes.Structure):
    """`packed` of attention.c."""

    _fields_ = (
        ("inputs", _Inputs),
        *((name, ctypes.c_void_p) for name in ("log_sums", "blocks", "shared_slots", "own_slots", "masks")),
        ("count", ctypes.c_int64),
    )


class _Step(ctypes.Structure):
    """`step` of step.c."""

    _fields_ = (
        ("inputs", _Inputs),
        *((name, ctypes.c_void_p) for name in ("blocks", "places", "runs", "slots", "own_firsts", "own_slots")),
        ("count", ctypes.c_int64),
    )


class _Gradients(ctypes.Structure):
    """`gradients` of attention.c."""

    _fields_ = (
        ("of", _Packed),
        *((name, ctypes.c_void_p) for name in ("out", "query", "keys", "values", "trees")),
        ("tree_count", ctypes.c_int64),
    )


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """True if the kernel takes such tensors."""
    return device.type == "cpu" and dtype in DTYPES


@dataclass(frozen=True, slots=True)
class NewKeys:
    """Keys and values that are stored before any query attends."""

    slots: NDArray[np.int64]  # [N]
    key: Tensor  # [K, N, D]
    value: Tensor  # [K, N, E]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Blocks,
    scores: ScoreParams,
    *,
    new: NewKeys | None = None,
    log_sums: Tensor | None = None,
) -> Tensor:
    """Query [H, T, D], stored key [K, S, D] and value [K, S, E] -> [T, H, E]; K divides H, and all are of one type.

    `log_sums` [H, T], if given, is filled for `attend_backward`.
    """
    query = _contiguous_tokens(query)
    out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
    assert query.shape[1] == int(blocks.table[-1, :2].sum())
    new = _with_contiguous_tokens(new)
    _call("attend", _packed(_inputs(query, key, value, out, scores, new), blocks, log_sums))
    return out


def attend_step(
    query: Tensor, key: Tensor, value: Tensor, blocks: StepBlocks, scores: ScoreParams, new: NewKeys | None = None
) -> Tensor:
    """Attends for one token of each of many branches."""
    query = _contiguous_tokens(query)
    out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
    new = _with_contiguous_tokens(new)
    step = _Step(
        _inputs(query, key, value, out, scores, new),
        blocks.table.ctypes.data,
        blocks.places.ctypes.data,
        blocks.runs.ctypes.data,
        blocks.slots.ctypes.data,
        blocks.own_firsts.ctypes.data,
        blocks.own_slots.ctypes.data,
        len(blocks.table),
    )
    _call("attend_step", step)
    return out


def attend_backward(
    gradient: Tensor,  # [T, H, E] of the output
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sums: Tensor,
    blocks: Blocks,
    scores: ScoreParams,
    trees: NDArray[np.int64],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query [H, T, D], key [K, S, D] and value [K, S, E], in float32; inputs are as in the forward pass.

    Blocks of different trees, whose bounds are `trees` [trees + 1], see no key in common.
    """
    assert gradient.dtype == query.dtype
    gradient, query = gradient.contiguous(), _contiguous_tokens(query)
    tokens, heads, _ = gradient.shape
    query_gradient = torch.empty(tokens, heads, query.shape[2])
    key_gradient, value_gradient = (torch.zeros(x.shape[1], len(x), x.shape[2]) for x in (key, value))
    gradients = _Gradients(
        _packed(_inputs(query, key, value, out, scores, None), blocks, log_sums),
        *(tensor.data_ptr() for tensor in (gradient, query_gradient, key_gradient, value_gradient)),
        trees.ctypes.data,
        len(trees) - 1,
    )
    _call("attend_backward", gradients)
    return query_gradient.transpose(0, 1), key_gradient.transpose(0, 1), value_gradient.transpose(0, 1)


def _packed(inputs: _Inputs, blocks: Blocks, log_sums: Tensor | None) -> _Packed:
    return _Packed(
        inputs,
        None if log_sums is None else log_sums.data_ptr(),
        blocks.table.ctypes.data,
        blocks.shared.ctypes.data,
        blocks.own.ctypes.data,
        blocks.masks.ctypes.data,
        len(blocks.table),
    )


def _inputs(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, scores: ScoreParams, new: NewKeys | None
) -> _Inputs:
    heads, tokens, width = query.shape
    key_heads, stored, value_width = value.shape
    assert key.shape == (key_heads, stored, width)
    assert heads % key_heads == 0
    assert query.dtype == key.dtype == value.dtype
    assert key.is_contiguous()
    assert value.is_contiguous()
    inputs = _Inputs(
        query=query.data_ptr(),
        keys=key.data_ptr(),
        values=value.data_ptr(),
        out=out.data_ptr(),
        query_head=query.stride(0),
        query_token=query.stride(1),
        tokens=tokens,
        key_heads=key_heads,
        group=heads // key_heads,
        stored=stored,
        width=width,
        value_width=value_width,
        dtype=DTYPES[query.dtype],
        threads=torch.get_num_threads(),
        scale=scores.scale,
        softcap=scores.softcap or 0.0,
    )
    if new is not None:
        assert new.key.shape == (key_heads, len(new.slots), width)
        assert new.value.shape == (key_heads, len(new.slots), value_width)
        assert new.key.dtype == new.value.dtype == key.dtype
        inputs.new_keys, inputs.new_values = new.key.data_ptr(), new.value.data_ptr()
        inputs.new_key_head, inputs.new_key_token, _ = new.key.stride()
        inputs.new_value_head, inputs.new_value_token, _ = new.value.stride()
        inputs.new_slots, inputs.new_tokens = new.slots.ctypes.data, len(new.slots)
    return inputs


def _call(name: str, argument: ctypes.Structure) -> None:
    library = load().library
    assert library is not None
    with recorded(name):
        failed = library[name](ctypes.byref(argument))
    if failed:
        raise MemoryError("no memory for the kernel's scratch")


def _contiguous_tokens(tensor: Tensor) -> Tensor:
    """With each token's numbers side by side."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _with_contiguous_tokens(new: NewKeys | None) -> NewKeys | None:
    return new and NewKeys(new.slots, _contiguous_tokens(new.key), _contiguous_tokens(new.value))
