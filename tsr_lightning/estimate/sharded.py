"""Memory of one card under FSDP2 by part. Pure functions of a policy's units and the number of ranks.

Follows `policy.sharding`: shards are trained, and the policy itself is whole during rollouts and freed during updates.
Of `fully_shard` (PyTorch 2.13, `torch.distributed.fsdp._fully_shard`) it counts

- the root's unit, here embedding, final norm and output layer, from the start of a forward pass to the end of the
  backward pass (`FSDPState._lazy_init`);
- one more layer than is computed with: in a forward pass the buffer of its all-gather, in a backward pass that of the
  layer that is fetched ahead (`FSDPParamGroup.wait_for_unshard`, `_backward_prefetch`);
- whole gradients until their unit is done, and then one reduce-scatter's input at a time, with its output
  (`post_backward`, `foreach_reduce`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tsr_lightning.estimate.units import Units, shard_bytes, trained_shard_bytes

NamedBytes = tuple[str, int]

_REST = "gathered embeddings, norm and output layer"
_LAYERS = "gathered layers, and the next one's buffer"
_GRADIENTS = "whole gradients before they are reduced"
_BUFFERS = "buffers of a reduce-scatter"


@dataclass(frozen=True)
class Shards:
    """Bytes of a policy that each of `ranks` cards holds."""

    units: Units
    ranks: int

    def resident(self, dtype: str) -> tuple[NamedBytes, ...]:
        """All the time."""
        units, ranks = self.units, self.ranks
        trained = trained_shard_bytes(units.model, ranks)
        of_critic = [(units.value_head, 1)]
        return (
            (f"shards of the weights in {dtype}", shard_bytes(units.model, ranks) - self._adapter(ranks)),
            ("shards of the adapter in float32", self._adapter(ranks)),
            ("shards of the gradients", trained),
            ("shards of AdamW's two averages", 2 * trained),
            ("value head, with gradient and averages", 4 * shard_bytes(of_critic, ranks)),
            ("shards of the copy for the reference", shard_bytes([(units.reference, 1)], ranks)),
        )

    @property
    def whole(self) -> tuple[NamedBytes, ...]:
        """During rollouts, estimates and evaluations, beside the shards: with the rows that filled up the last ones."""
        units, ranks = self.units, self.ranks
        return (
            ("whole weights, beside the shards", ranks * shard_bytes(units.passes, ranks)),
            ("whole copy for the reference", ranks * shard_bytes([(units.reference, 1)], ranks)),
        )

    @property
    def step(self) -> int:
        """AdamW's intermediate results."""
        return trained_shard_bytes(self.units.model, self.ranks)

    @property
    def begin(self) -> tuple[NamedBytes, ...]:
        """The start of a forward pass: the root's unit with the buffer that it was gathered in, and a layer's."""
        return (_REST, 2 * self._rest), (_LAYERS, self._layer)

    @property
    def scoring(self) -> tuple[NamedBytes, ...]:
        """The end of a forward pass and the start of the backward pass, which fetches the last layer."""
        return (_REST, self._rest), (_LAYERS, self._layer), (_GRADIENTS, self._head_gradient)

    @property
    def layer(self) -> tuple[NamedBytes, ...]:
        """The backward pass of a layer, while the gradients of the layer after it are reduced."""
        gradients = self.units.layer.trained
        buffers = gradients.gathered_bytes(self.ranks) + gradients.shard_bytes(self.ranks)
        return (
            (_REST, self._rest),
            (_LAYERS, 2 * self._layer),
            (_GRADIENTS, self._head_gradient + gradients.gathered_bytes(self.ranks)),
            (_BUFFERS, buffers),
        )

    @property
    def end(self) -> tuple[NamedBytes, ...]:
        """The end of a backward pass, without activations: the embedding's gradient, to which that of a tied output
        layer is added, or the reduction of the root's gradients, whichever is larger."""
        units, ranks = self.units, self.ranks
        gradients = units.rest.trained.gathered_bytes(ranks)
        is_tied = sum(parameter == units.head for parameter in units.rest.parameters) == 1
        embedding = (
            (_REST, self._rest),
            (_GRADIENTS, gradients + self._head_gradient * is_tied),
            (_BUFFERS, units.layer.trained.gathered_bytes(ranks) + units.layer.trained.shard_bytes(ranks)),
        )
        reduction = ((_GRADIENTS, gradients), (_BUFFERS, gradients + units.rest.trained.shard_bytes(ranks)))
        return largest((embedding, reduction))

    def _adapter(self, ranks: int) -> int:
        """Shards of the adapter: of what is trained where the weights are not."""
        return 0 if self.units.head.is_trained else trained_shard_bytes(self.units.model, ranks)

    @property
    def _rest(self) -> int:
        return self.units.rest.gathered_bytes(self.ranks)

    @property
    def _layer(self) -> int:
        return self.units.layer.gathered_bytes(self.ranks)

    @property
    def _head_gradient(self) -> int:
        """Bytes of the output layer's gradient, which waits for the rest of the root's unit."""
        return self.ranks * self.units.head.shard_bytes(self.ranks) * self.units.head.is_trained


def largest(moments: Sequence[tuple[NamedBytes, ...]]) -> tuple[NamedBytes, ...]:
    """The moment that takes most memory."""
    return max(moments, key=lambda parts: sum(size for _, size in parts))
