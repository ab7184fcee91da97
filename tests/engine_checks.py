"""What an engine's answers are held against: fresh uncached passes, a count by a hook, a trie made by brute force."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.policy.model import Policy
from tsr_lightning.rng import Key

BORDER = 1e-5  # a draw this near to a step of the distribution may fall on either side
LOGPROB = 1e-4  # float32 sums in another order
ROWS = 128  # contexts of one fresh pass

Ids = tuple[int, ...]


@dataclass
class Recording:
    """An engine that keeps what it was asked and what it answered."""

    engine: Engine
    asked: list[Prompt] = field(default_factory=list)
    answered: list[list[Response]] = field(default_factory=list)
    valued: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        answers = self.engine.generate(prompts, temperature)
        self.asked += prompts
        self.answered += answers
        return answers

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        values = self.engine.values(prompts)
        self.valued += zip(prompts, values, strict=True)
        return values

    def take_costs(self) -> Costs:
        return self.engine.take_costs()

    def floor(self) -> int:
        """The trie of prefixes by brute force: all beginnings of all contexts that a distribution or a value was
        asked of, each once."""
        contexts = {prompt.ids for prompt in self.asked} | {ids for ids, _ in self.valued}
        for prompt, family in zip(self.asked, self.answered, strict=True):
            contexts |= {prompt.ids + response.ids[:-1] for response in family}
        return len({context[: i + 1] for context in contexts for i in range(len(context))})


@contextmanager
def as_transformers_has_it(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model attends by transformers' own code, and not by ours."""
    ours = model.config._attn_implementation
    training = model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        model.set_attn_implementation(ours)


def longest_of(contexts: Sequence[Ids]) -> tuple[list[Ids], dict[Ids, int]]:
    """Those that no other goes on from, and for each context one of them that begins with it."""
    longest: list[Ids] = []
    places = {}
    for ids in sorted(set(contexts), reverse=True):  # just before a beginning comes one that goes on from it
        if not longest or longest[-1][: len(ids)] != ids:
            longest.append(ids)
        places[ids] = len(longest) - 1
    return longest, places


def padded(contexts: Sequence[Ids]) -> Tensor:
    """[N, longest]: id 0 follows the shorter ones, which causal attention does not let them see."""
    return nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in contexts], batch_first=True)


def logits_of(policy: Policy, contexts: Sequence[Ids]) -> list[Tensor]:
    """Each context's logits after each of its tokens [length, V], by fresh passes over whole contexts, side by side;
    what is a beginning of another is read off there."""
    longest, places = longest_of(contexts)
    logits: list[Tensor] = []
    with as_transformers_has_it(policy.causal_lm):
        for some in batched(longest, ROWS):
            logits += policy.causal_lm(input_ids=padded(some), use_cache=False).logits
    return [logits[places[ids]][: len(ids)].double() for ids in contexts]


def values_of(policy: Policy, contexts: Sequence[Ids]) -> list[float]:
    """The critic's after each context, likewise."""
    longest, places = longest_of(contexts)
    values: list[Tensor] = []
    with as_transformers_has_it(policy.causal_lm):
        for some in batched(longest, ROWS):
            hidden = policy.causal_lm.base_model(input_ids=padded(some), use_cache=False).last_hidden_state
            values += policy.values(hidden)
    return [values[places[ids]][len(ids) - 1].item() for ids in contexts]


def assert_alone(policy: Policy, contexts: Sequence[Ids]) -> None:
    """Contexts side by side, padded and as beginnings of others, are read as each is by itself."""
    contexts = [*contexts, *(ids[: 1 + len(ids) // 2] for ids in contexts)]
    for ids, value, together in zip(contexts, values_of(policy, contexts), logits_of(policy, contexts), strict=True):
        with as_transformers_has_it(policy.causal_lm):
            outputs = policy.causal_lm(input_ids=torch.tensor([ids]), output_hidden_states=True)
            alone = policy.values(outputs.hidden_states[-1][0, -1])
        torch.testing.assert_close(together, outputs.logits[0].double(), atol=LOGPROB / 2, rtol=1e-5)
        assert value == pytest.approx(alone.item(), abs=LOGPROB / 2)


def assert_drawn(
    logits: Tensor, prompt: Prompt, key: int, response: Response, temperature: float, ends: frozenset[int]
) -> None:
    """Every id is the one that the key draws from the distribution after what was said before it, its log-probability
    is the one it has there, and the response ends where it must.

    Args:
        logits: of a fresh pass over prompt and response [length, V].
    """
    logprobs = (logits[len(prompt.ids) - 1 : -1] / (temperature or 1.0)).log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(response.ids)[:, None]).squeeze(1)
    assert response.logprobs == pytest.approx(own.tolist(), abs=LOGPROB)
    if temperature == 0:
        assert (logprobs.max(-1).values - own).max() < LOGPROB
    else:
        above = logprobs.exp().cumsum(-1).gather(1, torch.tensor(response.ids)[:, None]).squeeze(1)
        draws = torch.tensor([Key(key).uniform(i) for i in range(len(response.ids))], dtype=torch.float64)
        assert (draws < above + BORDER).all()
        assert (draws >= above - own.exp() - BORDER).all()
    assert 1 <= len(response.ids) <= prompt.max_new_tokens
    assert not ends.intersection(response.ids[:-1])
    assert response.finished == (response.ids[-1] in ends)
    assert response.finished or len(response.ids) == prompt.max_new_tokens


def assert_all_drawn(policy: Policy, recording: Recording, temperature: float, ends: frozenset[int]) -> int:
    """How many responses that were."""
    drawn = [
        (prompt, key, response)
        for prompt, family in zip(recording.asked, recording.answered, strict=True)
        for key, response in zip(prompt.keys, family, strict=True)
    ]
    logits = logits_of(policy, [prompt.ids + response.ids for prompt, _, response in drawn])
    for whole, (prompt, key, response) in zip(logits, drawn, strict=True):
        assert_drawn(whole, prompt, key, response, temperature, ends)
    expected = values_of(policy, [ids for ids, _ in recording.valued])
    assert [value for _, value in recording.valued] == pytest.approx(expected, abs=LOGPROB)
    return len(drawn)


def batched(items: Sequence[Ids], count: int) -> Iterator[Sequence[Ids]]:
    """So many at a time."""
    yield from (items[start : start + count] for start in range(0, len(items), count))


@dataclass
class Meter:
    """What went through the model: tokens of every forward pass."""

    passes: list[int] = field(default_factory=list)

    @property
    def everything(self) -> int:
        return sum(self.passes)


@contextmanager
def metered(policy: Policy) -> Iterator[Meter]:
    """Counts in the backbone, which generation and the critic share."""
    meter = Meter()

    def count(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        meter.passes.append(ids.numel())

    handle = policy.causal_lm.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield meter
    finally:
        handle.remove()
