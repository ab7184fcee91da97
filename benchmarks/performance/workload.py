"""What is rolled out: one description for every participant, a model made for it, and the game itself.

Weights are random, because speed does not depend on them, save that the end token is never said: all responses have
the length that was asked for.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from benchmarks.performance.recording import Recorder
from benchmarks.performance.trie import Trie, grown
from benchmarks.performance.world import Pages, texts
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Sampling
from tsr_lightning.engines.transformers.cache import STATE_CACHE_MIB
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.spec import DtypeName, KernelsName
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Sample, Strategy
from tsr_lightning.trajectory import Trajectory, Turn, to_messages

DTYPES: dict[DtypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MINIBATCHES = 2  # optimizer steps of a whole iteration, for all who update
LEARNING_RATE = 1e-5
CLIP_NORM = 1.0
_SPREAD = 0.02  # of fresh weights
_WORDS = 1000  # entries of the vocabulary at most
_BELOW = 30.0  # of the end token's logit
_PROBED = 64  # tokens of the pass that measures what is left of channel 0


@dataclass(frozen=True)
class ModelShape:
    """A Qwen2-style model with tied embeddings; these sizes make 4.9M parameters."""

    hidden: int = 256
    layers: int = 6
    heads: int = 8
    key_heads: int = 8
    intermediate: int = 672
    vocabulary: int = 1000

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer that every token is multiplied with."""
        width = self.hidden // self.heads
        return self.hidden * (2 * self.hidden + 2 * self.key_heads * width + 3 * self.intermediate)

    @property
    def parameters(self) -> int:
        """Matrices alone: biases and norms are left out."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden


LADDER = (
    ModelShape(hidden=128, layers=4, heads=4, key_heads=4, intermediate=352),
    ModelShape(),
    ModelShape(hidden=384, layers=8, heads=6, key_heads=6, intermediate=1024),
    ModelShape(hidden=512, layers=10, heads=8, key_heads=8, intermediate=1408),
    ModelShape(hidden=768, layers=14, heads=12, key_heads=12, intermediate=2048),
)  # 1M to 100M parameters
SMOLLM2 = ModelShape(hidden=576, layers=30, heads=9, key_heads=3, intermediate=1536, vocabulary=49152)


@dataclass(frozen=True)
class Workload:
    """One rollout."""

    shape: ModelShape = ModelShape()
    dtype: DtypeName = "float32"
    width: int = 2  # prefixes that beam search keeps per turn
    candidates: int = 4  # responses proposed per prefix; 1 is plain sampling
    turns: int = 5
    groups: int = 16  # instances
    members: int = 8  # trajectories of an instance
    prompt_tokens: int = 200  # that each turn adds, template included
    response_tokens: int = 32
    past_turns: int | None = None  # that a prompt shows; null for all
    kv_cache_mib: int = 4096  # our engine's memory for prefixes
    state_cache_mib: int = STATE_CACHE_MIB  # and for recurrent states, where the model has any
    wait: float = 0.0  # seconds that a step of the environment waits
    env_workers: int = 0  # environments that step beside generation
    device: str = "cpu"  # or cuda
    kernels: KernelsName = "auto"  # of our engine: model.policy.kernels

    @property
    def strategy(self) -> Strategy:
        return Sample() if self.candidates == 1 else Beam(self.width, self.candidates)

    @property
    def context(self) -> Context:
        if self.past_turns is None:
            return Full()
        return LastK(self.past_turns) if self.past_turns else SingleTurn()

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its response together, with room for the rules."""
        seen = self.turns if self.past_turns is None else min(self.turns, self.past_turns + 1)
        return seen * (self.prompt_tokens + self.response_tokens + 1) + 64

    @property
    def trajectories(self) -> int:
        return self.groups * self.members

    @property
    def rows(self) -> int:
        """The most responses of a wave."""
        return self.trajectories * self.width * self.candidates

    @property
    def words(self) -> int:
        """Of a page, so that a later turn adds `prompt_tokens`."""
        return max(1, self.prompt_tokens - _around())

    @property
    def name(self) -> str:
        search = "sample" if self.candidates == 1 else f"beam {self.width} of {self.candidates}"
        return f"{search}, {self.response_tokens} response tokens, {self.dtype}"

    def sampled(self) -> "Workload":
        """The same without search."""
        return replace(self, width=1, candidates=1)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, given: dict[str, Any]) -> "Workload":
        return cls(**{**given, "shape": ModelShape(**given["shape"])})


