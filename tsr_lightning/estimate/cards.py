"""Graphics cards and machines, as an estimate sees them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tsr_lightning.errors import require


@dataclass(frozen=True)
class Card:
    """A GPU, or this machine's CPU. Shares and seconds are assumptions, which a measurement on the card should replace.

    Args:
        name: of the card.
        memory_gib: what PyTorch reports as its total memory.
        bfloat16: FLOP/s of dense products, sums in float32.
        float32: FLOP/s outside of tensor cores, as PyTorch computes float32 products by default.
        bandwidth: bytes/s of its memory.
        interconnect: bytes/s in one direction between the cards of a machine.
        compute_share: of these FLOP/s, what large products reach in training.
        bandwidth_share: of the bandwidth, what a decoding step reaches.
        operator_seconds: that the host takes for an operator of PyTorch: Python, dispatch, launch; measured beside an
            H200.
        response_seconds: of the engine's own Python code per response and step, measured beside an H200.
        replay_seconds: of a captured decoding step beside the card's own: launch, inputs, sampling and the engine's
            code, measured beside an H200.
        is_gpu: decoding steps may be captured as CUDA graphs.
        context_gib: of the CUDA context and the libraries' workspaces.
        fragmentation: memory that the caching allocator holds and cannot use, as a share of what is used.
        kept_cache_mib: the most of `kv_cache_mib` and `state_cache_mib` that an engine keeps during the updates.
        interconnect_share: of the interconnect, what all-gathers and reduce-scatters reach.
    """

    name: str
    memory_gib: float
    bfloat16: float
    float32: float
    bandwidth: float
    interconnect: float
    compute_share: float = 0.4
    bandwidth_share: float = 0.6
    operator_seconds: float = 10.5e-6
    response_seconds: float = 18e-6
    replay_seconds: float = 4e-3
    is_gpu: bool = True
    context_gib: float = 0.8
    fragmentation: float = 0.08
    kept_cache_mib: int = 0
    interconnect_share: float = 0.7


@dataclass(frozen=True)
class Machine:
    """Cards that train one policy, each with a copy of it (DDP) or a part (FSDP2)."""

    card: Card
    count: int = 1

    @property
    def name(self) -> str:
        return self.card.name if self.count == 1 else f"{self.count} × {self.card.name}"


# NVIDIA's data sheets: Ada whitepaper (RTX 4090), A100 80GB SXM, H100 80GB SXM, H200 SXM; dense, without sparsity.
# Interconnects: half of NVLink's 600 and 900 GB/s, which are of both directions; an RTX 4090 has no peer-to-peer
# transfers, so data cross its 16 lanes of PCIe 4.0, of 32 GB/s, on their way to the host's memory and from there
CARDS: Mapping[str, Card] = {
    "rtx4090": Card("RTX 4090 24 GB", 23.6, bfloat16=165.2e12, float32=82.6e12, bandwidth=1.008e12, interconnect=16e9),
    "a100": Card("A100 80 GB", 79.2, bfloat16=312e12, float32=19.5e12, bandwidth=2.039e12, interconnect=300e9),
    "h100": Card("H100 80 GB", 79.2, bfloat16=989e12, float32=66.9e12, bandwidth=3.35e12, interconnect=450e9),
    "h200": Card("H200 141 GB", 139.8, bfloat16=989e12, float32=66.9e12, bandwidth=4.8e12, interconnect=450e9),
}
DEFAULT = ("rtx4090", "a100", "8xa100")
HERE = "here"  # the machine that asks, whose speeds are measured


def machine_of(name: str) -> Machine:
    """`a100` or, for eight of them, `8xa100`.

    Raises:
        ConfigError: for another name.
    """
    found = re.fullmatch(r"(?:([1-9]\d*)x)?(\w+)", name)
    known = found is not None and found[2] in CARDS
    require(known, "--machine", name, f"choose from {', '.join(CARDS)}, {HERE}, or several as in 8xa100")
    assert found is not None
    return Machine(CARDS[found[2]], int(found[1] or 1))
