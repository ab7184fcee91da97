"""What only a GPU can show: `pytest -m cuda`. Without one every test is skipped.

A model of Qwen2.5's kind with random weights: 14 heads of queries for 2 of keys, as its smallest has.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import QUICK, tsr_process
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from tests.hybrid_models import HYBRIDS, save_random
from tests.hybrid_models import TOKENIZER as HYBRID_TOKENIZER
from tsr_lightning.batching.packing import Packed, pack
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.transformers.cuda_graphs import CudaGraphs, Direct
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.transformers.static_backend import StaticBackend
from tsr_lightning.modeling.attention import ScoreParams
from tsr_lightning.modeling.flex import FlexAttention, HeadShape, failure
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.training_attention import plan_training
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

DEVICE = torch.device("cuda")
TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
SIZE = len(TOKENIZER)
NO_END: frozenset[int] = frozenset()

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    # PyTorch hides this warning while it traces; where warnings are errors it cannot.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # PyTorch's compiler imports what its own newer versions deprecate.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("qwen")
    config = Qwen2Config(
        vocab_size=SIZE,
        hidden_size=448,  # what bitsandbytes' kernels take: a multiple of their block of 64
        num_hidden_layers=3,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=512,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.056,  # logits of a few nats, for which the bounds on rounding are meant
        eos_token_id=TOKENIZER.eos_token_id,
        pad_token_id=TOKENIZER.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return str(path)


def policy_of(folder: str, **choices: object) -> Policy:
    return Policy(PolicySpec(folder, **choices), TOKENIZER, critic=False, seed=1, device=DEVICE)  # type: ignore[arg-type]


def engine_of(policy: Policy, kv_cache_mib: int = 64) -> TransformersEngine:
    return Transformers(kv_cache_mib).build(policy, NO_END, 512)


def dense(folder: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """As transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(DEVICE).eval()


def wave(seed: int = 0, responses: int = 4, tokens: int = 24) -> list[Prompt]:
    """Prompts of different lengths; some extend others."""
    draw = np.random.default_rng(seed)
    contexts = [tuple(draw.integers(0, SIZE, length).tolist()) for length in (3, 70, 130, 200, 9, 41)]
    contexts += [contexts[3][:150] + contexts[4], contexts[2] + contexts[0]]
    return [Prompt(ids, tuple(draw.integers(0, 2**63, responses).tolist()), tokens) for ids in contexts]


@torch.no_grad()
def dense_logprobs(model: PreTrainedModel, prompt: Prompt, response: Response) -> Tensor:
    """[R, V] before each token of a response."""
    ids = torch.tensor([prompt.ids + response.ids], device=DEVICE)
    return model(input_ids=ids).logits[0, len(prompt.ids) - 1 : -1].float().log_softmax(-1)