@dataclass(frozen=True)
class Figures:
    """What a rollout cost, and what it had to."""

    seconds: float
    trajectories: int
    costs: Costs  # as the engine counts
    floor: Trie  # counted from what was asked and said

    @property
    def seconds_per_trajectory(self) -> float:
        return self.seconds / self.trajectories

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "trajectories": self.trajectories,
            "costs": asdict(self.costs),
            "floor": asdict(self.floor),
        }


def play(work: Workload, engine: Engine, tokenizer: PreTrainedTokenizerFast, lap: int = 0) -> Figures:
    """Rolls out once, and counts."""
    recorder = Recorder(engine)
    started = time.perf_counter()
    played, costs = rolled_out(work, recorder, tokenizer, lap)
    return Figures(time.perf_counter() - started, len(played), costs, grown(recorder.waves))


def rolled_out(
    work: Workload, engine: Engine, tokenizer: PreTrainedTokenizerFast, lap: int = 0
) -> tuple[list[Trajectory], Costs]:
    """Rolls out once. Each `lap` has instances and draws of its own, so that no cache knows them already."""
    envs, *workers = ([Pages(work.words, work.turns, work.wait)] for _ in range(1 + work.env_workers))
    driver = Driver(
        envs,
        Chat(tokenizer, work.context),
        engine,
        Sampling(1.0, work.response_tokens),
        TokenLimits(work.longest),
        concurrency=work.trajectories,
        workers=workers,
    )
    played = driver.run(_tasks(work, lap))
    lengths = {len(turn.response) for trajectory in played for turn in trajectory.turns}
    turns = {len(trajectory.turns) for trajectory in played}
    if lengths != {work.response_tokens} or turns != {work.turns}:
        raise RuntimeError(f"responses of {lengths} tokens in {turns} turns: not the work that was asked for")
    return played, driver.costs


def _tasks(work: Workload, lap: int) -> list[SearchTask]:
    return [
        SearchTask(1000 * lap + group, member, work.strategy, Key(lap).fold_in("instance", group, "member", member))
        for group in range(work.groups)
        for member in range(work.members)
    ]


def peak_mib(device: str) -> float | None:
    """What PyTorch has allocated at most on a GPU, in this process; null on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None


def make_vocabulary(size: int = 1000) -> PreTrainedTokenizerFast:
    """Every word of the pages is one token; the model's further entries are never said by the environment."""
    return make_tokenizer(texts(), size)


def make_model(shape: ModelShape, folder: Path, longest: int) -> None:
    """Writes a model and its tokenizer, as transformers saves them.

    In channel 0 every embedding is 1 and the end token's is -1. No layer writes there, and the final norm scales it, so
    that the end token's logit lies some 30 below all others and no participant has to know of a bias.
    """
    tokenizer = make_vocabulary(min(shape.vocabulary, _WORDS))  # a model may have more entries than that
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=max(1024, longest),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        embedding = model.get_input_embeddings().weight
        embedding.normal_(std=_SPREAD)
        embedding[:, 0] = 1.0
        embedding[tokenizer.eos_token_id, 0] = -1.0
        for layer in model.base_model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
        others = [token for token in range(_PROBED) if token != tokenizer.eos_token_id]
        normed = model.base_model(torch.tensor([others])).last_hidden_state[..., 0]
        model.base_model.norm.weight[0] = _BELOW / 2 / normed.mean()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _around() -> int:
    """Tokens that the template puts around a page, and the end of the response before it."""
    chat = Chat(make_vocabulary())
    empty = to_messages("")
    nothing = Turn((), (0,), (0.0,), False, empty, "", 0.0, True, True, "")
    return len(chat.prompt([nothing], empty)) - len(chat.prompt([], empty)) - len(nothing.response)


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)
