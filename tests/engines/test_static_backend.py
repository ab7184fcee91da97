"""Decode steps in static memory sample what today's steps sample, and can be replayed as a CUDA graph would be."""

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_checks import Recording, assert_all_sampled, counted_tokens
from numpy.typing import NDArray
from test_engine import ENDS, TOKENIZER, assert_same, make_engine, make_policy, reference, wave
from test_engine_trees import SIZES, grow
from torch import Tensor
from transformers import AutoModelForCausalLM, Gemma2Config, MistralConfig, Qwen2Config

from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.transformers.cuda_graphs import Direct
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.group_rows import EXACT
from tsr_lightning.engines.transformers.kv_store import KVStore
from tsr_lightning.engines.transformers.static_backend import (
    StaticBackend,
    StaticDecode,
    StepInputs,
    StepRounding,
    StepShape,
)
from tsr_lightning.engines.transformers.torch_backend import TorchBackend, TorchPrefill
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.rounding import Rounding
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec

UNROUNDED = StepRounding(EXACT, EXACT, EXACT)
COARSE = StepRounding(Rounding(8, 1), Rounding(2, 1), Rounding(16, 1))  # much padding


@dataclass(frozen=True)
class WithPlainPrefill:
    """Static steps after prefill in buckets, so that only the steps can differ."""

    static: StaticBackend

    def fits(self, groups: int, prompt: int, columns: int) -> bool:
        return self.static.fits(groups, prompt, columns)

    def prefill(self, store: KVStore, segments: Sequence[Segment], slots: NDArray[np.int64]) -> TorchPrefill:
        return TorchBackend(self.static.buffer).prefill(store, segments, slots)

    def decode(self, store: KVStore, prompts: Sequence[NDArray[np.int64]], columns: int) -> StaticDecode:
        return self.static.decode(store, prompts, columns)


@dataclass
class Replaying:
    """As CUDA graphs do: a key's second step is kept, and every later one runs the kept one again."""

    ran: int = 0
    replayed: int = 0
    kept: dict[Hashable, Callable[[], Tensor] | None] = field(default_factory=dict)

    def __call__(self, key: Hashable, step: Callable[[], Tensor]) -> Tensor:
        if (kept := self.kept.get(key)) is not None:
            self.replayed += 1
            return kept()
        self.ran += 1
        self.kept[key] = step if key in self.kept else None
        return step()


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy(kernels=Kernels.FLEX)


def make(policy: Policy, rounding: StepRounding | None = None, max_num_seqs: int = 512) -> TransformersEngine:
    packed_forward.install(policy.causal_lm, Kernels.FLEX)
    engine = make_engine(policy, max_num_seqs)
    assert engine._cache is not None
    assert isinstance(engine._cache.backend, StaticBackend)
    assert isinstance(engine._cache.backend.replay, Direct)
    if rounding is not None:
        engine._cache.backend = WithPlainPrefill(replace(engine._cache.backend, rounding=rounding))  # type: ignore[assignment]
    return engine


def plain(policy: Policy, prompts: Sequence[Prompt], temperature: float, max_num_seqs: int) -> list[list[Response]]:
    """By today's backend."""
    packed_forward.install(policy.causal_lm, Kernels.TORCH)
    return make_engine(policy, max_num_seqs).generate(prompts, temperature)


@pytest.mark.parametrize("max_num_seqs", [3, 512])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_without_padding_tokens_and_logprobs_are_exactly_those_of_plain_steps(
    policy: Policy, temperature: float, max_num_seqs: int
) -> None:
    prompts = wave(20, seed=3)
    expected = plain(policy, prompts, temperature, max_num_seqs)
    assert make(policy, UNROUNDED, max_num_seqs).generate(prompts, temperature) == expected


