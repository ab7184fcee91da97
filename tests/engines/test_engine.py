"""The engine draws what an obvious reference draws: the whole context through transformers' own model for every token,
and nothing cached."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from engine_checks import BORDER, assert_alone, logits_of, metered, values_of

from tsr_lightning.batching.packing import pack
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.sampling import draw
from tsr_lightning.engines.transformers.torch_backend import TorchBackend
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.inference import InferencePolicy
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key

TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
SIZE = len(TOKENIZER)
ENDS = frozenset(range(0, SIZE, 9))  # many, so that responses end everywhere
TEMPERATURES = (1.0, 0.5, 0.0)

# What attention or the keys that it reads decide is tried with our kernel and without; the others run with our kernel
# where there is one.
both_attend = pytest.mark.usefixtures("attending")


def make_policy(adapter: LoRA | None = None) -> Policy:
    sizes = Scratch(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=96
    )
    policy = Policy(PolicySpec(sizes, adapter), TOKENIZER, critic=True, seed=1)
    with torch.no_grad():  # fresh weights say everything with the same probability; these have opinions
        for number, (name, parameter) in enumerate(sorted(policy.named_parameters())):
            if "norm" not in name:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter.copy_(noise * (0.4 if "embed" in name else 0.3))
    return policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


def engine(
    policy: Policy, max_num_seqs: int = 512, ends: frozenset[int] = ENDS, kv_cache_mib: int = 8
) -> TransformersEngine:
    player = TransformersEngine(InferencePolicy(policy), ends, 96, kv_cache_mib, max_num_seqs)
    player.open()
    return player


def wave(count: int = 12, seed: int = 0) -> list[Prompt]:
    """Ragged prompts, some of them twice, some with a common beginning, with 1 to 4 responses of 1 to 12 tokens."""
    chance = random.Random(seed)
    contexts = [tuple(chance.randrange(SIZE) for _ in range(chance.randint(1, 20))) for _ in range(count)]
    contexts[1] = contexts[0]
    contexts[2] = contexts[0] + contexts[3]
    contexts[4] = (TOKENIZER.pad_token_id, *contexts[4])  # padding's own id is a token like any other
    return [
        Prompt(ids, tuple(chance.randrange(2**64) for _ in range(chance.randint(1, 4))), chance.randint(1, 12))
        for ids in contexts
    ]


# -- the reference -----------------------------------------------------------------------------------------------------


def reference(policy: Policy, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
    """Token by token; for each, one pass over everything that is not at its end yet, from its beginning."""
    talks = [SequenceState(prompt, key) for prompt in prompts for key in prompt.keys]
    while talking := [talk for talk in talks if not talk.is_over]:
        logits = logits_of(policy, [(*talk.prompt.ids, *talk.ids) for talk in talking])
        for talk, after in zip(talking, logits, strict=True):
            talk.say(after[-1], temperature)
    said = iter(Response(tuple(talk.ids), tuple(talk.logprobs), talk.ids[-1] in ENDS) for talk in talks)
    return [[next(said) for _ in prompt.keys] for prompt in prompts]


@dataclass
class SequenceState:
    """A response so far."""

    prompt: Prompt
    key: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.ids) == self.prompt.max_new_tokens or (bool(self.ids) and self.ids[-1] in ENDS)

    def say(self, logits: torch.Tensor, temperature: float) -> None:
        probabilities = (logits / (temperature or 1.0)).softmax(0)
        if temperature == 0:
            token = int(probabilities.argmax())
        else:
            token = inverse_cdf(probabilities, Key(self.key).uniform(len(self.ids)))
        self.ids.append(token)
        self.logprobs.append(float(probabilities[token].log()))


def inverse_cdf(probabilities: torch.Tensor, draw: float) -> int:
    below = 0.0
    for token, probability in enumerate(probabilities.tolist()):
        assert abs(below - draw) > BORDER / 10  # else rounding would decide; other keys than these do come near a step
        below += probability
        if draw < below:
            return token
    raise AssertionError("probabilities do not sum to one")


def assert_same(drawn: Sequence[Response], expected: Sequence[Response]) -> None:
    """Ids to the last one, log-probabilities within 1e-4 (float32 sums in another order)."""
    for one, other in zip(drawn, expected, strict=True):
        assert one.ids == other.ids
        assert one.finished == other.finished
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_the_reference_reads_contexts_side_by_side_as_alone(policy: Policy) -> None:
    assert_alone(policy, [prompt.ids for prompt in wave()])


# -- what is drawn -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_reference(policy: Policy) -> Callable[[float], list[list[Response]]]:
    """The reference's answers to the same wave, at each temperature once."""
    return cache(lambda temperature: reference(policy, wave(), temperature))


