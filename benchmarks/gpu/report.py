"""Tables of what was measured, in Markdown."""

from collections.abc import Sequence

from benchmarks.gpu.contest import Outcome, of_same_work, ratio
from benchmarks.gpu.decode import Decoded
from benchmarks.performance.report import spread

DECODE_HEAD = (
    "| kernels | type | prompts × siblings | prompt tokens | response tokens | tokens/s | ms a step "
    "| ms of the roofline | share of the roofline | peak MiB |\n|---|---|---|---|---|---|---|---|---|---|\n"
)
CONTEST_HEAD = (
    "| who | kernels | work | seconds | of rollout | of update | tokens/s of the rollout | peak MiB "
    "| its seconds a token over ours |\n|---|---|---|---|---|---|---|---|---|\n"
)


def decode_table(measured: Sequence[Decoded]) -> str:
    lines = []
    for one in measured:
        steps, count = one.steps, one.steps.response_tokens - 1
        lines.append(
            f"| {one.kernels} | {one.dtype} | {steps.prompts} × {steps.siblings} | {steps.prompt_tokens} "
            f"| {steps.response_tokens} | {one.tokens_per_second:,.0f} | {1000 * one.seconds / count:.2f} "
            f"| {1000 * one.roofline_seconds / count:.3f} | {one.roofline_share:.1%} | {_mib(one.peak_mib)} |\n"
        )
    return DECODE_HEAD + "".join(lines)


def contest_table(outcomes: Sequence[Outcome]) -> str:
    return CONTEST_HEAD + "".join(_line(one, outcomes) for one in outcomes)


def _line(one: Outcome, outcomes: Sequence[Outcome]) -> str:
    name, work = one.entry.name, one.entry.work
    kernels = work.kernels if name.startswith("ours") else ""
    if one.record is None:
        return f"| {name} | {kernels} | {work.name} | **failed**: {one.failure} | | | | | |\n"
    halves = ["", ""]
    if one.is_whole:
        halves = [f"{one.record.median_of(key):.2f}" for key in ("seconds_rollout", "seconds_update")]
    mine = of_same_work(outcomes, one)
    times = None if mine is None else ratio(one, mine)
    return (
        f"| {name} | {kernels} | {work.name} | {spread(one.record)} | {halves[0]} | {halves[1]} "
        f"| {one.tokens_per_second:,.0f} | {_mib(one.peak_mib)} | {'' if times is None else f'{times:.2f}'} |\n"
    )


def _mib(peak: float | None) -> str:
    return "" if peak is None else f"{peak:,.0f}"
