"""Packed attention by PyTorch's flex_attention: one kernel over all segments, and one block mask per batch.

On a GPU it is compiled, with shapes that may change. On a CPU it runs as PyTorch's dense reference, for tests: slowly,
and without gradients.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from tsr_lightning.modeling.attention import ScoreParams, additive, dot_product
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.tree_mask import BLOCK, TreeMask, blocks, padded_length, tree_mask

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

_LEAST_WIDTH = 16  # of a head: what Triton's products take
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TOLERANCE = 0.03  # of the check, as a share of the largest number: bfloat16 rounds to 0.004, a wrong mask errs by 1
_COMPILATIONS = 64  # of one function: windows, caps, types, and which inputs have gradients


@dataclass(frozen=True)
class HeadShape:
    """Head sizes and type that a kernel is compiled for."""

    dtype: torch.dtype
    heads: int  # H, of queries
    key_heads: int  # K
    width: int  # of queries and keys
    value_width: int

    @classmethod
    def of(cls, query: Tensor, value: Tensor) -> "HeadShape":
        """Query [H, T, D], value [K, S, E]."""
        return cls(value.dtype, query.shape[0], value.shape[0], query.shape[2], value.shape[2])


class FlexAttention:
    """Attends for Q queries, which lie packed one after the other, over the keys on the segments' paths.

    Args:
        segments: of the queries; their paths say where keys are stored.
        device: of the queries.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self._segments = segments
        self._device = device
        self.mask = tree_mask(segments)
        self._is_in_order = np.array_equal(self.mask.keys, np.arange(len(self.mask.keys)))
        self._keys = _on(self.mask.keys, device)
        self._tables = _tables(self.mask, device)
        self._block_masks: dict[int | None, BlockMask] = {}
        self._scores_computed = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        """Query [H, Q, D], stored key [K, S, D] and value [K, S, E] -> [Q, H, E]."""
        out = flex_function(self._device.type)(
            _padded(query)[None],
            _padded(self._in_order(key))[None],
            _padded(self._in_order(value))[None],
            score_mod=None if scores.softcap is None else _capped(scores.softcap),
            block_mask=self.block_mask(scores.window),
            scale=scores.scale,
            enable_gqa=len(query) != len(key),
        )
        return out[0, :, : query.shape[1]].transpose(0, 1)

    def block_mask(self, window: int | None) -> BlockMask:
        """Built once per sliding window, for all layers."""
        window = None if window is None or window > self.mask.depths.max() else window
        if window not in self._block_masks:
            found = blocks(self.mask, self._segments, window)
            self._scores_computed = found.scores_computed
            self._block_masks[window] = BlockMask.from_kv_blocks(
                _on(found.partial_counts[None, None], self._device),
                _on(found.partial[None, None], self._device),
                _on(found.full_counts[None, None], self._device),
                _on(found.full[None, None], self._device),
                BLOCK_SIZE=BLOCK,
                mask_mod=self._tables.visible() if window is None else self._tables.visible_within(window),
                seq_lengths=(padded_length(len(self.mask.nodes)), padded_length(len(self.mask.keys))),
            )
        return self._block_masks[window]

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, hidden and padded ones included, by the last block mask."""
        if not self._block_masks:
            self.block_mask(None)
        return self._scores_computed

    def _in_order(self, stored: Tensor) -> Tensor:
        """[K, S, D] -> [K, keys, D] in the mask's order."""
        if self._is_in_order:
            return stored[:, : len(self._keys)]
        return stored.index_select(1, self._keys)


@dataclass(frozen=True)
class _Tables:
    """A mask's numbers, padded: a padded query sees key 0, a padded key is seen by none."""

    nodes: Tensor  # [Q] int32
    ends: Tensor  # [K] int32
    depths: Tensor  # [K] int32

    def visible(self) -> MaskMod:
        nodes, ends = self.nodes, self.ends

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            node = nodes[query]
            return (key <= node) & (node < ends[key])

        return visible

    def visible_within(self, window: int) -> MaskMod:
        nodes, ends, depths = self.nodes, self.ends, self.depths

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            node = nodes[query]
            return (key <= node) & (node < ends[key]) & (depths[node] - depths[key] < window)

        return visible