@both_attend
@pytest.mark.parametrize("max_num_seqs", [1, 3, 512])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_draws_are_the_references(
    policy: Policy, by_reference: Callable[[float], list[list[Response]]], temperature: float, max_num_seqs: int
) -> None:
    prompts = wave()
    drawn = engine(policy, max_num_seqs).generate(prompts, temperature)
    for family, expected in zip(drawn, by_reference(temperature), strict=True):
        assert_same(family, expected)
    everything = [response for family in drawn for response in family]
    assert len({len(response.ids) for response in everything}) > 4  # ragged, or nothing was tried
    assert {response.finished for response in everything} == {True, False}


@both_attend
@pytest.mark.parametrize("max_num_seqs", [1, 3, 5, 512])
def test_wave_size_and_row_order_change_no_draw(policy: Policy, max_num_seqs: int) -> None:
    """Waves of one, of all, or cut in between a family; prompts and keys in any order."""
    prompts = wave(16, seed=1)
    expected = engine(policy).generate(prompts, 1.0)
    order = random.Random(2).sample(range(len(prompts)), len(prompts))
    shuffled = [Prompt(prompts[i].ids, prompts[i].keys[::-1], prompts[i].max_new_tokens) for i in order]
    drawn = engine(policy, max_num_seqs).generate(shuffled, 1.0)
    for i, family in zip(order, drawn, strict=True):
        assert_same(family[::-1], expected[i])
    halves = engine(policy, max_num_seqs)
    assert_same(
        [r for part in (prompts[:5], prompts[5:]) for family in halves.generate(part, 1.0) for r in family],
        [r for family in expected for r in family],
    )


def test_equal_keys_draw_equal_responses_and_others_do_not(policy: Policy) -> None:
    keys = range(32)
    [family] = engine(policy).generate([Prompt((5, 6), (*keys, *keys), 8)], 1.0)
    assert family[:32] == family[32:]
    assert len({response.ids for response in family}) > 24


def test_a_response_that_was_cut_is_unfinished(policy: Policy) -> None:
    """Finished means that an end token was sampled, within the budget of the prompt's own and never after it."""
    prompts = wave(24, seed=3)
    for prompt, family in zip(prompts, engine(policy).generate(prompts, 1.0), strict=True):
        for response in family:
            assert 1 <= len(response.ids) <= prompt.max_new_tokens
            assert len(response.ids) == len(response.logprobs)
            assert not ENDS.intersection(response.ids[:-1])
            assert response.finished == (response.ids[-1] in ENDS)
            assert response.finished or len(response.ids) == prompt.max_new_tokens


def test_a_last_token_that_ends_is_finished(policy: Policy) -> None:
    """An end token that just fits into the budget counts as an end."""
    everything = frozenset(range(SIZE))
    drawn = engine(policy, ends=everything).generate([Prompt((3,), tuple(range(20)), 1)], 1.0)
    assert all(response.finished and len(response.ids) == 1 for response in drawn[0])


@both_attend
def test_the_logprobs_are_those_that_training_computes(policy: Policy) -> None:
    """`Policy.outputs` on the whole sequence, at the sampling temperature: what a first update's ratio rests on."""
    for temperature in (1.0, 0.5):
        prompts = wave(6, seed=4)
        for prompt, family in zip(prompts, engine(policy).generate(prompts, temperature), strict=True):
            for response in family:
                ids = np.array(prompt.ids + response.ids)
                with torch.no_grad():
                    row = pack([(ids, np.arange(len(ids)) >= len(prompt.ids))])
                    trained = policy.outputs(row, temperature).logprobs
                assert response.logprobs == pytest.approx(trained.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_the_softmax_says(policy: Policy, temperature: float) -> None:
    """A chi-square test of 20,000 keys, tokens expected fewer than 20 times taken together; fixed keys, level 1e-4."""
    keys = 20_000
    prompt = Prompt((7, 8, 9), tuple(Key(4).fold_in(i).value for i in range(keys)), 1)
    [family] = engine(policy, max_num_seqs=4096).generate([prompt], temperature)
    with torch.no_grad():
        logits = policy.causal_lm(input_ids=torch.tensor([prompt.ids])).logits[0, -1].double()
    expected = (logits / temperature).softmax(0) * keys
    counts = torch.bincount(torch.tensor([response.ids[0] for response in family]), minlength=SIZE).double()
    often = expected >= 20
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    counts = torch.cat([counts[often], counts[~often].sum()[None]])
    assert len(counts) > 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    tail = torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=torch.float64), statistic / 2)
    assert tail > 1e-4


