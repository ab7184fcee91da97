"""Packed attention gives the hidden states and gradients of a dense model that runs each sequence by itself."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from tsr_lightning.batching.packing import Packed, pack
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.attention import NAME, ScoreParams, install, packed_inputs
from tsr_lightning.modeling.buckets import StoredAttention, products
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.training_attention import TrainingAttention, TrainingPlan, plan_training

CPU = torch.device("cpu")

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
ARCHITECTURES: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**SIZES),
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "mistral, windowed": MistralConfig(**SIZES, sliding_window=5),
    "gemma2, windowed and capped": Gemma2Config(**SIZES, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0),
    "gpt2": GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3),
}

TrainingSequence = tuple[NDArray[np.int64], NDArray[np.bool_]]
StatesFn = Callable[[PreTrainedModel, Sequence[TrainingSequence]], Tensor]


def dense(name: str) -> PreTrainedModel:
    """As transformers computes it, in float64, apart from norms and softmax."""
    torch.manual_seed(0)
    config = ARCHITECTURES[name]
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()


def with_packed_attention(name: str) -> PreTrainedModel:
    model = dense(name)
    install(model)
    return model


def tree(seed: int, rows: int = 12, max_length: int = 40) -> list[TrainingSequence]:
    """Sequences, most of which extend a prefix of an earlier one; some are equal to or a prefix of another."""
    draw = np.random.default_rng(seed)
    sequences: list[TrainingSequence] = []
    for _ in range(rows):
        stem = (
            sequences[draw.integers(len(sequences))][0]
            if sequences and draw.random() < 0.8
            else np.empty(0, dtype=np.int64)
        )
        kept = stem[: draw.integers(len(stem) + 1)]
        new = draw.integers(0, 50, draw.integers(0 if len(kept) > 1 else 2, max_length - len(kept) + 2))
        ids = np.concatenate([kept, new])[:max_length]
        mask = draw.random(len(ids)) < 0.4
        mask[0] = False
        sequences.append((ids, mask))
    return sequences


def hidden_of(model: PreTrainedModel, batch: Packed, kernels: Kernels = Kernels.AUTO) -> Tensor:
    attention = TrainingAttention(batch.segments, batch.ids.device, kernels)
    return model.base_model(**packed_inputs(batch.ids, batch.positions, attention)).last_hidden_state[0]


def packed_states(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    """Hidden states before the sampled ids of the rows [N, H], in one packed pass."""
    batch = pack(rows)
    return hidden_of(model, batch)[batch.output_positions][batch.target_index]


def dense_states(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    found = []
    for ids, mask in rows:
        hidden = model.base_model(input_ids=torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]
        found.append(hidden[mask.nonzero()[0] - 1])
    return torch.cat(found)


def batched_dense_states(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    """The same in one pass: id 0 pads shorter rows at the end, where causal attention does not see it."""
    ids = nn.utils.rnn.pad_sequence([torch.from_numpy(ids) for ids, _ in rows], batch_first=True)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.cat([row[mask.nonzero()[0] - 1] for row, (_, mask) in zip(hidden, rows, strict=True)])


def assert_same(name: str, rows: Sequence[TrainingSequence], reference: StatesFn = dense_states) -> None:
    """Hidden states of random rows, and the gradients of a random functional of them."""
    dense_model, packed_model = dense(name), with_packed_attention(name)
    expected, found = reference(dense_model, rows), packed_states(packed_model, rows)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    probe = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(3))
    (expected * probe).sum().backward()
    (found * probe).sum().backward()
    for (where, one), other in zip(dense_model.named_parameters(), packed_model.parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None
            scale = float(one.grad.abs().max())
            torch.testing.assert_close(
                other.grad, one.grad, atol=1e-5 * scale + 1e-12, rtol=0, msg=lambda m, w=where: f"{w}: {m}"
            )


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(4))
def test_packed_rows_equal_dense_ones(name: str, seed: int) -> None:
    rows = [row for row in tree(seed) if row[1].any()]
    assert_same(name, rows)


@pytest.mark.parametrize("name", ["qwen2", "gemma2, windowed and capped"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 30), longest=st.integers(2, 90))
def test_random_trees_equal_dense_rows(name: str, seed: int, count: int, longest: int) -> None:
    rows = [row for row in tree(seed, count, longest) if row[1].any()]
    if rows:
        assert_same(name, rows, batched_dense_states)


@pytest.mark.parametrize("name", ["mistral, windowed", "gemma2, windowed and capped"])
def test_long_rows_under_a_window_are_cut_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsr_lightning.modeling.training_attention._PIECE", 8)
    rows = [row for row in tree(5, 12, 100) if row[1].any()]
    segments = pack(rows).segments
    buckets = plan_training(segments, 5, CPU).buckets.buckets
    assert max(bucket.shape[1] for bucket in buckets) == 8
    assert max(bucket.shape[2] for bucket in buckets) == 8 + 4
    assert_same(name, rows)


def test_gradients_of_shared_and_unshared_rows_are_the_same_in_float32(kernels: Kernels) -> None:
    """A sampled token that several rows share counts once for each."""
    stem, ends = np.arange(20), [np.arange(30, 36), np.arange(40, 49), np.arange(30, 36)]
    rows = [(np.concatenate([stem, end]), np.arange(20 + len(end)) >= 15) for end in ends]
    gradients = []
    for parts in ([rows], [[row] for row in rows]):
        model = with_packed_attention("qwen2").float()
        for part in parts:
            batch = pack(part)
            hidden = hidden_of(model, batch, kernels)[batch.output_positions]
            logprobs = model.lm_head(hidden).log_softmax(-1).gather(1, batch.target_ids[:, None])[batch.target_index]
            logprobs.sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    shared = pack(rows)
    assert len(shared) == 20 + 5 + 8  # the last sampled token is not an input
    assert len(shared.target_index) == 3 * 5 + 6 + 9 + 6
    assert len(shared.output_positions) == 5 + 6 + 9
    for one, other in zip(*gradients, strict=True):  # float32 sums in another order, of terms as large as the largest
        torch.testing.assert_close(one, other, atol=2e-6 * float(one.abs().max()), rtol=1e-4)


def test_bfloat16_model_is_close_to_float32() -> None:
    rows = [row for row in tree(1) if row[1].any()]
    precise = packed_states(with_packed_attention("llama").float(), rows)
    rounded = packed_states(with_packed_attention("llama").bfloat16(), rows)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - precise).norm() / precise.norm() < 0.05


@pytest.mark.parametrize("name", ["qwen2", "gemma2, windowed and capped", "gpt2"])
def test_autocast_attends_in_bfloat16_like_a_dense_model(name: str) -> None:
    """Under autocast rotated queries and keys are float32, and values bfloat16."""
    rows = [row for row in tree(2) if row[1].any()]
    with torch.autocast("cpu", torch.bfloat16):
        found = packed_states(with_packed_attention(name).float(), rows)
        expected = dense_states(dense(name).float(), rows)
    assert (found - expected).norm() / expected.norm() < 0.03
    found.sum().backward()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_model_without_packed_attention_attends_as_usual(name: str) -> None:
    """Padded rows, a plain forward pass and a cache, as transformers' own generation needs them."""
    ids = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        expected, found = (model.float()(**inputs).logits for model in (dense(name), with_packed_attention(name)))
        shown = inputs.get("attention_mask", torch.ones_like(ids)).bool()
        torch.testing.assert_close(found[shown], expected[shown], atol=2e-5, rtol=1e-5)
    greedy = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    models = dense(name).float(), with_packed_attention(name).float()
    assert torch.equal(*(model.generate(input_ids=ids, attention_mask=mask, **greedy) for model in models))


