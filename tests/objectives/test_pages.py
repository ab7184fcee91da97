"""Every objective with a configuration has its sections on the page of objectives, and the overview names it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "objectives"
SECTIONS = ["Formula", "When to use it", "What it needs", "Defaults"]
OBJECTIVES = re.split(r"^## ", (PAGES / "presets.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs" / "objective").glob("*.yaml")))
def test_an_objective_has_its_sections(name: str):
    [own] = [text for text in OBJECTIVES if f"`configs/objective/{name}.yaml`" in text]
    assert re.findall(r"^### (.*)$", own, re.MULTILINE) == SECTIONS
    title, *_ = own.splitlines()
    assert f"| [{title}](presets.md#" in (PAGES / "README.md").read_text(encoding="utf-8")
