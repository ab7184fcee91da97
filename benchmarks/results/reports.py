"""The files beside docs/results.md: a page of tables for each study, and the pictures that the page shows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tsr_lightning.studies.report.build import Built, build_report
from tsr_lightning.studies.report.load import StudyResults
from tsr_lightning.studies.report.page import markdown
from tsr_lightning.studies.report.pictures import draw

_PICTURE = re.compile(r"\(results/([\w.+=-]+\.png)\)")


def study_page(name: str, built: Built) -> str:
    """Returns the report of a study without its pictures.

    Args:
        name: of the study's files.
        built: its report.
    """
    sections = tuple(replace(section, pictures=()) for section in built.report.sections)
    drawn = f"Made by `python -m benchmarks.results`; `tsr report docs/results/{name}.yaml` draws its curves too."
    return f"# {name}\n\n{drawn}\n\n{markdown(replace(built.report, sections=sections))}"


def write_reports(root: Path, studies: Mapping[str, StudyResults], text: str) -> Iterator[Path]:
    """Writes a page for every study, and the pictures that docs/results.md shows.

    Args:
        root: the folder of the studies' files.
        studies: by the names of their files.
        text: of docs/results.md.
    """
    shown = set(_PICTURE.findall(text))
    for name, study in studies.items():
        built = build_report([study])
        page = root / f"{name}.md"
        page.write_text(study_page(name, built), encoding="utf-8")
        yield page
        for picture in sorted(shown & built.pictures.keys()):
            group, ends = built.pictures[picture]
            (root / picture).write_bytes(draw(group, ends))
            yield root / picture
