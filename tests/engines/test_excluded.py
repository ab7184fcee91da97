"""Responses that a prompt excludes: the others come as the policy's probabilities say, and none of them comes again."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from test_engine import make_engine, make_policy

from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.sampling import removed_parts, sample
from tsr_lightning.modeling.torch_operators import TorchOperators
from tsr_lightning.policy.model import Policy
from tsr_lightning.rng import Key

END, LONGEST = 0, 3
TABLE = np.random.default_rng(3).dirichlet(np.ones(3), size=(LONGEST, 3))  # [place, last token, token]


def chances_after(ids: tuple[int, ...]) -> np.ndarray:
    return TABLE[len(ids), ids[-1] if ids else 0]


def all_responses(ids: tuple[int, ...] = ()) -> Iterator[Response]:
    """Every response of a made-up policy of three tokens."""
    if len(ids) == LONGEST or (ids and ids[-1] == END):
        chances = [chances_after(ids[:place])[token] for place, token in enumerate(ids)]
        yield Response(ids, tuple(map(math.log, chances)), ids[-1] == END)
        return
    for token in range(3):
        yield from all_responses((*ids, token))


def probability(response: Response) -> float:
    return math.exp(sum(response.logprobs))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_token_by_token_the_others_have_their_probabilities_over_what_is_left(count: int) -> None:
    responses = list(all_responses())
    assert sum(map(probability, responses)) == pytest.approx(1)
    for excluded in itertools.islice(itertools.combinations(responses, count), 200):
        left = 1 - sum(map(probability, excluded))
        for response in responses:
            chained = 1.0
            for place, token in enumerate(response.ids):
                chances = chances_after(response.ids[:place]).copy()
                for each, part in removed_parts(response.ids[:place], excluded).items():
                    chances[each] *= max(0.0, 1 - part)
                if not chances[token] > 1e-12:
                    chained = 0.0
                    break
                chained *= chances[token] / chances.sum()
            expected = 0.0 if response in excluded else probability(response) / left
            assert chained == pytest.approx(expected, abs=1e-9)


def test_a_response_that_is_excluded_twice_counts_once() -> None:
    first, *_ = all_responses()
    assert removed_parts((), [first, first]) == removed_parts((), [first])


def test_what_is_removed_is_not_sampled_and_the_logprobs_are_those_of_the_policy() -> None:
    chances = np.array([0.5, 0.3, 0.2])
    draws = (np.arange(1000) + 0.5) / 1000
    logits = torch.from_numpy(np.log(chances))[None].float()
    removed = [{0: 0.4, 1: 1.0} if i % 2 else {} for i in range(1000)]
    tokens, logprobs = sample(logits, np.zeros(1000, dtype=np.int64), draws, 1.0, TorchOperators(), removed)
    others, own = np.array(tokens[::2]), np.array(tokens[1::2])
    assert np.bincount(others, minlength=3) / 500 == pytest.approx(chances, abs=0.003)
    assert np.bincount(own, minlength=3) / 500 == pytest.approx([0.6, 0.0, 0.4], abs=0.003)  # 0.5 · 0.6 and 0.2 of 0.5
    assert logprobs == pytest.approx(np.log(chances)[tokens].tolist(), abs=1e-6)


def test_with_nothing_else_left_and_at_temperature_0_nothing_is_removed() -> None:
    logits = torch.tensor([[0.0, 0.0, -50.0]])
    rows, draws = np.zeros(2, dtype=np.int64), np.array([0.25, 0.75])
    assert sample(logits, rows, draws, 1.0, TorchOperators(), [{0: 1.0, 1: 1.0}] * 2)[0] == [0, 1]
    assert sample(torch.tensor([[1.0, 0.0, 0.0]]), rows, draws, 0.0, TorchOperators(), [{0: 1.0}] * 2)[0] == [0, 0]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


@pytest.fixture(scope="module")
def engine(policy: Policy) -> TransformersEngine:
    return make_engine(policy, max_num_seqs=4096)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_engine_samples_the_others_by_their_probabilities(
    policy: Policy, engine: TransformersEngine, temperature: float
) -> None:
    """A chi-square test of 5,000 fixed seeds at level 1e-4, over the responses of one token and over the first tokens
    of longer ones; what is expected fewer than 20 times is pooled."""
    samples, ids = 5_000, (7, 8, 9)
    seeds = tuple(Key(5).fold_in(i).value for i in range(samples))
    excluded = tuple({r.ids: r for r in engine.generate([Prompt(ids, seeds[:12], 2)], temperature)[0]}.values())
    assert len(excluded) > 2
    [responses] = engine.generate([Prompt(ids, seeds, 2, excluded)], temperature)
    assert not {response.ids for response in responses} & {response.ids for response in excluded}

    with torch.no_grad():
        logits = policy.causal_lm(input_ids=torch.tensor([ids])).logits[0, -1].double()
    expected = (logits / temperature).softmax(0)
    for response in excluded:
        expected[response.ids[0]] -= probability(response)
    expected = expected / expected.sum() * samples
    counts = torch.bincount(torch.tensor([r.ids[0] for r in responses]), minlength=len(expected)).double()
    often = expected >= 20
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    counts = torch.cat([counts[often], counts[~often].sum()[None]])
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=torch.float64), statistic / 2) > 1e-4


def test_a_response_depends_on_its_own_prompt_alone(engine: TransformersEngine) -> None:
    plain = [Prompt((3, 4, i), (i, i + 1), 6) for i in range(6)]
    first = engine.generate(plain, 1.0)
    asked = [Prompt(p.ids, p.seeds, 6, tuple(drawn)) for p, drawn in zip(plain, first, strict=True)]
    together = engine.generate([*asked, *plain], 1.0)
    assert together[len(asked) :] == first
    for prompt, drawn, responses in zip(asked, first, together, strict=False):
        [alone] = engine.generate([prompt], 1.0)
        assert [response.ids for response in alone] == [response.ids for response in responses]
        assert not {response.ids for response in drawn} & {response.ids for response in responses}
