"""Tokens of a rollout against real rollouts, whose engine counts them."""

from collections.abc import Sequence

import pytest

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Sampling
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.sample_texts import sample_texts
from tsr_lightning.estimate.prompt_lengths import EpisodeTokens, average, counter_of, longest, measure
from tsr_lightning.estimate.searches import search_size
from tsr_lightning.estimate.workload import Episode, rollout_tokens, trained_tokens
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.search.branching import ContrastBeam, SuffixRestarts, Vine
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.plan import PlanEntry
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Lookahead, Sample, Strategy
from tsr_lightning.trajectory import Message

SOKOBAN = {"prompt_style": "bare", "size": [6, 6], "boxes": 1, "max_turns": 5}
RESPONSE, INSTANCES = 9, 3


@pytest.mark.parametrize(
    ("strategy", "responses"),
    [
        (Sample(), 5),
        (BestOfN(4), 4 * 5),
        (Beam(2, 4), 4 + 4 * 2 * 4),  # the first turn has one prefix
        (Beam(2, 4, commit="resample"), sum(4 + (left - 1) * 8 for left in range(1, 6))),
        (Lookahead(4, 2, 2), 3 * (4 + 8 + 8) + (4 + 8) + 4),  # of the last turns less is looked ahead
        (Vine(4), 5 + 5 * 3 + 3 * (4 + 3 + 2 + 1)),
        (SearchFailures(Beam(2, 4)), 5 + 36),
        (SuffixRestarts(Beam(2, 4), 3, 4), 36 + 4 * (1 + 2 + 3)),  # only after a success
        (ContrastBeam(2, 4, 1, 0), 4 + 4 * 3 * 4),
        (FirstImprovement(4), 5 * 4),  # at most
        (Expert(), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Strategy) else str(value),
)
def test_responses_of_a_search_of_five_turns(strategy: Strategy, responses: int):
    assert search_size(strategy, 5).responses == responses


def test_prompts_of_an_episode_by_hand():
    """System 10, messages 5, 3, 4, responses of 2."""
    full, last, single = (Episode(EpisodeTokens(10, (5, 3, 4)), c, 2) for c in (Full(), LastK(1), SingleTurn()))
    assert [full.prompt(turn) for turn in range(3)] == [15, 20, 26]
    assert [last.prompt(turn) for turn in range(3)] == [15, 20, 10 + 3 + 2 + 4]
    assert [single.prompt(turn) for turn in range(3)] == [15, 13, 14]
    assert [full.new(turn) for turn in range(3)] == [15, 4, 5]
    assert [single.new(turn) for turn in range(3)] == [15, 3, 4]
    assert full.sequences(3) == [(28, 6)]  # tokens, and the sampled of these
    assert (last.sequences(3), single.sequences(3)) == ([(22, 4), (21, 2)], [(17, 2), (15, 2), (16, 2)])
    # with observations behind each response; the last one, which nobody measured, counts 4
    assert full.sequences(3, observes=True) == [(32, 6 + 3 + 4 + 4)]
    assert last.sequences(3, observes=True) == [(26, 4 + 3 + 4), (25, 2 + 4)]
    assert single.sequences(3, observes=True) == [(20, 2 + 3), (19, 2 + 4), (20, 2 + 4)]
    assert full.within(22, None).turns == 2  # the third prompt and its response have 28 tokens
    assert full.within(100, 5).turns == 2  # two responses of 2 tokens fit in 5
    trained = trained_tokens([PlanEntry(Sample(), 4)], 2, full)
    assert trained.packed == 2 * (15 + 4 * 13)
    assert (trained.unshared, trained.outputs, trained.longest) == (2 * 4 * 28, 2 * 4 * 6, 28)
    observed = trained_tokens([PlanEntry(Sample(), 4)], 2, full, observes=True)
    assert (observed.packed, observed.outputs, observed.longest) == (2 * (15 + 4 * 17), 2 * 4 * 17, 32)


def rolled_out(policy: Policy, chat: Chat, end_ids: frozenset[int], entries: Sequence[PlanEntry]) -> Costs:
    engine = TransformersEngine(policy, end_ids, 1024, 256, 512)
    limits, sampling = TokenLimits(1024), Sampling(1.0, RESPONSE)
    strategies = [entry.strategy for entry in entries for _ in range(entry.count)]
    tasks = [
        SearchTask(seed, member, strategy, Key(1).fold_in(seed, member))
        for seed in range(INSTANCES)
        for member, strategy in enumerate(strategies)
    ]
    driver = Driver([make_env("tsr/Sokoban-v0", **SOKOBAN)], chat, engine, sampling, limits)
    driver.run(tasks)
    return driver.costs


@pytest.mark.parametrize(
    "strategy", [Sample(), BestOfN(3), Beam(1, 3), Vine(2)], ids=lambda strategy: type(strategy).__name__
)
@pytest.mark.parametrize("context", [Full(), LastK(1), SingleTurn()], ids=lambda context: type(context).__name__)
def test_a_rollout_of_an_untrained_model_costs_what_was_estimated(strategy: Strategy, context: Context):
    """It writes nothing that can be read, so every episode lasts, and its responses have no end token."""
    spec = PolicySpec(Scratch(32, 1, 2, 64, 2048))
    env = make_env("tsr/Sokoban-v0", **SOKOBAN)
    tokenizer = load_tokenizer(spec, sample_texts(env))
    policy, entries = Policy(spec, tokenizer, critic=False), [PlanEntry(strategy, 4)]
    costs = rolled_out(policy, Chat(tokenizer, context), frozenset(), entries)
    played = measure(env, counter_of(tokenizer, 3.0), range(INSTANCES))[::2]  # by unreadable responses
    expected = rollout_tokens(entries, INSTANCES, Episode(average(played), context, RESPONSE))
    assert costs.tokens_generated == expected.generated
    # a template closes a response in a context by a token more or less than is assumed
    assert costs.prompt_tokens == pytest.approx(expected.prompt_tokens, rel=0.03)
    assert costs.tokens_prefilled <= expected.prefilled
    if isinstance(context, Full):  # where the context is cut and nothing has changed, more is shared than assumed
        assert costs.tokens_prefilled == pytest.approx(expected.prefilled, rel=0.01)
    decoded = costs.tokens_computed - costs.tokens_prefilled
    assert 0.99 * expected.decoded <= decoded <= expected.decoded  # a few responses begin alike


def test_the_trained_policy_of_sokoban_costs_at_most_the_worst_case():
    """It solves levels early, proposes equal moves, and ends its responses."""
    spec = PolicySpec("embedded/sokoban")
    env = make_env("tsr/Sokoban-v0", **SOKOBAN)
    tokenizer = load_tokenizer(spec, ())
    policy, chat, entries = Policy(spec, tokenizer, critic=False), Chat(tokenizer, SingleTurn()), [PlanEntry(Beam(), 4)]
    costs = rolled_out(policy, chat, chat.end_ids, entries)
    played = measure(env, counter_of(tokenizer, 3.0), range(INSTANCES))
    worst = rollout_tokens(entries, INSTANCES, Episode(longest(played), SingleTurn(), RESPONSE))
    assert 0.05 * worst.generated < costs.tokens_generated <= worst.generated
    assert costs.prompt_tokens <= worst.prompt_tokens
    assert costs.tokens_prefilled <= worst.prefilled


def test_what_a_template_says_of_its_own_is_counted():
    """SmolLM2's template, for one, adds a system message where a conversation has none."""
    tokenizer = load_tokenizer(PolicySpec("embedded/sokoban"), ())
    plain = str(tokenizer.chat_template)
    own = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\npush the box<|im_end|>\n{% endif %}"
    counter = counter_of(tokenizer, 3.0)
    tokenizer.chat_template = own + plain
    counter_of_own = counter_of(tokenizer, 3.0)
    for given in ("push push", ""):
        system = [Message("system", given)] if given else []
        messages = [Message("user", "box box")]
        prompt = len(Chat(tokenizer).prompt((), [*system, *messages]))
        assert counter_of_own.system(given) + counter_of_own.messages(messages) == pytest.approx(prompt, abs=2)
    assert counter_of_own.system("") > counter.system("") + 4
    assert counter_of_own.system("push") == counter.system("push")
