"""The state of PyTorch's generators, which dropout draws from; all else is drawn by keys (`tsr_lightning.rng`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Of one process."""

    cpu: Tensor  # [S] uint8
    device: Tensor | None  # [S] uint8, of its GPU; None on a CPU

    @classmethod
    def now(cls, device: torch.device) -> "RandomState":
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    @classmethod
    def of_rank(cls, checkpoint: Mapping[str, Any], rank: int) -> "RandomState":
        """A rank's own in a checkpoint; with more ranks than it was written by, that of an earlier one."""
        if "rng_states" not in checkpoint:  # of an earlier version, which kept rank 0's on the CPU
            return cls(checkpoint["rng_state"], None)
        states = checkpoint["rng_states"]
        return cls(**states[rank % len(states)])

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.device is not None and device.type == "cuda":
            torch.cuda.set_rng_state(self.device, device)
