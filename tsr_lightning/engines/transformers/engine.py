"""The default engine: the Hugging Face model itself, in this process. Knows token ids, and no text.

As long as the weights stay the same, no prefix is computed twice. Prompts and responses are in one trie, and only
tokens that lead to a prefix which is not there go through the model. So a group's trajectories share their first
prompt, siblings share their parent's, a turn adds the tokens of its observation to the turn before, and responses that
begin alike are one until they part. Packed passes compute no padding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.local_model import Model, autocast_dtype, inference_mode, weights_version
from tsr_lightning.engines.transformers.cache import STATE_CACHE_MIB, Decode, PrefixCache
from tsr_lightning.engines.transformers.sampling import removed_parts, sample
from tsr_lightning.engines.transformers.sequence_groups import SequenceData, SequenceGroup, SequenceState, unpack_bits
from tsr_lightning.engines.transformers.state_store import DecodeStates, PrefillStates
from tsr_lightning.engines.transformers.trie import CachedSequence
from tsr_lightning.modeling import packed_forward
from tsr_lightning.modeling.attention import OutputPositions
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.rng import uniforms

PREFILL_TOKENS = 4096  # of one forward pass: enough to fill two cores, few enough for activations to stay in caches
SAMPLED_LOGITS = 2**24  # at once: 64 MiB in float32
KEPT_BYTES = 2**30  # of a CPU's cache: a larger one is half of what the updates of a pretrained model need
_SHRINK_AT = 0.75  # finished groups leave the decode buffer once at most this part of its groups is unfinished


class TransformersEngine:
    """Samples responses from a causal language model. Arguments as of `EngineSpec.build` and `spec.Transformers`."""

    def __init__(
        self,
        model: Model,
        end_ids: frozenset[int],
        context_tokens: int,
        kv_cache_mib: int,
        max_num_seqs: int,
        state_cache_mib: int = STATE_CACHE_MIB,
    ) -> None:
        self.model = model
        self.end_ids = end_ids
        self.context_tokens = context_tokens
        self.kv_cache_mib = kv_cache_mib
        self.max_num_seqs = max_num_seqs
        self.state_cache_mib = state_cache_mib
        self._costs = Costs()
        self._version: object = None
        self._cache: PrefixCache | None = None
        device = model.causal_lm.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # kept when the cache is freed

    def take_costs(self) -> Costs:
        costs, self._costs = self._costs, Costs()
        return costs

    def sync(self) -> None:
        """Nothing to do: the weights are read in place, and a change of them empties the cache."""

    def release(self) -> None:
        """Frees the cache. A CPU keeps a small one: touching new memory would cost more."""
        if self._cache is not None and (self._cache.device.type != "cpu" or self._cache.used_bytes > KEPT_BYTES):
            device, self._cache = self._cache.device, None
            if device.type == "cuda":
                torch.cuda.empty_cache()  # memory of CUDA graphs serves nothing else until then

    def close(self) -> None:
        self._cache = None

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        groups: dict[tuple[int, ...], SequenceGroup] = {}
        sequences = [
            [SequenceData(seed, prompt.max_new_tokens, prompt.excluded) for seed in prompt.seeds] for prompt in prompts
        ]
        for prompt, own in zip(prompts, sequences, strict=True):
            groups.setdefault(prompt.ids, SequenceGroup(prompt.ids)).sequences.extend(own)
        with self._running() as cache:
            for chunk in self._chunks(list(groups.values()), cache):
                self._respond(chunk, cache, temperature)
        self._costs += Costs(
            prompt_tokens=sum(len(prompt.ids) * len(prompt.seeds) for prompt in prompts),
            tokens_generated=sum(len(data.ids) for own in sequences for data in own),
        )
        return [[data.response(self.end_ids) for data in own] for own in sequences]

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        distinct = [SequenceGroup(ids) for ids in dict.fromkeys(prompts)]
        values: dict[tuple[int, ...], float] = {}
        with self._running() as cache:
            for chunk in self._chunks(distinct, cache):
                self._prefill(chunk, cache)
                hidden = self._final_hidden([group.prompt_slot for group in chunk], cache)
                values.update(zip((group.ids for group in chunk), self.model.values(hidden).tolist(), strict=True))
        self._costs += Costs(prompt_tokens=sum(map(len, prompts)))
        return [values[ids] for ids in prompts]

    # -- memory -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _running(self) -> Iterator[PrefixCache]:
        """The cache, emptied if the weights have changed."""
        with inference_mode(self.model):
            precision, version = autocast_dtype(self.model.causal_lm.device), weights_version(self.model)
            if version != self._version:
                torch.clear_autocast_cache()  # casts of the weights before, where one context spans an update
            if self._cache is None or self._cache.precision != precision:
                self._cache = PrefixCache(
                    self.model, self.kv_cache_mib, self.context_tokens, self._stream, self.state_cache_mib
                )
            elif version != self._version:
                self._cache.clear()
            self._version = version
            try:
                yield self._cache
            except BaseException:  # slots were assigned to tokens that may not have been computed
                self._version = None
                raise

    def _chunks(self, groups: Sequence[SequenceGroup], cache: PrefixCache) -> Iterator[list[SequenceGroup]]:
        """Groups of similar length together, as many as memory and `max_num_seqs` allow; a large group is split."""
        chunk: list[SequenceGroup] = []
        longest = columns = tokens = count = 0
        rows = min(self.max_num_seqs, cache.most_rows)
        for group in self._split(sorted(groups, key=lambda group: len(group.ids)), cache):
            longer, wider = max(longest, len(group.ids)), max(columns, group.max_new_tokens)
            fits = len(chunk) < cache.most_groups and cache.backend.fits(len(chunk) + 1, longer, wider)
            more_tokens = tokens + len(group.ids) + group.max_new_tokens
            more = count + len(group.sequences)
            if chunk and (not fits or more_tokens > cache.trie.capacity or more > rows):
                yield chunk
                chunk, longer, wider = [], len(group.ids), group.max_new_tokens
                more_tokens, more = len(group.ids) + group.max_new_tokens, len(group.sequences)
            chunk.append(group)
            longest, columns, tokens, count = longer, wider, more_tokens, more
        if chunk:
            yield chunk

    def _split(self, groups: Sequence[SequenceGroup], cache: PrefixCache) -> Iterator[SequenceGroup]:
        """Groups in parts, each of which fits alone."""
        rows = min(self.max_num_seqs, cache.most_rows)
        for group in groups:
            part = SequenceGroup(group.ids)
            for data in group.sequences:
                columns = part.max_new_tokens + data.max_new_tokens
                tokens = len(part.ids) + columns
                fits = tokens <= cache.trie.capacity and cache.backend.fits(1, len(part.ids), columns)
                if part.sequences and (not fits or len(part.sequences) == rows):
                    yield part
                    part = SequenceGroup(group.ids)
                part.sequences.append(data)
            yield part

    # -- one chunk --------------------------------------------------------------------------------------------------

    def _prefill(self, chunk: Sequence[SequenceGroup], cache: PrefixCache) -> list[CachedSequence]:
        """Computes the tokens of the chunk's prompts that the trie does not have."""
        trie = cache.trie
        trie.begin()
        matched = [trie.match_prefix(group.ids) for group in chunk]
        new = sum(len(g.ids) - len(slots) + g.max_new_tokens for g, slots in zip(chunk, matched, strict=True))
        cache.reserve(new)
        prompts = [trie.insert(group.ids, slots) for group, slots in zip(chunk, matched, strict=True)]
        pending: list[tuple[SequenceGroup, CachedSequence]] = []
        count = 0
        for group, prompt in zip(chunk, prompts, strict=True):
            group.prompt_slot = int(prompt.slots[-1])
            own = len(prompt.slots) - cache.first_new(prompt)
            if pending and count + own > PREFILL_TOKENS:
                self._prefill_pass(pending, cache)
                pending, count = [], 0
            if own:
                pending.append((group, prompt))
                count += own
        if pending:
            self._prefill_pass(pending, cache)
        return prompts

    def _prefill_pass(self, pending: Sequence[tuple[SequenceGroup, CachedSequence]], cache: PrefixCache) -> None:
        """Runs one forward pass over the ends of prompts that are not cached."""
        if cache.states is not None:  # what a later prompt leaves out begins no earlier than the one that computes it
            pending = sorted(pending, key=lambda each: cache.first_new(each[1]))
        starts = cache.starts([prompt for _, prompt in pending])
        whole = [Segment(len(p.slots) - start, p.slots) for (_, p), start in zip(pending, starts, strict=True)]
        segments = [segment for segment in whole if segment.length]
        if not segments:
            return
        ids = [token for (group, _), start in zip(pending, starts, strict=True) for token in group.ids[start:]]
        positions = np.concatenate([np.arange(segment.start, len(segment.path)) for segment in segments])
        slots = np.concatenate([segment.path[segment.start :] for segment in segments])
        attention = cache.backend.prefill(cache.store, segments, slots)
        states = PrefillStates(cache.states, whole, cache.device) if cache.states is not None else None
        ends = np.cumsum([segment.length for segment in segments]) - 1
        hidden, unfinished = packed_forward.run(
            self.model.causal_lm.base_model,
            torch.tensor(ids, device=cache.device),
            torch.from_numpy(positions).to(cache.device),
            attention,
            OutputPositions(ends, attention.select_queries(ends)),
            states,
        )
        if states is not None:
            states.keep()
        cache.store_hidden(slots, unfinished, finished=False)
        cache.store_hidden(slots[ends], hidden, finished=True)
        self._costs += Costs(
            tokens_computed=len(ids),
            tokens_prefilled=len(ids),
            scores_needed=int((positions + 1).sum()),
            scores_computed=attention.scores_computed,
        )

    def _final_hidden(self, slots: Sequence[int], cache: PrefixCache) -> Tensor:
        """Final hidden states [N, H]; those that prefill left unfinished are completed now."""
        unfinished = [slot for slot in slots if not cache.finished[slot]]
        if unfinished:
            paths = [cache.trie.path(slot) for slot in unfinished]
            attention = cache.backend.prefill(cache.store, [Segment(1, path) for path in paths], paths[0][:0])
            positions = torch.tensor([len(path) - 1 for path in paths], device=cache.device)
            backbone = self.model.causal_lm.base_model
            hidden = packed_forward.finish(backbone, cache.hidden(unfinished), positions, attention)
            cache.store_hidden(np.array(unfinished), hidden, finished=True)
        return cache.hidden(slots)

    def _respond(self, chunk: Sequence[SequenceGroup], cache: PrefixCache, temperature: float) -> None:
        """Samples the responses to a chunk of prompts, one token at a time for all that are unfinished."""
        prompts = self._prefill(chunk, cache)
        states = [SequenceState(group, data, group.prompt_slot) for group in chunk for data in group.sequences]
        attention: Decode | None = None
        recurrence: DecodeStates | None = None
        present = list(chunk)
        for index in range(max(state.data.max_new_tokens for state in states)):
            self._sample(states, index, cache, temperature)
            if recurrence is not None:
                recurrence.keep([state.slot for state in states if state.data.is_over(self.end_ids)])
            states = [state for state in states if not state.data.is_over(self.end_ids)]
            pending = self._advance(states, cache)
            if not states:
                return
            if attention is None:
                # the last token of a response is not computed
                columns = max(group.max_new_tokens - len(group.sequences) for group in chunk)
                attention = cache.backend.decode(cache.store, [prompt.slots for prompt in prompts], columns)
                if cache.states is not None:
                    recurrence = DecodeStates(cache.states, list(dict.fromkeys(group.prompt_slot for group in chunk)))
            unfinished = {id(state.group) for state in states}
            if len(unfinished) <= _SHRINK_AT * len(present):
                stay = [i for i, group in enumerate(present) if id(group) in unfinished]
                attention.keep(stay)
                present = [present[i] for i in stay]
            if pending:
                self._decode_pass(pending, present, attention, recurrence, cache)

    def _sample(self, states: Sequence[SequenceState], index: int, cache: PrefixCache, temperature: float) -> None:
        """Samples each response's token of this index; responses with the same prefix share its distribution."""
        size = max(1, SAMPLED_LOGITS // self.model.causal_lm.config.get_text_config().vocab_size)
        for start in range(0, len(states), size):
            part = states[start : start + size]
            distinct = {slot: i for i, slot in enumerate(dict.fromkeys(state.slot for state in part))}
            hidden = self._final_hidden(list(distinct), cache)
            draws = uniforms(np.array([state.data.seed for state in part], dtype=np.uint64), index)
            rows = np.array([distinct[state.slot] for state in part])
            removed = [removed_parts(state.data.ids, state.data.excluded) for state in part]
            logits = self.model.logits(hidden)
            operators = packed_forward.kernels_of(self.model.causal_lm).operators(logits)
            tokens, logprobs = sample(logits, rows, draws, temperature, operators, removed)
            for state, token, logprob in zip(part, tokens, logprobs, strict=True):
                state.data.ids.append(token)
                state.data.logprobs.append(logprob)

    def _advance(self, states: Sequence[SequenceState], cache: PrefixCache) -> list[SequenceState]:
        """Moves each response to the prefix that ends with its sampled token; returns one for each that is to be
        computed: it is new, or has a state that is not kept."""
        pending: dict[int, SequenceState] = {}
        for state in states:
            token = state.data.ids[-1]
            slot = cache.trie.find(state.slot, token)
            if slot is None:
                slot = cache.trie.add(state.slot, token, len(state.group.ids) + len(state.data.ids) - 1)
                pending[slot] = state
            else:
                cache.trie.touch(slot)
                if cache.states is not None:
                    pending.setdefault(slot, state)
            state.slot = slot
        return list(pending.values())

    def _decode_pass(
        self,
        pending: Sequence[SequenceState],
        present: Sequence[SequenceGroup],
        attention: Decode,
        recurrence: DecodeStates | None,
        cache: PrefixCache,
    ) -> None:
        """Runs one forward pass over newly sampled tokens."""
        number = {id(group): i for i, group in enumerate(present)}
        cached: list[tuple[int, int, int]] = []  # group, column and slot of what was computed before
        for state in pending:
            for slot in state.group.without_column(cache.trie.parent(state.slot), cache.trie):
                cached.append((number[id(state.group)], state.group.add_column(slot, cache.trie), slot))
        if cached:
            attention.copy(*zip(*cached, strict=True))
        groups = [number[id(state.group)] for state in pending]
        columns = [state.group.add_column(state.slot, cache.trie) for state in pending]
        slots = [state.slot for state in pending]
        attention.prepare(groups, columns, unpack_bits([state.group.visible[state.slot] for state in pending]), slots)
        if recurrence is not None:
            recurrence.prepare([cache.trie.parent(slot) for slot in slots], slots)
        ids = [state.data.ids[-1] for state in pending]
        hidden = attention.forward(self.model.causal_lm.base_model, ids, recurrence)
        cache.store_hidden(np.array(slots), hidden, finished=True)
        self._costs += Costs(
            tokens_computed=len(pending),
            scores_needed=attention.scores_needed,
            scores_computed=attention.scores_computed,
        )
