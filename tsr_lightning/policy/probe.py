"""A probe before training: sequences that are packed together must be computed as each alone.

Packed passes keep sequences apart by their attention mask. Layers that carry a state from token to token (recurrent
layers, convolutions) ignore it, so that one sequence leaks into the next: log-probabilities are then wrong by up to
nats, and nothing else would show it.
"""

import numpy as np
import torch

from tsr_lightning.batching.packing import pack
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy
from tsr_lightning.rng import Key

_LENGTHS, _SHARED = (12, 9, 7), 4  # tokens of the sequences, of which two share a prefix
# Largest difference of a log-probability, in nats: float32 sums in another order stay far below the first, and rounding
# to bfloat16 below the second; a leak of random hybrid models is .03 to .7 in the mean.
_FLOAT32, _LOW_PRECISION = 1e-3, 0.5


@torch.no_grad()
def check_packing(policy: Policy, device: torch.device) -> None:
    """Compares packed sequences with each alone.

    Args:
        policy: whole, on its device.
        device: of the policy.

    Raises:
        ConfigError: they differ, so that the model cannot be trained here.
    """
    config = policy.causal_lm.config
    vocabulary = int(config.get_text_config().vocab_size)
    draws = Key(0).fold_in("packing").generator()
    sequences = [draws.integers(vocabulary, size=length) for length in _LENGTHS]
    sequences[1][:_SHARED] = sequences[0][:_SHARED]
    masked = [(ids.astype(np.int64), np.arange(len(ids)) >= 1) for ids in sequences]
    together = policy.outputs(pack(masked).to(device), 1.0).logprobs
    alone = torch.cat([policy.outputs(pack([each]).to(device), 1.0).logprobs for each in masked])
    difference = float((together - alone).abs().max())
    is_exact = policy.spec.dtype == "float32" and policy.spec.quantisation is None
    if not difference <= (_FLOAT32 if is_exact else _LOW_PRECISION):
        raise ConfigError(
            f"model.policy.model is {policy.spec.model!r}: a model of type {config.model_type} computes other "
            f"log-probabilities where sequences are packed together (by up to {difference:.2g} nats), because it has "
            "layers that carry a state from one to the next; use a model whose layers are all attention"
        )
