"""Runs a step that only reads and writes the same memory again: as it is, or as a CUDA graph."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

_MOST_GRAPHS = 256  # each takes some MiB for its intermediate tensors and its kernels' arguments


class Replay(Protocol):
    """Runs steps. Those of one key are the same kernels on the same memory, whatever the memory holds."""

    def __call__(self, key: Hashable, step: Callable[[], Tensor]) -> Tensor:
        """The step's result, which the next call may overwrite."""
        ...


class Direct:
    """Runs every step as it is."""

    def __call__(self, key: Hashable, step: Callable[[], Tensor]) -> Tensor:
        return step()


class CudaGraphs:
    """Runs a key's first step as it is, captures the second, and replays it from then on.

    So what occurs once is not captured, and what is captured has run before, as PyTorch asks for. Hundreds of kernels
    are then started at once instead of one by one, which takes longer than most of them run.

    Args:
        stream: captures. Libraries keep a workspace for each stream that ever ran them (32 MiB of cuBLAS on an H200),
            so who makes graphs anew gives them the same one.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()  # for all: no graph needs another's intermediate tensors
        self._warm: set[Hashable] = set()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    @property
    def captured(self) -> int:
        """Graphs that can be replayed."""
        return len(self._graphs)

    def __call__(self, key: Hashable, step: Callable[[], Tensor]) -> Tensor:
        if key not in self._graphs:
            if key not in self._warm:
                self._warm.add(key)
                return self._beside(step)
            if len(self._graphs) >= _MOST_GRAPHS:
                torch.cuda.synchronize(self._stream.device)  # none may be running
                self._graphs.clear()
            self._graphs[key] = self._capture(step)
        graph, out = self._graphs[key]
        graph.replay()
        return out

    def _beside(self, step: Callable[[], Tensor]) -> Tensor:
        """On the stream that captures, whose libraries' workspaces are then there."""
        main = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            out = step()
        main.wait_stream(self._stream)
        out.record_stream(main)
        return out

    def _capture(self, step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # other threads may use the device meanwhile: an update beside the rollout
        with (
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            _casting_anew(),
        ):
            out = step()
        return graph, out


@contextmanager
def _casting_anew() -> Iterator[None]:
    """Autocast casts every weight in the step itself: a copy that it kept from before would be gone at a replay."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)
