"""Writes the page with the tables of all studies, and the pictures of docs/results.md."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tsr_lightning.studies.report.build import Built, build_report
from tsr_lightning.studies.report.load import StudyResults
from tsr_lightning.studies.report.page import NOTES, markdown
from tsr_lightning.studies.report.pictures import draw

_PICTURE = re.compile(r"\(results/([\w.+=-]+\.png)\)")


def studies_page(built: Mapping[str, Built]) -> str:
    """Returns one page with the reports of all studies, without their pictures.

    Args:
        built: the reports by the names of the studies' files.
    """
    head = [
        "# The studies, arm by arm",
        "Made by `python -m benchmarks.results`; `tsr report docs/results/NAME.yaml` draws a study's curves too.",
        *NOTES,
    ]
    return "\n\n".join([*head, *(_study(name, one) for name, one in built.items())]) + "\n"


def _study(name: str, built: Built) -> str:
    sections = tuple(replace(section, pictures=()) for section in built.report.sections)
    body = markdown(replace(built.report, sections=sections)).removesuffix("\n\n" + "\n\n".join(NOTES) + "\n")
    return f"## {name}\n\n" + re.sub("^## ", "### ", body, flags=re.MULTILINE)


def write_reports(root: Path, studies: Mapping[str, StudyResults], text: str) -> Iterator[Path]:
    """Writes the page of all studies, and the pictures that docs/results.md shows.

    Args:
        root: the folder of the studies' files.
        studies: by the names of their files.
        text: of docs/results.md.
    """
    shown = set(_PICTURE.findall(text))
    built = {name: build_report([study]) for name, study in studies.items()}
    page = root / "README.md"
    page.write_text(studies_page(built), encoding="utf-8")
    yield page
    for one in built.values():
        for picture in sorted(shown & one.pictures.keys()):
            group, ends = one.pictures[picture]
            (root / picture).write_bytes(draw(group, ends))
            yield root / picture