def test_first_and_later_tokens_are_drawn_independently(policy: Policy) -> None:
    """Where any token may follow any other, token 1 is no function of token 0's draw."""
    keys = [Key(9).fold_in(i) for i in range(4000)]
    pairs = torch.tensor([[key.uniform(0), key.uniform(1)] for key in keys], dtype=torch.float64)
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 5 / math.sqrt(len(keys))


def test_a_draw_on_a_bound_takes_the_token_above_it_and_never_an_impossible_one() -> None:
    """Half-open intervals, as the reference has them: draw 0 passes over tokens of probability zero, one half begins
    the second half, and the largest draw below one is still within the last possible token."""
    impossible = -math.inf
    logits = torch.tensor([impossible, 0.0, 0.0, impossible]).repeat(3, 1)
    owners = np.arange(3)
    tokens, logprobs = draw(logits, owners, np.array([0.0, 0.5, 1 - 2.0**-53]), 1.0)
    assert tokens == [1, 2, 2]
    assert logprobs == pytest.approx([math.log(0.5)] * 3)
    tokens, _ = draw(logits, owners[[2, 0, 0, 1]], np.array([0.75, 0.0, 0.5, 0.25]), 1.0)
    assert tokens == [2, 1, 2, 1]


# -- what it costs -----------------------------------------------------------------------------------------------------


@both_attend
@pytest.mark.parametrize("max_num_seqs", [1, 3, 512])
def test_costs_add_up(policy: Policy, max_num_seqs: int) -> None:
    """All that went through the model is counted, the critic's share too, and none of it is padding."""
    prompts = wave(14, seed=5)
    player = engine(policy, max_num_seqs)
    with metered(policy) as meter:
        drawn = player.generate(prompts, 1.0)
        costs = player.take_costs()
        assert (meter.everything, 0) == (costs.tokens_computed, costs.tokens_padding)
        said = [response for family in drawn for response in family]
        assert costs.tokens_generated == sum(len(response.ids) for response in said)
        assert costs.prompt_tokens == sum(len(p.ids) * len(p.keys) for p in prompts)
        beginnings = {prompt.ids[: i + 1] for prompt in prompts for i in range(len(prompt.ids))}
        assert costs.tokens_prefilled == len(beginnings) < costs.tokens_computed
        meter.passes.clear()
        player.values([prompt.ids for prompt in prompts])
        costs = player.take_costs()
    assert meter.everything == costs.tokens_computed == 0  # all of them are known
    assert costs.tokens_generated == 0
    assert player.take_costs() == engine(policy).take_costs()  # taken is taken


def test_a_prompt_is_computed_once_for_all_its_responses(policy: Policy) -> None:
    """Six responses to one context of five tokens, two of them asked for apart."""
    ids = (1, 2, 3, 4, 5)
    player = engine(policy)
    with metered(policy) as meter:
        player.generate([Prompt(ids, (1, 2, 3, 4), 1), Prompt(ids, (5, 6), 1)], 1.0)
    assert meter.passes == [5]
    costs = player.take_costs()
    assert (costs.tokens_computed, costs.prompt_tokens_saved) == (5, 25)


@both_attend
def test_those_that_have_ended_leave(policy: Policy) -> None:
    """A pass computes what still talks, and of those that begin alike one."""
    player = engine(policy)
    with metered(policy) as meter:
        [family] = player.generate([Prompt((1, 2), tuple(range(64)), 24)], 1.0)
    talking = [{r.ids[:step] for r in family if len(r.ids) > step} for step in range(1, 24)]
    assert meter.passes == [2, *(len(prefixes) for prefixes in talking if prefixes)]
    assert meter.passes[-1] < 8 < meter.passes[1]


