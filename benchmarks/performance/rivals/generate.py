"""Hugging Face `generate` behind the engine's contract, as a user would write it: repeated prompts, left padding.

It returns no log-probabilities, which would cost it time, and it keeps nothing between turns, which it cannot.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from benchmarks.performance.line import Line
from benchmarks.performance.rollouts import Seat, roll_out
from benchmarks.performance.workload import DTYPES, Workload, tokenizer_of
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.policy.spec import DtypeName

BATCHES = (16, 32, 64, 128, 256, 512)  # rows of one call, of which the fastest is taken


@dataclass
class GenerateEngine(Engine):
    """One call of `generate` after the other.

    Args:
        model: as transformers loads it.
        pad_id: what fills short prompts on the left.
        rows: responses per call.
    """

    model: Any  # PreTrainedModel declares no `generate`
    pad_id: int
    rows: int = 64

    def __post_init__(self) -> None:
        self.costs = Costs()

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        return in_calls(prompts, self.rows, lambda ids, copies, room: self._call(ids, copies, room, temperature))

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        raise NotImplementedError("generate has no critic")

    def take_costs(self) -> Costs:
        costs, self.costs = self.costs, Costs()
        return costs

    @torch.inference_mode()
    def _call(self, prompts: Sequence[tuple[int, ...]], copies: int, room: int, temperature: float) -> list[Response]:
        ids, attention = self._padded(prompts)
        out = self.model.generate(
            input_ids=ids,
            attention_mask=attention,
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                num_return_sequences=copies,
                max_new_tokens=room,
                pad_token_id=self.pad_id,
                eos_token_id=None,
            ),
        )
        rows = [tuple(row) for row in out[:, ids.shape[1] :].tolist()]
        real = sum(map(len, prompts))
        self.costs += Costs(
            tokens_computed=copies * real + len(rows) * (room - 1),
            tokens_prefilled=copies * real,
            tokens_padding=copies * (ids.numel() - real),
            prompt_tokens=copies * real,
            tokens_generated=len(rows) * room,
        )
        return [Response(row, (0.0,) * len(row), finished=False) for row in rows]

    def _padded(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[self.pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        attention = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        return ids.to(self.model.device), attention.to(self.model.device)


def in_calls(
    prompts: Sequence[Prompt], rows: int, call: Callable[[list[tuple[int, ...]], int, int], list[Response]]
) -> list[list[Response]]:
    """Returns the responses to each prompt; prompts of one call have like lengths and want equal responses.

    Args:
        prompts: of a wave.
        rows: most responses of a call.
        call: of prompts, responses to each and the length of these; returns the responses in the order of the prompts.
    """
    families: list[list[Response]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: (_kind(prompts[i]), len(prompts[i].ids)))
    for (copies, room), same in groupby(order, key=lambda i: _kind(prompts[i])):
        for chosen in _batches(list(same), max(1, rows // copies)):
            said = call([prompts[i].ids for i in chosen], copies, room)
            for place, i in enumerate(chosen):
                families[i] = said[place * copies : (place + 1) * copies]
    return families


def load_plain(folder: Path, dtype: DtypeName, device: str = "cpu") -> PreTrainedModel:
    """The model as transformers runs it, with its own attention."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation="sdpa"
    )
    return nn.Module.to(model, device).eval()  # transformers' own `to` has no types


def tuned(engine: GenerateEngine, work: Workload) -> dict[int, float]:
    """Sets the fastest batch size on prompts of middle length; seconds per row of each that was tried."""
    middle = work.longest // 2
    tried: dict[int, float] = {}
    for rows in [size for size in BATCHES if size <= work.rows] or [work.rows]:
        count = max(1, rows // work.candidates)
        prompts = [
            Prompt((i % 100,) * middle, tuple(range(work.candidates)), work.response_tokens) for i in range(count)
        ]
        engine.rows = rows
        engine.generate(prompts[:1], 1.0)
        started = time.perf_counter()
        engine.generate(prompts, 1.0)
        tried[rows] = (time.perf_counter() - started) / (count * work.candidates)
    engine.rows = min(tried, key=lambda rows: tried[rows])
    engine.take_costs()
    return tried


def sit_down(work: Workload, folder: Path) -> Seat:
    """Tuned. It keeps nothing, so there is nothing to renew."""
    pad = tokenizer_of(folder).pad_token_id
    assert isinstance(pad, int)
    engine = GenerateEngine(load_plain(folder, work.dtype, work.device), pad)
    tried = tuned(engine, work)
    listed = ", ".join(f"{rows}: {1000 * seconds:.1f}" for rows, seconds in tried.items())
    return Seat(engine, f"{engine.rows} rows a call (tried, ms a row: {listed})", lambda: None)


def take_part(line: Line, work: Workload, folder: Path) -> None:
    roll_out(line, work, folder, sit_down)


def _kind(prompt: Prompt) -> tuple[int, int]:
    return len(prompt.seeds), prompt.max_new_tokens


def _batches(indices: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
