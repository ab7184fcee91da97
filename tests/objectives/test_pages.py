"""Every objective with a configuration has a page, of the same sections, that the overview names."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "objectives"
SECTIONS = ["Formula", "When to use it", "What it needs", "Defaults"]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs" / "objective").glob("*.yaml")))
def test_an_objective_has_a_page(name: str):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == SECTIONS
    assert f"`configs/objective/{name}.yaml`" in page
    assert f"]({name}.md)" in (PAGES / "README.md").read_text(encoding="utf-8")
