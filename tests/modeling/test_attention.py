"""Attention over packed rows says what a dense model says of each row by itself, and its gradients are theirs."""

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
from tsr_lightning.modeling.attention import NAME, ScoreParams, Segment, install, layout_of, packed
from tsr_lightning.modeling.training_attention import PackedReader, plan_of

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
Reading = Callable[[PreTrainedModel, Sequence[TrainingSequence]], Tensor]


def dense(name: str) -> PreTrainedModel:
    """As transformers computes it, in float64; norms and softmax are float32 in there all the same."""
    torch.manual_seed(0)
    config = ARCHITECTURES[name]
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()


def ours(name: str) -> PreTrainedModel:
    model = dense(name)
    install(model)
    return model


def tree(seed: int, rows: int = 12, longest: int = 40) -> list[TrainingSequence]:
    """Ragged rows, each a branch of an earlier one or a beginning of its own; some are another's prefix or its like."""
    draw = np.random.default_rng(seed)
    made: list[TrainingSequence] = []
    for _ in range(rows):
        stem = made[draw.integers(len(made))][0] if made and draw.random() < 0.8 else np.empty(0, dtype=np.int64)
        kept = stem[: draw.integers(len(stem) + 1)]
        fresh = draw.integers(0, 50, draw.integers(0 if len(kept) > 1 else 2, longest - len(kept) + 2))
        ids = np.concatenate([kept, fresh])[:longest]
        mask = draw.random(len(ids)) < 0.4
        mask[0] = False
        made.append((ids, mask))
    return made


def hidden_of(model: PreTrainedModel, batch: Packed) -> Tensor:
    reader = PackedReader(batch.segments, batch.ids.device)
    return model.base_model(**packed(batch.ids, batch.positions, reader)).last_hidden_state[0]


