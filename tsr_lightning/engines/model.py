"""What an engine that runs the policy in this process needs of it."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from tsr_lightning.modeling.attention import OutputPositions, PackedAttention
from tsr_lightning.modeling.kernels import Kernels


class Model(Protocol):
    """A causal language model over packed tokens, and its critic."""

    @property
    def device(self) -> torch.device: ...

    @property
    def layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def kernels(self) -> Kernels:
        """Which its attention may use."""
        ...

    def version(self) -> object:
        """Equal as long as the weights are."""
        ...

    def precision(self) -> object:
        """Equal as long as the weights are used in the same precision."""
        ...

    def inference_mode(self) -> AbstractContextManager[None]:
        """Disables gradients and training mode."""
        ...

    def prefill(
        self, ids: Tensor, positions: Tensor, attention: PackedAttention, outputs: OutputPositions
    ) -> tuple[Tensor, Tensor]:
        """A pass over packed ids [T] at positions [T] in their sequences: the final hidden states at the output
        positions [N, H], and the states [T, H] that `finish` completes."""
        ...

    def decode(self, ids: Tensor, positions: Tensor, attention: PackedAttention) -> Tensor:
        """The same with the final hidden states of all tokens [T, H]."""
        ...

    def finish(self, unfinished: Tensor, positions: Tensor, attention: PackedAttention) -> Tensor:
        """States [N, H] at positions [N] -> final hidden states [N, H]; the attention is given no keys."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, V]."""
        ...

    def values(self, hidden: Tensor) -> Tensor:
        """The critic's: [N, H] -> [N]."""
        ...
