"""On random trees, and for every strategy in every context, the engine samples what uncached passes sample, and exactly
the distinct prefixes go through the model."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_checks import (
    Recording,
    assert_all_sampled,
    assert_batch_composition_is_irrelevant,
    counted_tokens,
)
from test_engine import ENDS, SIZE, TOKENIZER, make_engine, make_policy, with_kernels
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
)

from tests.fakes import tasks
from tsr_lightning.engines.base import Prompt, Sampling
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.engines.transformers.trie import Trie
from tsr_lightning.envs.make import make_env
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.search import SearchFailures, SuffixRestarts, Vine
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.scorers import CriticValue
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Lookahead, Sample, Strategy

TREES = range(10)
MORE = pytest.param(range(10, 60), marks=pytest.mark.exhaustive, id="more")
STRATEGIES: list[Strategy] = [
    Sample(),
    BestOfN(3),
    BestOfN(2, "resample"),
    Beam(2, 4),
    Beam(2, 3, CriticValue()),
    Beam(2, 3, commit="resample"),
    Lookahead(3, 2, 2),
    Vine(3, 0.5),
    SuffixRestarts(SearchFailures(Beam(2, 3))),
]
CONTEXTS: list[Context] = [Full(), LastK(1), SingleTurn()]


@pytest.fixture(scope="module")
def shared_policy() -> Policy:
    return make_policy()


@pytest.fixture
def policy(shared_policy: Policy, request: pytest.FixtureRequest) -> Policy:
    return with_kernels(shared_policy, request)


@pytest.fixture(scope="module")
def adapted() -> Policy:
    return make_policy(LoRA(rank=4, target_modules=["q_proj", "v_proj", "up_proj"]))


def grow(recording: Recording, chance: random.Random, temperature: float) -> None:
    """A random search: waves of prompts that extend responses, begin anew or repeat, with random pruning."""
    beginning = tuple(chance.randrange(SIZE) for _ in range(chance.randint(0, 8)))
    alive = [beginning + tuple(chance.randrange(SIZE) for _ in range(chance.randint(1, 12))) for _ in range(3)]
    for _ in range(chance.randint(1, 4)):
        prompts = [
            Prompt(ids, tuple(chance.randrange(2**64) for _ in range(chance.randint(1, 4))), chance.randint(1, 5))
            for ids in alive
        ]
        groups = recording.generate(prompts, temperature)
        if chance.random() < 0.3:
            recording.values([prompt.ids + group[0].ids for prompt, group in zip(prompts, groups, strict=True)])
        grown: list[tuple[int, ...]] = []
        for prompt, group in zip(prompts, groups, strict=True):
            observation = tuple(chance.randrange(SIZE) for _ in range(chance.randint(0, 9)))
            for response in group:
                full = prompt.ids + response.ids + observation
                cut = beginning + response.ids + observation
                grown.append(chance.choice([full, full, cut, (*beginning, *(observation or (1,))), prompt.ids]))
        alive = [ids for ids in chance.sample(grown, min(len(grown), 5)) if ids and len(ids) < 80] or alive


@pytest.mark.parametrize("seeds", [pytest.param(TREES, id="some"), MORE])
@pytest.mark.parametrize(
    ("kernels", "kind", "max_num_seqs"),
    [
        ("native", "policy", 2),
        ("native", "adapted", 512),
        ("torch", "policy", 2),
        pytest.param("native", "policy", 512, marks=pytest.mark.exhaustive),
        pytest.param("native", "adapted", 2, marks=pytest.mark.exhaustive),
        pytest.param("torch", "policy", 512, marks=pytest.mark.exhaustive),
    ],
    indirect=["kernels"],
)
def test_random_trees(
    kernels: Kernels, kind: str, max_num_seqs: int, seeds: range, request: pytest.FixtureRequest
) -> None:
    policy: Policy = with_kernels(request.getfixturevalue(kind), request)
    sampled = shared = 0
    for seed in seeds:
        chance = random.Random(f"{kind} {max_num_seqs} {seed}")
        temperature = chance.choice([1.0, 1.0, 0.6, 0.0])
        recording = Recording(make_engine(policy, max_num_seqs))
        with counted_tokens(policy) as counter:
            grow(recording, chance, temperature)
        costs = recording.take_costs()
        assert counter.total == costs.tokens_computed == recording.distinct_prefixes()
        assert costs.tokens_padding == 0
        sampled += assert_all_sampled(policy, recording, temperature, ENDS)
        shared += costs.prompt_tokens_saved
    assert sampled > 8 * len(seeds)
    assert shared > 80 * len(seeds)


@pytest.mark.usefixtures("kernels")
def test_random_trees_with_evictions(policy: Policy) -> None:
    """Memory for one or two hundred tokens, so that prefixes are evicted and computed again, with the same results."""
    recomputed = 0
    for seed in range(18):
        recording = Recording(small_engine(policy, slots=97 + 4 * seed))
        with counted_tokens(policy) as counter:
            grow(recording, random.Random(seed), 1.0)
            grow(recording, random.Random(seed), 1.0)
        costs = recording.take_costs()
        assert counter.total == costs.tokens_computed >= recording.distinct_prefixes()
        recomputed += costs.tokens_computed - recording.distinct_prefixes()
        assert_all_sampled(policy, recording, 1.0, ENDS)
    assert recomputed > 100


def small_engine(policy: Policy, slots: int) -> TransformersEngine:
    """An engine with less memory than a mebibyte."""
    engine = make_engine(policy)
    with engine._running() as cache:
        cache.trie = Trie(slots)
        if isinstance(cache.backend, TorchBackend):
            cache.backend.buffer.tokens = slots
    return engine


# -- through the driver ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> Policy:
    return of(PolicySpec("embedded/frozen_lake"))


def of(spec: PolicySpec) -> Policy:
    policy = Policy(spec, load_tokenizer(spec, ()), critic=True, seed=3)
    with torch.no_grad():
        assert policy.value_head is not None
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return policy


def played(
    policy: Policy, spec: PolicySpec, strategy: Strategy, context: Context, searches: int, workers: int = 0
) -> tuple[Recording, int]:
    """The engine's calls, and the tokens that a hook counted."""
    chat = Chat(load_tokenizer(spec, ()), context)
    engine = Transformers(kv_cache_mib=64).build(policy, chat.end_ids, 512)
    with engine._running():  # allocates the cache, whose pass over two tokens is not to be counted
        recording = Recording(engine)
    envs, *others = ([make_env("tsr/FrozenLake-v0", prompt_style="brief", max_turns=4)] for _ in range(1 + workers))
    driver = Driver(envs, chat, recording, Sampling(1.0, 8), TokenLimits(512), concurrency=5, workers=others)
    with counted_tokens(policy) as counter:
        driver.run([replace(task, instance=task.instance // 3) for task in tasks(strategy, searches)])
    assert driver.costs.tokens_computed == counter.total
    return recording, counter.total


@pytest.mark.parametrize(
    ("strategy", "context"),
    [
        pytest.param(strategy, context, id=f"{strategy}-{context}", marks=[] if usual else pytest.mark.exhaustive)
        for strategy in STRATEGIES
        for context in CONTEXTS
        for usual in [context == Full() or type(strategy) is BestOfN]
    ],
)
def test_every_strategy_in_every_context(embedded: Policy, strategy: Strategy, context: Context) -> None:
    spec = PolicySpec("embedded/frozen_lake")
    recording, computed = played(embedded, spec, strategy, context, 4)  # of two instances
    assert computed == recording.distinct_prefixes()
    ends = frozenset(Chat(load_tokenizer(spec, ()), context).end_ids)
    assert assert_all_sampled(embedded, recording, 1.0, ends) >= 4


def test_two_cohorts_share_the_cache(embedded: Policy) -> None:
    """With environment workers, each half of the searches uses the prefixes that the other computed."""
    spec = PolicySpec("embedded/frozen_lake")
    recording, computed = played(embedded, spec, Beam(2, 4), Full(), 7, workers=2)
    assert computed == recording.distinct_prefixes()
    ends = frozenset(Chat(load_tokenizer(spec, ()), Full()).end_ids)
    assert assert_all_sampled(embedded, recording, 1.0, ends) >= 7


@pytest.mark.parametrize(
    "quantisation",
    [pytest.param(None, marks=pytest.mark.exhaustive), NF4(compute_dtype="float32")],
    ids=["lora", "lora-nf4"],
)
def test_adapters_and_four_bits(quantisation: NF4 | None) -> None:
    spec = PolicySpec("embedded/frozen_lake", LoRA(rank=4, target_modules="all-linear"), quantisation)
    policy = of(spec)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:  # zero at first, so that the adapter changes nothing
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(len(name)))
    recording, computed = played(policy, spec, Beam(2, 4), Full(), 4)
    assert computed == recording.distinct_prefixes()
    ends = frozenset(Chat(load_tokenizer(spec, ()), Full()).end_ids)
    assert assert_all_sampled(policy, recording, 1.0, ends) > 20


# -- other models ------------------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": TOKENIZER.pad_token_id,
    "eos_token_id": TOKENIZER.eos_token_id,
    "bos_token_id": TOKENIZER.eos_token_id,
}
ARCHITECTURES = {
    "llama": LlamaConfig(**SIZES),
    "mistral, a window of 6": MistralConfig(**SIZES, sliding_window=6),
    "gemma2, soft caps, a window of 5": Gemma2Config(
        **SIZES, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gpt2": GPT2Config(
        vocab_size=SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=0
    ),
    "cohere, scaled logits": CohereConfig(**SIZES, logit_scale=0.25),
}


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        pytest.param(name, kernels, marks=pytest.mark.exhaustive if plain and kernels == "torch" else [])
        for name, config in ARCHITECTURES.items()
        for plain in [not isinstance(config, (MistralConfig, Gemma2Config))]  # without windows and soft caps
        for kernels in ("native", "torch")
    ],
    indirect=["kernels"],
)
def test_other_architectures(name: str, kernels: Kernels, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ARCHITECTURES[name]).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    policy = Policy(PolicySpec(str(tmp_path)), TOKENIZER, critic=True, seed=1)
    packed_forward.install(policy.causal_lm, kernels)
    sampled = 0
    for seed in range(6):
        chance = random.Random(seed)
        recording = Recording(make_engine(policy, chance.choice([2, 512])))
        with counted_tokens(policy) as counter:
            grow(recording, chance, 1.0)
        assert counter.total == recording.take_costs().tokens_computed == recording.distinct_prefixes()
        sampled += assert_all_sampled(policy, recording, 1.0, ENDS)
    assert sampled > 50
    assert_batch_composition_is_irrelevant(policy, [prompt.ids for prompt in recording.prompts])
