"""The packed forward pass gives transformers' hidden states and gradients, also where `finish` completes them later."""

import copy
import re
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import test_attention
import torch
from commands import python_output
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from peft import PeftModel
from test_attention import TrainingSequence, dense_states, tree
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

from tests.native_kernels import needs_compiler
from tsr_lightning.batching.packing import pack
from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVShape, KVStore, LayerShape
from tsr_lightning.engines.transformers.native_backend import NativeBackend
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.modeling import attention, packed_forward
from tsr_lightning.modeling.attention import OutputPositions
from tsr_lightning.modeling.kernels import Kernels, Operators
from tsr_lightning.modeling.native import native_operators
from tsr_lightning.modeling.native.native_operators import NativeOperators, padded_rows
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.torch_operators import TorchOperators
from tsr_lightning.modeling.training_attention import TrainingAttention
from tsr_lightning.policy.lora import with_adapter
from tsr_lightning.policy.spec import LoRA

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
ARCHITECTURES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "mistral, windowed": MistralConfig(**SIZES, sliding_window=7),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, windowed above": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "seed_oss": SeedOssConfig(**SIZES, head_dim=8, residual_dropout=0.0, attention_dropout=0.0),
}

renamed = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft reads the old name


def model_of(name: str, dtype: torch.dtype, kernels: Kernels | None = Kernels.AUTO) -> PreTrainedModel:
    """The same weights for the same name, with random norms and biases; None: as transformers runs it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[name], attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    model = model.to(dtype)
    if kernels is not None:
        attention.install(model)
        packed_forward.install(model, kernels)
    return model


def packed_states(model: PreTrainedModel, rows: Sequence[TrainingSequence]) -> Tensor:
    """Hidden states before the sampled ids of the rows [N, H], in one packed pass."""
    batch = pack(rows)
    tokens = np.unique(batch.output_positions.numpy())
    hidden = hidden_at(model, batch.ids, batch.positions, batch.segments, tokens)
    return hidden[torch.from_numpy(np.searchsorted(tokens, batch.output_positions.numpy()))][batch.target_index]


def hidden_at(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, segments: Sequence[Segment], tokens: NDArray[np.int64]
) -> Tensor:
    whole = TrainingAttention(segments, CPU, packed_forward.kernels_of(model))
    outputs = OutputPositions(tokens, whole.select_queries(tokens))
    hidden, _ = packed_forward.run(model.base_model, ids, positions, whole, outputs)
    return hidden


def enable_checkpointing(model: PreTrainedModel) -> None:
    with warnings.catch_warnings():  # transformers renamed it within version 5
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def rows_of(seed: int) -> list[TrainingSequence]:
    return [row for row in tree(seed) if row[1].any()]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=needs_compiler)], ids=["torch", "native"]
)
def test_hidden_states_and_gradients_are_those_of_transformers(name: str, seed: int, dtype: torch.dtype) -> None:
    """With PyTorch's operators in float64, which the C kernels do not support, and with theirs in float32."""
    dense_model, packed_model = model_of(name, torch.float64, None), model_of(name, dtype)
    assert packed_forward.is_supported(packed_model.base_model)
    expected, found = dense_states(dense_model, rows_of(seed)), packed_states(packed_model, rows_of(seed))
    close = 1e-6 if dtype == torch.float64 else 3e-5
    torch.testing.assert_close(found.double(), expected, atol=close, rtol=close)
    probe = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (expected * probe).sum().backward()
    (found.double() * probe).sum().backward()
    for (where, one), other in zip(dense_model.named_parameters(), packed_model.parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None, where
            bound = 10 * close * (1e-12 + float(one.grad.abs().max()))
            assert float((other.grad.double() - one.grad).abs().max()) <= bound, where


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_finish_completes_the_tokens_that_prefill_left_unfinished(name: str, kernels: Kernels) -> None:
    """Prefill computes the ends of two prompts, and `finish` all their tokens, without storing a key again."""
    dense_model, packed_model = model_of(name, torch.float64, None), model_of(name, torch.float32, kernels)
    stem, paths = np.arange(20), [np.arange(20), np.concatenate([np.arange(9), np.arange(20, 31)])]
    segments, slots = [Segment(20, stem), Segment(11, paths[1])], np.arange(31)
    ids = torch.randint(50, (31,), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([*range(20), *range(9, 20)])
    expected = [
        dense_model.base_model(input_ids=ids[torch.from_numpy(path)][None], use_cache=False).last_hidden_state[0]
        for path in paths
    ]
    store, backend = store_for(packed_model, kernels)
    prefill, ends = backend.prefill(store, segments, slots), np.array([19, 30])
    with torch.no_grad():
        outputs = OutputPositions(ends, prefill.select_queries(ends))
        hidden, unfinished = packed_forward.run(packed_model.base_model, ids, positions, prefill, outputs)
        torch.testing.assert_close(hidden.double(), torch.stack([e[-1] for e in expected]), atol=3e-5, rtol=3e-5)
        before = [part.clone() for part in (*store.keys, *store.values)]
        late = [Segment(1, paths[0][: i + 1]) for i in range(20)] + [
            Segment(1, paths[1][: i + 1]) for i in range(9, 20)
        ]
        found = packed_forward.finish(
            packed_model.base_model, unfinished, positions, backend.prefill(store, late, slots[:0])
        )
    torch.testing.assert_close(found.double(), torch.cat([expected[0], expected[1][9:]]), atol=3e-5, rtol=3e-5)
    assert all(torch.equal(one, other) for one, other in zip(before, (*store.keys, *store.values), strict=True))


def store_for(model: PreTrainedModel, kernels: Kernels) -> tuple[KVStore, TorchBackend | NativeBackend]:
    config = model.config
    width = config.head_dim if isinstance(config, Qwen3Config) else config.hidden_size // config.num_attention_heads
    heads = config.num_key_value_heads
    shape = KVShape((LayerShape(heads, width, width),) * LAYERS, torch.float32, config.hidden_size, torch.float32)
    is_native = kernels is Kernels.NATIVE
    backend = (
        NativeBackend(config.num_attention_heads // heads) if is_native else TorchBackend(DecodeBuffer(shape, 64, CPU))
    )
    store = KVStore(shape, 31, CPU)
    for part in (*store.keys, *store.values):
        part.zero_()
    return store, backend


def test_last_layer_computes_only_keys_and_values_away_from_output_positions() -> None:
    """PyTorch counts the products of all linear layers."""
    model = model_of("qwen2", torch.float32, Kernels.TORCH)
    ids = torch.arange(40)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hidden_at(model, ids, ids, [Segment(40, np.arange(40))], np.array([12, 13, 39]))
    counted = counter.get_flop_counts()["Global"]
    linear = sum(counted[op] for op in (torch.ops.aten.mm, torch.ops.aten.addmm) if op in counted)
    rest, keys = 32 * (32 + 32) + 3 * 32 * 56, 32 * 2 * 16  # query, output and the three of the MLP; key and value
    assert linear == 2 * (40 * ((LAYERS - 1) * (rest + keys) + keys) + 3 * rest)


def test_copy_of_a_model_runs_its_own_weights() -> None:
    """A policy's frozen reference is such a copy."""
    model = model_of("qwen2", torch.float32)
    frozen = copy.deepcopy(model)
    before = packed_states(frozen, rows_of(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert packed_forward.is_supported(frozen.base_model)
    assert torch.equal(packed_states(frozen, rows_of(0)), before)
    assert not torch.equal(packed_states(model, rows_of(0)), before)


def test_unsupported_models_and_modes_run_transformers_own_pass() -> None:
    gpt = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0)
    )
    packed_forward.install(gpt)
    assert not packed_forward.is_supported(gpt.base_model)
    model = model_of("qwen2", torch.float32)
    backbone = model.base_model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not packed_forward.is_supported(backbone)
    enable_checkpointing(model)
    model.train()
    assert not packed_forward.is_supported(backbone)
    with torch.no_grad():
        assert packed_forward.is_supported(backbone)
    assert packed_forward.is_supported(backbone.eval())
    backbone.layers[-1] = nn.Sequential(backbone.layers[-1])  # as a strategy wraps it
    assert not packed_forward.is_supported(backbone)
    odd = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES, hidden_act="gelu"))
    packed_forward.install(odd)
    assert not packed_forward.is_supported(odd.base_model)


def test_gradients_are_the_same_with_activation_checkpoints() -> None:
    """With them, transformers' own pass runs."""
    grads = []
    for checkpoints in (False, True):
        model = model_of("qwen2", torch.float32).train()
        if checkpoints:
            enable_checkpointing(model)
        packed_states(model, rows_of(1)).square().sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * float(one.abs().max()), rtol=0)


