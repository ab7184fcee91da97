"""What an engine's answers are held against: fresh uncached passes, a count by a hook, a trie made by brute force."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsr_lightning.draws import Key
from tsr_lightning.generation.engine import Engine, Prompt, Response
from tsr_lightning.policy.model import Policy
from tsr_lightning.search.ledger import Ledger

BORDER = 1e-5  # a draw this near to a step of the distribution may fall on either side
LOGPROB = 1e-4  # float32 sums in another order


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

    def take_costs(self) -> Ledger:
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


def assert_drawn(
    policy: Policy, prompt: Prompt, key: int, response: Response, temperature: float, ends: frozenset[int]
) -> None:
    """By one fresh pass over the whole: every id is the one that the key draws from the distribution after what was
    said before it, its log-probability is the one it has there, and the response ends where it must."""
    with as_transformers_has_it(policy.causal_lm):
        logits = policy.causal_lm(input_ids=torch.tensor([[*prompt.ids, *response.ids]])).logits[0].double()
    logits = logits[len(prompt.ids) - 1 : -1]
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
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


def value_of(policy: Policy, ids: Sequence[int]) -> float:
    """The critic's after a context, by a fresh pass."""
    with as_transformers_has_it(policy.causal_lm):
        return policy.value_of(policy.causal_lm.base_model(torch.tensor([ids])).last_hidden_state[0, -1:]).item()


def assert_all_drawn(policy: Policy, recording: Recording, temperature: float, ends: frozenset[int]) -> int:
    """How many responses that were."""
    count = 0
    for prompt, family in zip(recording.asked, recording.answered, strict=True):
        for key, response in zip(prompt.keys, family, strict=True):
            assert_drawn(policy, prompt, key, response, temperature, ends)
            count += 1
    for ids, value in recording.valued:
        assert value == pytest.approx(value_of(policy, ids), abs=LOGPROB)
    return count


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
