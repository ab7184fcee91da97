"""llama.cpp behind the engine's contract, on the same weights in its own format; in an environment of its own.

`pip install torch==2.13.0 transformers gymnasium gguf cyllama==0.2.18`, whose wheel has llama.cpp b9190. Generation
alone: it returns no log-probabilities, which would cost it time. Sequences share the keys and values of equal prompts
in a wave and of what the wave before said.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cyllama.llama.llama_cpp import LlamaBatch, LlamaContext, LlamaContextParams, LlamaModel, LlamaSampler
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants

from benchmarks.performance.line import Line
from benchmarks.performance.rivals.generate import load_plain
from benchmarks.performance.rollouts import Seat, roll_out
from benchmarks.performance.workload import Workload
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response

SEQUENCES = 256  # of a context, llama.cpp's most
TYPES = {"float32": GGMLQuantizationType.F32, "bfloat16": GGMLQuantizationType.BF16}


class Held(NamedTuple):
    """Tokens whose keys and values llama.cpp holds."""

    number: int
    ids: tuple[int, ...]


class Token(NamedTuple):
    """One token of a batch."""

    id: int
    position: int
    sequence: int
    is_sampled_after: bool


class LlamaCppEngine(Engine):
    """Serves a wave in one batch of prompts, and then a batch for every token of the responses.

    Args:
        file: the model.
        work: the sizes that it has to hold.
    """

    def __init__(self, file: Path, work: Workload) -> None:
        self.costs, self._held = Costs(), list[Held]()
        params = LlamaContextParams()
        params.n_ctx = params.n_batch = 2 * work.rows * work.longest
        params.n_seq_max, params.kv_unified = SEQUENCES, True
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        self._context = LlamaContext(LlamaModel(str(file)), params)
        self._batch = LlamaBatch(n_tokens=params.n_batch, embd=0, n_seq_max=1)
        self._sampler = LlamaSampler()
        self._sampler.add_dist(0)

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        assert temperature == 1, "llama.cpp's sampler here has the temperature 1"
        free = self._free_numbers()
        distinct = {prompt.ids: next(free) for prompt in prompts}
        batch, ends = list[Token](), dict[tuple[int, ...], int]()
        for ids, number in distinct.items():
            known = self._take_over(ids, number)
            batch += [Token(ids[i], i, number, i == len(ids) - 1) for i in range(known, len(ids))]
            ends[ids] = len(batch) - 1
        self._decode(batch)
        rows = [(prompt, next(free), list[int]()) for prompt in prompts for _ in prompt.seeds]
        for prompt, number, said in rows:
            self._context.memory_seq_cp(distinct[prompt.ids], number, -1, -1)
            said.append(self._sampled(ends[prompt.ids]))
        computed = len(batch)
        for step in range(1, max(prompt.max_new_tokens for prompt in prompts)):
            active = [row for row in rows if row[0].max_new_tokens > step]
            self._decode([Token(said[-1], len(p.ids) + step - 1, number, True) for p, number, said in active])
            computed += len(active)
            for i, (_, _, said) in enumerate(active):
                said.append(self._sampled(i))
        self._forget([*self._held, *(Held(number, ()) for number in distinct.values())])
        self._held = [Held(number, (*prompt.ids, *said[:-1])) for prompt, number, said in rows]
        self.costs += Costs(
            tokens_computed=computed,
            tokens_prefilled=len(batch),
            prompt_tokens=sum(len(prompt.ids) * len(prompt.seeds) for prompt in prompts),
            tokens_generated=sum(len(said) for *_, said in rows),
        )
        responses = iter(Response(tuple(said), (0.0,) * len(said), finished=False) for *_, said in rows)
        return [[next(responses) for _ in prompt.seeds] for prompt in prompts]

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        raise NotImplementedError("llama.cpp has no critic")

    def take_costs(self) -> Costs:
        costs, self.costs = self.costs, Costs()
        return costs

    def renew(self) -> None:
        """Drops all keys and values."""
        self._context.kv_cache_clear()
        self._held = []

    def _free_numbers(self) -> Iterator[int]:
        taken = {held.number for held in self._held}
        return iter([number for number in range(SEQUENCES) if number not in taken])

    def _take_over(self, ids: tuple[int, ...], number: int) -> int:
        """Shares the longest beginning that is held; returns its length, which leaves one token to be computed."""

        def shared(held: Held) -> int:
            pairs = zip(held.ids, ids[:-1], strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        best = max(self._held, key=shared, default=None)
        if best is None:
            return 0
        self._context.memory_seq_cp(best.number, number, 0, shared(best))
        return shared(best)

    def _forget(self, sequences: Sequence[Held]) -> None:
        for each in sequences:
            self._context.memory_seq_rm(each.number, -1, -1)

    def _decode(self, tokens: Sequence[Token]) -> None:
        self._batch.clear()
        for token in tokens:
            self._batch.add(token.id, token.position, [token.sequence], token.is_sampled_after)
        self._context.decode(self._batch)

    def _sampled(self, place: int) -> int:
        return int(self._sampler.sample(self._context, place))


def write_gguf(folder: Path, file: Path, dtype: str) -> None:
    """The Qwen2 model of a folder in llama.cpp's format, without a vocabulary."""
    model = load_plain(folder, "float32")
    config: Any = model.config
    writer = GGUFWriter(file, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = get_tensor_name_map(MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        kind = TYPES[dtype] if weight.dim() > 1 else GGMLQuantizationType.F32
        theirs = names.get_name(name, (".weight", ".bias"))
        assert theirs is not None, name
        writer.add_tensor(theirs, quants.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sit_down(work: Workload, folder: Path) -> Seat:
    file = folder / f"{work.dtype}.gguf"
    write_gguf(folder, file, work.dtype)
    engine = LlamaCppEngine(file, work)
    return Seat(engine, f"{work.dtype} weights, keys in float16, one memory for all sequences", engine.renew)


def take_part(line: Line, work: Workload, folder: Path) -> None:
    roll_out(line, work, folder, sit_down)