@pytest.mark.parametrize("rounding", [StepRounding(), COARSE])
def test_padding_changes_no_token(policy: Policy, rounding: StepRounding) -> None:
    prompts = wave(20, seed=4)
    expected = plain(policy, prompts, 1.0, 512)
    for responses, others in zip(make(policy, rounding).generate(prompts, 1.0), expected, strict=True):
        assert [response.ids for response in responses] == [other.ids for other in others]
        for response, other in zip(responses, others, strict=True):
            assert response.logprobs == pytest.approx(other.logprobs, abs=2e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_samples_equal_the_references(policy: Policy, temperature: float) -> None:
    """With flex_attention's prefill too."""
    prompts = wave()
    sampled = make(policy).generate(prompts, temperature)
    for responses, expected in zip(sampled, reference(policy, prompts, temperature), strict=True):
        assert_same(responses, expected)


@pytest.mark.parametrize("max_num_seqs", [2, 512])
def test_random_trees(policy: Policy, max_num_seqs: int) -> None:
    sampled = 0
    for seed in range(4):
        chance = random.Random(f"static {max_num_seqs} {seed}")
        temperature = chance.choice([1.0, 0.6, 0.0])
        recording = Recording(make(policy, max_num_seqs=max_num_seqs))
        with counted_tokens(policy):
            grow(recording, chance, temperature)
        costs = recording.take_costs()
        assert costs.tokens_computed == recording.distinct_prefixes()
        assert 0 < costs.scores_needed < costs.scores_computed
        sampled += assert_all_sampled(policy, recording, temperature, ENDS)
    assert sampled > 30


@pytest.mark.parametrize("rounding", [StepRounding(), COARSE])
def test_replayed_steps_sample_what_fresh_ones_sample(policy: Policy, rounding: StepRounding) -> None:
    """A kept step belongs to an earlier wave, whose prompts, branches and groups were others: only what static memory
    holds may tell it of this one."""
    replay, engine = Replaying(), make(policy, rounding)
    assert engine._cache is not None
    static = replace(engine._cache.backend.static, replay=replay)  # type: ignore[union-attr]
    engine._cache.backend = WithPlainPrefill(static)  # type: ignore[assignment]
    fresh = make(policy, rounding)
    for seed in range(8):
        prompts = wave(14, seed=100 + seed)
        assert engine.generate(prompts, 1.0) == fresh.generate(prompts, 1.0)
    assert replay.replayed > 30


def test_changed_weights_and_a_disabled_adapter_have_steps_of_their_own() -> None:
    policy = make_policy(LoRA(rank=4, target_modules=["q_proj", "v_proj"]))
    engine = make(policy, StepRounding())
    replay = Replaying()
    assert engine._cache is not None
    engine._cache.backend = WithPlainPrefill(replace(engine._cache.backend.static, replay=replay))  # type: ignore
    prompts = [Prompt((1, 2, 3), tuple(range(1, 5)), 12)]
    adapted = [engine.generate(prompts, 1.0) for _ in range(2)]
    engine._version = None  # as after an update: the cache is emptied
    with policy.model.disable_adapter():
        plain = engine.generate(prompts, 1.0)
        for responses, expected in zip(plain, reference(policy, prompts, 1.0), strict=True):
            assert_same(responses, expected)
    assert plain != adapted[0] == adapted[1]


WIDE = {**SIZES, "head_dim": 16}  # of heads: flex_attention takes 16 and more
ARCHITECTURES = {
    "three queries share a key": Qwen2Config(**{**WIDE, "num_attention_heads": 6}),
    "a window of 7": MistralConfig(**WIDE, sliding_window=7),
    "a window and caps": Gemma2Config(**WIDE, sliding_window=7, attn_logit_softcapping=2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shared_heads_windows_and_caps(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ARCHITECTURES[name]).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    policy = Policy(PolicySpec(str(tmp_path)), TOKENIZER, critic=True, seed=1)
    prompts = wave(10, seed=6)
    expected = plain(policy, prompts, 1.0, 512)
    for responses, others in zip(make(policy, COARSE).generate(prompts, 1.0), expected, strict=True):
        for response, other in zip(responses, others, strict=True):
            assert response.ids == other.ids
            assert response.logprobs == pytest.approx(other.logprobs, abs=5e-5)


def test_memory_is_bounded_and_too_little_is_refused(policy: Policy) -> None:
    backend = make(policy)._cache.backend  # type: ignore[union-attr]
    assert isinstance(backend, StaticBackend)
    lengths = [(prompt, columns) for prompt in (1, 60, 64, 65, 700, 5000) for columns in (1, 64, 900)]
    for rounding in (StepRounding(), COARSE):
        for groups in (1, 3, 9, 33):
            for prompt, columns in lengths:
                row = rounding.lengths.up(prompt) + rounding.lengths.up(columns)
                needed = rounding.groups.up(groups) * row + 1
                if replace(backend, rounding=rounding).fits(groups, prompt, columns):
                    assert needed <= backend.buffer.tokens
    packed_forward.install(policy.causal_lm, Kernels.FLEX)
    with pytest.raises(ConfigError, match=r"Transformers.kv_cache_mib is 1: .* 9600 tokens .* give (\d+) or more"):
        TransformersEngine(policy, ENDS, 9600, 1, 512).generate([Prompt((1,), (1,), 1)], 1.0)


def test_static_memory_of_a_shape_is_made_once(policy: Policy) -> None:
    backend = make(policy)._cache.backend  # type: ignore[union-attr]
    assert isinstance(backend, StaticBackend)
    shape = StepShape(tokens=8, rows=2, width=3, prompt=64, columns=64, row_length=128)
    assert not shape.is_full
    inputs = backend.inputs(shape)
    assert isinstance(inputs, StepInputs)
    before = inputs.ids.data_ptr()
    inputs.fill(np.arange(48).reshape(6, 8), np.array([5, 6]), np.ones((8, 64), dtype=np.bool_))
    assert backend.inputs(shape) is inputs
    assert inputs.ids.data_ptr() == before
    assert inputs.lengths.tolist() == list(range(40, 48))
    assert inputs.row_lengths.tolist() == [5, 6]
