"""The table of what was tried in tuning: plain recipes and ideas, each by the best of its trials."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from benchmarks.results.figures import rate, table
from benchmarks.results.finished import PROTOCOLS, last_rates
from benchmarks.results.ideas import Tried
from tsr_lightning.studies.report.load import StudyResults

_HEADER = ("instances", "rollouts", "recipe", "trials", "best of them", "seeds", *PROTOCOLS)


def tried_table(studies: Mapping[str, StudyResults], tried: Sequence[Tried]) -> str:
    """Returns the table of ideas, each by the trial with the highest mean of both protocols.

    Args:
        studies: by name.
        tried: in the order of its rows.
    """
    return table(_HEADER, [row for one in tried for row in _rows(studies[one.study], one)])


def _rows(study: StudyResults, tried: Tried) -> Iterator[Sequence[str]]:
    arms = {arm.arm: arm for arm in study.arms}
    for idea in tried.ideas:
        ends = {
            arm: [fmean(last_rates(arms[arm].curves(protocol, tried.environment))) for protocol in PROTOCOLS]
            for arm in idea.arms
            if arm in arms
        }
        if ends:
            best = max(ends, key=lambda arm: fmean(ends[arm]))
            seeds = str(len(arms[best].results))
            yield (tried.instances, idea.kind, idea.name, str(len(ends)), f"`{best}`", seeds, *map(rate, ends[best]))
