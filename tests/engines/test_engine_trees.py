"""Many random trees, and every strategy in every context: what the engine draws is what fresh uncached passes
draw, and what goes through the model is the trie of prefixes, to the token."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_checks import Recording, assert_all_drawn, assert_alone, metered
from test_engine import ENDS, SIZE, TOKENIZER, engine, make_policy
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
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.envs.make import make_env
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.inference import InferencePolicy
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.scorers import CriticValue
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Lookahead, Sample, Strategy

TREES = range(20)
MORE = pytest.param(range(20, 60), marks=pytest.mark.exhaustive, id="more")
STRATEGIES: list[Strategy] = [
    Sample(),
    BestOfN(3),
    BestOfN(2, "resample"),
    Beam(2, 4),
    Beam(2, 3, CriticValue()),
    Beam(2, 3, commit="resample"),
    Lookahead(3, 2, 2),
]
CONTEXTS: list[Context] = [Full(), LastK(1), SingleTurn()]

both_attend = pytest.mark.usefixtures("attending")  # the others run with our kernel where there is one


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


@pytest.fixture(scope="module")
def adapted() -> Policy:
    return make_policy(LoRA(rank=4, target_modules=["q_proj", "v_proj", "up_proj"]))


def grow(player: Recording, chance: random.Random, temperature: float) -> None:
    """A random search: waves of prompts that go on from what was said, begin anew or repeat, with pruning by chance."""
    beginning = tuple(chance.randrange(SIZE) for _ in range(chance.randint(0, 8)))
    alive = [beginning + tuple(chance.randrange(SIZE) for _ in range(chance.randint(1, 12))) for _ in range(3)]
    for _ in range(chance.randint(1, 4)):
        prompts = [
            Prompt(ids, tuple(chance.randrange(2**64) for _ in range(chance.randint(1, 4))), chance.randint(1, 5))
            for ids in alive
        ]
        families = player.generate(prompts, temperature)
        if chance.random() < 0.3:
            player.values([prompt.ids + family[0].ids for prompt, family in zip(prompts, families, strict=True)])
        grown: list[tuple[int, ...]] = []
        for prompt, family in zip(prompts, families, strict=True):
            observation = tuple(chance.randrange(SIZE) for _ in range(chance.randint(0, 9)))
            for response in family:
                full = prompt.ids + response.ids + observation
                cut = beginning + response.ids + observation
                grown.append(chance.choice([full, full, cut, (*beginning, *(observation or (1,))), prompt.ids]))
        alive = [ids for ids in chance.sample(grown, min(len(grown), 5)) if ids and len(ids) < 80] or alive


@pytest.mark.parametrize("seeds", [pytest.param(TREES, id="some"), MORE])
@pytest.mark.parametrize("max_num_seqs", [2, 512])
@pytest.mark.parametrize(
    ("attending", "kind"),
    [("kernel", "policy"), ("kernel", "adapted"), ("pytorch", "policy")],
    indirect=["attending"],
)
def test_random_trees(
    attending: None, kind: str, max_num_seqs: int, seeds: range, request: pytest.FixtureRequest
) -> None:
    speaker: Policy = request.getfixturevalue(kind)
    drawn = shared = 0
    for seed in seeds:
        chance = random.Random(f"{kind} {max_num_seqs} {seed}")
        temperature = chance.choice([1.0, 1.0, 0.6, 0.0])
        player = Recording(engine(speaker, max_num_seqs))
        with metered(speaker) as meter:
            grow(player, chance, temperature)
        costs = player.take_costs()
        assert meter.everything == costs.tokens_computed == player.floor()
        assert costs.tokens_padding == 0
        drawn += assert_all_drawn(speaker, player, temperature, ENDS)
        shared += costs.prompt_tokens_saved
    assert drawn > 8 * len(seeds)
    assert shared > 80 * len(seeds)


@both_attend
def test_random_trees_in_little_memory(policy: Policy) -> None:
    """Room for a hundred tokens or two, so that prefixes are given up and computed again: the results stay."""
    again = 0
    for seed in range(36):
        player = Recording(narrow(policy, slots=97 + 2 * seed))
        with metered(policy) as meter:
            grow(player, random.Random(seed), 1.0)
            grow(player, random.Random(seed), 1.0)
        costs = player.take_costs()
        assert meter.everything == costs.tokens_computed >= player.floor()
        again += costs.tokens_computed - player.floor()
        assert_all_drawn(policy, player, 1.0, ENDS)
    assert again > 200


def narrow(policy: Policy, slots: int) -> TransformersEngine:
    """An engine whose memory is smaller than a mebibyte can say."""
    player = engine(policy)
    memory = player._memory
    assert memory is not None
    memory.trie = type(memory.trie)(slots)
    if isinstance(memory.readers, TorchBackend):
        memory.readers.bench.tokens = slots
    return player


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
    """What the engine was asked and answered, and the tokens that a hook saw."""
    chat = Chat(load_tokenizer(spec, ()), context)
    engine = TransformersEngine(InferencePolicy(policy), chat.end_ids, 512, kv_cache_mib=64)
    engine.open()
    player = Recording(engine)
    env, *others = (make_env("tsr/FrozenLake-v0", prompt_style="brief", max_turns=4) for _ in range(1 + workers))
    driver = Driver(env, chat, player, Sampling(1.0, 8), TokenLimits(512), concurrency=5, workers=others)
    with metered(policy) as meter:
        driver.run([replace(task, instance=task.instance // 3) for task in tasks(strategy, searches)])
    assert driver.costs.tokens_computed == meter.everything
    return player, meter.everything


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_every_strategy_in_every_context(embedded: Policy, strategy: Strategy, context: Context) -> None:
    spec = PolicySpec("embedded/frozen_lake")
    player, computed = played(embedded, spec, strategy, context, 7)
    assert computed == player.floor()
    ends = frozenset(Chat(load_tokenizer(spec, ()), context).end_ids)
    assert assert_all_drawn(embedded, player, 1.0, ends) >= 7


def test_two_halves_share_what_is_computed(embedded: Policy) -> None:
    """Where environments step beside generation, the halves of the searches find each other's prefixes."""
    spec = PolicySpec("embedded/frozen_lake")
    player, computed = played(embedded, spec, Beam(2, 4), Full(), 7, workers=2)
    assert computed == player.floor()
    ends = frozenset(Chat(load_tokenizer(spec, ()), Full()).end_ids)
    assert assert_all_drawn(embedded, player, 1.0, ends) >= 7