@both_attend
def test_other_weights_begin_anew(policy: Policy) -> None:
    """Any change of a weight in place, however it came about, and nothing else, empties the trie."""
    policy = make_policy()
    player, prompts = engine(policy), wave(6, seed=8)
    first = player.generate(prompts, 1.0)
    with metered(policy) as meter:
        assert player.generate(prompts, 1.0) == first
        assert meter.passes == []
        with torch.no_grad():
            policy.causal_lm.base_model.layers[1].mlp.up_proj.weight.mul_(0.5)
        second = player.generate(prompts, 1.0)
        assert meter.passes
    assert second != first
    for family, expected in zip(second, reference(policy, prompts, 1.0), strict=True):
        assert_same(family, expected)


@both_attend
def test_an_interrupted_wave_leaves_nothing_half_computed(policy: Policy) -> None:
    """An id that the model does not have fails in the middle of a pass; what the pass was to fill is not believed."""
    player, prompts = engine(policy), wave(6, seed=9)
    with pytest.raises(IndexError):
        player.generate([*prompts, Prompt((*prompts[0].ids, SIZE + 5), (1,), 2)], 1.0)
    for family, expected in zip(player.generate(prompts, 1.0), reference(policy, prompts, 1.0), strict=True):
        assert_same(family, expected)


@both_attend
@pytest.mark.parametrize("kv_cache_mib", [1, 8, 64])
def test_what_is_kept_is_within_its_budget(policy: Policy, kv_cache_mib: int) -> None:
    player = engine(policy, kv_cache_mib=kv_cache_mib)
    memory = player._memory
    assert memory is not None
    kept = [*memory.store.keys, *memory.store.values, memory.store.hidden]
    if isinstance(memory.readers, TorchBackend):
        kept += [tensor for tensors in memory.readers.bench.views(memory.readers.bench.tokens) for tensor in tensors]
    assert 0.98 * kv_cache_mib < sum(tensor.nbytes for tensor in kept) / 2**20 <= kv_cache_mib


@both_attend
def test_a_cache_that_holds_no_context_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match=r"data.kv_cache_mib is 1, in which .* 9600 tokens .* give \d+ or more"):
        TransformersEngine(InferencePolicy(policy), ENDS, 9600, kv_cache_mib=1).open()


# -- the critic, the model ---------------------------------------------------------------------------------------------


@both_attend
@pytest.mark.parametrize("max_num_seqs", [1, 3, 512])
def test_values_are_the_policys_row_by_row(policy: Policy, max_num_seqs: int) -> None:
    contexts = [prompt.ids for prompt in wave(20, seed=6)]
    expected = values_of(policy, contexts)
    assert engine(policy, max_num_seqs).values(contexts) == pytest.approx(expected, abs=1e-4)
    assert len(set(expected)) > 15
    assert engine(policy, max_num_seqs).values([]) == []


def test_the_models_modes_are_as_they_were(policy: Policy) -> None:
    """Each module's own train or eval flag, after a wave, after values and after an error; no gradient is recorded."""
    try:
        policy.train()
        policy.causal_lm.base_model.layers[1].eval()
        before = {name: module.training for name, module in policy.named_modules()}
        player = engine(policy)
        player.generate(wave(), 1.0)
        player.values([(1, 2)])
        with pytest.raises(IndexError):
            player.generate([Prompt((SIZE + 5,), (1,), 2)], 1.0)
        assert {name: module.training for name, module in policy.named_modules()} == before
        assert len(set(before.values())) == 2
        assert torch.is_grad_enabled()
    finally:
        policy.eval()


@both_attend
def test_an_adapter_speaks_and_leaves_as_reference() -> None:
    """The engine draws with the adapter on; while it is disabled, with the base's probabilities."""
    policy = make_policy(LoRA(rank=4, target_modules=["q_proj", "v_proj"]))
    prompts = wave(6, seed=17)
    adapted = engine(policy).generate(prompts, 1.0)
    for family, expected in zip(adapted, reference(policy, prompts, 1.0), strict=True):
        assert_same(family, expected)
    with policy.model.disable_adapter():
        plain = engine(policy).generate(prompts, 1.0)
        for family, expected in zip(plain, reference(policy, prompts, 1.0), strict=True):
            assert_same(family, expected)
    assert plain != adapted
