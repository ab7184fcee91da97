"""Compares `tsr estimate` with a machine: peaks of memory by phase, and seconds of an update and a decoding step.

On a GPU, with the model's shape and random weights (3 GB a billion parameters are written to a temporary folder):

    python -m benchmarks.estimate --config paper/sokoban.yaml --machine a100

On a CPU the same code runs to its end with a small shape, and counts live tensors instead of CUDA's allocations:

    python -m benchmarks.estimate --config paper/sokoban.yaml --tiny
"""

import copy
import gc
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import AutoModelForCausalLM

from tsr_lightning.batching.packing import Packed, pack
from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.estimate import Assumed, make_parser, setup_of
from tsr_lightning.engines.base import Prompt
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.estimate.card_memory import CardMemory, Part, memory, pass_size
from tsr_lightning.estimate.cards import Machine, machine_of
from tsr_lightning.estimate.decode_steps import decode_seconds
from tsr_lightning.estimate.hours import update_seconds
from tsr_lightning.estimate.live_tensors import LiveTensors
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.shape import ModelShape, shape_of
from tsr_lightning.estimate.weights import DTYPES
from tsr_lightning.estimate.workload import TrainedTokens, Wave
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.vocabulary import make_tokenizer

TINY = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32}
TINY_TOKENS, TINY_CACHE_MIB, TINY_VOCABULARY = 1024, 16, 1024
PREFIX = 64  # tokens that the sequences of the measured micro-batch share


@dataclass(frozen=True)
class Measured:
    """One figure: what was estimated and what was measured, in one unit."""

    name: str
    estimated: float
    measured: float
    unit: str


class Peak:
    """Bytes held at the highest within a `with` block, by the device's own count."""

    def __init__(self, device: torch.device, held: Callable[[], int]) -> None:
        self._cuda = device.type == "cuda"
        self._held = held
        self._live = LiveTensors()
        self.bytes = 0

    def __enter__(self) -> "Peak":
        gc.collect()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            self._before = self._held()
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cuda:
            self.bytes = torch.cuda.max_memory_allocated()
        else:
            self._live.__exit__(kind, error, trace)
            self.bytes = self._before + self._live.highest


def main(args: Sequence[str] | None = None) -> list[Measured]:
    parser = make_parser()
    parser.prog = "python -m benchmarks.estimate"
    parser.add_argument("--tiny", action="store_true", help="a small shape and few tokens, for a CPU")
    given, others = parser.parse_known_args(sys.argv[1:] if args is None else list(args))
    assumed = Assumed(given.response_tokens, given.turns, given.characters_per_token)
    setup, _ = setup_of(*parsed_run(others), assumed)
    machine = machine_of((given.machine or ["a100"])[0])
    device = torch.device("cuda" if torch.cuda.is_available() and not given.tiny else "cpu")
    if given.tiny:
        setup = tiny(setup)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(setup, machine, device, Path(folder))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"Measured on: {name}; seconds are estimated for {machine.card.name}\n")
    print("| what | estimated | measured | measured / estimated |\n| --- | --- | --- | --- |")
    for one in found:
        ratio = one.measured / one.estimated if one.estimated else float("nan")
        print(f"| {one.name} | {one.estimated:.4g} {one.unit} | {one.measured:.4g} {one.unit} | {ratio:.2f} |")
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"\nresident memory of the whole process at its highest: {highest:.0f} MiB")
    return found


def tiny(setup: Setup) -> Setup:
    """The same configuration with a small shape and few tokens: episodes of one turn, and one head of keys."""
    config = copy.deepcopy(setup.shape.config)
    config.update({**TINY, "num_key_value_heads": 1, "vocab_size": TINY_VOCABULARY})
    if kinds := config.to_dict().get("layer_types"):
        config.update({"layer_types": kinds[: config.num_hidden_layers]})
    shape = shape_of(config)
    episode = replace(setup.worst.episode, tokens=setup.worst.episode.tokens.first(1))
    updates = replace(setup.updates, micro_batch_tokens=TINY_TOKENS, minibatches=1)
    engine = Transformers(kv_cache_mib=TINY_CACHE_MIB, max_num_seqs=64)
    return replace(setup, shape=shape, updates=updates, engine=engine, worst=replace(setup.worst, episode=episode))


