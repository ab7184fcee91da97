"""Models with recurrent layers: on random trees of prefixes the engine and the packed training pass compute what the
model computes of each sequence alone, states shared, dropped and taken up again."""

import copy
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_checks import Recording, Uncached, assert_all_sampled, counted_tokens, in_float64
from test_engine_trees import STRATEGIES, grow
from torch import Tensor

from tests.fakes import tasks
from tests.hybrid_models import HYBRIDS, SIZE, TOKENIZER, hybrid_policy
from tsr_lightning.batching.packing import pack
from tsr_lightning.engines.base import Prompt, Sampling
from tsr_lightning.engines.transformers import engine as transformers_engine
from tsr_lightning.engines.transformers import state_store
from tsr_lightning.engines.transformers.cache import _Probe
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.transformers.state_store import StateStore
from tsr_lightning.engines.transformers.trie import Trie
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.recurrence import mixers
from tsr_lightning.policy.chat import Chat, Full
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Strategy

ENDS = frozenset(range(0, SIZE, 9))
TOLERANCE = 1e-4  # of float64; found: the engine 4e-6, transformers' own float32 pass 7e-6; gradients 3e-5 and 2e-5
ADAPTER = LoRA(rank=4, target_modules="all-linear")
FAST = ["qwen3_5_text", "nemotron_h"]
SLOW = ["lfm2", "granitemoehybrid", "falcon_h1", "kimi_linear"]
MARKS = {name: [] for name in FAST} | {name: [pytest.mark.slow] for name in SLOW}

some_or_all = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [pytest.mark.exhaustive])) for name in HYBRIDS]
)