def _tables(mask: TreeMask, device: torch.device) -> _Tables:
    return _Tables(*(_on(_zeros_after(part), device).int() for part in (mask.nodes, mask.ends, mask.depths)))


def _zeros_after(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.pad(numbers, (0, padded_length(len(numbers)) - len(numbers)))


def _padded(x: Tensor) -> Tensor:
    """[H, N, D], and zeros up to the padded length."""
    return functional.pad(x, (0, 0, 0, padded_length(x.shape[1]) - x.shape[1]))


@cache
def _capped(softcap: float) -> ScoreMod:
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@cache
def flex_function(device_type: str) -> Callable[..., Any]:
    """flex_attention as it runs on such devices."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _COMPILATIONS)  # it is 8
    torch._dynamo.config.specialize_float = True  # else a second scale is a symbol, which a GPU's kernels refuse
    if device_type == "cpu":
        return _dense
    # Beyond the limit `fullgraph` raises an error; without it the dense way would be taken, which holds all scores.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def _dense(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        return flex_attention(*args, **kwargs)


# -- whether it can be used --------------------------------------------------------------------------------------------


def supports(device: torch.device, shape: HeadShape) -> bool:
    """True if flex_attention takes such tensors."""
    return (
        device.type in ("cpu", "cuda")
        and shape.dtype in _DTYPES
        and min(shape.width, shape.value_width) >= _LEAST_WIDTH
    )


@cache
def failure(device: torch.device, shape: HeadShape) -> str | None:
    """Why flex_attention cannot be used for such tensors here, or None: it is compiled and compared with dense
    attention on a small tree, with its gradients. The log says once which."""
    log = logging.getLogger(__name__)
    try:
        with torch.inference_mode(False):
            error = _largest_error(device, shape)
        reason = None if error < _TOLERANCE else f"its numbers are off by {error:.2g} of the largest"
    except Exception as problem:  # whatever the compiler, its driver or its cache raise
        reason = _summary(problem)
    if reason is None:
        log.info("flex_attention is used on %s for %s", device, shape)
    else:
        log.warning("PyTorch's plain kernels are used on %s, which are slower than flex_attention: %s", device, reason)
    return reason


def _summary(problem: Exception) -> str:
    """Returns an error's first two lines: PyTorch's compiler names the backend first, and then the fault."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(problem).__name__


def _largest_error(device: torch.device, shape: HeadShape) -> float:
    """Largest error of outputs and, on a GPU, gradients, as a share of the largest number."""
    segments = [Segment(300, np.arange(300)), Segment(40, np.concatenate([np.arange(150), np.arange(300, 340)]))]
    attention, scores = FlexAttention(segments, device), ScoreParams(shape.width**-0.5)
    mask = additive(_on(attention.mask.visible(None), device), torch.float32)[None, None]

    def dense(query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        return dot_product(query[None], key[None], value[None], mask, scores)[0].transpose(0, 1)

    found = _outputs_and_gradients(attention.attend, device, shape, scores, shape.dtype)
    expected = _outputs_and_gradients(dense, device, shape, scores, torch.float32)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True))


def _outputs_and_gradients(
    attend: Callable[[Tensor, Tensor, Tensor, ScoreParams], Tensor],
    device: torch.device,
    shape: HeadShape,
    scores: ScoreParams,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Attends for 340 random tokens, rounded to the shape's type and given in `dtype`."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device="cpu").to(device, shape.dtype).to(dtype)

    query, key = drawn(shape.heads, 340, shape.width), drawn(shape.key_heads, 340, shape.width)
    value, probe = drawn(shape.key_heads, 340, shape.value_width), drawn(340, shape.heads, shape.value_width)
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        if device.type == "cpu":
            return [attend(query, key, value, scores).float()]
        inputs = [x.clone().requires_grad_() for x in (query, key, value)]
        out = attend(inputs[0], inputs[1], inputs[2], scores)
        return [part.detach().float() for part in (out, *torch.autograd.grad(out, inputs, probe))]


def _on(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
