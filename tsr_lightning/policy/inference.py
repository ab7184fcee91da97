"""The policy as the engine runs it: packed tokens in, hidden states out. Knows no cache and no search."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import OutputPositions, PackedAttention
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.policy.model import Policy


class InferencePolicy:
    """Runs the policy's current weights for generation.

    Args:
        policy: not copied, so that an update of it takes effect here.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def layers(self) -> int:
        count = self._model.config.get_text_config().num_hidden_layers
        assert isinstance(count, int)
        return count

    @property
    def kernels(self) -> Kernels:
        return packed_forward.kernels_of(self._model)

    def version(self) -> object:
        """Changes whenever a weight does: PyTorch counts the in-place changes of each tensor."""
        return tuple((id(weight), weight._version) for weight in self._policy.parameters())

    def precision(self) -> object:
        """The autocast type of the device, or None without autocast."""
        device = self.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Disables gradients and sets evaluation mode; each module's mode is restored afterwards."""
        was_training = {module: module.training for module in self._policy.modules()}
        self._policy.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in was_training.items():
                module.training = training

    def prefill(
        self, ids: Tensor, positions: Tensor, attention: PackedAttention, outputs: OutputPositions
    ) -> tuple[Tensor, Tensor]:
        """As `packed_forward.run`."""
        return packed_forward.run(self._model.base_model, ids, positions, attention, outputs)

    def decode(self, ids: Tensor, positions: Tensor, attention: PackedAttention) -> Tensor:
        """As `packed_forward.run_whole`."""
        return packed_forward.run_whole(self._model.base_model, ids, positions, attention)

    def finish(self, unfinished: Tensor, positions: Tensor, attention: PackedAttention) -> Tensor:
        """As `packed_forward.finish`."""
        return packed_forward.finish(self._model.base_model, unfinished, positions, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, V]."""
        return self._policy.logits(hidden)

    def values(self, hidden: Tensor) -> Tensor:
        """The critic's values: [N, H] -> [N] float32."""
        return self._policy.values(hidden)

    @property
    def _model(self) -> PreTrainedModel:
        return self._policy.causal_lm