def test_model_whose_attention_cannot_be_replaced_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises((ConfigError, ValueError)):
        install(model)
    assert with_packed_attention("llama").config._attn_implementation == NAME


# -- plans -------------------------------------------------------------------------------------------------------------


def needed(plan: TrainingPlan, segments: Sequence[Segment]) -> int:
    """Products of a query and a key without padding."""
    attending = {i for bucket in plan.buckets.buckets if bucket.starts is None for i in _causal(plan, bucket.queries)}
    return sum(
        products(1, len(s.path), len(s.path), causal=True)
        if i in attending
        else products(1, s.length, len(s.path), causal=False)
        for i, s in enumerate(segments)
    )


def _causal(plan: TrainingPlan, queries: slice) -> list[int]:
    firsts = plan.buckets.first_query
    return np.flatnonzero((firsts >= queries.start) & (firsts < queries.stop)).tolist()


def test_segment_that_adds_most_of_its_row_attends_as_the_whole_row_without_a_mask() -> None:
    own, long = np.arange(10), np.concatenate([np.arange(6), np.arange(10, 20)])
    late = np.concatenate([np.arange(9), np.arange(20, 22)])
    segments = [Segment(10, own), Segment(10, long), Segment(2, late)]
    plan = plan_training(segments, None, CPU)
    shapes = [(bucket.shape, bucket.starts is None) for bucket in plan.buckets.buckets]
    assert shapes == [((2, 16, 16), True), ((1, 2, 11), False)]
    assert needed(plan, segments) == 10 * 11 // 2 + 16 * 17 // 2 + 2 * 11
    assert plan.buckets.scores_computed == 2 * 16 * 17 // 2 + 2 * 11
    assert len(plan.repeated_tokens) == 6 + 9


def test_few_products_are_padding() -> None:
    """Fewer in long rows, where attention costs most."""
    for rows, longest, most in ((200, 60, 0.35), (200, 600, 0.15)):
        segments = pack(tree(7, rows, longest)).segments
        plan = plan_training(segments, None, CPU)
        assert 0 <= 1 - needed(plan, segments) / plan.buckets.scores_computed < most


@settings(max_examples=50)
@given(st.integers(0, 2**20), st.sampled_from([None, 3, 9]))
def test_stored_attention_equals_training_attention(seed: int, window: int | None) -> None:
    """The engine's and the update's, on the same segments."""
    segments = pack(tree(seed)).segments
    total = sum(segment.length for segment in segments)
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(heads, total, 8, generator=draw).double() for heads in (4, 2, 2))
    scores = ScoreParams(0.3, window)
    expected = StoredAttention(segments, CPU).attend(query, key, value, scores)
    found = TrainingAttention(segments, CPU).attend(0, query, key, value, scores)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
