"""Writes the first lines of a report: what is finished, what ends below its start, and what is ahead."""

from collections.abc import Iterator, Sequence

from tsr_lightning.statistics import holm
from tsr_lightning.studies.report.comparisons import End, other_tasks
from tsr_lightning.studies.report.load import StudyResults
from tsr_lightning.studies.settings import differing_keys

_NAMED = 8


def verdict(study: StudyResults, ends: Sequence[End]) -> Iterator[str]:
    """Yields sentences on one study."""
    done = sum(len(arm.results) for arm in study.arms)
    yield f"{study.name}: {done} of {done + len(study.missing)} runs are finished{_missing(study)}."
    for arm in study.arms:
        if keys := differing_keys([result["settings"] for result in arm.results.values()]):
            yield f"The seeds of {arm.arm} were run with different settings ({keys}), and are reported as one arm."
    unmeasured = [end for end in ends if end.start is None]
    if unmeasured:
        named = "; ".join(map(_name, unmeasured))
        yield f"No gain is known of {named}: the start was not measured for every seed."
    gains = [(end, end.gain) for end in ends if end.gain is not None]
    if gains:
        below = [end for end, gain in gains if gain.value < 0]
        surely = [end for end, gain in gains if gain.high < 0]
        named = f" ({'; '.join(map(_name, below))})" if below else ""
        yield (
            f"{len(below)} of {len(gains)} arms and protocols end below their start{named}, {len(surely)} of them by "
            "more than the interval."
        )
    yield from _other_tasks(study)
    yield from _against_baselines(ends)


def _against_baselines(ends: Sequence[End]) -> Iterator[str]:
    """Yields what is ahead and behind, judged together: a single interval in twenty excludes zero by luck."""
    compared = [(end, end.against) for end in ends if end.against is not None]
    several = [(end, against) for end, against in compared if end.shared_seeds > 1]
    surely = holm([against.p_value for _, against in several])
    held = [(end, against) for (end, against), holds in zip(several, surely, strict=True) if holds]
    ahead = [f"{_name(end)} by {against.value:+.3f}" for end, against in held if against.value > 0]
    behind = [f"{_name(end)} by {against.value:+.3f}" for end, against in held if against.value < 0]
    if several:
        yield (
            f"After all epochs, of {len(several)} comparisons taken together (Holm, 5%), ahead of the "
            f"baseline: {'; '.join(ahead) or 'none'}; behind it: {'; '.join(behind) or 'none'}."
        )
    if alone := [_name(end) for end, _ in compared if end.shared_seeds == 1]:
        yield f"One seed says nothing of seeds like it, so no verdict is given on {_several(alone, '; ')}."


def _other_tasks(study: StudyResults) -> Iterator[str]:
    """Yields which comparisons are none."""
    for keys, arms in other_tasks(study).items():
        yield (
            f"Not compared, since the other arm plays another task ({keys}): {_several(arms, ', ')}. Where that leaves "
            "the task the same, name the argument in the grid's same_task."
        )


def _missing(study: StudyResults) -> str:
    if not study.missing:
        return ""
    return f"; missing: {_several([*map(str, study.missing)], ', ')}"


def _several(names: Sequence[str], between: str) -> str:
    """The first of many names."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{between.join(names[:_NAMED])}{more}"


def _name(end: End) -> str:
    return f"{end.arm}, {end.protocol}"
