"""A whole iteration by TRL's GRPOTrainer: a rollout function of its own, Hugging Face generation, the same updates.

`pip install torch==2.13.0 trl gymnasium` in an environment of its own. The rollout function plays the same environment
turn by turn, as TRL's documentation shows, in whole batches instead of one prompt after the other, which is faster.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from benchmarks.performance.line import Line
from benchmarks.performance.rivals.generate import GenerateEngine, load_plain, tuned
from benchmarks.performance.rivals.rows import fastest_micro_batch, row_of
from benchmarks.performance.workload import (
    CLIP_NORM,
    LEARNING_RATE,
    MINIBATCHES,
    Workload,
    peak_mib,
    tokenizer_of,
)
from benchmarks.performance.world import Pages
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Sampling
from tsr_lightning.policy.chat import Chat
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.simulator import TokenLimits

PROMPTS = 10_000  # more than will be asked for


@dataclass
class Rollouts:
    """TRL's `rollout_func`.

    Args:
        work: what is played.
        engine: generates.
        chat: builds prompts.
    """

    work: Workload
    engine: GenerateEngine
    chat: Chat

    def __post_init__(self) -> None:
        self.costs = Costs()
        self.seconds = 0.0

    def __call__(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, list[Any] | None]:
        started = time.perf_counter()
        env = Pages(self.work.words, self.work.turns)
        sampling = Sampling(1.0, self.work.response_tokens)
        driver = Driver([env], self.chat, self.engine, sampling, TokenLimits(self.work.longest), self.work.trajectories)
        key = Key(trainer.state.global_step)
        tasks = [
            SearchTask(int(prompt), member, self.work.strategy, key.fold_in(prompt, member))
            for member, prompt in enumerate(prompts)
        ]
        trainer.model.eval()
        played = driver.run(tasks)
        trainer.model.train()
        self.costs = driver.costs
        rows = [row_of(trajectory) for trajectory in played]
        self.seconds = time.perf_counter() - started
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.completion for row in rows],
            "env_mask": [row.mask for row in rows],
            "logprobs": None,
            "total": [trajectory.episode_return for trajectory in played],
        }


class Laps(TrainerCallback):
    """Plays an iteration when it is asked for one. The first makes everything warm and is not counted."""

    def __init__(self, line: Line, rollouts: Rollouts, steps: int, settings: str) -> None:
        self._line = line
        self._laps: Iterator[int] = iter(line)
        self._rollouts = rollouts
        self._steps = steps
        self._settings = settings
        self._started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if state.global_step % self._steps:
            return
        seconds = time.perf_counter() - self._started
        if state.global_step == self._steps:
            self._line.ready(self._settings)
        else:
            self._line.answer(
                {
                    "seconds": seconds,
                    "seconds_rollout": self._rollouts.seconds,
                    "seconds_update": seconds - self._rollouts.seconds,
                    "optimizer_steps": state.global_step,
                    "peak_mib": peak_mib(self._rollouts.work.device),
                    "costs": asdict(self._rollouts.costs),
                }
            )
        if next(self._laps, None) is None:
            control.should_training_stop = True
        self._started = time.perf_counter()


def take_part(line: Line, work: Workload, folder: Path) -> None:
    if work.past_turns is not None:
        raise ValueError("TRL trains a trajectory as one row, so only the full context is the same work")
    tokenizer = tokenizer_of(folder)
    model = load_plain(folder, work.dtype, work.device)
    assert isinstance(tokenizer.pad_token_id, int)
    engine = GenerateEngine(model, tokenizer.pad_token_id)
    tuned(engine, work)
    micro = fastest_micro_batch(model, work)
    minibatch = work.trajectories // MINIBATCHES
    settings = f"{engine.rows} rows a call of generate, micro-batches of {micro}, {MINIBATCHES} optimizer steps"
    rollouts = Rollouts(work, engine, Chat(tokenizer, work.context))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=_returns,
            args=_config(work, micro, minibatch // micro, scratch),
            train_dataset=Dataset.from_dict({"prompt": [str(seed) for seed in range(PROMPTS)]}),
            processing_class=tokenizer,
            rollout_func=rollouts,
            callbacks=[Laps(line, rollouts, MINIBATCHES, settings)],
        )
        trainer.train()


def _config(work: Workload, micro: int, accumulated: int, scratch: str) -> GRPOConfig:
    """What suits a CPU: no checkpointing of activations, no mixed precision, nothing written or logged."""
    return GRPOConfig(
        output_dir=scratch,
        use_cpu=work.device == "cpu",
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=accumulated * MINIBATCHES,
        num_generations=work.members,
        num_iterations=1,
        max_completion_length=work.longest,
        max_steps=PROMPTS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP_NORM,
        beta=0.0,
        epsilon=0.2,
        loss_type="grpo",
        temperature=1.0,
        shuffle_dataset=False,
        disable_tqdm=True,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        seed=0,
    )


def _returns(prompts: Sequence[Any], completions: Sequence[Any], total: Sequence[float], **others: Any) -> list[float]:
    return list(total)
