"""The engine samples what a naive reference samples, which runs transformers' own model on the whole context for every
token and caches nothing."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from engine_checks import (
    BORDER,
    assert_batch_composition_is_irrelevant,
    counted_tokens,
    logits_of,
    values_of,
)

from tsr_lightning.batching.packing import pack
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.transformers import engine as transformers_engine
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.sampling import sample
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.torch_operators import TorchOperators
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key

TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
SIZE = len(TOKENIZER)
ENDS = frozenset(range(0, SIZE, 9))  # many, so that responses end everywhere
TEMPERATURES = (1.0, 0.5, 0.0)

both_kernels = pytest.mark.usefixtures("kernels")  # without it: the C kernels where they can be built


def make_policy(adapter: LoRA | None = None, kernels: Kernels = Kernels.AUTO) -> Policy:
    sizes = Scratch(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=96
    )
    policy = Policy(PolicySpec(sizes, adapter), TOKENIZER, critic=True, seed=1)
    with torch.no_grad():  # fresh weights give all tokens the same probability
        for number, (name, parameter) in enumerate(sorted(policy.named_parameters())):
            if "norm" not in name:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter.copy_(noise * (0.4 if "embed" in name else 0.3))
    packed_forward.install(policy.causal_lm, kernels)
    return policy


@pytest.fixture(scope="module")
def shared_policy() -> Policy:
    return make_policy()


@pytest.fixture
def policy(shared_policy: Policy, request: pytest.FixtureRequest) -> Policy:
    return with_kernels(shared_policy, request)


def with_kernels(policy: Policy, request: pytest.FixtureRequest) -> Policy:
    """The policy with the test's kernels."""
    kernels = request.getfixturevalue("kernels") if "kernels" in request.fixturenames else Kernels.AUTO
    packed_forward.install(policy.causal_lm, kernels)
    return policy


def make_engine(
    policy: Policy, max_num_seqs: int = 512, ends: frozenset[int] = ENDS, kv_cache_mib: int = 8
) -> TransformersEngine:
    engine = Transformers(kv_cache_mib, max_num_seqs).build(policy, ends, 96)
    with engine._running():  # allocates the cache, whose pass over two tokens is not to be counted
        return engine


def wave(count: int = 12, seed: int = 0) -> list[Prompt]:
    """Prompts of different lengths, some repeated, some with common prefixes; 1 to 4 responses of 1 to 12 tokens."""
    chance = random.Random(seed)
    contexts = [tuple(chance.randrange(SIZE) for _ in range(chance.randint(1, 20))) for _ in range(count)]
    contexts[1] = contexts[0]
    contexts[2] = contexts[0] + contexts[3]
    contexts[4] = (TOKENIZER.pad_token_id, *contexts[4])  # the padding id is a token like any other
    return [
        Prompt(ids, tuple(chance.randrange(2**64) for _ in range(chance.randint(1, 4))), chance.randint(1, 12))
        for ids in contexts
    ]


# -- the reference -----------------------------------------------------------------------------------------------------


def reference(policy: Policy, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
    """Token by token, each with one pass over all unfinished sequences from their first token."""
    states = [SequenceState(prompt, seed) for prompt in prompts for seed in prompt.seeds]
    while unfinished := [state for state in states if not state.is_over]:
        logits = logits_of(policy, [(*state.prompt.ids, *state.ids) for state in unfinished])
        for state, of_sequence in zip(unfinished, logits, strict=True):
            state.append(of_sequence[-1], temperature)
    responses = iter(Response(tuple(state.ids), tuple(state.logprobs), state.ids[-1] in ENDS) for state in states)
    return [[next(responses) for _ in prompt.seeds] for prompt in prompts]


@dataclass
class SequenceState:
    """A response so far."""

    prompt: Prompt
    seed: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.ids) == self.prompt.max_new_tokens or (bool(self.ids) and self.ids[-1] in ENDS)

    def append(self, logits: torch.Tensor, temperature: float) -> None:
        probabilities = (logits / (temperature or 1.0)).softmax(0)
        if temperature == 0:
            token = int(probabilities.argmax())
        else:
            token = inverse_cdf(probabilities, Key(self.seed).uniform(len(self.ids)))
        self.ids.append(token)
        self.logprobs.append(float(probabilities[token].log()))


