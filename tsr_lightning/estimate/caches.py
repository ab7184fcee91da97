"""The engine's caches: keys and values by token, states of recurrent layers by prefix. Pure functions of a setup."""

from collections.abc import Iterable, Iterator

import torch

from tsr_lightning.engines.transformers.cache import BUFFER_SHARE, least_kv_cache_mib
from tsr_lightning.engines.transformers.kv_store import KVShape, LayerShape
from tsr_lightning.engines.transformers.state_store import STATES_OF_A_GROUP, StateCounts
from tsr_lightning.engines.transformers.static_backend import StepRounding
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.weights import DTYPES, ITEMSIZE
from tsr_lightning.estimate.workload import Wave


def kv_shape(setup: Setup) -> KVShape:
    """Returns what the engine stores of a token: keys and values of all layers (in bfloat16 under autocast), and a
    hidden state."""
    shape, dtype = setup.shape, DTYPES[setup.spec.dtype]
    attentions = [layer.attention for layer in shape.layers]
    layers = tuple(LayerShape(a.key_heads, a.width, a.width) if a else LayerShape() for a in attentions)
    return KVShape(layers, torch.bfloat16 if setup.autocast else dtype, shape.hidden_size, dtype)


def state_counts(setup: Setup) -> StateCounts | None:
    """Returns how many states the engine keeps; None where no layer carries one.

    Raises:
        ConfigError: `state_cache_mib` is too small for the model.
    """
    size = _state_bytes(setup)
    return StateCounts.within(setup.engine.state_cache_mib, size) if size else None


def buffer_tokens(setup: Setup) -> int:
    """Tokens of the decode buffer: of all responses that are generated at once, their prompts and all that they may
    become."""
    return int(setup.engine.cache_mib * 2**20 * BUFFER_SHARE) // kv_shape(setup).token_bytes


def slots(setup: Setup) -> int:
    """Tokens of prefixes that the cache keeps."""
    return int(setup.engine.cache_mib * 2**20 * (1 - BUFFER_SHARE)) // kv_shape(setup).slot_bytes


def least_state_mib(setup: Setup) -> int:
    """The least `state_cache_mib` that the engine takes."""
    return StateCounts.least_mib(_state_bytes(setup))


def state_mib(setup: Setup) -> float:
    """The size of the states after one prefix."""
    return _state_bytes(setup) / 2**20


def _state_bytes(setup: Setup) -> int:
    return setup.shape.state_bytes(ITEMSIZE[setup.spec.dtype])


def wanted_cache_mib(setup: Setup, ranks: int = 1) -> int:
    """`kv_cache_mib` with which nothing is computed twice, and as many responses are generated at once as the searches
    side by side or `max_num_seqs` allow."""
    return _cache_mib(setup, _waves(setup, ranks))


def evaluation_cache_mib(setup: Setup, ranks: int = 1) -> int:
    """As `wanted_cache_mib`, for evaluations."""
    waves = []
    for one in setup.evaluations:
        searches = setup.held_out * one.samples
        share = min(setup.concurrency, -(-searches // ranks)) / max(1, searches)
        waves += [(wave, share) for wave in setup.evaluation(one, setup.worst).waves]
    return _cache_mib(setup, waves)


def least_cache_mib(setup: Setup) -> int:
    """The least `kv_cache_mib` that the engine takes, of all its backends."""
    return least_kv_cache_mib(kv_shape(setup), StepRounding().lengths.most(setup.context_tokens) + 1, BUFFER_SHARE)


def _cache_mib(setup: Setup, waves: Iterable[tuple[Wave, float]]) -> int:
    stored, most = kv_shape(setup), 0.0
    for wave, share in waves:
        responses = min(setup.engine.max_num_seqs, share * wave.responses)
        prompts = responses * wave.prompts / wave.responses
        tokens = prompts * wave.prompt_tokens + responses * setup.max_response_tokens
        held = share * wave.held(setup.worst.episode.response) * stored.slot_bytes / (1 - BUFFER_SHARE)
        most = max(most, held, tokens * stored.token_bytes / BUFFER_SHARE)
    return int(most / 2**20) + 1


def wanted_state_mib(setup: Setup, ranks: int = 1) -> int:
    """`state_cache_mib` with which no state is computed twice, and as many responses are generated at once as without
    states."""
    most = max((max(share * wave.ends, _rows(setup, wave, share)) for wave, share in _waves(setup, ranks)), default=0)
    return int(2 * most * state_mib(setup)) + 1


def _rows(setup: Setup, wave: Wave, share: float) -> float:
    """States of a wave's responses at once, or those around their prompts."""
    responses = min(setup.engine.max_num_seqs, share * wave.responses)
    return max(responses, STATES_OF_A_GROUP * responses * wave.prompts / wave.responses)


def _waves(setup: Setup, ranks: int) -> Iterator[tuple[Wave, float]]:
    """The worst case's waves, each with the share of it that a card has at once."""
    for entries, _ in setup.distinct_entries:
        count = sum(entry.count for entry in entries)
        searches = -(-setup.instances // ranks) * count
        share = min(setup.concurrency, searches) / max(1, setup.instances * count)
        yield from ((wave, share) for wave in setup.rollout(entries, setup.worst).waves)
