"""transformers' continuous batching behind the engine's contract: paged keys and values, prefixes shared by blocks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.performance.line import Line
from benchmarks.performance.rivals.generate import in_calls, load_plain
from benchmarks.performance.rollouts import Seat, roll_out
from benchmarks.performance.workload import Workload, tokenizer_of
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response

PAGE = 32  # tokens, as vLLM's blocks here, so that most of a prefix is shared
BATCHED_TOKENS = 2048  # of one step


class ContinuousEngine(Engine):
    """Serves a wave in one call for every number of siblings and length of response in it.

    Args:
        model: as transformers loads it; PreTrainedModel declares no `generate_batch`.
        pad_id: what it fills steps with.
        pages: blocks of keys and values.
    """

    def __init__(self, model: Any, pad_id: int, pages: int) -> None:
        self.model, self.pad_id, self.costs = model, pad_id, Costs()
        self._served = (0, 0)  # responses to a prompt and their length, which a manager has for good
        self.paging = ContinuousBatchingConfig(page_size=PAGE, num_blocks=pages, max_batch_tokens=BATCHED_TOKENS)

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        whole = sum(len(prompt.seeds) for prompt in prompts)
        return in_calls(prompts, whole, lambda ids, copies, room: self._call(ids, copies, room, temperature))

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        raise NotImplementedError("transformers' continuous batching has no critic")

    def take_costs(self) -> Costs:
        costs, self.costs = self.costs, Costs()
        return costs

    def renew(self) -> None:
        """Drops the manager, and with it all keys and values."""
        self.model.destroy_cached_continuous_batching_manager()

    def _call(self, prompts: Sequence[tuple[int, ...]], copies: int, room: int, temperature: float) -> list[Response]:
        if (copies, room) != self._served:
            self.renew()
            self._served = copies, room
        out = self.model.generate_batch(
            [list(ids) for ids in prompts],
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                num_return_sequences=copies,
                max_new_tokens=room,
                pad_token_id=self.pad_id,
                eos_token_id=-1,  # none
            ),
            continuous_batching_config=self.paging,
            warmup=False,  # of CUDA's graphs
            persistent_manager=True,
        )
        # It gives the children of a request right after it.
        responses = [Response(tuple(one.generated_tokens), (0.0,) * room, finished=False) for one in out.values()]
        if len(responses) != len(prompts) * copies:
            raise RuntimeError(f"{len(responses)} responses to {len(prompts)} prompts of {copies}")
        prefilled = sum(map(len, prompts))  # at most: it does not tell which blocks it had
        self.costs += Costs(
            tokens_computed=prefilled + len(responses) * (room - 1),
            tokens_prefilled=prefilled,
            prompt_tokens=copies * prefilled,
            tokens_generated=len(responses) * room,
        )
        return responses


def sit_down(work: Workload, folder: Path) -> Seat:
    """Its cache is emptied before every lap, as it has to be when weights change."""
    pad = tokenizer_of(folder).pad_token_id
    assert isinstance(pad, int)
    pages = max(64, work.rows * (work.longest // PAGE + 1))
    engine = ContinuousEngine(load_plain(folder, work.dtype, work.device), pad, pages)
    return Seat(engine, f"pages of {PAGE}, steps of {BATCHED_TOKENS} tokens", engine.renew)


def take_part(line: Line, work: Workload, folder: Path) -> None:
    roll_out(line, work, folder, sit_down)