def measure(setup: Setup, machine: Machine, device: torch.device, folder: Path) -> list[Measured]:
    """All figures, one after the other on one model."""
    tokenizer = make_tokenizer(["The box is pushed."])
    save_random(setup.shape, setup.spec.dtype, folder)
    tokenizer.save_pretrained(folder)
    spec = replace(setup.spec, model=str(folder))
    policy = Policy(
        spec, tokenizer, critic=setup.has_critic, keep_reference=setup.keeps_reference, device=device
    ).train()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, lr=1e-6, foreach=True)  # CUDA's default, on a CPU too
    expected = memory(setup)
    packed = micro_batch(setup).to(device)

    def held() -> int:
        states = [value for state in optimizer.state.values() for value in state.values()]
        return held_bytes([*owned(policy), *(p.grad for p in trained if p.grad is not None), *states])

    def update() -> None:
        out = policy.outputs(packed, 1.0, entropies=True)
        (out.logprobs.mean() + out.values.mean() + out.entropies.mean()).backward()

    update()
    optimizer.step()  # makes AdamW's averages
    found = [mib("held after a first step", sum_of(expected.resident), held())]
    optimizer.zero_grad(set_to_none=False)  # gradients stay allocated, as between Lightning's steps
    with Peak(device, held) as peak:
        seconds = timed(update, device)
    found.append(mib("peak of a backward pass", phase(expected, "backward pass"), peak.bytes))
    counts = TrainedTokens(len(packed), packed.unshared_tokens, len(packed.output_positions), scores(packed), 0)
    once = replace(setup.updates, epochs=1, minibatches=1, micro_batch_tokens=len(packed))
    found.append(Measured("update", update_seconds(replace(setup, updates=once), counts, machine), seconds, "s"))
    with Peak(device, held) as peak:
        optimizer.step()
    found.append(mib("peak of an optimizer step", phase(expected, "optimizer step"), peak.bytes))
    found += rollout(setup, machine, policy, expected, device, held)
    return found


def rollout(
    setup: Setup, machine: Machine, policy: Policy, expected: CardMemory, device: torch.device, held: Callable[[], int]
) -> list[Measured]:
    """The engine on one wave: as many prompts as fill a decoding step."""
    responses, tokens, siblings = min(64, setup.engine.max_num_seqs), 8, 4
    episode = setup.worst.episode
    length = max(episode.prompt(depth) for depth in range(episode.turns))  # as the estimate has it
    generator = np.random.default_rng(0)
    prompts = [
        Prompt(tuple(generator.integers(0, 256, length).tolist()), tuple(range(i, i + siblings)), tokens)
        for i in range(0, responses, siblings)
    ]
    engine = TransformersEngine(policy, frozenset(), length + tokens, setup.engine.cache_mib, setup.engine.max_num_seqs)
    with Peak(device, held) as peak:
        engine.generate(prompts, 1.0)
    wave = Wave(len(prompts), len(prompts), responses, length, length)
    per_step = []
    for count in (tokens, 3 * tokens):
        longer = [replace(prompt, ids=(*prompt.ids[:-1], count), max_new_tokens=count) for prompt in prompts]
        per_step.append(timed(partial(engine.generate, longer, 1.0), device))
    seconds = (per_step[1] - per_step[0]) / (2 * tokens)
    estimated = decode_seconds(setup, wave, responses, 2 * tokens, 1, machine.card) / (2 * tokens - 1)
    return [
        mib("peak of a rollout", phase(expected, "rollout"), peak.bytes),
        Measured(f"decoding step of {responses}", estimated, seconds, "s"),
    ]


def save_random(shape: ModelShape, dtype: str, folder: Path) -> None:
    """A model of this shape with random weights."""
    AutoModelForCausalLM.from_config(shape.config, dtype=DTYPES[dtype]).save_pretrained(folder)


def micro_batch(setup: Setup) -> Packed:
    """Random sequences of the estimated pass's size, which share a prefix; their last part was sampled."""
    size = pass_size(setup)
    count = max(1, size.tokens // max(256, setup.worst.episode.sequences(1)[0].length))
    length = (size.tokens - PREFIX) // count + PREFIX
    generator = np.random.default_rng(0)
    shared = generator.integers(0, 256, PREFIX)
    share = size.outputs / size.tokens
    sequences = []
    for _ in range(count):
        ids = np.concatenate([shared, generator.integers(0, 256, length - PREFIX)])
        sequences.append((ids, np.arange(length) >= max(1, round(length * (1 - share)))))
    return pack(sequences)


def scores(packed: Packed) -> float:
    return float(sum(segment.length * (len(segment.path) - segment.length / 2) for segment in packed.segments))


def owned(policy: Policy) -> Iterator[Tensor]:
    yield from (*policy.parameters(), *policy.buffers())
    for module in policy.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                yield value
    for parameter in policy.parameters():
        yield from quantised(vars(parameter).get("quant_state"))


def quantised(state: Any) -> Iterator[Tensor]:
    """The scales of a quantised layer, and those of its scales."""
    if state is not None:
        yield from (value for value in vars(state).values() if isinstance(value, Tensor))
        yield from quantised(state.state2)


def held_bytes(tensors: Sequence[Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def phase(of_card: CardMemory, name: str) -> int:
    return sum_of(of_card.resident) + sum_of(of_card.phases[name])


def sum_of(parts: Sequence[Part]) -> int:
    return sum(part.bytes for part in parts)


def mib(name: str, estimated: float, measured: float) -> Measured:
    return Measured(name, estimated / 2**20, measured / 2**20, "MiB")


if __name__ == "__main__":
    main()
