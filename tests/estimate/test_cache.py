"""The engine's cache has the size that an estimate computes for it."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_models import TOKENIZER, saved_model
from transformers import Qwen2Config

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.engines.transformers.cache import PrefixCache
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.estimate.caches import buffer_tokens, slots
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slots_and_decode_buffer(dtype: str, tmp_path: Path):
    saved_model(tmp_path)
    spec = PolicySpec(str(tmp_path), dtype=dtype, kernels="torch")
    cache = PrefixCache(Policy(spec, TOKENIZER, critic=False), kv_cache_mib=16, context_tokens=256, stream=None)
    setup = setup_of(*parsed_run(["--config", "paper/sokoban.yaml"]))[0]
    shape = shape_of(Qwen2Config.from_pretrained(tmp_path))
    setup = replace(setup, shape=shape, spec=spec, engine=Transformers(kv_cache_mib=16))
    assert isinstance(cache.backend, TorchBackend)
    assert (slots(setup), buffer_tokens(setup)) == (cache.trie.capacity, cache.backend.buffer.tokens)
