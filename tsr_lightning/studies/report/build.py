"""Builds and writes the report of studies: its page, its pictures, and its tables as data frames."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.studies.report.comparisons import End, InstanceSet, Pair, all_sets, at_budgets, ends, pairs, reached
from tsr_lightning.studies.report.load import StudyResults, load_study
from tsr_lightning.studies.report.page import Report, Section, html, markdown
from tsr_lightning.studies.report.pictures import draw, title
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


def write_report(
    paths: Sequence[Path], output: Path, *, baseline: str | None, thresholds: Mapping[str, Sequence[float]]
) -> list[Path]:
    """Writes everything and returns the files.

    Args:
        paths: folders of studies, or YAMLs of packed ones.
        output: the folder to write to.
        baseline: compares all arms with this one, instead of what the grids say.
        thresholds: success rates by protocol, instead of the grids'; empty for those.

    Raises:
        ConfigError: a path holds no study, no run is finished, or none was evaluated by a threshold's protocol.
    """
    studies = [_adjusted(load_study(path), baseline, thresholds) for path in paths]
    names = [study.name for study in studies]
    for name in names:
        remedy = "give each study once, and studies different names in their grids"
        require(names.count(name) == 1, "STUDY", name, remedy)
    if not any(study.arms for study in studies):
        raise ConfigError(f"no run of {', '.join(names)} is finished: run tsr study first")
    known = dict.fromkeys(protocol for study in studies for arm in study.arms for protocol in arm.protocols)
    for protocol, rates in thresholds.items():
        remedy = f"no finished run was evaluated by a protocol of this name; use {' or '.join(known)}"
        require(protocol in known, f"--threshold {protocol}", list(rates), remedy)
    built = build_report(studies)
    pictures = {name: draw(group, ends) for name, (group, ends) in built.pictures.items()}
    output.mkdir(parents=True, exist_ok=True)
    built.frames["evaluations"].to_parquet(output / "evaluations.parquet", index=False)
    for name, frame in built.frames.items():
        frame.to_csv(output / f"{name}.csv", index=False)
    for name, png in pictures.items():
        (output / name).write_bytes(png)
    (output / "report.html").write_text(html(built.report, pictures), encoding="utf-8")
    (output / "report.md").write_text(markdown(built.report), encoding="utf-8")
    written = ["report.html", "report.md", "evaluations.parquet", *(f"{name}.csv" for name in built.frames), *pictures]
    return [output / name for name in written]


def _adjusted(study: StudyResults, baseline: str | None, thresholds: Mapping[str, Sequence[float]]) -> StudyResults:
    names = [arm.arm for arm in study.arms]
    if baseline is not None:
        require(baseline in names, "--baseline", baseline, f"give one of {', '.join(names)}, which have finished runs")
        study = replace(study, baselines=dict.fromkeys(names, baseline))
    return replace(study, thresholds=thresholds) if thresholds else study
