"""The default engine: the Hugging Face model itself, in this process. Knows token ids, and no text.

No prefix is computed twice while the weights stay as they are: prompts and responses lie in one trie, and what goes
through the model is a token that leads to a prefix the trie does not have. So the members of a group share their first
prompt, siblings share their parent's, a turn adds the tokens of its observation to the turn before, and responses that
begin alike are one until they part. Packed rows leave no padding to compute.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.transformers.backends import DecodeAttention
from tsr_lightning.engines.transformers.cache import PrefixCache
from tsr_lightning.engines.transformers.kv_store import KVShape
from tsr_lightning.engines.transformers.sampling import draw
from tsr_lightning.engines.transformers.sequences import (
    PendingToken,
    SequenceData,
    SequenceGroup,
    SequenceState,
    columns_of,
    unpacked,
)
from tsr_lightning.engines.transformers.trie import Place, Trie
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.attention import OutputPositions, PackedAttention, ScoreParams, Segment, dot_product
from tsr_lightning.rng import uniforms

_PASS = 4096  # tokens of prompts in one forward pass: enough to fill two cores, few enough for activations to stay warm
_LOGITS = 2**24  # drawn from at once: 128 MiB in float64
_SHRINK_AT = 0.75  # finished families leave a wave's steps once no more than this share of them still talks


class Model(Protocol):
    """What the engine asks of a policy."""

    @property
    def device(self) -> torch.device: ...

    @property
    def layers(self) -> int:
        """How many attend."""
        ...

    def version(self) -> object:
        """Equal as long as the weights are."""
        ...

    def precision(self) -> object:
        """Equal as long as the weights are used in the same one."""
        ...

    def playing(self) -> AbstractContextManager[None]:
        """Within, there are no gradients and no training mode."""
        ...

    def read(
        self, ids: Tensor, positions: Tensor, reader: PackedAttention, reads: OutputPositions
    ) -> tuple[Tensor, Tensor]:
        """A pass over packed ids [T] at positions [T] in their rows: the last hidden states that are read [N, H], and
        for all tokens what `finish` makes theirs from [T, H]."""
        ...

    def advance(self, ids: Tensor, positions: Tensor, reader: PackedAttention) -> Tensor:
        """The same, read after every token: the last hidden states [T, H]."""
        ...

    def finish(self, entering: Tensor, positions: Tensor, reader: PackedAttention) -> Tensor:
        """[N, H] at positions [N] -> the last hidden states [N, H]; the reader is given no keys."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, V]."""
        ...

    def values(self, hidden: Tensor) -> Tensor:
        """The critic's: [N, H] -> [N]."""
        ...


