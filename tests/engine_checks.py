"""Checks of an engine: its samples against uncached passes, its token counts against a hook and a brute-force trie."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.engines.transformers.sampling import removed_parts, sample
from tsr_lightning.modeling.torch_operators import TorchOperators
from tsr_lightning.policy.model import Policy
from tsr_lightning.rng import Key

BORDER = 1e-5  # a draw this close to a step of the CDF may fall on either side
LOGPROB = 3e-4  # float32 sums in another order: up to 1.2e-4 with AVX-512
ROWS = 128  # contexts of one uncached pass

Ids = tuple[int, ...]


@dataclass
class Recording(Engine):
    """An engine that records its calls."""

    engine: Engine
    prompts: list[Prompt] = field(default_factory=list)
    responses: list[list[Response]] = field(default_factory=list)
    prompt_values: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        responses = self.engine.generate(prompts, temperature)
        self.prompts += prompts
        self.responses += responses
        return responses

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        values = self.engine.values(prompts)
        self.prompt_values += zip(prompts, values, strict=True)
        return values

    def take_costs(self) -> Costs:
        return self.engine.take_costs()

    def distinct_prefixes(self) -> int:
        """Of all contexts that needed a distribution or a value: the fewest tokens that an engine can compute."""
        contexts = {prompt.ids for prompt in self.prompts} | {ids for ids, _ in self.prompt_values}
        for prompt, responses in zip(self.prompts, self.responses, strict=True):
            contexts |= {prompt.ids + response.ids[:-1] for response in responses}
        return len({context[: i + 1] for context in contexts for i in range(len(context))})


@dataclass
class Uncached(Engine):
    """An engine that calls the model with the whole context for every token."""

    policy: Policy
    ends: frozenset[int]
    logits: dict[Ids, Tensor] = field(default_factory=dict)  # after the contexts so far [V]

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        return [[self._response(prompt, seed, temperature) for seed in prompt.seeds] for prompt in prompts]

    def _response(self, prompt: Prompt, seed: int, temperature: float) -> Response:
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < prompt.max_new_tokens and not self.ends.intersection(ids):
            logits = self._after((*prompt.ids, *ids))[None]
            draw, removed = np.array([Key(seed).uniform(len(ids))]), removed_parts(ids, prompt.excluded)
            [token], [logprob] = sample(logits, np.array([0]), draw, temperature, TorchOperators(), [removed])
            ids.append(token)
            logprobs.append(logprob)
        return Response(tuple(ids), tuple(logprobs), ids[-1] in self.ends)

    def _after(self, context: Ids) -> Tensor:
        if context not in self.logits:
            self.logits[context] = logits_of(self.policy, [context])[0][-1]
        return self.logits[context]

    def values(self, prompts: Sequence[Ids]) -> list[float]:
        return [value for ids in prompts for value in values_of(self.policy, [ids])]

    def take_costs(self) -> Costs:
        return Costs()


class _Float64(TorchFunctionMode):
    """Computes in float64 where a model asks for float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args = [torch.float64 if each is torch.float32 else each for each in args]
        kwargs = {key: torch.float64 if each is torch.float32 else each for key, each in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextmanager
def in_float64(policy: Policy) -> Iterator[Policy]:
    """A copy of the policy that computes all of a pass in float64."""
    exact = copy.deepcopy(policy).double()
    exact.causal_lm.set_experts_implementation("eager")
    with _Float64():
        yield exact


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Makes the model attend by transformers' own code."""
    implementation = model.config._attn_implementation
    training = model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        model.set_attn_implementation(implementation)


def longest_of(contexts: Sequence[Ids]) -> tuple[list[Ids], dict[Ids, int]]:
    """Contexts that are no prefix of another, and for each context the index of one that begins with it."""
    longest: list[Ids] = []
    places = {}
    for ids in sorted(set(contexts), reverse=True):  # a prefix comes right after a context that extends it
        if not longest or longest[-1][: len(ids)] != ids:
            longest.append(ids)
        places[ids] = len(longest) - 1
    return longest, places


def padded(contexts: Sequence[Ids]) -> Tensor:
    """[N, longest]: id 0 pads shorter contexts at the end, where causal attention does not see it."""
    return nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in contexts], batch_first=True)


