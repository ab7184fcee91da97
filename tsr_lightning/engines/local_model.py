"""The contract between an engine and the policy that it runs in this process: hidden states out, without gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Model(Protocol):
    """A causal language model and its critic, as a module whose weights training changes in place."""

    @property
    def causal_lm(self) -> PreTrainedModel: ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Final hidden states [N, H] -> [N, V]."""
        ...

    def values(self, hidden: Tensor) -> Tensor:
        """The critic's: [N, H] -> [N]."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def eval(self) -> object: ...

    @property
    def adapter_rank(self) -> int | None:
        """The rank of its LoRA adapter; None where all weights are trained."""
        ...

    def save_base(self, folder: Path) -> None:
        """Writes the model without its adapter and critic, as transformers does, and every tied weight as one of its
        own: vLLM's CPU build keeps the old copy of a tied output layer when it reloads weights."""
        ...

    def save_adapter(self, folder: Path) -> None:
        """Writes its adapter, as peft does."""
        ...


def weights_version(model: Model) -> object:
    """Changes whenever a weight does: PyTorch counts the in-place changes of each tensor."""
    return tuple((id(weight), weight._version) for weight in model.parameters())


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The autocast type of a device; None without autocast."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


@contextmanager
def inference_mode(model: Model) -> Iterator[None]:
    """Disables gradients and sets evaluation mode; each module's mode is restored afterwards."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in was_training.items():
            module.training = training
