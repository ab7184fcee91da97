"""flex_attention's masks are those of the trees by brute force, and its numbers and gradients those of the buckets."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_attention import dense_states, hidden_of, tree, with_packed_attention
from torch import Tensor
from torch.nn.attention import flex_attention as pytorch
from torch.nn.attention.flex_attention import create_block_mask

from tsr_lightning.batching.packing import pack
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import flex, packed_forward
from tsr_lightning.modeling.attention import OutputPositions, ScoreParams
from tsr_lightning.modeling.buckets import StoredAttention
from tsr_lightning.modeling.flex import FlexAttention, HeadShape
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.segments import Segment, select_queries
from tsr_lightning.modeling.training_attention import TrainingAttention, plan_training
from tsr_lightning.modeling.tree_mask import BLOCK, Blocks, blocks, padded_length, tree_mask

# PyTorch hides this warning while it traces; where warnings are errors it cannot.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

CPU = torch.device("cpu")
WINDOWS = [None, 1, 3, 70, 200]
SCORES = [ScoreParams(0.3), ScoreParams(0.3, window=70), ScoreParams(0.2, softcap=1.5)]


def packed_tree(seed: int, rows: int = 12, longest: int = 40) -> list[Segment]:
    return list(pack(tree(seed, rows, longest)).segments)


def stored_tree(seed: int) -> list[Segment]:
    """What the engine attends for: ends of some sequences, whose keys lie anywhere, in no order; some are repeated."""
    draw = np.random.default_rng(seed)
    segments = packed_tree(seed, 14, 90)
    slots = draw.permutation(3 * sum(segment.length for segment in segments))
    chosen = [segments[i] for i in draw.integers(len(segments), size=9)]
    return [Segment(int(draw.integers(1, len(s.path) + 1)), slots[s.path]) for s in chosen]


def brute_force(segments: Sequence[Segment], keys: Sequence[int], window: int | None) -> NDArray[np.bool_]:
    """[Q, K] token by token."""
    place = {int(key): i for i, key in enumerate(keys)}
    rows = []
    for segment in segments:
        for end in range(segment.start + 1, len(segment.path) + 1):
            row = np.zeros(len(keys), dtype=bool)
            row[[place[int(slot)] for slot in segment.path[max(0, end - (window or end)) : end]]] = True
            rows.append(row)
    return np.stack(rows)


def listed(found: Blocks) -> set[tuple[int, int, bool]]:
    """(block of queries, block of keys, whether all is seen) of all blocks that are computed."""
    parts = (found.partial_counts, found.partial, False), (found.full_counts, found.full, True)
    return {
        (row, int(column), full)
        for counts, columns, full in parts
        for row, count in enumerate(counts)
        for column in columns[row, :count]
    }


def by_pytorch(attention: FlexAttention, window: int | None) -> set[tuple[int, int, bool]]:
    """The same from every pair of a query and a key, by PyTorch."""
    own = attention.block_mask(window)
    mask = create_block_mask(own.mask_mod, None, None, *own.seq_lengths, device="cpu", BLOCK_SIZE=BLOCK)
    tensors = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    return listed(Blocks(*(part[0, 0].numpy() for part in tensors if part is not None)))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**20), window=st.sampled_from(WINDOWS), is_stored=st.booleans())
def test_masks_and_their_blocks_equal_brute_force(seed: int, window: int | None, is_stored: bool) -> None:
    segments = stored_tree(seed) if is_stored else packed_tree(seed, 12, 90)
    mask = tree_mask(segments)
    assert sorted(mask.keys) == sorted({int(slot) for segment in segments for slot in segment.path})
    np.testing.assert_array_equal(mask.visible(window), brute_force(segments, mask.keys, window))
    assert listed(blocks(mask, segments, window)) == by_pytorch(FlexAttention(segments, CPU), window)


def test_long_trees_have_full_blocks_and_few_of_those_that_nothing_sees() -> None:
    segments = packed_tree(3, 30, 600)
    mask = tree_mask(segments)
    np.testing.assert_array_equal(mask.keys, np.arange(sum(s.length for s in segments)))  # packed in that order already
    found = blocks(mask, segments)
    assert listed(found) == by_pytorch(FlexAttention(segments, CPU), None)
    assert found.full_counts.sum() > 0
    assert found.scores_computed < 0.5 * padded_length(len(mask.nodes)) * padded_length(len(mask.keys))


def test_padded_lengths_are_few_whole_blocks() -> None:
    lengths = [padded_length(count) for count in range(1, 20_000)]
    assert all(padded >= max(count, 2 * BLOCK) and padded % BLOCK == 0 for count, padded in enumerate(lengths, start=1))
    assert max(padded / count for count, padded in enumerate(lengths, start=1) if count >= 16 * BLOCK) < 1.07
    assert len(set(lengths)) < 75


def random_inputs(total: int, seed: int, heads: Sequence[int] = (6, 2, 2)) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(count, total, 16, generator=draw) for count in heads]


@pytest.mark.parametrize("scores", SCORES)
def test_stored_keys_give_the_outputs_of_the_buckets(scores: ScoreParams) -> None:
    for seed in range(2):
        segments = stored_tree(seed)
        query, key, value = random_inputs(1 + max(int(s.path.max()) for s in segments), seed)
        query = query[:, : sum(segment.length for segment in segments)]
        expected = StoredAttention(segments, CPU).attend(query, key, value, scores)
        found = FlexAttention(segments, CPU).attend(query, key, value, scores)
        torch.testing.assert_close(found, expected, atol=3e-6, rtol=1e-5)


@pytest.fixture
def gradients_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses them there, although its reference has them."""
    monkeypatch.setattr(pytorch, "_validate_device", lambda query, key, value: None)