def logits_of(policy: Policy, contexts: Sequence[Ids]) -> list[Tensor]:
    """Each context's logits after each of its tokens [length, V], by uncached passes over whole contexts."""
    longest, places = longest_of(contexts)
    logits: list[Tensor] = []
    with eager_attention(policy.causal_lm):
        for some in batched(longest, ROWS):
            ids = padded(some).to(policy.causal_lm.device)
            logits += policy.causal_lm(input_ids=ids, use_cache=False).logits.cpu()
    return [logits[places[ids]][: len(ids)].double() for ids in contexts]


def values_of(policy: Policy, contexts: Sequence[Ids]) -> list[float]:
    """The critic's values after each context, likewise."""
    longest, places = longest_of(contexts)
    values: list[Tensor] = []
    with eager_attention(policy.causal_lm):
        for some in batched(longest, ROWS):
            hidden = policy.causal_lm.base_model(input_ids=padded(some), use_cache=False).last_hidden_state
            values += policy.values(hidden)
    return [values[places[ids]][len(ids) - 1].item() for ids in contexts]


def assert_batch_composition_is_irrelevant(policy: Policy, contexts: Sequence[Ids]) -> None:
    """Contexts in one padded batch, and as prefixes of others, give the same logits and values as each alone."""
    contexts = [*contexts, *(ids[: 1 + len(ids) // 2] for ids in contexts)]
    for ids, value, together in zip(contexts, values_of(policy, contexts), logits_of(policy, contexts), strict=True):
        with eager_attention(policy.causal_lm):
            outputs = policy.causal_lm(input_ids=torch.tensor([ids]), output_hidden_states=True)
            alone = policy.values(outputs.hidden_states[-1][0, -1])
        torch.testing.assert_close(together, outputs.logits[0].double(), atol=LOGPROB / 2, rtol=1e-5)
        assert value == pytest.approx(alone.item(), abs=LOGPROB / 2)


def assert_sampled(
    logits: Tensor,
    prompt: Prompt,
    seed: int,
    response: Response,
    temperature: float,
    ends: frozenset[int],
    tolerance: float = LOGPROB,
) -> None:
    """Each id is the one that the seed draws by inverse CDF, with the right log-probability, and the response ends
    where it must.

    Args:
        logits: of an uncached pass over prompt and response [length, V].
    """
    logprobs = (logits[len(prompt.ids) - 1 : -1] / (temperature or 1.0)).log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(response.ids)[:, None]).squeeze(1)
    assert response.logprobs == pytest.approx(own.tolist(), abs=tolerance)
    if temperature == 0:
        assert (logprobs.max(-1).values - own).max() < tolerance
    else:
        above = logprobs.exp().cumsum(-1).gather(1, torch.tensor(response.ids)[:, None]).squeeze(1)
        draws = torch.tensor([Key(seed).uniform(i) for i in range(len(response.ids))], dtype=torch.float64)
        assert (draws < above + BORDER).all()
        assert (draws >= above - own.exp() - BORDER).all()
    assert 1 <= len(response.ids) <= prompt.max_new_tokens
    assert not ends.intersection(response.ids[:-1])
    assert response.finished == (response.ids[-1] in ends)
    assert response.finished or len(response.ids) == prompt.max_new_tokens


def assert_all_sampled(
    policy: Policy, recording: Recording, temperature: float, ends: frozenset[int], tolerance: float = LOGPROB
) -> int:
    """Checks all recorded responses and values; returns the number of responses."""
    sampled = [
        (prompt, seed, response)
        for prompt, responses in zip(recording.prompts, recording.responses, strict=True)
        for seed, response in zip(prompt.seeds, responses, strict=True)
    ]
    logits = logits_of(policy, [prompt.ids + response.ids for prompt, _, response in sampled])
    for whole, (prompt, seed, response) in zip(logits, sampled, strict=True):
        assert_sampled(whole, prompt, seed, response, temperature, ends, tolerance)
    expected = values_of(policy, [ids for ids, _ in recording.prompt_values])
    assert [value for _, value in recording.prompt_values] == pytest.approx(expected, abs=tolerance)
    return len(sampled)


def batched(items: Sequence[Ids], count: int) -> Iterator[Sequence[Ids]]:
    """At most `count` at a time."""
    yield from (items[start : start + count] for start in range(0, len(items), count))


@dataclass
class TokenCounter:
    """Tokens of every forward pass."""

    passes: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.passes)


@contextmanager
def counted_tokens(policy: Policy) -> Iterator[TokenCounter]:
    """Counts in the backbone, which generation and the critic share."""
    counter = TokenCounter()

    def count(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        counter.passes.append(ids.numel())

    handle = policy.causal_lm.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield counter
    finally:
        handle.remove()