class TransformersEngine:
    """Draws responses from a causal language model.

    Args:
        model: the policy.
        end_ids: tokens that end a response.
        longest: the most tokens that a prompt and its response have together.
        kv_cache_mib: memory for keys, values and hidden states, in MiB; what does not fit is computed again, with the
            same results.
        max_num_seqs: the most responses drawn side by side; a larger wave is cut, which changes no draw.
    """

    def __init__(
        self, model: Model, end_ids: frozenset[int], longest: int, kv_cache_mib: int = 4096, max_num_seqs: int = 512
    ) -> None:
        self.model = model
        self.end_ids = end_ids
        self.longest = longest
        self.kv_cache_mib = kv_cache_mib
        self.max_num_seqs = max_num_seqs
        self._costs = Costs()
        self._version: object = None
        self._memory: PrefixCache | None = None

    def take_costs(self) -> Costs:
        costs, self._costs = self._costs, Costs()
        return costs

    def open(self) -> None:
        """Allocates the memory, which takes a pass over two tokens. `generate` does it where it was not done."""
        with self._at_work():
            pass

    def sync(self) -> None:
        """Nothing to do: the weights are read in place."""

    def release(self) -> None:
        """Gives memory back that another phase can use. A CPU keeps it: touching it anew would cost more."""
        if self.model.device.type != "cpu":
            self._memory = None

    def close(self) -> None:
        self._memory = None

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        families: dict[tuple[int, ...], SequenceGroup] = {}
        rows = [[SequenceData(key, prompt.max_new_tokens) for key in prompt.keys] for prompt in prompts]
        for prompt, own in zip(prompts, rows, strict=True):
            families.setdefault(prompt.ids, SequenceGroup(prompt.ids)).rows.extend(own)
        with self._at_work() as memory:
            for chunk in self._chunks(list(families.values()), memory):
                self._respond(chunk, memory, temperature)
        asked = sum(len(prompt.ids) * len(prompt.keys) for prompt in prompts)
        said = sum(len(row.ids) for own in rows for row in own)
        self._costs += Costs(prompt_tokens_asked=asked, tokens_generated=said)
        return [[row.response(self.end_ids) for row in own] for own in rows]

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        distinct = [SequenceGroup(ids) for ids in dict.fromkeys(prompts)]
        values: dict[tuple[int, ...], float] = {}
        with self._at_work() as memory:
            for chunk in self._chunks(distinct, memory):
                self._prefill(chunk, memory)
                found = self.model.values(self._hidden([family.end for family in chunk], memory)).tolist()
                values.update(zip((family.ids for family in chunk), found, strict=True))
        self._costs += Costs(prompt_tokens_asked=sum(map(len, prompts)))
        return [values[ids] for ids in prompts]

    # -- memory -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _at_work(self) -> Iterator[PrefixCache]:
        """The memory, emptied if the weights have changed."""
        with self.model.playing():
            precision, version = self.model.precision(), self.model.version()
            if self._memory is None or self._memory.precision != precision:
                self._memory = PrefixCache(*self._seen(), precision, self.kv_cache_mib, self.longest, self.model.device)
            elif version != self._version:
                self._memory.trie.clear()
            self._version = version
            try:
                yield self._memory
            except BaseException:  # what was to be computed has slots already
                self._version = None
                raise

    def _seen(self) -> tuple[KVShape, int]:
        """What the model keeps of a token, and its vocabulary, seen in a pass over two tokens."""
        probe = _Probe()
        ids = torch.arange(2, device=self.model.device)
        hidden = self.model.advance(ids, ids, probe)
        if len(probe.seen) != self.model.layers or len(set(probe.seen)) != 1:
            raise ConfigError(
                f"model.policy.model attends in {len(probe.seen)} of {self.model.layers} layers, in "
                f"{len(set(probe.seen))} shapes: use a model whose layers all attend, and alike"
            )
        heads, key_width, value_width, dtype = probe.seen[0]
        shape = KVShape(self.model.layers, heads, key_width, value_width, hidden.shape[-1], dtype, hidden.dtype)
        return shape, self.model.logits(hidden).shape[-1]

    def _chunks(self, families: Sequence[SequenceGroup], memory: PrefixCache) -> Iterator[list[SequenceGroup]]:
        """Families of like length together, as many as memory and `max_num_seqs` allow; a large family is cut."""
        chunk: list[SequenceGroup] = []
        longest = columns = tokens = rows = 0
        for family in self._cut(sorted(families, key=lambda family: len(family.ids)), memory):
            longer, wider = max(longest, len(family.ids)), max(columns, family.room)
            extended = memory.readers.fits(len(chunk) + 1, longer + wider)
            whole = tokens + len(family.ids) + family.room
            many = rows + len(family.rows)
            if chunk and (not extended or whole > memory.trie.capacity or many > self.max_num_seqs):
                yield chunk
                chunk, longer, wider = [], len(family.ids), family.room
                whole, many = len(family.ids) + family.room, len(family.rows)
            chunk.append(family)
            longest, columns, tokens, rows = longer, wider, whole, many
        if chunk:
            yield chunk

    def _cut(self, families: Sequence[SequenceGroup], memory: PrefixCache) -> Iterator[SequenceGroup]:
        """Families in parts, each of which fits alone."""
        for family in families:
            part = SequenceGroup(family.ids)
            for row in family.rows:
                needed = len(part.ids) + part.room + row.room
                fits = needed <= memory.trie.capacity and memory.readers.fits(1, needed)
                if part.rows and (not fits or len(part.rows) == self.max_num_seqs):
                    yield part
                    part = SequenceGroup(family.ids)
                part.rows.append(row)
            yield part

    # -- one chunk --------------------------------------------------------------------------------------------------

    def _prefill(self, chunk: Sequence[SequenceGroup], memory: PrefixCache) -> list[Place]:
        """Computes what the chunk's prompts have that the trie does not."""
        trie = memory.trie
        trie.begin()
        known = [trie.known(family.ids) for family in chunk]
        new = sum(len(family.ids) - len(slots) + family.room for family, slots in zip(chunk, known, strict=True))
        if not trie.reserve(new):
            raise RuntimeError("a chunk of prompts is larger than the trie")  # _chunks sees to that
        places = [trie.place(family.ids, slots) for family, slots in zip(chunk, known, strict=True)]
        pending: list[tuple[SequenceGroup, Place]] = []
        count = 0
        for family, place in zip(chunk, places, strict=True):
            family.end = int(place.slots[-1])
            own = len(place.slots) - place.known
            if pending and count + own > _PASS:
                self._read(pending, memory)
                pending, count = [], 0
            if own:
                pending.append((family, place))
                count += own
        if pending:
            self._read(pending, memory)
        return places

    def _read(self, new: Sequence[tuple[SequenceGroup, Place]], memory: PrefixCache) -> None:
        """One forward pass over the unknown ends of prompts."""
        device = self.model.device
        segments = [Segment(len(place.slots) - place.known, place.slots) for _, place in new]
        ids = [token for family, place in new for token in family.ids[place.known :]]
        positions = np.concatenate([np.arange(place.known, len(place.slots)) for _, place in new])
        slots = np.concatenate([place.slots[place.known :] for _, place in new])
        reader = memory.readers.prefill(memory.store, segments, slots)
        ends = np.cumsum([segment.length for segment in segments]) - 1
        hidden, entering = self.model.read(
            torch.tensor(ids, device=device),
            torch.from_numpy(positions).to(device),
            reader,
            OutputPositions(ends, reader.select_queries(ends)),
        )
        memory.keep(slots, entering, finished=False)
        memory.keep(slots[ends], hidden, finished=True)
        self._costs += Costs(
            tokens_computed=len(ids),
            tokens_prefilled=len(ids),
            scores_needed=int((positions + 1).sum()),
            scores_computed=reader.scored,
        )

    def _hidden(self, slots: Sequence[int], memory: PrefixCache) -> Tensor:
        """Last hidden states [N, H]. Where a token was computed as a part of something longer, its last layer is
        finished now."""
        late = [slot for slot in slots if not memory.finished[slot]]
        if late:
            paths = [memory.trie.path(slot) for slot in late]
            reader = memory.readers.prefill(memory.store, [Segment(1, path) for path in paths], paths[0][:0])
            positions = torch.tensor([len(path) - 1 for path in paths], device=self.model.device)
            memory.keep(np.array(late), self.model.finish(memory.take(late), positions, reader), finished=True)
        return memory.take(slots)

    def _respond(self, chunk: Sequence[SequenceGroup], memory: PrefixCache, temperature: float) -> None:
        """The responses to a chunk of prompts, a token at a time for all that still talk."""
        places = self._prefill(chunk, memory)
        wave = [SequenceState(family, row) for family in chunk for row in family.rows]
        steps: DecodeAttention | None = None
        present = list(chunk)
        for said in range(max(talk.row.room for talk in wave)):
            self._draw(wave, said, memory, temperature)
            wave = [talk for talk in wave if not talk.row.is_over(self.end_ids)]
            fresh = self._step(wave, memory.trie)
            if not wave:
                return
            if steps is None:
                steps = memory.readers.steps(memory.store, [place.slots for place in places], columns_of(chunk))
            living = {id(talk.family) for talk in wave}
            if len(living) <= _SHRINK_AT * len(present):
                stay = [i for i, family in enumerate(present) if id(family) in living]
                steps.keep(stay)
                present = [present[i] for i in stay]
            if fresh:
                self._advance(fresh, present, steps, memory)

    def _draw(self, wave: Sequence[SequenceState], said: int, memory: PrefixCache, temperature: float) -> None:
        """The next token of everyone; what stands at the same prefix shares its distribution."""
        size = max(1, _LOGITS // memory.vocabulary)
        for start in range(0, len(wave), size):
            part = wave[start : start + size]
            distinct = {slot: i for i, slot in enumerate(dict.fromkeys(talk.slot for talk in part))}
            hidden = self._hidden(list(distinct), memory)
            draws = uniforms(np.array([talk.row.key for talk in part], dtype=np.uint64), said)
            owners = np.array([distinct[talk.slot] for talk in part])
            tokens, logprobs = draw(self.model.logits(hidden), owners, draws, temperature)
            for talk, token, logprob in zip(part, tokens, logprobs, strict=True):
                talk.row.ids.append(token)
                talk.row.logprobs.append(logprob)

    def _step(self, wave: Sequence[SequenceState], trie: Trie) -> list[PendingToken]:
        """Moves everyone to the prefix that ends in what was said; the prefixes among them that are to be computed."""
        fresh: list[PendingToken] = []
        for talk in wave:
            token = talk.row.ids[-1]
            slot = trie.find(talk.slot, token)
            if slot is None:
                slot = trie.add(talk.slot, token, len(talk.family.ids) + len(talk.row.ids) - 1)
                fresh.append(PendingToken(talk.family, token, slot))
            else:
                trie.touch(slot)
            talk.slot = slot
        return fresh

    def _advance(
        self,
        fresh: Sequence[PendingToken],
        present: Sequence[SequenceGroup],
        steps: DecodeAttention,
        memory: PrefixCache,
    ) -> None:
        """One forward pass over the new tokens of responses."""
        number = {id(family): i for i, family in enumerate(present)}
        brought: list[tuple[int, int, int]] = []
        for one in fresh:
            for slot in one.family.missing(memory.trie.parent(one.slot), memory.trie):
                brought.append((number[id(one.family)], one.family.see(slot, memory.trie), slot))
        if brought:
            steps.copy(*zip(*brought, strict=True))
        families = [number[id(one.family)] for one in fresh]
        columns = [one.family.see(one.slot, memory.trie) for one in fresh]
        slots = [one.slot for one in fresh]
        seen = unpacked([one.family.seen[one.slot] for one in fresh])
        steps.expect(families, columns, seen, slots)
        positions = steps.positions
        hidden = self.model.advance(
            torch.tensor([one.token for one in fresh], device=self.model.device), positions, steps
        )
        memory.keep(np.array(slots), hidden, finished=True)
        self._costs += Costs(
            tokens_computed=len(fresh),
            scores_needed=int(positions.sum()) + len(fresh),
            scores_computed=steps.scored,
        )


class _Probe:
    """Sees what the layers keep of a token."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, torch.dtype]] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: ScoreParams) -> Tensor:
        self.seen.append((key.shape[0], key.shape[2], value.shape[2], value.dtype))
        return dot_product(query[None], key[None], value[None], None, scores, causal=True)[0].transpose(0, 1)
