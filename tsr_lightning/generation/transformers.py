"""The default engine: the Hugging Face model itself, in this process. Knows token ids, and no text.

A wave's distinct prompts are prefilled once each, however many responses they get; every response then grows its own
copy of the keys and values, and leaves when it has ended.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from tsr_lightning.draws import uniforms
from tsr_lightning.errors import ConfigError
from tsr_lightning.generation.engine import Prompt, Response
from tsr_lightning.search.ledger import Ledger

ValuesAtEnd = Callable[[Tensor, Tensor], Tensor]  # ids [R, L], attention [R, L] -> [R]

_SHRINK_AT = 0.75  # rows are dropped from the cache once no more than this share of them is still talking


class TransformersEngine:
    """Draws responses from a causal language model.

    Args:
        model: takes ids and a cache, gives logits; an adapter, where there is one, is already inside.
        pad_id: what fills a short row; never attended to.
        end_ids: tokens that end a response.
        values_at_end: the critic on whole prompts.
        max_rows: the most responses in one forward pass; a larger wave is cut, which changes no draw.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_id: int,
        end_ids: frozenset[int],
        values_at_end: ValuesAtEnd,
        max_rows: int = 512,
    ) -> None:
        self.model = model
        self.pad_id = pad_id
        self.end_ids = end_ids
        self.values_at_end = values_at_end
        self.max_rows = max_rows
        self._costs = Ledger()

    def take_costs(self) -> Ledger:
        costs, self._costs = self._costs, Ledger()
        return costs

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        rows = [
            _Row(owner, member, prompt.ids, key, prompt.max_new_tokens)
            for owner, prompt in enumerate(prompts)
            for member, key in enumerate(prompt.keys)
        ]
        answers: list[list[Response | None]] = [[None] * len(prompt.keys) for prompt in prompts]
        with _playing(self.model):
            for chunk in _chunks(rows, self.max_rows):
                for row, response in zip(chunk, self._respond(chunk, temperature), strict=True):
                    answers[row.owner][row.member] = response
        return [[response for response in family if response is not None] for family in answers]

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        values = [0.0] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        with _playing(self.model):
            for start in range(0, len(order), self.max_rows):
                chosen = order[start : start + self.max_rows]
                ids, attention = self._padded([prompts[i] for i in chosen])
                computed = sum(len(prompts[i]) for i in chosen)
                self._costs += Ledger(tokens_computed=computed, tokens_padding=ids.numel() - computed)
                for i, value in zip(chosen, self.values_at_end(ids, attention).tolist(), strict=True):
                    values[i] = value
        return values

    def _respond(self, rows: Sequence["_Row"], temperature: float) -> list[Response]:
        """One chunk: prefill its distinct prompts, then a token at a time for all that still talk."""
        distinct = {ids: i for i, ids in enumerate(dict.fromkeys(row.ids for row in rows))}
        ids, attention = self._padded(list(distinct))
        parents = torch.tensor([distinct[row.ids] for row in rows], device=ids.device)
        output = self.model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=_positions(attention),
            past_key_values=DynamicCache(config=self.model.config),
            use_cache=True,
            logits_to_keep=1,
        )
        self._costs += Ledger(
            tokens_computed=sum(map(len, distinct)),
            tokens_padding=ids.numel() - sum(map(len, distinct)),
            prompt_tokens_saved=sum(len(row.ids) for row in rows) - sum(map(len, distinct)),
        )
        room = max(row.room for row in rows)
        cache = _forked(output.past_key_values, parents, room)
        logits = output.logits[:, -1].index_select(0, parents)
        attention = attention.index_select(0, parents)
        talk = _Talk(rows, self.end_ids)
        while True:
            drawn, logprobs = _draw(logits, talk.uniforms(), temperature)
            talk.say(drawn.tolist(), logprobs.tolist())
            if not talk.open:
                break
            if len(talk.open) <= _SHRINK_AT * logits.shape[0]:
                stay = torch.tensor(talk.shrink(), device=ids.device)
                cache.batch_select_indices(stay)
                attention, drawn = attention.index_select(0, stay), drawn.index_select(0, stay)
            attention = torch.cat([attention, attention.new_ones(attention.shape[0], 1)], dim=1)
            output = self.model(
                input_ids=drawn[:, None],
                attention_mask=attention,
                position_ids=attention.sum(dim=1, keepdim=True) - 1,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            logits = output.logits[:, -1]
            self._costs += Ledger(tokens_computed=len(talk.open), tokens_padding=logits.shape[0] - len(talk.open))
        responses = talk.responses()
        self._costs += Ledger(tokens_generated=sum(len(response.ids) for response in responses))
        return responses

    def _padded(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        """Left-padded ids and attention, both [R, L]: responses of ragged prompts then grow in one column."""
        longest = max(map(len, prompts))
        ids = np.full((len(prompts), longest), self.pad_id, dtype=np.int64)
        attention = np.zeros((len(prompts), longest), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            attention[row, longest - len(prompt) :] = 1
        device = self.model.device
        return torch.from_numpy(ids).to(device), torch.from_numpy(attention).to(device)


@dataclass(frozen=True, slots=True)
class _Row:
    """One response to be drawn."""

    owner: int
    member: int
    ids: tuple[int, ...]
    key: int
    room: int


class _Talk:
    """What each row of a chunk has said, and which rows of the cache belong to those that still talk."""

    def __init__(self, rows: Sequence[_Row], end_ids: frozenset[int]) -> None:
        self.rows = rows
        self.end_ids = end_ids
        self.ids: list[list[int]] = [[] for _ in rows]
        self.logprobs: list[list[float]] = [[] for _ in rows]
        self.present = list(range(len(rows)))  # cache row -> row
        self.open = set(self.present)
        self._keys: NDArray[np.uint64] = np.array([row.key for row in rows], dtype=np.uint64)
        self._said = 0

    def uniforms(self) -> NDArray[np.float64]:
        """This token's draw of every row that is present."""
        return uniforms(self._keys[self.present], self._said)

    def say(self, tokens: list[int], logprobs: list[float]) -> None:
        self._said += 1
        for row, token, logprob in zip(self.present, tokens, logprobs, strict=True):
            if row in self.open:
                self.ids[row].append(token)
                self.logprobs[row].append(logprob)
                if token in self.end_ids or len(self.ids[row]) >= self.rows[row].room:
                    self.open.discard(row)

    def shrink(self) -> list[int]:
        """The cache rows to keep; the others are forgotten."""
        stay = [i for i, row in enumerate(self.present) if row in self.open]
        self.present = [self.present[i] for i in stay]
        return stay

    def responses(self) -> list[Response]:
        return [
            Response(tuple(ids), tuple(logprobs), finished=ids[-1] in self.end_ids)
            for ids, logprobs in zip(self.ids, self.logprobs, strict=True)
        ]


class _RoomyLayer(DynamicLayer):
    """Keys and values in a store with room for the whole response: a new token is a write, not a copy of the cache."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, room: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        _, heads, self.length, width = keys.shape
        shape = (len(rows), heads, self.length + room)
        self.store = (keys.new_empty(*shape, width), values.new_empty(*shape, values.shape[-1]))
        self.store[0][:, :, : self.length] = keys.index_select(0, rows)
        self.store[1][:, :, : self.length] = values.index_select(0, rows)
        self._look()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[-2]
        self.store[0][:, :, start : self.length] = key_states
        self.store[1][:, :, start : self.length] = value_states
        return self._look()

    def batch_select_indices(self, indices: Tensor) -> None:
        self.store = (self.store[0].index_select(0, indices), self.store[1].index_select(0, indices))
        self._look()

    def _look(self) -> tuple[Tensor, Tensor]:
        self.keys, self.values = (half[:, :, : self.length] for half in self.store)
        return self.keys, self.values


def _forked(cache: DynamicCache, rows: Tensor, room: int) -> DynamicCache:
    """The cache with one row per response, copied from its prompt's."""
    for i, layer in enumerate(cache.layers):
        if not isinstance(layer, DynamicLayer):
            raise ConfigError(
                f"policy.model caches in {type(layer).__name__}, which cannot be shared among candidates: use a model "
                "whose layers all attend"
            )
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            cache.layers[i] = _RoomyLayer(layer.keys, layer.values, rows, room)
        else:  # a sliding window keeps transformers' own class
            layer.batch_select_indices(rows)
    return cache


def _draw(logits: Tensor, draws: NDArray[np.float64], temperature: float) -> tuple[Tensor, Tensor]:
    """Tokens by inverse CDF, and their log-probabilities: logits [R, V], draws [R] -> [R], [R]."""
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature == 0:
        tokens = logprobs.argmax(dim=-1)
    else:
        steps = logprobs.double().exp().cumsum(dim=-1)
        heights = torch.from_numpy(draws).to(logits.device)[:, None] * steps[:, -1:]
        tokens = torch.searchsorted(steps, heights, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def _positions(attention: Tensor) -> Tensor:
    """[R, L]: each token's place in its own row, padding apart."""
    return (attention.cumsum(dim=1) - 1).clamp(min=0)


def _chunks(rows: list[_Row], size: int) -> Iterator[list[_Row]]:
    """Rows of like length together, so that padding is small."""
    ordered = sorted(rows, key=lambda row: len(row.ids))
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


@contextmanager
def _playing(model: nn.Module) -> Iterator[None]:
    """Without gradients, and in evaluation mode: in training mode gradient checkpointing would switch the cache off."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in was_training.items():
            module.training = training
