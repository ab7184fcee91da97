"""Units of parameters that FSDP2 gathers at once, and how it cuts them. Pure functions of a shape and a policy's
configuration.

A parameter is cut along its first dimension into as many pieces of ceil(rows / ranks) rows as there are ranks, of which
the last are filled up with zeros (PyTorch 2.13, `torch.distributed.fsdp._fully_shard._fsdp_param`). So the bytes are
those of rank 0, and of every rank where the rows can be divided.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tsr_lightning.estimate.layers import Layer
from tsr_lightning.estimate.shape import ModelShape
from tsr_lightning.estimate.weights import ITEMSIZE, adapted
from tsr_lightning.policy.spec import PolicySpec


@dataclass(frozen=True)
class Parameter:
    """A weight [rows, columns], or a vector of one column."""

    rows: int
    columns: int
    itemsize: int
    is_trained: bool

    def shard_bytes(self, ranks: int) -> int:
        """ceil(rows / ranks) · columns · itemsize."""
        return -(-self.rows // ranks) * self.columns * self.itemsize


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered by one all-gather, and whose gradients are reduced by one reduce-scatter."""

    parameters: tuple[Parameter, ...]

    def shard_bytes(self, ranks: int) -> int:
        """On one rank."""
        return sum(parameter.shard_bytes(ranks) for parameter in self.parameters)

    def gathered_bytes(self, ranks: int) -> int:
        """With the rows that fill up the last pieces."""
        return ranks * self.shard_bytes(ranks)

    @property
    def trained(self) -> "Unit":
        """Returns the unit's trained parameters."""
        return Unit(tuple(parameter for parameter in self.parameters if parameter.is_trained))


@dataclass(frozen=True)
class Units:
    """A policy's parameters as `policy.sharding` divides them."""

    layers: tuple[tuple[Unit, int], ...]  # those that differ, and how many there are of each
    rest: Unit  # embedding, final norm and output layer
    head: Parameter  # of `rest`: the output layer, which is the embedding where they are tied
    value_head: Unit  # empty without a critic
    reference: Unit  # a copy of the starting weights; empty where there is none

    @property
    def model(self) -> tuple[tuple[Unit, int], ...]:
        """The policy's own units, and how many there are of each."""
        return *self.layers, (self.rest, 1)

    @property
    def layer(self) -> Unit:
        """The largest layer."""
        return max((unit for unit, _ in self.layers), key=lambda unit: unit.shard_bytes(1))

    @property
    def passes(self) -> tuple[tuple[Unit, int], ...]:
        """Units that an update's passes run through, and how many of each."""
        return (*self.model, (self.value_head, 1))

    @property
    def all(self) -> tuple[tuple[Unit, int], ...]:
        return (*self.passes, (self.reference, 1))


def units_of(shape: ModelShape, spec: PolicySpec, *, has_critic: bool, keeps_reference: bool) -> Units:
    """The units of a policy without 4-bit weights.

    Args:
        shape: of the model.
        spec: adapter and dtype.
        has_critic: whether there is a value head, in float32.
        keeps_reference: whether log-probabilities of the reference are computed; with an adapter it is the policy with
            the adapter off, and no copy.
    """
    item, trains_all = ITEMSIZE[spec.dtype], spec.adapter is None

    def parameter(rows: int, columns: int = 1) -> Parameter:
        return Parameter(rows, columns, item, trains_all)

    def base(layer: Layer) -> list[Parameter]:
        found = [parameter(*other) for other in layer.others]
        for linear in layer.linears:
            found += [parameter(linear.outputs, linear.inputs)] + [parameter(linear.outputs)] * linear.has_bias
        return found

    def adapter(layer: Layer) -> list[Parameter]:
        found: list[Parameter] = []
        if spec.adapter is not None:
            rank = spec.adapter.rank
            for linear in adapted(shape, spec.adapter, layer.linears):
                found += [Parameter(rank, linear.inputs, 4, True), Parameter(linear.outputs, rank, 4, True)]
        return found

    embedding = parameter(shape.vocab_size, shape.hidden_size)
    rest = [embedding] * (1 if shape.tie_word_embeddings else 2) + [parameter(shape.hidden_size)]
    value_head = (Parameter(1, shape.hidden_size, 4, True), Parameter(1, 1, 4, True))
    layers = [parameter for layer in shape.layers for parameter in base(layer)]
    copied = [*layers, *rest] if keeps_reference and trains_all else []
    return Units(
        layers=tuple((Unit((*base(layer), *adapter(layer))), count) for layer, count in shape.kinds.items()),
        rest=Unit(tuple(rest)),
        head=embedding,
        value_head=Unit(value_head if has_critic else ()),
        reference=Unit(tuple(Parameter(one.rows, one.columns, one.itemsize, False) for one in copied)),
    )


def shard_bytes(units: Iterable[tuple[Unit, int]], ranks: int) -> int:
    """Bytes of several units on one rank; all of them where there is one rank."""
    return sum(count * unit.shard_bytes(ranks) for unit, count in units)


def trained_shard_bytes(units: Iterable[tuple[Unit, int]], ranks: int) -> int:
    """Bytes of several units' trained parameters on one rank: those of the gradients, and half of AdamW's averages."""
    return sum(count * unit.trained.shard_bytes(ranks) for unit, count in units)