def inverse_cdf(probabilities: torch.Tensor, draw: float) -> int:
    below = 0.0
    for token, probability in enumerate(probabilities.tolist()):
        assert abs(below - draw) > BORDER / 10  # else rounding decides: choose other seeds
        below += probability
        if draw < below:
            return token
    raise AssertionError("probabilities do not sum to one")


def assert_same(sampled: Sequence[Response], expected: Sequence[Response]) -> None:
    """The same ids, and log-probabilities within 1e-4 (float32 sums in another order)."""
    for one, other in zip(sampled, expected, strict=True):
        assert one.ids == other.ids
        assert one.finished == other.finished
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_batch_composition_does_not_change_the_reference(policy: Policy) -> None:
    assert_batch_composition_is_irrelevant(policy, [prompt.ids for prompt in wave()])


# -- samples -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_reference(shared_policy: Policy) -> Callable[[float], list[list[Response]]]:
    """The reference's responses to one wave, computed once per temperature."""
    return cache(lambda temperature: reference(shared_policy, wave(), temperature))


@both_kernels
@pytest.mark.parametrize("max_num_seqs", [1, 3, 512])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_samples_equal_the_references(
    policy: Policy, by_reference: Callable[[float], list[list[Response]]], temperature: float, max_num_seqs: int
) -> None:
    prompts = wave()
    sampled = make_engine(policy, max_num_seqs).generate(prompts, temperature)
    for responses, expected in zip(sampled, by_reference(temperature), strict=True):
        assert_same(responses, expected)
    everything = [response for responses in sampled for response in responses]
    assert len({len(response.ids) for response in everything}) > 4  # of different lengths
    assert {response.finished for response in everything} == {True, False}


@both_kernels
@pytest.mark.parametrize("max_num_seqs", [1, 3, 5, 512])
def test_wave_size_and_order_change_no_sample(policy: Policy, max_num_seqs: int) -> None:
    """Waves of one, of all, or cut within a group; prompts and seeds in any order."""
    prompts = wave(16, seed=1)
    expected = make_engine(policy).generate(prompts, 1.0)
    order = random.Random(2).sample(range(len(prompts)), len(prompts))
    shuffled = [Prompt(prompts[i].ids, prompts[i].seeds[::-1], prompts[i].max_new_tokens) for i in order]
    sampled = make_engine(policy, max_num_seqs).generate(shuffled, 1.0)
    for i, responses in zip(order, sampled, strict=True):
        assert_same(responses[::-1], expected[i])
    halves = make_engine(policy, max_num_seqs)
    assert_same(
        [r for part in (prompts[:5], prompts[5:]) for responses in halves.generate(part, 1.0) for r in responses],
        [r for responses in expected for r in responses],
    )


def test_equal_seeds_give_equal_responses_and_others_do_not(policy: Policy) -> None:
    seeds = range(32)
    [responses] = make_engine(policy).generate([Prompt((5, 6), (*seeds, *seeds), 8)], 1.0)
    assert responses[:32] == responses[32:]
    assert len({response.ids for response in responses}) > 24


def test_response_cut_by_its_budget_is_unfinished(policy: Policy) -> None:
    """Finished means that an end token was sampled, within the prompt's budget; it is the last token."""
    prompts = wave(24, seed=3)
    for prompt, responses in zip(prompts, make_engine(policy).generate(prompts, 1.0), strict=True):
        for response in responses:
            assert 1 <= len(response.ids) <= prompt.max_new_tokens
            assert len(response.ids) == len(response.logprobs)
            assert not ENDS.intersection(response.ids[:-1])
            assert response.finished == (response.ids[-1] in ENDS)
            assert response.finished or len(response.ids) == prompt.max_new_tokens


