"""docs/results.md: its text is written by hand, its tables are made from the files of the studies beside it."""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.results.combinations import combinations_table
from benchmarks.results.ends import ends_table
from benchmarks.results.ideas import TRIED
from benchmarks.results.in_depth import in_depth_table
from benchmarks.results.pairs import TASKS
from benchmarks.results.pupil import pupil_table
from benchmarks.results.quickstart_llm import phases_table
from benchmarks.results.recipes import ENDS
from benchmarks.results.tried import tried_table
from benchmarks.results.verdict import headline_table, verdict_table, verdicts
from tsr_lightning.studies.packed import read_packed
from tsr_lightning.studies.report.load import StudyResults, load_study

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
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


def load_studies(root: Path) -> dict[str, StudyResults]:
    """Reads all studies of a folder, by the names of their files."""
    paths = (path for path in sorted(root.glob("*.yaml")) if path.stem != _EVALUATIONS)
    return {path.stem: load_study(path) for path in paths}


def tables(root: Path, studies: Mapping[str, StudyResults]) -> dict[str, str]:
    """Returns the tables by the names of their places on the page.

    Args:
        root: the folder of the studies' files.
        studies: by the names of their files.
    """
    found = verdicts(studies, TASKS)
    return {
        "headline": headline_table(found),
        "verdict": verdict_table(found),
        **{name: ends_table(studies[study], blocks) for name, (study, blocks) in ENDS.items()},
        "pupil": pupil_table(studies, [(study, block) for study, blocks in ENDS.values() for block in blocks]),
        "tried": tried_table(studies, TRIED),
        "in_depth": in_depth_table(read_packed(root / f"{_EVALUATIONS}.yaml"), _IN_DEPTH),
        "combinations": combinations_table(studies["combinations"], _COMBINATIONS),
        "quickstart_llm": phases_table(studies),
    }


def with_tables(text: str, made: Mapping[str, str]) -> str:
    """Returns the page with its tables replaced.

    Args:
        text: of the page.
        made: the tables by the names of their places.

    Raises:
        ValueError: a table has no place, or a place no table.
    """
    places = [match[2] for match in _PLACE.finditer(text)]
    if sorted(places) != sorted(made):
        raise ValueError(f"the page has places for {', '.join(sorted(places))}, and not for {', '.join(sorted(made))}")
    return _PLACE.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", text)