@pytest.mark.usefixtures("gradients_on_a_cpu")
@pytest.mark.parametrize(("scores", "selected"), [*((scores, False) for scores in SCORES), (SCORES[0], True)])
def test_outputs_and_gradients_equal_those_of_the_buckets(scores: ScoreParams, selected: bool) -> None:
    """For all packed tokens, and for some of them as in the last layer."""
    for seed in range(2):
        segments = packed_tree(seed, 12, 90)
        query, key, value = (x.requires_grad_() for x in random_inputs(sum(s.length for s in segments), seed))
        tokens = np.arange(0, query.shape[1], 3) if selected else np.arange(query.shape[1])
        expected = plan_training(segments, scores.window, CPU).attend(query, key, value, scores)[tokens]
        found = FlexAttention(select_queries(segments, tokens), CPU).attend(query[:, tokens], key, value, scores)
        torch.testing.assert_close(found, expected, atol=3e-6, rtol=1e-5)
        probe = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
        for one, other in zip(
            *(torch.autograd.grad(x, (query, key, value), probe) for x in (found, expected)), strict=True
        ):
            torch.testing.assert_close(one, other, atol=3e-6 * float(other.abs().max()), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("gradients_on_a_cpu")
def test_further_batches_are_not_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with a compiler that only traces: other trees, lengths and masks run what the first ones traced."""
    traced = []
    compiled = torch.compile(
        pytorch.flex_attention, dynamic=True, fullgraph=True, backend=lambda graph, _: traced.append(0) or graph.forward
    )
    monkeypatch.setattr(flex, "flex_function", lambda device: compiled)
    for number, (rows, longest) in enumerate(itertools.product((12, 25), (90, 150, 60))):
        segments = packed_tree(number, rows, longest)
        inputs = [x.requires_grad_() for x in random_inputs(sum(s.length for s in segments), number)]
        FlexAttention(segments, CPU).attend(*inputs, ScoreParams(0.3)).sum().backward()
        if number == 1:
            first = len(traced)
    assert len(traced) == first <= 2


@pytest.mark.parametrize("name", ["qwen2", pytest.param("gemma2, windowed and capped", marks=pytest.mark.slow)])
def test_models_give_the_hidden_states_of_a_dense_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 8 numbers, which a GPU does not take."""
    monkeypatch.setattr(flex, "_LEAST_WIDTH", 8)
    model = with_packed_attention(name).float()
    rows = [row for row in tree(4) if row[1].any()]
    batch = pack(rows)
    with torch.no_grad():
        found = hidden_of(model, batch, Kernels.FLEX)[batch.output_positions][batch.target_index]
        expected = dense_states(model, rows)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
        packed_forward.install(model, Kernels.FLEX)
        attention = TrainingAttention(batch.segments, CPU, Kernels.FLEX)
        positions = np.unique(batch.output_positions)
        outputs = OutputPositions(positions, attention.select_queries(positions))
        ends, _ = packed_forward.run(model.base_model, batch.ids, batch.positions, attention, outputs)
        whole = hidden_of(model, batch, Kernels.TORCH)[positions]
        torch.testing.assert_close(ends, whole, atol=2e-5, rtol=1e-5)


# -- the choice --------------------------------------------------------------------------------------------------------

SHAPE = HeadShape(torch.float32, 6, 2, 16, 16)


def test_flex_attention_is_used_only_where_it_is_chosen_and_has_no_gradients_on_a_cpu() -> None:
    assert Kernels.FLEX.uses_flex(CPU, SHAPE, gradients=False)
    for kernels in (Kernels.AUTO, Kernels.TORCH, Kernels.NATIVE):
        assert not kernels.uses_flex(CPU, SHAPE, gradients=False)
    assert not Kernels.FLEX.uses_flex(CPU, SHAPE, gradients=True)
    assert not Kernels.FLEX.uses_native(CPU, torch.float32)


@pytest.mark.parametrize("shape", [HeadShape(torch.float64, 6, 2, 16, 16), HeadShape(torch.float32, 6, 2, 8, 8)])
def test_flex_is_refused_for_what_it_does_not_take(shape: HeadShape) -> None:
    with pytest.raises(ConfigError, match=r"model\.policy\.kernels is 'flex': flex_attention does not take .*auto or"):
        Kernels.FLEX.uses_flex(CPU, shape, gradients=False)


@pytest.fixture
def not_checked() -> None:
    flex.failure.cache_clear()


@pytest.mark.usefixtures("not_checked")
def test_wrong_numbers_are_found_and_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    right = flex.flex_function("cpu")
    monkeypatch.setattr(flex, "flex_function", lambda device: lambda *args, **kwargs: 1.1 * right(*args, **kwargs))
    with pytest.raises(ConfigError, match=r"does not work on cpu \(its numbers are off by 0\.1 of the largest\)"):
        Kernels.FLEX.uses_flex(CPU, SHAPE, gradients=False)
    assert [record.levelname for record in caplog.records if record.name == flex.__name__] == ["WARNING"]
    flex.failure.cache_clear()


@pytest.mark.usefixtures("not_checked")
def test_a_compiler_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("no Triton\nand more")

    monkeypatch.setattr(flex, "flex_function", lambda device: broken)
    assert flex.failure(CPU, SHAPE) == "no Triton and more"
    flex.failure.cache_clear()


@pytest.mark.usefixtures("not_checked")
def test_the_check_draws_its_numbers_on_a_cpu_whatever_the_default_device() -> None:
    """A policy is made within `torch.device` of its GPU."""
    with torch.device("meta"):
        assert flex.failure(CPU, SHAPE) is None
    flex.failure.cache_clear()


@pytest.mark.usefixtures("not_checked")
def test_the_reason_of_a_compiler_says_what_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> float:
        raise RuntimeError("backend='inductor' raised:\n\nValueError: no such unit\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(flex, "_largest_error", broken)
    assert flex.failure(CPU, SHAPE) == "backend='inductor' raised: ValueError: no such unit"
    flex.failure.cache_clear()
