"""This project's engine on a workload: the one place that knows how it is made."""

from pathlib import Path

import torch

from benchmarks.performance.line import Line
from benchmarks.performance.rollouts import Seat, roll_out
from benchmarks.performance.workload import Workload
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer


def spec_of(work: Workload, folder: Path) -> PolicySpec:
    return PolicySpec(str(folder), dtype=work.dtype, kernels=work.kernels)


def engine_of(work: Workload) -> Transformers:
    """The engine, with memory for the whole wave."""
    return Transformers(work.kv_cache_mib, work.rows, work.state_cache_mib)


def sit_down(work: Workload, folder: Path) -> Seat:
    """The engine, for which no token ends a response, as for the rivals."""
    policy_spec = spec_of(work, folder)
    tokenizer = load_tokenizer(policy_spec, ())
    policy = Policy(policy_spec, tokenizer, critic=False, device=work.device)
    spec = engine_of(work)
    engine = spec.build(policy, frozenset(), work.longest)

    @torch.no_grad()
    def renew() -> None:
        for weight in policy.parameters():
            weight.add_(0)  # an update in all but effect
        engine.release()  # as before an update, which a CPU does not need

    return Seat(engine, f"{spec.kv_cache_mib} MiB for keys and values, {spec.max_num_seqs} rows side by side", renew)


def take_part(line: Line, work: Workload, folder: Path) -> None:
    roll_out(line, work, folder, sit_down)