@pytest.mark.parametrize("quantisation", [None, NF4(compute_dtype="float32")], ids=["lora", "lora-nf4"])
def test_adapters_and_four_bits(quantisation: NF4 | None) -> None:
    spec = PolicySpec("embedded/frozen_lake", LoRA(rank=4, target_modules="all-linear"), quantisation)
    policy = of(spec)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:  # zero at first, and the adapter then says nothing
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(len(name)))
    player, computed = played(policy, spec, Beam(2, 4), Full(), 4)
    assert computed == player.floor()
    ends = frozenset(Chat(load_tokenizer(spec, ()), Full()).end_ids)
    assert assert_all_drawn(policy, player, 1.0, ends) > 20


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


@both_attend
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_models(name: str, tmp_path: Path) -> None:
    """Grouped heads, sliding windows, capped scores, learned positions, scaled logits."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ARCHITECTURES[name]).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    policy = Policy(PolicySpec(str(tmp_path)), TOKENIZER, critic=True, seed=1)
    drawn = 0
    for seed in range(12):
        chance = random.Random(seed)
        player = Recording(engine(policy, chance.choice([2, 512])))
        with metered(policy) as meter:
            grow(player, chance, 1.0)
        assert meter.everything == player.take_costs().tokens_computed == player.floor()
        drawn += assert_all_drawn(policy, player, 1.0, ENDS)
    assert drawn > 100
    assert_alone(policy, [prompt.ids for prompt in player.asked])
