"""Bytes of a backward pass through a model with recurrent layers, which runs transformers' own code."""

from dataclasses import dataclass

from tsr_lightning.estimate.activations import Activations, PassSize
from tsr_lightning.estimate.meta_pass import LayerCounts, ModelCounts, counts_of
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.policy.spec import PolicySpec


def activations_of(shape: ModelShape, spec: PolicySpec) -> Activations:
    """The bytes of a model's passes, by the code that it runs."""
    return RecurrentActivations(shape, spec) if shape.is_recurrent else Activations(shape, spec)


@dataclass(frozen=True)
class RecurrentActivations(Activations):
    """As counted in a pass through a layer of each kind (`meta_pass`), with attention by its formula.

    Mixers compute tokens in padded rows (`modeling.state_rows`), all else packed ones. Every layer has all tokens.
    """

    def saved(self, size: PassSize) -> int:
        """Bytes that are kept from the forward to the backward pass, without logits.

        Without checkpoints: what each layer keeps, and the angles of rotary embeddings. With them: the input of each
        layer. In both, the last norm over T.
        """
        found = self._counts
        norm = round(found.norm * size.tokens)
        head = self.head(size)
        if self.spec.gradient_checkpointing:
            return self.shape.num_hidden_layers * size.tokens * self.shape.hidden_size * self._item + norm + head
        layers = sum(
            count * (self._kept(found.layers[layer], size) + self._attention(layer, size.attended))
            for layer, count in self.shape.kinds.items()
        )
        first = self._kept(found.layers[self.shape.layers[0]], size) - self._kept(found.first, size)
        return layers - first + norm + head + round(found.angles * size.tokens)

    def working(self, size: PassSize) -> int:
        """Largest working memory of a layer's backward pass; with checkpoints, with what the recomputed layer saves."""
        again = self.spec.gradient_checkpointing
        return max(
            round(one.working * size.rows) + again * (self._kept(one, size) + self._attention(layer, size.attended))
            for layer, one in self._counts.layers.items()
        )

    def prefill(self, rows: int) -> int:
        """Bytes of a pass without gradients over rows of tokens, without attention's mask."""
        return max(round(one.prefill * rows) for one in self._counts.layers.values())

    @property
    def _counts(self) -> ModelCounts:
        return counts_of(self.shape, self.spec)

    @staticmethod
    def _kept(one: LayerCounts, size: PassSize) -> int:
        return round(one.saved * size.tokens + one.saved_rows * size.rows)
