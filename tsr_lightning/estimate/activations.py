"""Bytes that an update keeps for its backward pass, and those it works with. Pure functions.

They follow what `modeling.packed_forward` (or, with checkpoints, transformers) computes on a GPU, tensor by tensor:
what autograd saves, each tensor once. T are packed tokens, N of them have an output, A is what the sequences would have
without sharing a prefix, b bytes of the weights' dtype, r an adapter's rank.
"""

from dataclasses import dataclass

from tsr_lightning.estimate.layers import Layer
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.estimate.weights import ITEMSIZE, adapted
from tsr_lightning.policy.causal_lm import CHUNK_LOGITS
from tsr_lightning.policy.spec import PolicySpec

_LOGIT_COPIES = 5  # float32: logits, log-softmax and its exponential, and two gradients beside them
_SAVED_COPIES = 2  # of these, what the backward pass of a single chunk is given


@dataclass(frozen=True)
class PassSize:
    """Token counts of one forward and backward pass."""

    tokens: int  # T
    outputs: int  # N
    attended: int  # A: a sequence that adds most of its tokens attends as a whole
    rows: int = 0  # tokens that recurrent layers compute, with padding


@dataclass(frozen=True)
class Activations:
    """Bytes of a backward pass, for a model's shape and a policy's configuration."""

    shape: ModelShape
    spec: PolicySpec

    @property
    def _item(self) -> int:
        return ITEMSIZE[self.spec.dtype]

    @property
    def _trains_all(self) -> bool:
        return self.spec.adapter is None

    def saved(self, size: PassSize) -> int:
        """Bytes that are kept from the forward to the backward pass, without logits.

        Without checkpoints: (L-1) layers over T tokens, the last layer's keys and values over T and the rest of it over
        N, and the last norm over N. With them: the input of each layer, and the last norm, over T.
        """
        hidden, item, head = self.shape.hidden_size, self._item, self.head(size)
        if self.spec.gradient_checkpointing:
            return self.shape.num_hidden_layers * size.tokens * hidden * item + self._norm(size.tokens) + head
        angles = 2 * (size.tokens + size.outputs) * self.shape.head_dim * item
        # the embeddings of a frozen model need no gradient, so the first norm keeps nothing
        first = 0 if self._trains_all else self._norm(size.tokens)
        layers = (self.shape.num_hidden_layers - 1) * self.layer(size) + self._last_layer(size) - first
        return layers + self._norm(size.outputs) + head + angles

    def head(self, size: PassSize) -> int:
        """Inputs of the output embedding, for its gradient or where chunks of logits are computed again, and of the
        value head."""
        hidden, item = self.shape.hidden_size, self._item
        chunked = size.outputs > self.rows_at_once
        critic = size.outputs * hidden * 4 * (item != 4 or not self._trains_all)
        return size.outputs * hidden * item * (self._trains_all or (chunked and item != 4)) + critic

    def layer(self, size: PassSize) -> int:
        """Bytes of one layer over T tokens: two norms, inputs of linear layers, attention, and the gated product."""
        inputs = sum(self._inputs(names, size.tokens) for names in _SHARED_INPUTS)
        [kind] = self.shape.kinds
        return 2 * self._norm(size.tokens) + inputs + self._attention(kind, size.attended) + self._gated(size.tokens)

    def _last_layer(self, size: PassSize) -> int:
        """Bytes of the last layer, where only N tokens have queries."""
        [kind] = self.shape.kinds
        on_all = self._norm(size.tokens) + self._inputs(("k_proj", "v_proj"), size.tokens)
        names = (("q_proj",), *_SHARED_INPUTS[1:])
        on_outputs = self._norm(size.outputs) + sum(self._inputs(each, size.outputs) for each in names)
        spread = size.outputs * self.shape.query_size * self._item  # queries before they are put at their places
        return on_all + on_outputs + self._gated(size.outputs) + self._attention(kind, size.attended) + spread

    def _norm(self, rows: int) -> int:
        """RMSNorm: its input and the inverse root in float32; where its weight is trained, the normalised input too."""
        return rows * (4 * self.shape.hidden_size + 4 + self.shape.hidden_size * self._item * self._trains_all)

    def _inputs(self, names: tuple[str, ...], rows: int) -> int:
        """Inputs of linear layers that are given the same tensor.

        Trained weights keep it once. An adapter keeps it in float32, r numbers a row beside it, and for other dtypes a
        copy of its own; a frozen layer keeps nothing.
        """
        [kind] = self.shape.kinds
        together = [linear for linear in kind.linears if linear.name in names]
        if self.spec.adapter is None:
            return rows * together[0].inputs * self._item
        rank = self.spec.adapter.rank
        targets = adapted(self.shape, self.spec.adapter, together)
        if not targets:
            return 0
        copies = 1 if self._item == 4 else len(targets)
        return rows * 4 * (copies * targets[0].inputs + rank * len(targets))

    def _gated(self, rows: int) -> int:
        """silu(gate) · up: gate, its silu, and up. Their product is the input of the layer after it."""
        return rows * 3 * self.shape.intermediate_size * self._item

    def _attention(self, layer: Layer, attended: int) -> int:
        """Queries, keys and values repeated for the heads that share them, outputs, and the softmax's log-sums in
        float32 (FlashAttention, arXiv 2205.14135)."""
        own = layer.attention
        return 0 if own is None else attended * (4 * own.query_size * self._item + 4 * own.heads)

    def working(self, size: PassSize) -> int:
        """Bytes that the backward pass of a layer works with, beside what is saved.

        With checkpoints first of all the layer, computed again. Then gradients as wide as the feed-forward part: two in
        float32, or for an adapter of another dtype one in float32 and two in that one; in all 8 bytes a number, or 4
        where all is in bfloat16.
        """
        again = self.layer(size) if self.spec.gradient_checkpointing else 0
        wide = 4 if self._trains_all and self._item == 2 else 8
        return again + wide * size.tokens * self.shape.intermediate_size

    def logits(self, size: PassSize) -> int:
        """Bytes that scoring works with: rows · V · 4 · 5 copies, for as many rows as are scored at once, and the
        logits in the weights' dtype.

        More than 2^25 logits are scored in chunks, which the backward pass computes again one by one.
        """
        rows = min(size.outputs, self.rows_at_once)
        extra = self._item if self._item != 4 else 0
        return rows * self.shape.vocab_size * (4 * _LOGIT_COPIES + extra)

    def saved_logits(self, size: PassSize) -> int:
        """Bytes of `logits` that autograd saves: two copies where one chunk takes all rows, nothing where several
        do."""
        if size.outputs > self.rows_at_once:
            return 0
        return size.outputs * self.shape.vocab_size * 4 * _SAVED_COPIES

    @property
    def rows_at_once(self) -> int:
        return max(1, CHUNK_LOGITS // self.shape.vocab_size)


_SHARED_INPUTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
