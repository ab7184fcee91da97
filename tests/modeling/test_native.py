"""The C attention kernel against the formula, in float64 and query by query, and against PyTorch's."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.native_kernels import needs_compiler
from tsr_lightning.engines.transformers.kv_store import KVShape, KVStore, LayerShape
from tsr_lightning.engines.transformers.native_backend import NativeBackend
from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.native import kernel
from tsr_lightning.modeling.native.blocks import MAX_TOKENS, Blocks, segment_blocks, trees_of
from tsr_lightning.modeling.native.step_blocks import MAX_PLACES, StepBlocks, StepPlan
from tsr_lightning.modeling.native.training import NativeTrainingAttention
from tsr_lightning.modeling.segments import DecodeStep, Segment
from tsr_lightning.modeling.training_attention import TrainingAttention

CPU = torch.device("cpu")

pytestmark = needs_compiler


def tree(seed: int, count: int, longest: int) -> tuple[list[Segment], int]:
    """Segments, most of which extend an earlier one's path, and the size of their store."""
    draw = np.random.default_rng(seed)
    paths: list[NDArray[np.int64]] = []
    lengths = [int(draw.integers(1, longest + 1)) for _ in range(count)]
    size = sum(lengths) + 7
    slots = draw.permutation(size) if seed % 2 else np.arange(3, size)
    done = 0
    for length in lengths:
        stem = paths[draw.integers(len(paths))] if paths and draw.random() < 0.8 else np.empty(0, dtype=np.int64)
        kept = stem[: draw.integers(len(stem) // 2, len(stem) + 1)]
        paths.append(np.concatenate([kept, slots[done : done + length]]))
        done += length
    return [Segment(length, path) for length, path in zip(lengths, paths, strict=True)], size


def by_formula(query: Tensor, key: Tensor, value: Tensor, segments: list[Segment], scores: ScoreParams) -> Tensor:
    """Query by query, in float64 -> [T, H, E]."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[0] // key.shape[0]
    out, token = [], 0
    for segment in segments:
        for end in range(len(segment.path) - segment.length + 1, len(segment.path) + 1):
            seen = segment.path[max(0, end - scores.window) if scores.window else 0 : end]
            keys, values = (x[:, seen].repeat_interleave(group, 0) for x in (key, value))
            products = torch.einsum("hd,hkd->hk", query[:, token], keys) * scores.scale
            if scores.softcap:
                products = scores.softcap * torch.tanh(products / scores.softcap)
            out.append(torch.einsum("hk,hke->he", products.softmax(-1), values))
            token += 1
    return torch.stack(out)


def random_inputs(
    seed: int, segments: list[Segment], size: int, heads: tuple[int, int], widths: tuple[int, int]
) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = sum(segment.length for segment in segments)
    return [
        torch.randn(tokens, heads[0], widths[0], generator=draw).transpose(0, 1),  # strided, as models give it
        torch.randn(heads[1], size, widths[0], generator=draw),
        torch.randn(heads[1], size, widths[1], generator=draw),
    ]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    count=st.integers(1, 14),
    longest=st.sampled_from([1, 3, 20, 90, 200]),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1), (28, 4)]),
    widths=st.sampled_from([(16, 16), (24, 24), (32, 32), (64, 64), (80, 80), (128, 128), (13, 7), (192, 128)]),
    window=st.sampled_from([None, None, 1, 5, 64, 100]),
    softcap=st.sampled_from([None, None, 2.0, 50.0]),
)
def test_attention_equals_the_formula(
    seed: int,
    count: int,
    longest: int,
    heads: tuple[int, int],
    widths: tuple[int, int],
    window: int | None,
    softcap: float | None,
) -> None:
    segments, size = tree(seed, count, longest)
    query, key, value = random_inputs(seed, segments, size, heads, widths)
    scores = ScoreParams(1.5 * widths[0] ** -0.5, window, softcap)
    blocks = segment_blocks(segments, window)
    found = kernel.attend(query, key, value, blocks, scores)
    torch.testing.assert_close(found.double(), by_formula(query, key, value, segments, scores), atol=5e-6, rtol=5e-6)
    in_bfloat16 = [x.bfloat16() for x in (query, key, value)]
    found = kernel.attend(*in_bfloat16, blocks, scores)
    expected = by_formula(*in_bfloat16, segments, scores)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= 2**-8 * expected.abs() + 5e-6).all()  # the output's rounding alone


def test_large_scores_stay_exact_and_nan_reaches_only_who_sees_it() -> None:
    segments = [Segment(70, np.arange(70))]
    query, key, value = random_inputs(0, segments, 70, (2, 2), (16, 16))
    scores = ScoreParams(1.0)
    found = kernel.attend(query * 1e4, key * 1e3, value, segment_blocks(segments), scores)
    torch.testing.assert_close(
        found.double(), by_formula(query * 1e4, key * 1e3, value, segments, scores), atol=1e-5, rtol=1e-5
    )
    key[0, 40, 3] = torch.nan
    broken = kernel.attend(query, key, value, segment_blocks(segments), scores).isnan()
    assert broken[40:, 0].all()
    assert not broken[:40].any()
    assert not broken[:, 1].any()


def test_outputs_do_not_depend_on_the_number_of_threads() -> None:
    segments, size = tree(3, 12, 150)
    inputs = random_inputs(3, segments, size, (6, 2), (32, 32))
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 1):
            torch.set_num_threads(count)
            found.append(kernel.attend(*inputs, segment_blocks(segments), ScoreParams(0.2)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


# -- blocks ------------------------------------------------------------------------------------------------------------


def visible(blocks: Blocks) -> list[set[int]]:
    """The slots that each packed token sees, which are distinct."""
    tokens: list[set[int]] = []
    for token, count, shared, shared_count, own, own_count in blocks.table.tolist():
        assert token == len(tokens)
        assert 1 <= count <= MAX_TOKENS
        for i in range(count):
            seen = [int(blocks.shared[shared + n]) for n in range(shared_count)]
            seen += [int(blocks.own[own + n]) for n in range(own_count) if int(blocks.masks[own + n]) >> i & 1]
            assert len(seen) == len(set(seen))
            tokens.append(set(seen))
    return tokens


@settings(max_examples=50)
@given(st.integers(0, 2**20), st.integers(1, 30), st.sampled_from([1, 4, 30, 150]), st.sampled_from([None, 1, 4, 70]))
def test_each_token_sees_each_key_of_its_path_once(seed: int, count: int, longest: int, window: int | None) -> None:
    segments, _ = tree(seed, count, longest)
    expected = []
    for segment in segments:
        for end in range(len(segment.path) - segment.length + 1, len(segment.path) + 1):
            expected.append(set(segment.path[max(0, end - window) if window else 0 : end].tolist()))
    blocks = segment_blocks(segments, window)
    assert visible(blocks) == expected
    assert blocks.scores_computed >= sum(map(len, expected))


def test_segments_share_a_block_if_they_share_a_long_path() -> None:
    stem = np.arange(500)
    siblings = [Segment(10, np.concatenate([stem, np.arange(500 + 10 * i, 510 + 10 * i)])) for i in range(5)]
    assert segment_blocks(siblings).table[:, [1, 3, 5]].tolist() == [[50, 500, 50]]
    unrelated = [Segment(40, np.arange(40 * i, 40 * i + 40)) for i in range(3)]
    assert segment_blocks(unrelated).table[:, [1, 3, 5]].tolist() == [[40, 0, 40]] * 3
    long = [Segment(150, np.arange(150))]
    assert segment_blocks(long).table[:, [1, 3, 5]].tolist() == [
        [56, 0, 56],
        [48, 56, 48],
        [46, 104, 46],
    ]  # no small rest
    assert segment_blocks(long, 70).scores_computed < segment_blocks(long).scores_computed


# -- decode steps ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomStep:
    """A decode step over prompts that share beginnings, and what each branch sees."""

    prompts: list[NDArray[np.int64]]
    step: DecodeStep
    columns: NDArray[np.int64]  # [G, C] slots
    own: NDArray[np.int64]  # [N] of the last columns
    size: int  # of the store

    @classmethod
    def draw(cls, seed: int, count: int, branches: int, longest: int) -> "RandomStep":
        draw = np.random.default_rng(seed)
        segments, size = tree(seed, count, longest)
        prompts = [segment.path for segment in segments]
        if seed % 3 == 0:
            prompts.append(prompts[draw.integers(count)])  # of two groups
        sizes = draw.integers(0, branches + 1, len(prompts))  # a group whose branches ended is still there
        sizes[draw.integers(len(prompts))] = branches
        groups = np.repeat(np.arange(len(prompts)), sizes)
        past, width = int(draw.integers(0, 40)), int(sizes.max())
        columns = size + np.arange(len(prompts) * (past + width)).reshape(len(prompts), -1)
        rank = np.concatenate([np.arange(n) for n in sizes])
        seen = np.zeros((len(groups), past + width), dtype=bool)
        seen[:, :past] = draw.random((len(groups), past)) < 0.5
        seen[np.arange(len(groups)), past + rank] = True
        lengths = np.array([len(prompt) for prompt in prompts])
        step = DecodeStep(groups, lengths[groups], seen)
        return cls(prompts, step, columns, columns[groups, past + rank], size + columns.size)

    def paths(self) -> list[NDArray[np.int64]]:
        rows = zip(self.step.groups, self.step.columns, strict=True)
        return [np.concatenate([self.prompts[group], self.columns[group][seen]]) for group, seen in rows]


def visible_in_step(blocks: StepBlocks) -> dict[int, list[int]]:
    """The slots that each packed token sees, in any order."""
    tokens: dict[int, list[int]] = {}
    places_seen = 0
    for first, places, run, runs in blocks.table.tolist():
        assert first == places_seen
        assert 1 <= places <= MAX_PLACES
        places_seen += places
        for i in range(places):
            seen = blocks.own_slots[blocks.own_firsts[first + i] : blocks.own_firsts[first + i + 1]].tolist()
            for begin, end, slot, count in blocks.runs[run : run + runs].tolist():
                assert 0 <= begin < end <= places
                assert count > 0
                seen += blocks.slots[slot : slot + count].tolist() if begin <= i < end else []
            token = int(blocks.places[first + i])
            if token >= 0:
                assert token not in tokens
                tokens[token] = seen
    assert places_seen == len(blocks.places)
    return tokens


steps = st.builds(
    RandomStep.draw,
    st.integers(0, 2**20),
    st.integers(1, 20),
    st.sampled_from([1, 2, 3, 4, 7, 90]),
    st.sampled_from([1, 5, 30, 150]),
)


@settings(max_examples=50, deadline=None)
@given(steps, st.sampled_from([1, 2, 3, 7, 8]), st.sampled_from([None, None, 1, 4, 70]), st.data())
def test_each_branch_of_a_step_sees_each_key_of_its_path_once(
    drawn: RandomStep, group_heads: int, window: int | None, data: st.DataObject
) -> None:
    plan = StepPlan(drawn.prompts, group_heads)
    step, columns = drawn.step, drawn.columns
    if data.draw(st.booleans()):  # as the engine drops groups whose branches ended
        plan.blocks(step, columns, None)
        kept, groups = np.unique(step.groups, return_inverse=True)
        plan.keep(kept.tolist())
        step, columns = DecodeStep(groups, step.prompt_lengths, step.columns), columns[kept]
    blocks = plan.blocks(step, columns, window)
    found = visible_in_step(blocks)
    expected = [path[-window:] if window else path for path in drawn.paths()]
    assert [sorted(found[token]) for token in range(len(expected))] == [sorted(path.tolist()) for path in expected]
    assert blocks.scores_computed >= sum(map(len, expected))


def test_prompts_are_read_once_for_all_that_share_them() -> None:
    """Three instances with a common beginning, two beams of each, four branches of each beam."""
    start, slots = np.arange(100), iter(range(100, 10_000))
    prompts, runs = [], {(0, 24, 100)}  # from, to, count
    for instance in range(3):
        stem = np.array([next(slots) for _ in range(500)])
        runs.add((8 * instance, 8 * instance + 8, 500))
        for beam in range(2):
            prompts.append(np.concatenate([start, stem, [next(slots) for _ in range(50)]]))
            runs.add((8 * instance + 4 * beam, 8 * instance + 4 * beam + 4, 50))
    step = DecodeStep(np.arange(24) // 4, np.full(24, 650), np.ones((24, 1), dtype=bool))
    blocks = StepPlan(prompts, 1).blocks(step, np.arange(10_000, 10_006)[:, None], None)
    assert blocks.table.tolist() == [[0, 24, 0, 10]]
    assert {(begin, end, count) for begin, end, _, count in blocks.runs.tolist()} == runs
    assert blocks.scores_computed == step.scores_needed


@settings(max_examples=30, deadline=None)
@given(
    drawn=steps,
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1), (28, 4)]),
    widths=st.sampled_from([(16, 16), (24, 24), (32, 32), (64, 64), (80, 80), (128, 128), (13, 7), (192, 128)]),
    window=st.sampled_from([None, None, 1, 5, 64]),
    softcap=st.sampled_from([None, None, 2.0, 50.0]),
)
def test_a_step_equals_the_formula(
    drawn: RandomStep, heads: tuple[int, int], widths: tuple[int, int], window: int | None, softcap: float | None
) -> None:
    paths = [Segment(1, path) for path in drawn.paths()]
    query, key, value = random_inputs(drawn.size, paths, drawn.size, heads, widths)
    scores = ScoreParams(1.5 * widths[0] ** -0.5, window, softcap)
    blocks = StepPlan(drawn.prompts, heads[0] // heads[1]).blocks(drawn.step, drawn.columns, window)
    found = kernel.attend_step(query, key, value, blocks, scores)
    torch.testing.assert_close(found.double(), by_formula(query, key, value, paths, scores), atol=5e-6, rtol=5e-6)
    in_bfloat16 = [x.bfloat16() for x in (query, key, value)]
    found = kernel.attend_step(*in_bfloat16, blocks, scores)
    expected = by_formula(*in_bfloat16, paths, scores)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= 2**-8 * expected.abs() + 5e-6).all()  # the output's rounding alone


def test_large_scores_of_a_step_stay_exact_and_nan_reaches_only_who_sees_it() -> None:
    prompts = [np.arange(40), np.concatenate([np.arange(30), np.arange(40, 60)])]
    step = DecodeStep(np.array([0, 0, 0, 1, 1, 1]), np.array([40, 40, 40, 50, 50, 50]), np.tile(np.eye(3) > 0, (2, 1)))
    blocks = StepPlan(prompts, 1).blocks(step, np.arange(60, 66).reshape(2, 3), None)
    paths = [Segment(1, np.append(prompts[group], 60 + i)) for i, group in enumerate(step.groups)]
    query, key, value = random_inputs(0, paths, 66, (2, 2), (16, 16))
    found = kernel.attend_step(query * 1e4, key * 1e3, value, blocks, ScoreParams(1.0))
    expected = by_formula(query * 1e4, key * 1e3, value, paths, ScoreParams(1.0))
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    for slot, sees in ((35, [0, 1, 2]), (45, [3, 4, 5]), (10, range(6)), (64, [4])):
        broken = key.clone()
        broken[0, slot, 3] = torch.nan
        found = kernel.attend_step(query, broken, value, blocks, ScoreParams(1.0)).isnan()
        assert found[:, 0].any(dim=-1).nonzero().flatten().tolist() == list(sees)
        assert not found[:, 1].any()


def test_a_step_does_not_depend_on_the_number_of_threads() -> None:
    drawn = RandomStep.draw(3, 12, 7, 150)
    paths = [Segment(1, path) for path in drawn.paths()]
    inputs = random_inputs(3, paths, drawn.size, (6, 2), (32, 32))
    blocks = StepPlan(drawn.prompts, 3).blocks(drawn.step, drawn.columns, None)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 1):
            torch.set_num_threads(count)
            found.append(kernel.attend_step(*inputs, blocks, ScoreParams(0.2)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("window", [None, 4, 40])
def test_a_decode_step_stores_its_keys_and_sees_them(window: int | None) -> None:
    """As the engine calls it: columns that were copied, then the step's own."""
    drawn = RandomStep.draw(6, 5, 7, 40)
    store = KVStore(KVShape((LayerShape(2, 16, 16),), torch.float32, 4, torch.float32), drawn.size, CPU)
    store.keys[0].normal_(), store.values[0].normal_()
    decode = NativeBackend(2).decode(store, drawn.prompts, drawn.columns.shape[1])
    groups, columns = (x.flatten().tolist() for x in np.indices(drawn.columns.shape))
    decode.copy(groups, columns, drawn.columns.flatten().tolist())
    own = [int(seen.nonzero()[0][-1]) for seen in drawn.step.columns]
    decode.prepare(drawn.step.groups.tolist(), own, drawn.step.columns, drawn.own.tolist())
    draw = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(heads, len(own), 16, generator=draw) for heads in (4, 2, 2))
    scores = ScoreParams(0.25, window)
    found = decode.attend(0, query, key, value, scores)
    paths = drawn.paths()
    assert decode.positions.tolist() == [len(path) - 1 for path in paths]
    expected = by_formula(query, store.keys[0], store.values[0], [Segment(1, path) for path in paths], scores)
    torch.testing.assert_close(found.double(), expected, atol=5e-6, rtol=5e-6)
    torch.testing.assert_close(store.keys[0][:, drawn.own], key)


# -- gradients ---------------------------------------------------------------------------------------------------------


def packed_tree(seed: int, count: int, longest: int) -> tuple[list[Segment], int]:
    """As `tree`, where the packed tokens are the store."""
    segments, _ = tree(2 * seed, count, longest)  # slots from 3 on, in order
    total = sum(segment.length for segment in segments)
    return [Segment(segment.length, segment.path - 3) for segment in segments], total


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    count=st.integers(1, 14),
    longest=st.sampled_from([1, 3, 20, 90, 200]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    width=st.sampled_from([16, 24, 32, 64, 13]),
    window=st.sampled_from([None, None, 1, 5, 70]),
    softcap=st.sampled_from([None, None, 2.0]),
)
def test_gradients_equal_those_of_pytorch(
    seed: int,
    count: int,
    longest: int,
    heads: tuple[int, int],
    width: int,
    window: int | None,
    softcap: float | None,
) -> None:
    """Against autograd in float64, which the kernel does not support."""
    segments, total = packed_tree(seed, count, longest)
    scores = ScoreParams(1.5 * width**-0.5, window, softcap)
    inputs = random_inputs(seed, segments, total, heads, (width, width))
    exact = [x.double().requires_grad_() for x in inputs]
    native = [x.clone().requires_grad_() for x in inputs]
    probe = torch.randn(total, heads[0], width, generator=torch.Generator().manual_seed(1))
    out = TrainingAttention(segments, CPU).attend(0, *native, scores)
    assert out.grad_fn is not None
    assert "_Attention" in out.grad_fn.name()
    (out * probe).sum().backward()
    (TrainingAttention(segments, CPU).attend(0, *exact, scores) * probe).sum().backward()
    for one, other in zip(native, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        scale = 1 + float(other.grad.abs().max())
        torch.testing.assert_close(one.grad.double(), other.grad, atol=4e-6 * scale, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_equal_those_of_the_formula(seed: int, softcap: float | None) -> None:
    segments, total = packed_tree(seed, 8, 40)
    scores = ScoreParams(0.3, 30 if seed % 2 else None, softcap)
    inputs = random_inputs(seed, segments, total, (4, 2), (24, 24))
    exact, native = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    probe = torch.randn(total, 4, 24, generator=torch.Generator().manual_seed(1))
    (by_formula(*exact, segments, scores) * probe).sum().backward()
    (NativeTrainingAttention(segments).attend(0, *native, scores) * probe).sum().backward()
    for one, other in zip(native, exact, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, atol=2e-5, rtol=2e-5)


def test_gradients_do_not_depend_on_the_number_of_threads() -> None:
    segments, total = packed_tree(5, 20, 120)
    inputs = [x.requires_grad_() for x in random_inputs(5, segments, total, (6, 2), (32, 32))]
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            out = TrainingAttention(segments, CPU).attend(0, *inputs, ScoreParams(0.2))
            found.append(torch.autograd.grad(out.square().sum(), inputs))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def test_small_gradients_are_those_of_large_ones_scaled() -> None:
    """Times weights of 2^-100 they are subnormal, and flushed to zero; the mode of the thread itself is restored."""
    segments, total = packed_tree(6, 20, 120)
    inputs = [(x * 6).requires_grad_() for x in random_inputs(6, segments, total, (6, 2), (32, 32))]
    out = TrainingAttention(segments, CPU).attend(0, *inputs, ScoreParams(0.2))
    of_one = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    small = torch.autograd.grad(out.sum() * 2.0**-40, inputs)
    for one, other in zip(of_one, small, strict=True):
        torch.testing.assert_close(other * 2.0**40, one, atol=1e-9, rtol=1e-6)
    assert float(torch.tensor(1e-39) * 0.5) > 0


def test_blocks_without_common_keys_are_separate_trees() -> None:
    rows = [
        np.arange(100),
        np.concatenate([np.arange(50), np.arange(100, 160)]),
        np.arange(160, 230),
        np.arange(230, 260),
    ]
    segments = [Segment(length, path) for length, path in zip((100, 60, 70, 30), rows, strict=True)]
    blocks = segment_blocks(segments)
    assert blocks.table[:, 0].tolist() == [0, 56, 100, 160, 200, 230]
    assert trees_of(blocks).tolist() == [0, 3, 5, 6]
