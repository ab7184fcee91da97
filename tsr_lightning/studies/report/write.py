"""Writes a report: tables as CSV and Parquet, pictures, a page and a Markdown fragment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.studies.report.build import build_report
from tsr_lightning.studies.report.load import StudyResults, load_study
from tsr_lightning.studies.report.page import html, markdown
from tsr_lightning.studies.report.pictures import draw


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
