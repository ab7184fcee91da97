"""docs/results.md and the pages in docs/results: their text is written by hand, their tables are made from the files of
the studies beside them."""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.results.combinations import combinations_table
from benchmarks.results.ends import ends_table
from benchmarks.results.headline import headline_table
from benchmarks.results.ideas import TRIED
from benchmarks.results.in_depth import in_depth_table
from benchmarks.results.pairs import TASKS
from benchmarks.results.pupil import pupil_table
from benchmarks.results.quickstart_llm import phases_table
from benchmarks.results.recipes import ENDS
from benchmarks.results.reports import INDEX, arm_by_arm
from benchmarks.results.tried import tried_table
from benchmarks.results.verdict import verdict_counts, verdict_table, verdicts
from tsr_lightning.studies.packed import read_packed
from tsr_lightning.studies.report.build import Built
from tsr_lightning.studies.report.load import StudyResults, load_study

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
ROOT = PAGE.with_suffix("")  # the folder of the studies' files and of the other pages
_EVALUATIONS = "sokoban_in_depth"  # of runs that a study made: no study itself
_IN_DEPTH = {  # its arms
    "rare-raft": "RAFT",
    "rare-imitate": "GRPO, successes of a beam 1 of 2",
    "rare-ppo-imitate": "PPO, the same",
    "rare-grpo": "GRPO on plain samples",
    "rare-ppo": "PPO on plain samples",
}
_COMBINATIONS = {"sokoban": "Sokoban", "frozen_lake": "FrozenLake", "webshop": "WebShop"}  # by the axis `task`
_PLACE = re.compile(r"(<!-- made by python -m benchmarks\.results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def load_studies() -> dict[str, StudyResults]:
    """Reads all studies, by the names of their files."""
    paths = (path for path in sorted(ROOT.glob("*.yaml")) if path.stem != _EVALUATIONS)
    return {path.stem: load_study(path) for path in paths}


def load_pages() -> dict[Path, str]:
    """Reads all pages that are written by hand but for their tables."""
    paths = [PAGE, *(path for path in sorted(ROOT.glob("*.md")) if path.name != INDEX)]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def tables(studies: Mapping[str, StudyResults], built: Mapping[str, Built]) -> dict[str, str]:
    """Returns the tables by the names of their places on the pages.

    Args:
        studies: by the names of their files.
        built: their reports.
    """
    found = verdicts(studies, TASKS)
    return {
        "headline": headline_table(studies, found),
        "verdict": verdict_table(found),
        "counts": verdict_counts(found),
        **{name: ends_table(studies[study], blocks) for name, (study, blocks) in ENDS.items()},
        "pupil": pupil_table(studies, [(study, block) for study, blocks in ENDS.values() for block in blocks]),
        "tried": tried_table(studies, TRIED),
        "in_depth": in_depth_table(read_packed(ROOT / f"{_EVALUATIONS}.yaml"), _IN_DEPTH),
        "combinations": combinations_table(studies["combinations"], _COMBINATIONS),
        "quickstart_llm": phases_table(studies),
        **{f"report_{name}": arm_by_arm(one) for name, one in built.items()},
    }


def with_tables(texts: Mapping[Path, str], made: Mapping[str, str]) -> dict[Path, str]:
    """Returns the pages with their tables replaced.

    Args:
        texts: of the pages.
        made: the tables by the names of their places.

    Raises:
        ValueError: a table has no place, or a place no table.
    """
    places = [match[2] for text in texts.values() for match in _PLACE.finditer(text)]
    if sorted(places) != sorted(made):
        raise ValueError(f"the pages have places for {', '.join(sorted(places))}, and not {', '.join(sorted(made))}")

    def filled(text: str) -> str:
        return _PLACE.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", text)

    return {path: filled(text) for path, text in texts.items()}