def packed_tree() -> Packed:
    """Sequences that share prefixes; about half of their tokens are sampled."""
    draw = np.random.default_rng(1)
    stem = draw.integers(0, SIZE, 180)
    rows = [np.concatenate([stem[:cut], draw.integers(0, SIZE, 60)]) for cut in (0, 40, 100, 100, 180, 180, 7)]
    return pack([(ids, np.arange(len(ids)) >= len(ids) // 2) for ids in rows]).to(DEVICE)


# -- rollouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["flex", "torch"])
def test_greedy_responses_equal_those_of_generate(folder: str, kernels: str) -> None:
    model, prompts = dense(folder), wave(responses=1)
    sampled = engine_of(policy_of(folder, kernels=kernels)).generate(prompts, 0.0)
    for prompt, [response] in zip(prompts, sampled, strict=True):
        ids = torch.tensor([prompt.ids], device=DEVICE)
        settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        expected = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
        assert response.ids == tuple(expected[0, len(prompt.ids) :].tolist())


@pytest.mark.parametrize("kernels", ["flex", "torch"])
def test_samples_follow_the_distribution_of_generate(folder: str, kernels: str) -> None:
    """Log-probabilities in float32 within 1e-3 of transformers'. The first tokens of 4,000 responses by Pearson's test:
    the statistic exceeds five standard deviations in fewer than one of a million runs."""
    model, policy = dense(folder), policy_of(folder, kernels=kernels)
    prompts = wave(seed=2)
    for prompt, responses in zip(prompts, engine_of(policy).generate(prompts, 1.0), strict=True):
        for response in responses:
            rows = dense_logprobs(model, prompt, response)
            expected = rows.gather(1, torch.tensor(response.ids, device=DEVICE)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(response.logprobs), expected.cpu(), atol=1e-3, rtol=0)
    prompt = Prompt(prompts[1].ids, tuple(range(4000)), 1)
    [responses] = engine_of(policy).generate([prompt], 1.0)
    probabilities = dense_logprobs(model, prompt, responses[0])[0].exp().double().cpu()
    expected = 4000 * probabilities / probabilities.sum()
    counts = torch.bincount(torch.tensor([response.ids[0] for response in responses]), minlength=SIZE).double()
    often = expected > 5
    freedom = int(often.sum()) - 1
    statistic = float(((counts - expected)[often] ** 2 / expected[often]).sum())
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("kernels", ["flex", "torch"])
def test_logprobs_in_bfloat16_are_close_to_those_in_float32(folder: str, kernels: str) -> None:
    """Weights rounded alike. bfloat16 keeps 8 bits: 0.02 on average and 0.2 at most, of log-probabilities around -5."""
    model, prompts = dense(folder, torch.bfloat16).float(), wave(seed=3)
    sampled = engine_of(policy_of(folder, kernels=kernels, dtype="bfloat16")).generate(prompts, 1.0)
    errors = []
    for prompt, responses in zip(prompts, sampled, strict=True):
        for response in responses:
            rows = dense_logprobs(model, prompt, response)
            expected = rows.gather(1, torch.tensor(response.ids, device=DEVICE)[:, None])[:, 0].cpu()
            errors.append((torch.tensor(response.logprobs) - expected).abs())
    assert torch.cat(errors).mean() < 0.02
    assert torch.cat(errors).max() < 0.2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_steps_sample_what_fresh_steps_sample(folder: str, dtype: str) -> None:
    """Ten waves; the same kernels on the same numbers, so bit for bit."""
    policy = policy_of(folder, kernels="flex", dtype=dtype)
    replayed, fresh = engine_of(policy), without_graphs(policy)
    for seed in range(10):
        assert replayed.generate(wave(seed), 1.0) == fresh.generate(wave(seed), 1.0)
    assert graphs_of(replayed).captured > 1  # these waves have two shapes of steps


def test_replayed_steps_of_nf4_under_autocast_sample_what_fresh_steps_sample(folder: str) -> None:
    """bf16-mixed, as shipped configurations have it: weights are cast within the step, before and after an update."""
    policy = policy_of(folder, adapter=LoRA(rank=4), quantisation=NF4(), dtype="bfloat16", kernels="flex")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        replayed, fresh = engine_of(policy), without_graphs(policy)
        responses = []
        for update in range(3):
            change_adapter(policy, seed=update)
            for seed in range(3):
                responses.append(replayed.generate(wave(seed), 1.0))
                assert responses[-1] == fresh.generate(wave(seed), 1.0)
        assert graphs_of(replayed).captured > 1
        assert responses[0] != responses[3] != responses[6]


def without_graphs(policy: Policy) -> TransformersEngine:
    """An engine that runs every step as it is."""
    engine = engine_of(policy)
    with engine._running() as cache:
        assert isinstance(cache.backend, StaticBackend)
        cache.backend = StaticBackend(cache.backend.buffer, Direct(), cache.backend.rounding)
    return engine


def graphs_of(engine: TransformersEngine) -> CudaGraphs:
    with engine._running() as cache:
        graphs = cache.backend.replay  # type: ignore[union-attr]
    assert isinstance(graphs, CudaGraphs)
    return graphs


@torch.no_grad()
def change_adapter(policy: Policy, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.copy_(torch.randn(weight.shape, generator=draw) * 0.2)


def test_a_replayed_step_reads_changed_weights_and_an_adapter_that_is_off(folder: str) -> None:
    policy = policy_of(folder, adapter=LoRA(rank=4), kernels="flex")
    change_adapter(policy, seed=0)
    engine = engine_of(policy)
    changed = [engine.generate(wave(), 1.0) for _ in range(3)]
    assert changed[0] == changed[1] == changed[2]
    with policy.model.disable_adapter():
        off = [engine_of(policy).generate(wave(), 1.0), dropped(engine).generate(wave(), 1.0)]
    assert off[0] == off[1] != changed[0]
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.mul_(-1)
    assert engine.generate(wave(), 1.0) == engine_of(policy).generate(wave(), 1.0) != changed[0]


def dropped(engine: TransformersEngine) -> TransformersEngine:
    """Forgets its prefixes, and keeps its memory and graphs."""
    engine._version = None
    return engine


def test_release_gives_the_memory_of_a_rollout_back(folder: str) -> None:
    policy = policy_of(folder, kernels="flex")
    engine = engine_of(policy, kv_cache_mib=512)
    engine.generate(wave(), 1.0)  # libraries' workspaces stay
    engine.release()
    torch.cuda.synchronize()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for seed in range(3):
        engine.generate(wave(seed), 1.0)
    assert torch.cuda.memory_allocated() > before + 500 * 2**20
    engine.release()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2**20
    assert torch.cuda.memory_reserved() <= reserved + 64 * 2**20
    assert engine.generate(wave(), 1.0) == engine_of(policy).generate(wave(), 1.0)


# -- updates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scores", [ScoreParams(0.25), ScoreParams(0.25, window=70), ScoreParams(0.2, softcap=2.0)], ids=str
)
def test_flex_attention_has_the_outputs_and_gradients_of_sdpa(scores: ScoreParams) -> None:
    segments: Sequence[Segment] = packed_tree().segments
    draw = torch.Generator().manual_seed(0)
    total = sum(segment.length for segment in segments)
    query, key, value = (
        torch.randn(heads, total, 64, generator=draw).to(DEVICE).requires_grad_() for heads in (14, 2, 2)
    )
    results = []
    for attend in (FlexAttention(segments, DEVICE).attend, plan_training(segments, scores.window, DEVICE).attend):
        out = attend(query, key, value, scores)
        probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        results.append([out.detach(), *torch.autograd.grad(out, (query, key, value), probe)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flex_attention_is_used_for_the_heads_of_common_models(dtype: torch.dtype, width: int) -> None:
    shape = HeadShape(dtype, 14, 2, width, width)
    assert failure(torch.device("cuda", 0), shape) is None
    assert Kernels.FLEX.uses_flex(torch.device("cuda", 0), shape, gradients=True)
    assert Kernels.AUTO.uses_flex(torch.device("cuda", 0), shape, gradients=True)


def test_a_policys_gradients_are_those_of_plain_kernels(folder: str) -> None:
    gradients = []
    for kernels in ("flex", "torch"):
        policy = policy_of(folder, kernels=kernels).train()
        outputs = policy.outputs(packed_tree(), 1.0, entropies=True)
        (outputs.logprobs.mean() + 0.1 * outputs.entropies.mean()).backward()
        gradients.append({name: weight.grad for name, weight in policy.named_parameters()})
    for name, expected in gradients[1].items():
        found = gradients[0][name]
        assert found is not None
        assert expected is not None
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, atol=1e-4 * scale, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_nf4_with_lora_rolls_out_and_updates(folder: str) -> None:
    """The engine's log-probabilities are those of the update, which moves the adapter and no bit of the base."""
    policy = policy_of(folder, adapter=LoRA(rank=4), quantisation=NF4(), kernels="auto")
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    optimizer = torch.optim.AdamW([weight for weight in policy.parameters() if weight.requires_grad], lr=1e-2)
    engine = engine_of(policy)
    for seed in range(2):
        prompts = wave(seed)
        sampled = engine.generate(prompts, 1.0)
        pairs = [(p, r) for p, responses in zip(prompts, sampled, strict=True) for r in responses]
        rows = [(np.array(p.ids + r.ids), np.arange(len(p.ids) + 24) >= len(p.ids)) for p, r in pairs]
        engine.release()
        policy.train()
        outputs = policy.outputs(pack(rows).to(DEVICE), 1.0)
        by_engine = torch.tensor([logprob for _, r in pairs for logprob in r.logprobs])
        assert (outputs.logprobs.detach().cpu() - by_engine).abs().mean() < 0.03  # layers compute in bfloat16
        optimizer.zero_grad()
        outputs.logprobs.mean().backward()
        optimizer.step()
    changed = {name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == set(policy.trainable_state())


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_is_sampled_and_trained_as_each_sequence_alone(name: str, tmp_path: Path) -> None:
    """Recurrent states fork at branch points, and longer prompts continue from them."""
    save_random(HYBRIDS[name](), tmp_path)
    policy = policy_of(str(tmp_path), adapter=LoRA(rank=4)).train()
    change_adapter(policy, seed=0)
    engine = Transformers(64, state_cache_mib=64).build(policy, NO_END, 240)
    draw = np.random.default_rng(0)
    contexts = [tuple(draw.integers(0, len(HYBRID_TOKENIZER), length).tolist()) for length in (3, 70, 41)]
    prompts = [Prompt(ids, (1, 2, 3), 12) for ids in contexts]
    sampled = engine.generate(prompts, 1.0)
    further = [
        Prompt(prompt.ids + response.ids + contexts[0], (4, 5), 6)
        for prompt, own in zip(prompts, sampled, strict=True)
        for response in own
    ]
    pairs = [
        (prompt, response)
        for prompt, own in zip(prompts + further, sampled + engine.generate(further, 1.0), strict=True)
        for response in own
    ]
    rows = [(np.array(p.ids + r.ids), np.arange(len(p.ids) + len(r.ids)) >= len(p.ids)) for p, r in pairs]
    packed = policy.outputs(pack(rows).to(DEVICE), 1.0).logprobs
    alone = torch.cat([logprobs_alone(policy, ids, mask) for ids, mask in rows])
    by_engine = torch.tensor([logprob for _, response in pairs for logprob in response.logprobs])
    torch.testing.assert_close(by_engine, alone.detach().cpu(), atol=1e-3, rtol=0)
    torch.testing.assert_close(packed, alone, atol=1e-3, rtol=0)
    trained = [weight for weight in policy.parameters() if weight.requires_grad]
    gradients = [
        torch.autograd.grad(of.mean(), trained, allow_unused=True, materialize_grads=True) for of in (packed, alone)
    ]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3 * max(1.0, float(expected.abs().max())), rtol=0)


def logprobs_alone(policy: Policy, ids: np.ndarray, mask: np.ndarray) -> Tensor:
    """Log-probabilities of the sampled tokens, by a plain forward pass over one sequence."""
    whole = torch.from_numpy(ids).to(DEVICE)
    logprobs = policy.causal_lm(input_ids=whole[None], use_cache=False).logits[0].float().log_softmax(-1)
    return logprobs[:-1].gather(1, whole[1:, None])[:, 0][torch.from_numpy(mask[1:]).to(DEVICE)]


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    """The checkpoints of two equal runs on the GPU, deterministic as Lightning asks PyTorch for it."""
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        done = tsr_process(
            "fit",
            *("--config", "quickstart.yaml", *QUICK, "--trainer.accelerator", "gpu", "--trainer.devices", "1"),
            *("--trainer.deterministic", "true", "--data.evaluations", "[]", "--trainer.max_epochs", "3"),
            *("--trainer.callbacks+", '{"class_path": "ModelCheckpoint", "init_args": {"save_last": true}}'),
            *("--trainer.callbacks.save_on_train_epoch_end", "true"),
            cwd=tmp_path / name,
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        runs.append(next((tmp_path / name).rglob("last.ckpt")))
    return runs


def test_a_deterministic_run_has_the_same_weights_twice(two_runs: list[Path]) -> None:
    one, two = (torch.load(path, map_location="cpu", weights_only=True)["state_dict"] for path in two_runs)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_gpu_benchmark_runs_to_its_end(tmp_path: Path) -> None:
    from benchmarks.gpu.__main__ import main

    main(["--tiny", "--out", str(tmp_path)])
    assert os.path.getsize(tmp_path / "gpu.json") > 1000
