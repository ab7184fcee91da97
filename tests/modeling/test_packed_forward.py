"""Our own pass through bodies of Llama's kind is transformers' pass: states, gradients, what is finished later."""

import copy
import re
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import test_attention
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import TrainingSequence, read_one_by_one, tree
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SeedOssConfig,
)

from tsr_lightning.batching.packing import pack
from tsr_lightning.engines.transformers.backends import AttentionBackend
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVShape, KVStore
from tsr_lightning.engines.transformers.native_backend import NativeBackend
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.modeling import attention, packed_forward
from tsr_lightning.modeling.attention import OutputPositions, Segment
from tsr_lightning.modeling.native import building, kernel, operators
from tsr_lightning.modeling.native.operators import Native, rounded
from tsr_lightning.modeling.packed_forward import Operators, Plain
from tsr_lightning.modeling.training_attention import PackedReader

CPU = torch.device("cpu")
LAYERS = 3
SIZES = {
    **test_attention.SIZES,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 56,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "mistral, windowed": MistralConfig(**SIZES, sliding_window=7),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, windowed above": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "seed_oss": SeedOssConfig(**SIZES, head_dim=8, residual_dropout=0.0, attention_dropout=0.0),
}

native = pytest.mark.skipif(building.library() is None, reason="no compiler here, or switched off")