def test_response_with_an_end_token_at_its_budget_is_finished(policy: Policy) -> None:
    everything = frozenset(range(SIZE))
    sampled = make_engine(policy, ends=everything).generate([Prompt((3,), tuple(range(20)), 1)], 1.0)
    assert all(response.finished and len(response.ids) == 1 for response in sampled[0])


@both_kernels
def test_logprobs_equal_those_of_training(policy: Policy) -> None:
    """`Policy.outputs` on the whole sequence, at the sampling temperature: the first update's ratio depends on it."""
    for temperature in (1.0, 0.5):
        prompts = wave(6, seed=4)
        for prompt, responses in zip(prompts, make_engine(policy).generate(prompts, temperature), strict=True):
            for response in responses:
                ids = np.array(prompt.ids + response.ids)
                with torch.no_grad():
                    row = pack([(ids, np.arange(len(ids)) >= len(prompt.ids))])
                    trained = policy.outputs(row, temperature).logprobs
                assert response.logprobs == pytest.approx(trained.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_token_frequencies_follow_the_softmax(policy: Policy, temperature: float) -> None:
    """A chi-square test of 20,000 fixed seeds at level 1e-4; tokens expected fewer than 20 times are pooled."""
    samples = 20_000
    prompt = Prompt((7, 8, 9), tuple(Key(4).fold_in(i).value for i in range(samples)), 1)
    [responses] = make_engine(policy, max_num_seqs=4096).generate([prompt], temperature)
    with torch.no_grad():
        logits = policy.causal_lm(input_ids=torch.tensor([prompt.ids])).logits[0, -1].double()
    expected = (logits / temperature).softmax(0) * samples
    counts = torch.bincount(torch.tensor([response.ids[0] for response in responses]), minlength=SIZE).double()
    often = expected >= 20
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    counts = torch.cat([counts[often], counts[~often].sum()[None]])
    assert len(counts) > 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    tail = torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=torch.float64), statistic / 2)
    assert tail > 1e-4


def test_draws_of_successive_tokens_are_uncorrelated() -> None:
    keys = [Key(9).fold_in(i) for i in range(4000)]
    pairs = torch.tensor([[key.uniform(0), key.uniform(1)] for key in keys], dtype=torch.float64)
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 5 / math.sqrt(len(keys))


def test_draw_on_a_bound_takes_the_token_above_it_and_never_an_impossible_one() -> None:
    """Intervals are half-open, as in the reference: draw 0 skips tokens of probability zero, 0.5 begins the second
    half, and the largest draw below 1 is within the last possible token."""
    impossible = -math.inf
    logits = torch.tensor([impossible, 0.0, 0.0, impossible]).repeat(3, 1)
    owners = np.arange(3)
    tokens, logprobs = sample(logits, owners, np.array([0.0, 0.5, 1 - 2.0**-53]), 1.0, TorchOperators())
    assert tokens == [1, 2, 2]
    assert logprobs == pytest.approx([math.log(0.5)] * 3)
    tokens, _ = sample(logits, owners[[2, 0, 0, 1]], np.array([0.75, 0.0, 0.5, 0.25]), 1.0, TorchOperators())
    assert tokens == [2, 1, 2, 1]


# -- costs -------------------------------------------------------------------------------------------------------------


@both_kernels
@pytest.mark.parametrize("max_num_seqs", [1, 3, 512])
def test_costs_add_up(policy: Policy, max_num_seqs: int) -> None:
    """All tokens that went through the model are counted, the critic's too, and none is padding."""
    prompts = wave(14, seed=5)
    engine = make_engine(policy, max_num_seqs)
    with counted_tokens(policy) as counter:
        sampled = engine.generate(prompts, 1.0)
        costs = engine.take_costs()
        assert (counter.total, 0) == (costs.tokens_computed, costs.tokens_padding)
        assert costs.tokens_generated == sum(len(response.ids) for responses in sampled for response in responses)
        assert costs.prompt_tokens == sum(len(p.ids) * len(p.seeds) for p in prompts)
        prefixes = {prompt.ids[: i + 1] for prompt in prompts for i in range(len(prompt.ids))}
        assert costs.tokens_prefilled == len(prefixes) < costs.tokens_computed
        counter.passes.clear()
        engine.values([prompt.ids for prompt in prompts])
        costs = engine.take_costs()
    assert counter.total == costs.tokens_computed == 0  # all are cached
    assert costs.tokens_generated == 0
    assert engine.take_costs() == make_engine(policy).take_costs()  # the counters were reset


