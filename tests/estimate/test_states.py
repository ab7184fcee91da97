"""States of recurrent layers: bytes, counts and operators beside the engine's own."""

from dataclasses import replace
from pathlib import Path

import pytest
from recurrent_models import TINY, recurrent_policy

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.engines.base import Prompt
from tsr_lightning.engines.transformers.cache import PrefixCache
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.estimate.caches import buffer_tokens, slots, state_counts
from tsr_lightning.estimate.cards import CARDS
from tsr_lightning.estimate.decode_steps import operators
from tsr_lightning.estimate.live_tensors import LiveTensors
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.estimate.weights import ITEMSIZE
from tsr_lightning.policy.spec import LoRA

MIB = 2**20
A100 = CARDS["a100"]
DTYPES = pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16")])


@pytest.fixture(scope="module")
def plain() -> Setup:
    return setup_of(*parsed_run(["--config", "paper/sokoban.yaml"]))[0]


def recurrent(plain: Setup, name: str, **engine: int) -> Setup:
    return replace(plain, shape=shape_of(TINY[name]()), engine=Transformers(**engine))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_the_engine_s_own_bytes_and_counts(name: str, dtype: str, plain: Setup, tmp_path: Path):
    policy = recurrent_policy(TINY[name](), tmp_path, dtype=dtype, adapter=LoRA(4))
    cache = PrefixCache(policy, kv_cache_mib=16, context_tokens=256, stream=None, state_cache_mib=8)
    setup = recurrent(plain, name, kv_cache_mib=16, state_cache_mib=8)
    setup = replace(setup, spec=replace(plain.spec, dtype=dtype, quantisation=None))
    assert cache.states is not None
    states = [tensor for state in cache.states._memory.values() for tensor in state.tensors()]
    assert setup.shape.state_bytes(ITEMSIZE[dtype]) * cache.states.capacity == sum(tensor.nbytes for tensor in states)
    counts = state_counts(setup)
    assert counts is not None
    assert (counts.prefixes, counts.groups, counts.rows) == (
        cache.states.capacity,
        cache.most_groups,
        cache.most_rows,
    )
    assert (slots(setup), buffer_tokens(setup)) == (cache.trie.capacity, cache.backend.buffer.tokens)


@pytest.mark.parametrize("kind", ["all weights, float32", "adapter, bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_operators_of_a_step(name: str, kind: str, tmp_path: Path):
    settings = {} if kind == "all weights, float32" else {"adapter": LoRA(8, 8), "dtype": "bfloat16"}
    policy = recurrent_policy(TINY[name](), tmp_path, **settings).eval()
    engine = TransformersEngine(policy, frozenset(), 256, 64, 64)

    def counted(tokens: int) -> int:
        prompts = [Prompt((*range(10 + i, 60 + i), tokens), tuple(range(4)), tokens) for i in range(4)]
        with LiveTensors() as live:
            engine.generate(prompts, 1.0)
        return live.operators

    counted(3)  # makes the cache
    found = (counted(12) - counted(4)) / 8
    print("OPS", name, kind, found, operators(shape_of(TINY[name]()), policy.spec))
