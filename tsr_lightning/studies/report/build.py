"""Builds the report of studies: its page, what its pictures show, and its tables as data frames. Writes nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from tsr_lightning.studies.report.comparisons import End, InstanceSet, Pair, all_sets, at_budgets, ends, pairs, reached
from tsr_lightning.studies.report.load import StudyResults
from tsr_lightning.studies.report.page import Report, Section
from tsr_lightning.studies.report.pictures import title
from tsr_lightning.studies.report.tables import Table, budgets_table, ends_table, pairs_table, reached_table
from tsr_lightning.studies.report.tidy import comparisons_frame, evaluations_frame
from tsr_lightning.studies.report.verdict import verdict


@dataclass(frozen=True)
class Built:
    """A report that is not written yet.

    Args:
        report: its page.
        pictures: by file name, the arms to draw and their ends, as `pictures.draw` takes them.
        frames: the tables by name.
    """

    report: Report
    pictures: Mapping[str, tuple[InstanceSet, Sequence[End]]]
    frames: Mapping[str, pd.DataFrame]


def build_report(studies: Sequence[StudyResults]) -> Built:
    """Returns the report of all that the studies have finished."""
    pictures: dict[str, tuple[InstanceSet, Sequence[End]]] = {}
    sections, lines, all_ends, all_budgets, all_pairs, all_reached = [], [], [], [], [], []
    for study in studies:
        study_ends = []
        groups = all_sets(study)
        if found := list(pairs(study, groups)):
            sections.append(Section(f"{study.name}, in pairs", (), tuple(_pairs_tables(found))))
            all_pairs += found
        for group in groups:
            picture = f"{_file_name(title(group))}.png"
            group_ends, budgets = list(ends(study, group)), list(at_budgets(study, group))
            pictures[picture] = group, group_ends
            times = list(reached(study, group))
            tables = [
                ends_table(group_ends, "Start and end"),
                budgets_table([row for row in budgets if row.budget != "epochs"], "At equal budgets"),
                *([reached_table(times, "Spent until a success rate was reached")] if times else []),
            ]
            sections.append(Section(title(group), (picture,), tuple(tables)))
            study_ends += [] if group.environment else group_ends
            all_ends += group_ends
            all_budgets += budgets
            all_reached += times
        lines += list(verdict(study, study_ends))
    frames = {
        "evaluations": evaluations_frame(studies),
        "ends": comparisons_frame(all_ends),
        "budgets": comparisons_frame(all_budgets),
        **({"pairs": comparisons_frame(all_pairs)} if all_pairs else {}),
        "thresholds": comparisons_frame(all_reached),
    }
    names = ", ".join(study.name for study in studies)
    return Built(Report(names, tuple(lines), tuple(sections)), pictures, frames)


def _pairs_tables(found: Sequence[Pair]) -> Iterator[Table]:
    """Yields the table of all instances, then that of each environment of a mixture."""
    for environment in dict.fromkeys(pair.environment for pair in found):
        own = [pair for pair in found if pair.environment == environment]
        yield pairs_table(own, "The first minus the second" + (f", on {environment}" if environment else ""))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.+=-]+", "-", text)