def test_a_prompt_is_computed_once_for_all_its_responses(policy: Policy) -> None:
    """Six responses to one context of five tokens, two of them in another prompt."""
    ids = (1, 2, 3, 4, 5)
    engine = make_engine(policy)
    with counted_tokens(policy) as counter:
        engine.generate([Prompt(ids, (1, 2, 3, 4), 1), Prompt(ids, (5, 6), 1)], 1.0)
    assert counter.passes == [5]
    costs = engine.take_costs()
    assert (costs.tokens_computed, costs.prompt_tokens_saved) == (5, 25)


@both_kernels
def test_decode_computes_unfinished_responses_and_equal_prefixes_once(policy: Policy) -> None:
    engine = make_engine(policy)
    with counted_tokens(policy) as counter:
        [responses] = engine.generate([Prompt((1, 2), tuple(range(64)), 24)], 1.0)
    unfinished = [{r.ids[:step] for r in responses if len(r.ids) > step} for step in range(1, 24)]
    assert counter.passes == [2, *(len(prefixes) for prefixes in unfinished if prefixes)]
    assert counter.passes[-1] < 8 < counter.passes[1]


@both_kernels
def test_changed_weights_empty_the_cache(kernels: Kernels) -> None:
    """Any change of a weight in place, and nothing else."""
    policy = make_policy(kernels=kernels)
    engine, prompts = make_engine(policy), wave(6, seed=8)
    first = engine.generate(prompts, 1.0)
    with counted_tokens(policy) as counter:
        assert engine.generate(prompts, 1.0) == first
        assert counter.passes == []
        with torch.no_grad():
            policy.causal_lm.base_model.layers[1].mlp.up_proj.weight.mul_(0.5)
        second = engine.generate(prompts, 1.0)
        assert counter.passes
    assert second != first
    for responses, expected in zip(second, reference(policy, prompts, 1.0), strict=True):
        assert_same(responses, expected)


