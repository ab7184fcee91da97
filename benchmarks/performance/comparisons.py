"""Who is compared with whom on what, and the ratios that are to come of it."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.performance.alternate import Participant, Record, alternate
from benchmarks.performance.floor import measured
from benchmarks.performance.report import Measured, Ratio
from benchmarks.performance.workload import Workload, make_model

OURS, OURS_WHOLE, OURS_ADAPTER = "ours", "ours, whole iteration", "ours, whole iteration with LoRA"
GENERATE, CONTINUOUS, LLAMA_CPP, VLLM, TRL, AGILERL = "generate", "continuous", "llama.cpp", "vllm", "trl", "agilerl"
SHORT = Workload(groups=4, members=4, turns=3, prompt_tokens=100, response_tokens=8)
BOUNDS = {GENERATE: 5.0, CONTINUOUS: 1.5, LLAMA_CPP: 1.0, VLLM: 1.5, TRL: 5.0}  # how many times faster than each


@dataclass(frozen=True)
class Invited:
    """Which rivals take part.

    Args:
        vllm: the interpreter of an environment that has it; null leaves it out.
        trl: the same.
        agilerl: the same.
        llama_cpp: the same.
        generate: whether transformers' `generate` does, which needs no environment of its own.
        continuous: whether its continuous batching does, which needs none either.
    """

    vllm: str | None = None
    trl: str | None = None
    agilerl: str | None = None
    llama_cpp: str | None = None
    generate: bool = True
    continuous: bool = False


@dataclass(frozen=True)
class Rules:
    """How everyone is measured.

    Args:
        laps: counted rounds of each.
        threads: of each.
        log: folder of what participants print.
    """

    laps: int
    threads: int
    log: Path


@dataclass(frozen=True)
class Results:
    """What was measured; two of them add up."""

    rollouts: tuple[Measured, ...] = ()
    iterations: tuple[Record, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    def __add__(self, other: "Results") -> "Results":
        return Results(self.rollouts + other.rollouts, self.iterations + other.iterations, self.ratios + other.ratios)


@dataclass(frozen=True)
class Comparison:
    """One set of participants that take turns."""

    kind: Callable[[Workload, Sequence[Participant], Rules], Results]
    work: Workload
    rivals: tuple[Participant, ...]

    def run(self, rules: Rules) -> Results:
        return self.kind(self.work, self.rivals, rules)


def searched(work: Workload, rivals: Sequence[Participant], rules: Rules) -> Results:
    """Ours with search and without it, and the others with search."""
    records = _timed([Participant(OURS, work), Participant(OURS, work.sampled()), *rivals], rules)
    rollouts = _beside_floor(records)
    mine, sample, *_ = rollouts
    cost = mine.record.seconds_per_trajectory / sample.record.seconds_per_trajectory
    needed = mine.floor.tokens / sample.floor.tokens
    claim = f"{work.name}: beam over sampling, seconds ({cost:.2f}) over tokens of the floor ({needed:.2f})"
    ratios = (*_faster(records[0], records[2:]), Ratio(claim, cost / needed, 1.3, at_least=False))
    return Results(rollouts=rollouts, ratios=ratios)


def sampled(work: Workload, rivals: Sequence[Participant], rules: Rules) -> Results:
    """Nothing searched, which the issue asks nothing of."""
    records = _timed([Participant(OURS, work), *rivals], rules)
    return Results(rollouts=_beside_floor(records), ratios=_faster(records[0], records[1:], bounded=False))


def whole(work: Workload, rivals: Sequence[Participant], rules: Rules) -> Results:
    """Rollout and update together."""
    records = _timed([Participant(OURS_WHOLE, work), *rivals], rules)
    return Results(iterations=tuple(records), ratios=_faster(records[0], records[1:]))


def adapted(work: Workload, rivals: Sequence[Participant], rules: Rules) -> Results:
    """Rollout and update of an adapter together, which the issue asks nothing of."""
    records = _timed([Participant(OURS_ADAPTER, work), *rivals], rules)
    return Results(iterations=tuple(records), ratios=_faster(records[0], records[1:], bounded=False))


KINDS = {kind.__name__: kind for kind in (searched, sampled, whole, adapted)}


def full(work: Workload, invited: Invited) -> list[Comparison]:
    """The published comparisons of a workload with search; without any rival, ours with search and without it."""
    comparisons = []
    for one in (work, replace(work, dtype="bfloat16")):
        plain = one.sampled()
        comparisons.append(Comparison(searched, one, _rivals(one, invited)))
        comparisons += [Comparison(sampled, plain, rivals)] if (rivals := _rivals(plain, invited)) else []
    for one in (work, work.sampled()):
        trl, agilerl = _if_there(TRL, one, invited.trl), _if_there(AGILERL, one, invited.agilerl)
        comparisons += [Comparison(whole, one, trl)] if trl else []
        comparisons += [Comparison(adapted, one, agilerl)] if agilerl else []
    return comparisons


def short(invited: Invited) -> list[Comparison]:
    """Seconds instead of hours, and so nothing but a first impression."""
    comparisons = [Comparison(searched, SHORT, _rivals(SHORT, invited))]
    trl = _if_there(TRL, SHORT.sampled(), invited.trl)
    return [*comparisons, Comparison(whole, SHORT.sampled(), trl)] if trl else comparisons


def _rivals(work: Workload, invited: Invited) -> tuple[Participant, ...]:
    generate = (Participant(GENERATE, work),) if invited.generate and work.dtype == "float32" else ()
    continuous = (Participant(CONTINUOUS, work),) if invited.continuous else ()
    llama_cpp = _if_there(LLAMA_CPP, work, invited.llama_cpp)
    return generate + continuous + llama_cpp + _if_there(VLLM, work, invited.vllm)


def _if_there(name: str, work: Workload, python: str | None) -> tuple[Participant, ...]:
    return (Participant(name, work, python),) if python else ()


def _timed(participants: Sequence[Participant], rules: Rules) -> list[Record]:
    """All of them on the same weights."""
    longest = max((one.work for one in participants), key=lambda work: work.longest)
    with tempfile.TemporaryDirectory() as folder:
        make_model(longest.shape, Path(folder), longest.longest)
        return alternate(participants, Path(folder), laps=rules.laps, threads=rules.threads, log=rules.log)


def _beside_floor(records: Sequence[Record]) -> tuple[Measured, ...]:
    rates = {_shape_of(record.work): measured(record.work) for record in records}
    return tuple(Measured(record, rates[_shape_of(record.work)]) for record in records)


def _shape_of(work: Workload) -> str:
    """Equal where rates are."""
    return json.dumps([work.as_json()["shape"], work.dtype, work.rows])


def _faster(mine: Record, theirs: Sequence[Record], *, bounded: bool = True) -> tuple[Ratio, ...]:
    return tuple(
        Ratio(
            f"{other.work.name}: {other.name}'s seconds over those of {mine.name}",
            other.seconds / mine.seconds,
            BOUNDS[other.name] if bounded else None,
        )
        for other in theirs
    )