def small_engine(
    policy: Policy, slots: int, states: int, ends: frozenset[int] = ENDS, context_tokens: int = 96
) -> TransformersEngine:
    """An engine with less memory than mebibytes."""
    engine = Transformers(kv_cache_mib=8, state_cache_mib=64).build(policy, ends, context_tokens)
    with engine._running() as cache:
        assert cache.states is not None
        cache.trie = Trie(slots)
        example = {mixer: state.map(lambda t: t[:1]) for mixer, state in cache.states._memory.items()}
        cache.states = StateStore(example, states)
        cache.most_groups, cache.most_rows = max(1, states // 3), states
    return engine


def sampled_pieces(recording: Recording) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every response with its prompt, and where it is."""
    pairs = [
        (prompt.ids, response.ids)
        for prompt, group in zip(recording.prompts, recording.responses, strict=True)
        for response in group
    ]
    return [(np.array([*p, *r]), np.arange(len(p) + len(r)) >= len(p)) for p, r in pairs]


def by_model(policy: Policy, ids: np.ndarray, mask: np.ndarray) -> Tensor:
    """Log-probabilities of the sampled ids by the model's own forward pass."""
    whole = torch.from_numpy(ids)
    logprobs = policy.causal_lm(input_ids=whole[None], use_cache=False).logits[0].log_softmax(-1)
    return logprobs[:-1].gather(1, whole[1:, None])[:, 0][torch.from_numpy(mask[1:])]


def gradients(policy: Policy, logprobs: Tensor) -> list[Tensor]:
    trained = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(logprobs.mean(), trained, allow_unused=True, materialize_grads=True)
    return list(found)


def assert_trained_alike(policy: Policy, pieces: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """The packed pass gives the log-probabilities and gradients of each sequence alone, in float64; where the model's
    own float32 pass is farther from that than the tolerance (found: 1.6e-4, with experts), in float32."""
    packed = policy.outputs(pack(pieces), 1.0).logprobs
    found = gradients(policy, packed)
    policy.eval()  # without checkpoints
    with in_float64(policy) as exact:
        alone = torch.cat([by_model(exact, *piece) for piece in pieces])
        expected = gradients(exact, alone)
    torch.testing.assert_close(packed.double(), alone, atol=TOLERANCE, rtol=0)
    if farthest(found, expected) > TOLERANCE:
        own = gradients(policy, torch.cat([by_model(policy, *piece) for piece in pieces]))
        assert farthest(own, expected) > TOLERANCE
        expected = own
    assert farthest(found, expected) <= TOLERANCE


def farthest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest number of its tensor if that is above 1."""
    pairs = zip(found, expected, strict=True)
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1.0)) for one, other in pairs)


@some_or_all
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=pytest.mark.exhaustive, id="more")])
def test_random_trees_are_sampled_and_trained_as_each_sequence_alone(name: str, seeds: range, tmp_path: Path) -> None:
    """Trees of prompts, responses and continued prompts; little memory, so that prefixes and states are dropped."""
    for seed in seeds:
        policy = hybrid_policy(name, tmp_path / str(seed), seed, ADAPTER if (seed + len(name)) % 2 else None)
        chance = random.Random(f"{name} {seed}")
        temperature = chance.choice([1.0, 1.0, 0.6, 0.0])
        recording = Recording(small_engine(policy, slots=128 + 40 * (seed % 3), states=3 + 3 * (seed % 3)))
        with counted_tokens(policy) as counter:
            grow(recording, chance, temperature)
            grow(recording, chance, temperature)
        costs = recording.take_costs()
        assert counter.total == costs.tokens_computed >= recording.distinct_prefixes()
        with in_float64(policy) as exact:
            assert_all_sampled(exact, recording, temperature, ENDS, TOLERANCE)
        assert_trained_alike(policy, chance.sample(sampled_pieces(recording), 8))


@some_or_all
def test_checkpoints_of_activations_change_no_gradient(name: str, tmp_path: Path) -> None:
    policy = hybrid_policy(name, tmp_path, adapter=ADAPTER, gradient_checkpointing=True).train()
    start = np.arange(3, 23)
    pieces = [(np.append(start, tail), np.arange(20 + len(tail)) >= 20) for tail in ([1, 2, 3], [1, 4], [5] * 9)]
    assert_trained_alike(policy, pieces)


def test_a_prompt_that_goes_on_is_computed_from_where_the_response_ended(tmp_path: Path) -> None:
    """The state is kept at the last token that was computed; the response's last token and two more are new."""
    policy = hybrid_policy("lfm2", tmp_path)
    engine = Transformers(kv_cache_mib=8).build(policy, frozenset(), 96)
    [[first, _]] = engine.generate([Prompt((5, 6, 7, 8), (1, 2), 6)], 1.0)
    engine.take_costs()
    engine.generate([Prompt((5, 6, 7, 8, *first.ids, 9, 10), (3,), 1)], 1.0)
    assert engine.take_costs().tokens_computed == 3


def test_weights_that_change_empty_the_states(tmp_path: Path) -> None:
    policy = hybrid_policy("qwen3_5_text", tmp_path)
    recording = Recording(Transformers(kv_cache_mib=8).build(policy, ENDS, 96))
    prompt = Prompt(tuple(range(3, 20)), (1, 2, 3), 5)
    recording.generate([prompt], 1.0)
    with torch.no_grad():
        mixers(policy.causal_lm)[0].out_proj.weight.mul_(0.5)
    changed = Recording(recording.engine)
    changed.generate([prompt], 1.0)
    assert_all_sampled(policy, changed, 1.0, ENDS)
    assert changed.responses != recording.responses


def test_a_recurrent_layer_that_runs_twice_is_refused(tmp_path: Path) -> None:
    policy = hybrid_policy("qwen3_5_text", tmp_path)
    probe, mixer = _Probe(torch.float32), mixers(policy.causal_lm)[0]
    hidden = torch.zeros(2, policy.causal_lm.config.hidden_size)
    with torch.no_grad():
        probe.mix(mixer, hidden)
        with pytest.raises(ConfigError, match="a recurrent layer that runs twice in a pass"):
            probe.mix(mixer, hidden)


def test_states_count_as_what_a_cpu_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where keys and values alone would stay within the limit, the cache is given back."""
    policy = hybrid_policy(FAST[0], tmp_path)
    engine = small_engine(policy, slots=256, states=8)
    engine.generate([Prompt(tuple(range(1, 33)), (1,), 4)], 1.0)
    cache = engine._cache
    assert cache is not None
    assert cache.states is not None
    of_one = sum(tensor[0].nbytes for state in cache.states._memory.values() for tensor in state.tensors())
    states = len(cache.states._places) * of_one
    keys = cache.trie.used * cache._slot_bytes
    assert states > 0
    assert cache.used_bytes == keys + states
    monkeypatch.setattr(transformers_engine, "KEPT_BYTES", keys + states)
    engine.release()
    assert engine._cache is cache
    monkeypatch.setattr(transformers_engine, "KEPT_BYTES", keys + states - 1)
    engine.release()
    assert engine._cache is None


def test_a_copy_of_a_policy_runs_its_own_layers(tmp_path: Path) -> None:
    policy = hybrid_policy("qwen3_5_text", tmp_path)
    other = copy.deepcopy(policy)
    batch = pack([(np.arange(3, 20), np.arange(17) >= 1)])
    before = policy.outputs(batch, 1.0).logprobs
    with torch.no_grad():
        mixers(other.causal_lm)[0].out_proj.weight.mul_(0.5)
    assert torch.equal(policy.outputs(batch, 1.0).logprobs, before)
    assert not torch.allclose(other.outputs(batch, 1.0).logprobs, before, atol=1e-3)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Uncached]:
    """Gives a type's engine without a cache, which all its searches share."""
    end_ids = frozenset(Chat(TOKENIZER, Full()).end_ids)
    return cache(lambda name: Uncached(hybrid_policy(name, tmp_path_factory.mktemp(name)), end_ids))


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param(name, strategy, id=f"{name}-{strategy}", marks=marks)
        for name in HYBRIDS
        for number, strategy in enumerate([*STRATEGIES, Beam(2, 3, without_replacement=True)])
        for others in [pytest.mark.slow if name in FAST[:1] else pytest.mark.exhaustive]
        for marks in [[] if name in FAST and number == FAST.index(name) + 4 else [others]]
    ],
)
def test_a_search_ends_as_without_a_cache(name: str, strategy: Strategy, searched: Callable[[str], Uncached]) -> None:
    """Each search with the engine, which keeps a few states, ends in the trajectories of one in which every token
    is drawn after a pass over its whole context."""
    plain = searched(name)
    found = []
    for engine in (small_engine(plain.policy, 400, 6, plain.ends, 256), plain):
        env = make_env("tsr/FrozenLake-v0", prompt_style="brief", max_turns=3)
        driver = Driver([env], Chat(TOKENIZER, Full()), engine, Sampling(1.0, 6), TokenLimits(256), concurrency=4)
        found.append([turn for trajectory in driver.run(tasks(strategy, 3)) for turn in trajectory.turns])
    assert [(turn.prompt, turn.response) for turn in found[0]] == [(turn.prompt, turn.response) for turn in found[1]]
    for own, other in zip(*found, strict=True):
        assert own.behaviour_logprobs == pytest.approx(other.behaviour_logprobs, abs=TOLERANCE)


def test_memory_for_too_few_states_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "_MIB", 2**10)
    engine = Transformers(kv_cache_mib=8, state_cache_mib=1).build(hybrid_policy("lfm2", tmp_path), ENDS, 96)
    with pytest.raises(
        ConfigError, match=r"state_cache_mib is 1: a state of this .* takes .* MiB, so give \d+ or more"
    ):
        engine.generate([Prompt((1, 2), (1,), 1)], 1.0)