def test_weights_changed_within_one_autocast_context_are_cast_anew() -> None:
    """PyTorch keeps casts to the end of a context and does not see that a weight has changed."""
    policy, prompts = make_policy(), wave(6, seed=8)
    engine = make_engine(policy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = engine.generate(prompts, 1.0)
        with torch.no_grad():
            policy.causal_lm.base_model.layers[1].mlp.up_proj.weight.mul_(0.5)
        second = engine.generate(prompts, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert make_engine(policy).generate(prompts, 1.0) == second != first


@both_kernels
def test_interrupted_wave_leaves_no_slot_half_computed(policy: Policy) -> None:
    """An id outside the vocabulary fails within a pass; the slots that the pass was to fill are not used."""
    engine, prompts = make_engine(policy), wave(6, seed=9)
    with pytest.raises(IndexError):
        engine.generate([*prompts, Prompt((*prompts[0].ids, SIZE + 5), (1,), 2)], 1.0)
    for responses, expected in zip(engine.generate(prompts, 1.0), reference(policy, prompts, 1.0), strict=True):
        assert_same(responses, expected)


@both_kernels
@pytest.mark.parametrize("kv_cache_mib", [1, 8, 64])
def test_cache_uses_its_memory_and_no_more(policy: Policy, kv_cache_mib: int) -> None:
    with make_engine(policy, kv_cache_mib=kv_cache_mib)._running() as memory:
        tensors = [*memory.store.keys, *memory.store.values, memory.store.hidden]
        if isinstance(memory.backend, TorchBackend):
            buffer = memory.backend.buffer
            tensors += [tensor for layers in buffer.views(buffer.tokens) for tensor in layers]
    assert 0.98 * kv_cache_mib < sum(tensor.nbytes for tensor in tensors) / 2**20 <= kv_cache_mib


@both_kernels
def test_cache_smaller_than_a_context_is_refused(policy: Policy) -> None:
    engine = Transformers(kv_cache_mib=1).build(policy, ENDS, 9600)
    with pytest.raises(ConfigError, match=r"Transformers.kv_cache_mib is 1: .* 9600 tokens .* give \d+ or more"):
        engine.generate([Prompt((1,), (1,), 1)], 1.0)


@pytest.mark.parametrize("argument", ["kv_cache_mib", "max_num_seqs", "state_cache_mib"])
def test_spec_refuses_sizes_below_one(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"Transformers.{argument} is 0: give 1 or more"):
        Transformers(**{argument: 0})


def test_a_cpu_gives_a_large_cache_back_and_keeps_a_small_one(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Transformers(kv_cache_mib=64).build(policy, frozenset(), 512)
    prompt = Prompt(tuple(range(4, 40)), (1,), 4)
    [[first]] = engine.generate([prompt], 1.0)
    assert engine._cache is not None
    assert engine._cache.used_bytes >= 36 * engine._cache._slot_bytes
    engine.release()
    assert engine._cache is not None
    monkeypatch.setattr(transformers_engine, "KEPT_BYTES", 1)
    engine.release()
    assert engine._cache is None
    assert engine.generate([prompt], 1.0) == [[first]]


def test_engine_samples_the_same_after_sync_and_release(policy: Policy) -> None:
    engine, prompts = make_engine(policy), wave(6, seed=10)
    first = engine.generate(prompts, 1.0)
    engine.sync()
    engine.release()
    assert engine.generate(prompts, 1.0) == first
    engine.close()
    assert engine._cache is None


# -- the critic and the model ------------------------------------------------------------------------------------------


@both_kernels
@pytest.mark.parametrize("max_num_seqs", [1, 3, 512])
def test_values_equal_the_policys_on_each_context_alone(policy: Policy, max_num_seqs: int) -> None:
    contexts = [prompt.ids for prompt in wave(20, seed=6)]
    expected = values_of(policy, contexts)
    assert make_engine(policy, max_num_seqs).values(contexts) == pytest.approx(expected, abs=1e-4)
    assert len(set(expected)) > 15
    assert make_engine(policy, max_num_seqs).values([]) == []


def test_modules_modes_are_restored(policy: Policy) -> None:
    """Each module's own training flag, after a wave, after values and after an error; gradients stay enabled."""
    try:
        policy.train()
        policy.causal_lm.base_model.layers[1].eval()
        before = {name: module.training for name, module in policy.named_modules()}
        engine = make_engine(policy)
        engine.generate(wave(), 1.0)
        engine.values([(1, 2)])
        with pytest.raises(IndexError):
            engine.generate([Prompt((SIZE + 5,), (1,), 2)], 1.0)
        assert {name: module.training for name, module in policy.named_modules()} == before
        assert len(set(before.values())) == 2
        assert torch.is_grad_enabled()
    finally:
        policy.eval()


@both_kernels
def test_engine_samples_with_the_adapter_and_without_it_while_disabled(kernels: Kernels) -> None:
    policy = make_policy(LoRA(rank=4, target_modules=["q_proj", "v_proj"]), kernels)
    prompts = wave(6, seed=17)
    adapted = make_engine(policy).generate(prompts, 1.0)
    for responses, expected in zip(adapted, reference(policy, prompts, 1.0), strict=True):
        assert_same(responses, expected)
    with policy.model.disable_adapter():
        plain = make_engine(policy).generate(prompts, 1.0)
        for responses, expected in zip(plain, reference(policy, prompts, 1.0), strict=True):
            assert_same(responses, expected)
    assert plain != adapted