def read(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    """What is read at the sampled ids of the rows [N, H], packed."""
    batch = pack(rows)
    return hidden_of(model, batch)[batch.output_positions][batch.target_index]


def read_one_by_one(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    found = []
    for ids, mask in rows:
        hidden = model.base_model(input_ids=torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]
        found.append(hidden[mask.nonzero()[0] - 1])
    return torch.cat(found)


def read_side_by_side(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    """The same in one pass: id 0 follows the shorter rows, which causal attention does not let them see."""
    ids = nn.utils.rnn.pad_sequence([torch.from_numpy(ids) for ids, _ in rows], batch_first=True)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.cat([row[mask.nonzero()[0] - 1] for row, (_, mask) in zip(hidden, rows, strict=True)])


def assert_same(name: str, rows: Sequence[TrainingSequence], by_dense: Reading = read_one_by_one) -> None:
    """Hidden states of random rows, and the gradients of a random functional of them."""
    theirs, mine = dense(name), ours(name)
    expected, found = by_dense(theirs, rows), read(mine, rows)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    probe = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(3))
    (expected * probe).sum().backward()
    (found * probe).sum().backward()
    for (where, one), other in zip(theirs.named_parameters(), mine.parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None
            scale = float(one.grad.abs().max())
            torch.testing.assert_close(
                other.grad, one.grad, atol=1e-5 * scale + 1e-12, rtol=0, msg=lambda m, w=where: f"{w}: {m}"
            )


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(4))
def test_packed_rows_are_as_dense_ones(name: str, seed: int) -> None:
    rows = [row for row in tree(seed) if row[1].any()]
    assert_same(name, rows)


@pytest.mark.parametrize("name", ["qwen2", "gemma2, windowed and capped"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 30), longest=st.integers(2, 90))
def test_random_trees_are_as_dense_rows(name: str, seed: int, count: int, longest: int) -> None:
    rows = [row for row in tree(seed, count, longest) if row[1].any()]
    if rows:
        assert_same(name, rows, read_side_by_side)


@pytest.mark.parametrize("name", ["mistral, windowed", "gemma2, windowed and capped"])
def test_long_rows_under_a_window_are_cut_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsr_lightning.modeling.training_attention._PIECE", 8)
    rows = [row for row in tree(5, 12, 100) if row[1].any()]
    segments = pack(rows).segments
    plan = plan_of(segments, 5, CPU)
    assert max(part.shape[1] for part in plan.parts) == 8
    assert max(part.shape[2] for part in plan.parts) == 8 + 4
    assert_same(name, rows)


@pytest.mark.usefixtures("attending")  # our kernel serves packed rows in float32 alone, and all others here are not
def test_gradients_of_shared_and_unshared_rows_are_the_same_in_float32() -> None:
    """A sampled token that several rows share counts once for each."""
    stem, ends = np.arange(20), [np.arange(30, 36), np.arange(40, 49), np.arange(30, 36)]
    rows = [(np.concatenate([stem, end]), np.arange(20 + len(end)) >= 15) for end in ends]
    gradients = []
    for parts in ([rows], [[row] for row in rows]):
        model = ours("qwen2").float()
        for part in parts:
            batch = pack(part)
            hidden = hidden_of(model, batch)[batch.output_positions]
            logprobs = model.lm_head(hidden).log_softmax(-1).gather(1, batch.target_ids[:, None])[batch.target_index]
            logprobs.sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    shared = pack(rows)
    assert len(shared) == 20 + 5 + 8  # the last sampled token is not fed
    assert len(shared.target_index) == 3 * 5 + 6 + 9 + 6
    assert len(shared.output_positions) == 5 + 6 + 9
    for one, other in zip(*gradients, strict=True):  # float32 sums in another order, of terms as large as the largest
        torch.testing.assert_close(one, other, atol=2e-6 * float(one.abs().max()), rtol=1e-4)


def test_a_bfloat16_model_is_near_its_float32_self() -> None:
    rows = [row for row in tree(1) if row[1].any()]
    exact = read(ours("llama").float(), rows)
    rough = read(ours("llama").bfloat16(), rows)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("name", ["qwen2", "gemma2, windowed and capped", "gpt2"])
def test_autocast_attends_in_bfloat16_and_is_as_dense(name: str) -> None:
    """Rotated queries and keys come in float32 there, values in bfloat16."""
    rows = [row for row in tree(2) if row[1].any()]
    with torch.autocast("cpu", torch.bfloat16):
        found = read(ours(name).float(), rows)
        expected = read_one_by_one(dense(name).float(), rows)
    assert (found - expected).norm() / expected.norm() < 0.03
    found.sum().backward()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_without_a_reader_attends_as_usual(name: str) -> None:
    """Padded rows, a plain forward and a cache: what generation by transformers itself needs."""
    ids = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        expected, found = (model.float()(**inputs).logits for model in (dense(name), ours(name)))
        shown = inputs.get("attention_mask", torch.ones_like(ids)).bool()
        torch.testing.assert_close(found[shown], expected[shown], atol=2e-5, rtol=1e-5)
    greedy = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    said = [model.float().generate(input_ids=ids, attention_mask=mask, **greedy) for model in (dense(name), ours(name))]
    assert torch.equal(*said)


def test_a_model_that_cannot_be_given_another_attention_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises((ConfigError, ValueError)):
        install(model)
    assert ours("llama").config._attn_implementation == NAME


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_row_that_adds_most_of_its_length_is_whole_and_needs_no_mask() -> None:
    own, long = np.arange(10), np.concatenate([np.arange(6), np.arange(10, 20)])
    late = np.concatenate([np.arange(9), np.arange(20, 22)])
    plan = plan_of([Segment(10, own), Segment(10, long), Segment(2, late)], None, CPU)
    assert [(part.shape, part.starts is None) for part in plan.parts] == [((2, 16, 16), True), ((1, 2, 11), False)]
    assert plan.needed == 10 * 11 // 2 + 16 * 17 // 2 + 2 * 11
    assert plan.scored == 2 * 16 * 17 // 2 + 2 * 11
    assert len(plan.lenders) == 6 + 9


def test_few_products_are_padding() -> None:
    """Of ragged rows by the hundred; in long ones, where attention costs, it is less."""
    for rows, longest, most in ((200, 60, 0.35), (200, 600, 0.15)):
        plan = plan_of(pack(tree(7, rows, longest)).segments, None, CPU)
        assert 0 <= 1 - plan.needed / plan.scored < most


@settings(max_examples=50)
@given(st.integers(0, 2**20), st.sampled_from([None, 3, 9]))
def test_the_stored_layout_attends_as_the_packed_one(seed: int, window: int | None) -> None:
    """Two ways through the same segments: the engine's and the update's."""
    segments = pack(tree(seed)).segments
    total = sum(segment.length for segment in segments)
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(heads, total, 8, generator=draw).double() for heads in (4, 2, 2))
    scores = ScoreParams(0.3, window)
    expected = layout_of(segments, CPU).attend(query, key, value, scores)
    found = PackedReader(segments, CPU).attend(0, query, key, value, scores)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
