"""The policy as the engine sees it: packed tokens in, hidden states out. Knows no trie and no search."""

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
    """Plays as a policy does now; what trains the policy changes the player."""

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
        """Those that its model was installed with."""
        return packed_forward.kernels_of(self._model)

    def version(self) -> object:
        """Every change of a weight in place counts up its tensor's version."""
        weights = tuple((id(weight), weight._version) for weight in self._policy.parameters())
        return weights, self._policy.is_reference

    def precision(self) -> object:
        device = self.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Without gradients, and in evaluation mode."""
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
        """The critic's: [N, H] -> [N], float32."""
        return self._policy.value_of(hidden)

    @property
    def _model(self) -> PreTrainedModel:
        return self._policy.causal_lm
