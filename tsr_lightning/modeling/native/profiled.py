"""Shows calls of the C kernels to PyTorch's profiler."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler


def recorded(name: str) -> AbstractContextManager[Any]:
    """A context in which a profiler lists a kernel among PyTorch's operators. It does nothing without a profiler, since
    a record takes as long as the norm of a few rows."""
    return profiler.record_function(f"native::{name}") if profiler._is_profiler_enabled else nullcontext()
