"""Seconds of FSDP2's collectives. Pure functions of a policy's units and a machine; latencies are left out.

A collective over R ranks moves (R - 1) / R of its bytes over each card's link (nccl-tests, doc/PERFORMANCE.md).
"""

from dataclasses import dataclass

from tsr_lightning.estimate.cards import Machine
from tsr_lightning.estimate.units import Units, shard_bytes


@dataclass(frozen=True)
class Traffic:
    """Bytes of the collectives, as large as what they gather or reduce."""

    forward: int  # all-gathers of a forward pass
    backward: int  # of a backward pass
    gradients: int  # reduce-scatters
    whole: int  # all-gathers of the whole policy, once an epoch

    @property
    def micro_batch(self) -> int:
        """Bytes of one forward and backward pass; each micro-batch of an update reduces its own gradients."""
        return self.forward + self.backward + self.gradients


def traffic(units: Units, ranks: int) -> Traffic:
    """Layers and value head are gathered for the forward pass and again for the backward pass, the root's unit once."""
    gathered = ranks * shard_bytes(units.passes, ranks)
    return Traffic(
        forward=gathered,
        backward=gathered - units.rest.gathered_bytes(ranks),
        gradients=sum(count * unit.trained.gathered_bytes(ranks) for unit, count in units.passes),
        whole=ranks * shard_bytes(units.all, ranks),
    )


def collective_seconds(size: float, machine: Machine) -> float:
    """Seconds of an all-gather or reduce-scatter of this many bytes; 0 on one card."""
    card = machine.card
    return size * (machine.count - 1) / machine.count / (card.interconnect * card.interconnect_share)
