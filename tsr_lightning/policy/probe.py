"""A probe before training: sequences that are packed together must be computed as the model computes each alone.

Packed passes keep sequences apart by their attention mask, and carry the state of recurrent layers that are known
(`modeling.recurrence`). Other layers that carry one from token to token ignore both, so that one sequence leaks into
the next: log-probabilities are then wrong by up to nats, and nothing else would show it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.batching.packing import pack
from tsr_lightning.errors import ConfigError, describe
from tsr_lightning.policy.checks import KNOWN
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import in_float32
from tsr_lightning.rng import Key

_LENGTHS, _SHARED = (24, 21, 7), 12  # tokens of the sequences, of which two share a prefix
# Largest difference of a log-probability, in nats. float32 sums in another order stay far below it, and a sequence that
# sees nothing of another does not change with it at all, whatever the precision.
_TOLERANCE = 1e-3


@torch.no_grad()
def check_packing(policy: Policy, device: torch.device) -> None:
    """Compares packed sequences with each alone (in float32), and with those packed behind another one (always).

    Rounding to bfloat16 or 4 bits depends on how sequences are packed, so that there the second alone tells a leak.

    Args:
        policy: whole, on its device.
        device: of the policy.

    Raises:
        ConfigError: they differ, so that the model cannot be trained here.
    """
    kind = policy.causal_lm.config.model_type
    try:
        difference = _difference(policy, device)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"model.policy.model is {policy.spec.model!r}: a model of type {kind} does not take packed sequences "
            f"({describe(error)}); {KNOWN}"
        ) from error
    if not difference <= _TOLERANCE:
        raise ConfigError(
            f"model.policy.model is {policy.spec.model!r}: a model of type {kind} computes other log-probabilities "
            f"where sequences are packed together (by up to {difference:.2g} nats), because its layers carry a state "
            f"from one to the next or count positions in a way that is not known here; {KNOWN}"
        )


@torch.no_grad()
def check_repeats(policy: Policy, device: torch.device) -> None:
    """Compares two passes in training mode, where some layers draw at random, such as routers of experts with noise.

    Args:
        policy: whole, on its device, in training mode.
        device: of the policy.

    Raises:
        ConfigError: they differ, though the adapter has no dropout.
    """
    if policy.spec.adapter is not None and policy.spec.adapter.dropout:
        return
    drawn = [_drawn(policy, _LENGTHS[0], 0)]
    first, second = (_logprobs(policy, drawn, device) for _ in range(2))
    if not torch.equal(first, second):
        difference = float((first - second).abs().max())
        kind = policy.causal_lm.config.model_type
        raise ConfigError(
            f"model.policy.model is {policy.spec.model!r}: a model of type {kind} draws at random in training, so that "
            f"two passes differ (by up to {difference:.2g} nats), and ratios of probabilities would be noise: set what "
            f"draws to 0 in its config.json, such as router_jitter_noise, or use another; {KNOWN}"
        )


def _difference(policy: Policy, device: torch.device) -> float:
    difference = _through_the_pack(policy, device)
    if in_float32(policy.spec):
        difference = max(difference, _from_each_alone(policy, device))
    return difference


def _from_each_alone(policy: Policy, device: torch.device) -> float:
    sequences = [_drawn(policy, length, number) for number, length in enumerate(_LENGTHS)]
    sequences[1][:_SHARED] = sequences[0][:_SHARED]
    alone = torch.cat([_by_model(policy, torch.from_numpy(each).to(device)) for each in sequences])
    return float((_logprobs(policy, sequences, device) - alone).abs().max())


def _by_model(policy: Policy, ids: Tensor) -> Tensor:
    """Log-probabilities of all ids [L] but the first, by the model's own forward pass: [L - 1]."""
    logprobs = policy.causal_lm(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(dim=-1)
    return logprobs[:-1].gather(1, ids[1:, None]).squeeze(1)


def _through_the_pack(policy: Policy, device: torch.device) -> float:
    """Measures how far a sequence changes where the one before it in the pack does: packs are in the order of their
    ids."""
    length = _LENGTHS[0]
    last, first, other = (_drawn(policy, length, number) for number in range(3))
    first[0] = other[0] = 0
    last[0] = 1
    behind = [_logprobs(policy, [each, last], device)[length - 1 :] for each in (first, other)]
    return float((behind[0] - behind[1]).abs().max())


def _drawn(policy: Policy, length: int, number: int) -> NDArray[np.int64]:
    """A sequence of random ids: [length]."""
    vocabulary = int(policy.causal_lm.config.get_text_config().vocab_size)
    return Key(0).fold_in("packing", number).generator().integers(vocabulary, size=length)


def _logprobs(policy: Policy, sequences: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """Log-probabilities of all ids but each sequence's first, packed together."""
    packed = pack([(ids, np.arange(len(ids)) >= 1) for ids in sequences])
    return policy.outputs(packed.to(device), 1.0).logprobs