def model_of(name: str, dtype: torch.dtype, *, ours: bool) -> PreTrainedModel:
    """The same weights for the same name; norms and biases too are none that could be left out unseen."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[name], attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    model = model.to(dtype)
    if ours:
        attention.install(model)
        packed_forward.install(model)
    return model


def read(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    """After the sampled ids of the rows, packed."""
    batch = pack(rows)
    reader = PackedReader(batch.segments, CPU)
    places = np.unique(batch.output_positions.numpy())
    hidden, _ = packed_forward.run(
        model.base_model, batch.ids, batch.positions, reader, OutputPositions(places, reader.select_queries(places))
    )
    return hidden[torch.from_numpy(np.searchsorted(places, batch.output_positions.numpy()))][batch.target_index]


def _checkpointed(model: PreTrainedModel) -> None:
    with warnings.catch_warnings():  # transformers renamed it within version 5
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def rows_of(seed: int) -> list[TrainingSequence]:
    return [row for row in tree(seed) if row[1].any()]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=native)], ids=["plain", "native"])
def test_hidden_states_and_gradients_are_those_of_transformers(name: str, seed: int, dtype: torch.dtype) -> None:
    """PyTorch's operators in float64, which ours do not serve; ours in float32, both beside float64."""
    theirs, mine = model_of(name, torch.float64, ours=False), model_of(name, dtype, ours=True)
    assert packed_forward.is_supported(mine.base_model)
    expected, found = read_one_by_one(theirs, rows_of(seed)), read(mine, rows_of(seed))
    close = 1e-6 if dtype == torch.float64 else 3e-5
    torch.testing.assert_close(found.double(), expected, atol=close, rtol=close)
    probe = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (expected * probe).sum().backward()
    (found.double() * probe).sum().backward()
    for (where, one), other in zip(theirs.named_parameters(), mine.parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None, where
            bound = 10 * close * (1e-12 + float(one.grad.abs().max()))
            assert float((other.grad.double() - one.grad).abs().max()) <= bound, where


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("attending")
def test_without_gradients_too_and_what_was_left_out_is_finished(name: str) -> None:
    """Prompts of a store: their ends are read; then every other token, and no key of it is computed again."""
    theirs, mine = model_of(name, torch.float64, ours=False), model_of(name, torch.float32, ours=True)
    stem, paths = np.arange(20), [np.arange(20), np.concatenate([np.arange(9), np.arange(20, 31)])]
    segments, slots = [Segment(20, stem), Segment(11, paths[1])], np.arange(31)
    ids = torch.randint(50, (31,), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([*range(20), *range(9, 20)])
    expected = [
        theirs.base_model(input_ids=ids[torch.from_numpy(path)][None], use_cache=False).last_hidden_state[0]
        for path in paths
    ]
    store, readers = _store(mine)
    reader, ends = readers.prefill(store, segments, slots), np.array([19, 30])
    with torch.no_grad():
        hidden, entering = packed_forward.run(
            mine.base_model, ids, positions, reader, OutputPositions(ends, reader.select_queries(ends))
        )
        torch.testing.assert_close(hidden.double(), torch.stack([e[-1] for e in expected]), atol=3e-5, rtol=3e-5)
        before = [part.clone() for part in (*store.keys, *store.values)]
        late = [Segment(1, paths[0][: i + 1]) for i in range(20)] + [
            Segment(1, paths[1][: i + 1]) for i in range(9, 20)
        ]
        found = packed_forward.finish(mine.base_model, entering, positions, readers.prefill(store, late, slots[:0]))
    torch.testing.assert_close(found.double(), torch.cat([expected[0], expected[1][9:]]), atol=3e-5, rtol=3e-5)
    assert all(torch.equal(one, other) for one, other in zip(before, (*store.keys, *store.values), strict=True))


def _store(model: PreTrainedModel) -> tuple[KVStore, AttentionBackend]:
    config = model.config
    width = config.head_dim if isinstance(config, Qwen3Config) else config.hidden_size // config.num_attention_heads
    heads = config.num_key_value_heads
    shape = KVShape(LAYERS, heads, width, width, config.hidden_size, torch.float32, torch.float32)
    readers: AttentionBackend = TorchBackend(DecodeBuffer(shape, 64, CPU))
    if kernel.serves(CPU, torch.float32):
        readers = NativeBackend()
    store = KVStore(shape, 31, CPU)
    for part in (*store.keys, *store.values):
        part.zero_()
    return store, readers


def test_of_the_last_layer_only_keys_and_values_are_computed_where_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted by PyTorch: the products of all linear layers."""
    monkeypatch.setattr(kernel, "serves", lambda device, dtype: False)
    model = model_of("qwen2", torch.float32, ours=True)
    ids, segments = torch.arange(40), (Segment(40, np.arange(40)),)
    reader, reads = PackedReader(segments, CPU), np.array([12, 13, 39])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        packed_forward.run(model.base_model, ids, ids, reader, OutputPositions(reads, reader.select_queries(reads)))
    counted = counter.get_flop_counts()["Global"]
    linear = sum(counted[op] for op in (torch.ops.aten.mm, torch.ops.aten.addmm) if op in counted)
    asked, kept = 32 * (32 + 32) + 3 * 32 * 56, 32 * 2 * 16  # query, output and the three of the gate; key and value
    assert linear == 2 * (40 * ((LAYERS - 1) * (asked + kept) + kept) + 3 * asked)


def test_a_copy_runs_the_copy() -> None:
    """As the frozen reference of a policy is one."""
    model = model_of("qwen2", torch.float32, ours=True)
    frozen = copy.deepcopy(model)
    before = read(frozen, rows_of(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert packed_forward.is_supported(frozen.base_model)
    assert torch.equal(read(frozen, rows_of(0)), before)
    assert not torch.equal(read(model, rows_of(0)), before)


def test_what_is_not_ours_goes_its_own_way() -> None:
    gpt = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0)
    )
    packed_forward.install(gpt)
    assert not packed_forward.is_supported(gpt.base_model)
    model = model_of("qwen2", torch.float32, ours=True)
    body = model.base_model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not packed_forward.is_supported(body)
    _checkpointed(model)
    model.train()
    assert not packed_forward.is_supported(body)
    with torch.no_grad():
        assert packed_forward.is_supported(body)
    assert packed_forward.is_supported(body.eval())
    body.layers[-1] = nn.Sequential(body.layers[-1])  # as wrapped by a strategy
    assert not packed_forward.is_supported(body)
    odd = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES, hidden_act="gelu"))
    packed_forward.install(odd)
    assert not packed_forward.is_supported(odd.base_model)


def test_with_checkpoints_of_activations_gradients_are_the_same() -> None:
    """There the body goes its own way, and all of it is computed."""
    grads = []
    for checkpoints in (False, True):
        model = model_of("qwen2", torch.float32, ours=True).train()
        if checkpoints:
            _checkpointed(model)
        read(model, rows_of(1)).square().sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * float(one.abs().max()), rtol=0)


@native
def test_products_see_few_numbers_of_rows(capfd: pytest.CaptureFixture[str]) -> None:
    """oneDNN says which products it runs: each number of rows is another one to compile and to keep."""
    model = model_of("qwen2", torch.float32, ours=True)
    capfd.readouterr()
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        for tokens in range(257, 321, 4):
            ids, segments = torch.arange(tokens) % 50, [Segment(tokens, np.arange(tokens))]
            reads = np.arange(tokens % 7, tokens, 2)
            for graded in (True, False):
                reader = PackedReader(segments, CPU)
                with torch.set_grad_enabled(graded):
                    asked = OutputPositions(reads, reader.select_queries(reads))
                    hidden, _ = packed_forward.run(model.base_model, ids, ids, reader, asked)
                    assert hidden.shape == (len(reads), 32)
                    if graded:
                        hidden.square().sum().backward()
    said = capfd.readouterr().out
    rows = {int(found) for found in re.findall(r",mb(\d+)ic\d+oc\d+,", said)}
    assert rows == {128, 144, 160, 272, 288, 304, 320}


@given(count=st.integers(0, 2**20))
def test_few_rows_are_added_to_a_pass(count: int) -> None:
    assert count <= rounded(count) == rounded(rounded(count))
    assert rounded(count) - count < max(16, count / 16)


def test_numbers_of_rows_are_few() -> None:
    up_to_2_to_14 = {rounded(count) for count in range(1, 2**14 + 1)}
    assert len(up_to_2_to_14) == 5 + 31 + 5 * 16  # powers of two; multiples of 16 up to 512; and each octave's


@native
def test_rows_that_are_added_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hidden states nor gradients, the last bits of sums over tokens aside."""
    found = []
    for rows in (rounded, lambda count: count):
        monkeypatch.setattr(operators, "rounded", rows)
        model = model_of("llama", torch.float32, ours=True)  # with biases, which make rows of zeros others
        hidden = read(model, rows_of(1))
        hidden.square().sum().backward()
        found.append((hidden, [p.grad for p in model.base_model.parameters()]))
    (hidden, grads), (expected, expected_grads) = found
    torch.testing.assert_close(hidden, expected, atol=1e-6, rtol=1e-6)
    for one, other in zip(grads, expected_grads, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=0)


# -- operators ---------------------------------------------------------------------------------------------------------


def _of(use: Operators, name: str, x: Tensor, layers: nn.ModuleDict, angles: Tensor) -> Tensor:
    if name == "linear":
        return use.linear(layers["up"], x)
    if name == "linear_plus":
        return use.linear_plus(layers["same"], x, x * 2)
    if name == "gated":
        return use.gated(layers["gate"], layers["up"], x)
    if name == "norm":
        return use.norm(x, layers["norm"].weight, 1e-5)
    return use.rotate(x.unflatten(-1, (2, -1)).clone(), angles.cos().to(x.dtype), angles.sin().to(x.dtype)).flatten(1)


@native
@pytest.mark.parametrize("name", ["linear", "linear_plus", "gated", "norm", "rotate"])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    rows=st.sampled_from([1, 2, 7, 64, 300]),
    half=st.sampled_from([2, 6, 16, 32, 100]),
    outer=st.sampled_from([1, 8, 33, 200]),
    biased=st.booleans(),
)
def test_operators_are_pytorchs(name: str, seed: int, rows: int, half: int, outer: int, biased: bool) -> None:
    """With gradients and without, beside float64; in bfloat16 within its own rounding."""
    draw = torch.Generator().manual_seed(seed)
    width = 2 * half
    layers = nn.ModuleDict(
        {
            "up": nn.Linear(width, outer, bias=biased),
            "gate": nn.Linear(width, outer, bias=biased),
            "same": nn.Linear(width, width, bias=biased),
            "norm": nn.RMSNorm(width),
        }
    )
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    x = 3 * torch.randn(rows, width, generator=draw)
    turned = torch.randn(rows, half // 2, generator=draw)
    angles = torch.cat([turned, turned], dim=-1)
    exact = copy.deepcopy(layers).double()
    leaf, other = x.clone().requires_grad_(), x.double().requires_grad_()
    found = _of(Native(), name, leaf, layers, angles)
    expected = _of(Plain(), name, other, exact, angles.double())
    scale = 1 + float(expected.detach().abs().max())
    torch.testing.assert_close(found.double(), expected, atol=3e-6 * scale, rtol=0)
    with torch.no_grad():
        silent = _of(Native(), name, x.clone(), layers, angles)
        torch.testing.assert_close(silent.double(), expected, atol=3e-6 * scale, rtol=0)
        if operators.serves(x.bfloat16()):
            narrow, cut = copy.deepcopy(layers).bfloat16(), angles.bfloat16().double()
            exact_narrow = _of(Plain(), name, x.bfloat16().double(), copy.deepcopy(narrow).double(), cut)
            found_narrow = _of(Native(), name, x.bfloat16(), narrow, cut)
            bound = 2**-6 * (1 + float(exact_narrow.abs().max()))
            torch.testing.assert_close(found_narrow.double(), exact_narrow, atol=bound, rtol=0)
    probe = torch.randn(expected.shape, generator=draw)
    (found * probe).sum().backward()
    (expected * probe.double()).sum().backward()
    pairs = [(leaf, other), *zip(layers.parameters(), exact.parameters(), strict=True)]
    for one, two in pairs:
        if two.grad is not None:
            assert one.grad is not None
            scale = 1 + float(two.grad.abs().max())
            torch.testing.assert_close(one.grad.double(), two.grad, atol=1e-5 * scale, rtol=0)


@native
def test_operators_give_the_same_whatever_the_threads() -> None:
    model = model_of("qwen3", torch.float32, ours=True)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model.zero_grad()
            hidden = read(model, rows_of(2))
            hidden.square().sum().backward()
            norms = [p.grad for name, p in model.named_parameters() if "norm" in name]
            found.append((hidden.detach(), norms))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


@native
def test_gates_stay_finite_where_they_are_far_open_or_shut() -> None:
    far = torch.tensor([[-1e30, -200.0, -90.0, -1e-30, 0.0, 1e-30, 90.0, 1e4]])
    layers = [nn.Linear(8, 8, bias=False) for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.eye(8))
        layers[1].weight.copy_(torch.zeros(8, 8))
        layers[1].weight[:, 7] = 1e-4
    gated = Native().gated(*layers, far.requires_grad_())
    torch.testing.assert_close(gated, functional.silu(far), atol=1e-20, rtol=2e-6)
    gated.sum().backward()
    assert far.grad is not None
    assert far.grad.isfinite().all()
