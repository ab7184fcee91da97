"""A whole iteration by AgileRL's GRPO, which trains an adapter: Hugging Face generation, and its own `learn`.

`pip install torch==2.11.0 "agilerl[cpu-llm]==2.58.0"` in an environment of its own. Without vLLM its `get_action` calls
`generate` for one prompt after the other; here that is done in whole batches, which is faster.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from agilerl.algorithms import GRPO
from agilerl.algorithms.core import base
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from benchmarks.performance.line import Line
from benchmarks.performance.rivals.generate import GenerateEngine, load_plain, tuned
from benchmarks.performance.rivals.rows import fastest_micro_batch, row_of
from benchmarks.performance.rollouts import WARM_UP
from benchmarks.performance.workload import (
    CLIP_NORM,
    LEARNING_RATE,
    MINIBATCHES,
    Workload,
    peak_mib,
    rolled_out,
    tokenizer_of,
)
from tsr_lightning.policy.spec import LoRA


def take_part(line: Line, work: Workload, folder: Path) -> None:
    """An iteration a lap, after one that makes everything warm."""
    if work.past_turns is not None:
        raise ValueError("AgileRL trains a trajectory as one row, so only the full context is the same work")
    tokenizer = tokenizer_of(folder)
    assert isinstance(tokenizer.pad_token_id, int)
    adapter = LoRA()
    config = LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, target_modules=adapter.target_modules)
    micro = fastest_micro_batch(get_peft_model(load_plain(folder, work.dtype, work.device), config), work)
    model = load_plain(folder, work.dtype, work.device)  # it puts adapters of its own on a base model
    agent = _agent(work, model, config, micro, tokenizer.pad_token_id, str(tokenizer.pad_token))
    engine = GenerateEngine(agent.actor, tokenizer.pad_token_id)
    engine.model.eval()
    tuned(engine, work)

    def iteration(lap: int) -> dict[str, Any]:
        started = time.perf_counter()
        engine.model.eval()
        trajectories, costs = rolled_out(work, engine, tokenizer, lap)
        ended = time.perf_counter()
        rows = [row_of(trajectory) for trajectory in trajectories]
        ids = [torch.tensor([row.prompt + row.completion]) for row in rows]
        # of each token but the first, whether it was sampled
        masks = [torch.tensor([[0] * (len(row.prompt) - 1) + row.mask]).bool() for row in rows]
        agent.learn((ids, masks, torch.tensor([trajectory.episode_return for trajectory in trajectories])))
        updated = time.perf_counter()
        return {
            "seconds": updated - started,
            "seconds_rollout": ended - started,
            "seconds_update": updated - ended,
            "peak_mib": peak_mib(work.device),
            "costs": asdict(costs),
        }

    iteration(WARM_UP)
    line.ready(f"{engine.rows} rows a call of generate, micro-batches of {micro}, {MINIBATCHES} optimizer steps")
    for lap in line:
        line.answer(iteration(lap))


def _agent(work: Workload, model: PreTrainedModel, config: LoraConfig, micro: int, pad_id: int, pad: str) -> GRPO:
    """Settings that are fast on a CPU: no gradient checkpointing and no reference; old log-probabilities before the
    first step are those of the training pass."""
    if work.device == "cpu":
        base.HAS_LIGER_KERNEL = False  # its kernels replace a model's layers wherever it is installed, and want a GPU
    return GRPO(
        pad_token_id=pad_id,
        pad_token=pad,
        actor_network=model,
        lora_config=config,
        batch_size=work.groups,
        group_size=work.members,
        mini_batch_size=work.trajectories // MINIBATCHES,
        micro_batch_size_per_gpu=micro,
        beta=0.0,
        lr=LEARNING_RATE,
        clip_coef=0.2,
        max_grad_norm=CLIP_NORM,
        temperature=1.0,
        max_output_tokens=work.response_tokens,
        max_model_len=work.longest,
        gradient_checkpointing=False,
        use_liger_loss=False,
        use_separate_reference_adapter=False,
        adv_norm="mean_std",
        off_policy_token_mask_bounds=None,
        off_policy_sequence_mask_threshold=None,
        old_logprobs_source="trainer",
        device=work.device,
        seed=0,
    )