def adapted(dtype: torch.dtype, kernels: Kernels) -> PeftModel:
    """A model whose weights are numbers of bfloat16, with an adapter in float32 that is not zero."""
    model = with_adapter(model_of("llama", torch.bfloat16, None).to(dtype), LoRA(rank=4, alpha=8))
    attention.install(model.get_base_model())
    packed_forward.install(model.get_base_model(), kernels)
    draw = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=draw)
    return model


def adapter_gradients(model: PeftModel, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    hidden = packed_states(model.get_base_model(), rows_of(seed))
    probe = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(seed))
    (hidden.float() * probe).sum().backward()
    return hidden.detach().float(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@needs_compiler
@renamed
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_an_adapter_has_the_states_and_gradients_of_peft(dtype: torch.dtype, seed: int) -> None:
    """Equals peft to rounding in float32, and is closer to float32 than peft in bfloat16."""
    exact, expected = adapter_gradients(adapted(torch.float32, Kernels.TORCH), seed)
    hidden, found = adapter_gradients(adapted(dtype, Kernels.NATIVE), seed)
    assert found.keys() == expected.keys()
    assert all("lora_" in name and gradient.dtype == torch.float32 for name, gradient in found.items())
    if dtype == torch.float32:
        torch.testing.assert_close(hidden, exact, atol=3e-5, rtol=3e-5)
        for name, one in found.items():
            torch.testing.assert_close(one, expected[name], atol=1e-4 * float(expected[name].abs().max()), rtol=0)
        return
    of_peft, by_peft = adapter_gradients(adapted(dtype, Kernels.TORCH), seed)
    assert relative_error(hidden, exact) < min(0.03, 1.1 * relative_error(of_peft, exact))
    ours, theirs, whole = (torch.cat([part[name].flatten() for name in found]) for part in (found, by_peft, expected))
    assert functional.cosine_similarity(ours, whole, dim=0) > 0.997
    assert relative_error(ours, whole) < min(0.1, 1.1 * relative_error(theirs, whole))


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@needs_compiler
@renamed
def test_an_adapter_that_is_off_is_not_computed() -> None:
    model, plain = adapted(torch.float32, Kernels.NATIVE), model_of("llama", torch.bfloat16, None).to(torch.float32)
    attention.install(plain)
    packed_forward.install(plain, Kernels.NATIVE)
    with torch.no_grad():
        expected = packed_states(plain, rows_of(0))
        assert not torch.allclose(packed_states(model.get_base_model(), rows_of(0)), expected, atol=1e-3)
        with model.disable_adapter():
            assert torch.equal(packed_states(model.get_base_model(), rows_of(0)), expected)


@needs_compiler
def test_products_have_few_numbers_of_rows(capfd: pytest.CaptureFixture[str]) -> None:
    """oneDNN logs its products, and compiles and keeps one for every number of rows."""
    model = model_of("qwen2", torch.float32)
    capfd.readouterr()
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        for tokens in range(257, 321, 4):
            ids, segments = torch.arange(tokens) % 50, [Segment(tokens, np.arange(tokens))]
            outputs = np.arange(tokens % 7, tokens, 2)
            for with_gradients in (True, False):
                with torch.set_grad_enabled(with_gradients):
                    hidden = hidden_at(model, ids, ids, segments, outputs)
                    assert hidden.shape == (len(outputs), 32)
                    if with_gradients:
                        hidden.square().sum().backward()
    log = capfd.readouterr().out
    rows = {int(found) for found in re.findall(r",mb(\d+)ic\d+oc\d+,", log)}
    assert rows == {128, 144, 160, 272, 288, 304, 320}


@needs_compiler
def test_of_the_compiled_products_the_last_300_are_kept() -> None:
    """Runs in a new process, since oneDNN reads its cache capacity at the first product."""
    code = """
import torch
from torch import nn
from torch.backends import mkldnn
from tsr_lightning.modeling.native.native_operators import NativeOperators

operators, layer = NativeOperators(), nn.Linear(8, 8)
with torch.no_grad(), mkldnn.verbose(mkldnn.VERBOSE_ON_CREATION):
    for rows in (*range(1, 351), 1, 350):
        operators.linear(layer, torch.zeros(rows, 8))
"""
    found = re.findall(r"create:cache_(hit|miss),cpu,inner_product", python_output(code, hash_seed="0"))
    assert found == ["miss"] * 350 + ["miss", "hit"]


@given(count=st.integers(0, 2**20))
def test_padding_adds_few_rows(count: int) -> None:
    assert count <= padded_rows(count) == padded_rows(padded_rows(count))
    assert padded_rows(count) - count < max(16, count / 16)


def test_padded_numbers_of_rows_are_few() -> None:
    up_to_2_to_14 = {padded_rows(count) for count in range(1, 2**14 + 1)}
    assert len(up_to_2_to_14) == 5 + 31 + 5 * 16  # powers of two; multiples of 16 up to 512; and each octave's


@needs_compiler
def test_padding_rows_change_neither_states_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from the last bits of sums over tokens."""
    found = []
    for rows in (padded_rows, lambda count: count):
        monkeypatch.setattr(native_operators, "padded_rows", rows)
        model = model_of("llama", torch.float32)  # its biases make rows of zeros nonzero
        hidden = packed_states(model, rows_of(1))
        hidden.square().sum().backward()
        found.append((hidden, [p.grad for p in model.base_model.parameters()]))
    (hidden, grads), (expected, expected_grads) = found
    torch.testing.assert_close(hidden, expected, atol=1e-6, rtol=1e-6)
    for one, other in zip(grads, expected_grads, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=0)


# -- operators ---------------------------------------------------------------------------------------------------------


def apply(use: Operators, name: str, x: Tensor, layers: nn.ModuleDict, angles: Tensor) -> Tensor:
    if name == "linear":
        return use.linear(layers["up"], x)
    if name == "linear_add":
        return use.linear_add(layers["same"], x, x * 2)
    if name == "gated":
        return use.gated(layers["gate"], layers["up"], x)
    if name == "norm":
        return use.norm(x, layers["norm"].weight, 1e-5)
    return use.rotate(x.unflatten(-1, (2, -1)).clone(), angles.cos().to(x.dtype), angles.sin().to(x.dtype)).flatten(1)


@needs_compiler
@pytest.mark.parametrize("name", ["linear", "linear_add", "gated", "norm", "rotate"])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    rows=st.sampled_from([1, 2, 7, 64, 300]),
    half=st.sampled_from([2, 6, 16, 32, 100]),
    outer=st.sampled_from([1, 8, 33, 200]),
    biased=st.booleans(),
)
def test_native_operators_equal_pytorchs(name: str, seed: int, rows: int, half: int, outer: int, biased: bool) -> None:
    """Outputs and gradients equal float64's to rounding; outputs in bfloat16 too."""
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
    found = apply(NativeOperators(), name, leaf, layers, angles)
    expected = apply(TorchOperators(), name, other, exact, angles.double())
    scale = 1 + float(expected.detach().abs().max())
    torch.testing.assert_close(found.double(), expected, atol=3e-6 * scale, rtol=0)
    with torch.no_grad():
        inferred = apply(NativeOperators(), name, x.clone(), layers, angles)
        torch.testing.assert_close(inferred.double(), expected, atol=3e-6 * scale, rtol=0)
        if NativeOperators.supports(x.bfloat16()):
            in_bfloat16, rounded_angles = copy.deepcopy(layers).bfloat16(), angles.bfloat16().double()
            exact_bfloat16 = apply(
                TorchOperators(), name, x.bfloat16().double(), copy.deepcopy(in_bfloat16).double(), rounded_angles
            )
            found_bfloat16 = apply(NativeOperators(), name, x.bfloat16(), in_bfloat16, rounded_angles)
            bound = 2**-6 * (1 + float(exact_bfloat16.abs().max()))
            torch.testing.assert_close(found_bfloat16.double(), exact_bfloat16, atol=bound, rtol=0)
    probe = torch.randn(expected.shape, generator=draw)
    (found * probe).sum().backward()
    (expected * probe.double()).sum().backward()
    pairs = [(leaf, other), *zip(layers.parameters(), exact.parameters(), strict=True)]
    for one, two in pairs:
        if two.grad is not None:
            assert one.grad is not None
            scale = 1 + float(two.grad.abs().max())
            torch.testing.assert_close(one.grad.double(), two.grad, atol=1e-5 * scale, rtol=0)


@needs_compiler
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    model = model_of("qwen3", torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model.zero_grad()
            hidden = packed_states(model, rows_of(2))
            hidden.square().sum().backward()
            norms = [p.grad for name, p in model.named_parameters() if "norm" in name]
            found.append((hidden.detach(), norms))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


@needs_compiler
def test_gates_stay_finite_for_extreme_inputs() -> None:
    far = torch.tensor([[-1e30, -200.0, -90.0, -1e-30, 0.0, 1e-30, 90.0, 1e4]])
    layers = [nn.Linear(8, 8, bias=False) for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.eye(8))
        layers[1].weight.copy_(torch.zeros(8, 8))
        layers[1].weight[:, 7] = 1e-4
    gated = NativeOperators().gated(*layers, far.requires_grad_())
    torch.testing.assert_close(gated, functional.silu(far), atol=1e-20, rtol=2e-6)
    gated.sum().backward()
    assert far.grad is not None
    assert far.grad.isfinite().all()
