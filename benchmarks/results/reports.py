"""The tables of each study arm by arm, the page that lists the studies, and the pictures of the pages."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tsr_lightning.studies.report.build import Built
from tsr_lightning.studies.report.page import NOTES, markdown
from tsr_lightning.studies.report.pictures import draw

INDEX = "README.md"
_PICTURE = re.compile(r"\(([\w.+=-]+\.png)\)")


def arm_by_arm(built: Built) -> str:
    """Returns the report of a study, without its pictures, as a part of its page."""
    sections = tuple(replace(section, pictures=()) for section in built.report.sections)
    body = markdown(replace(built.report, sections=sections)).removesuffix("\n\n" + "\n\n".join(NOTES) + "\n")
    return re.sub("^## ", "### ", body, flags=re.MULTILINE)


def index_page(built: Mapping[str, Built]) -> str:
    """Returns the page that lists the studies, and says how their tables are read.

    Args:
        built: the reports by the names of the studies' files.
    """
    lines = [f"- [{name}]({name}.md): {one.report.verdict[0].partition(': ')[2]}" for name, one in built.items()]
    head = [
        "# The studies, arm by arm",
        "Made by `python -m benchmarks.results`; `tsr report docs/results/NAME.yaml` draws a study's curves too.",
    ]
    return "\n\n".join([*head, "\n".join(lines), "## How to read their tables", *NOTES]) + "\n"


def write_reports(root: Path, built: Mapping[str, Built], texts: Sequence[str]) -> Iterator[Path]:
    """Writes the page that lists the studies, and the pictures that their pages show.

    Args:
        root: the folder of the studies' files.
        built: the reports by the names of these.
        texts: of the pages.
    """
    page = root / INDEX
    page.write_text(index_page(built), encoding="utf-8")
    yield page
    shown = {picture for text in texts for picture in _PICTURE.findall(text)}
    for one in built.values():
        for picture in sorted(shown & one.pictures.keys()):
            group, ends = one.pictures[picture]
            (root / picture).write_bytes(draw(group, ends))
            yield root / picture
