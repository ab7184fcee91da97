"""The commands of docs/search.md, on a few instances."""

import sys
from pathlib import Path

import pytest

from benchmarks import search_costs
from benchmarks.scoreless import LastText, Uniform
from benchmarks.search_costs import GUIDED, OF_GUIDES, OWN, SCORELESS, Player, measure, table
from tsr_lightning.search import Beam
from tsr_lightning.search.random_rollouts import MeanSuccess, RandomRollouts


@pytest.mark.parametrize("title", SCORELESS)
def test_random_play_guides_a_beam_through_a_puzzle_without_a_score(title: str) -> None:
    player = Player(SCORELESS[title], LastText(), Uniform(), 1000)
    guides = {"none": Beam(1, 4, OWN), "play": Beam(1, 4, RandomRollouts(32, value=MeanSuccess()))}
    rows = measure(player, guides, instances=4, searches=4)
    assert [row.searches for row in rows] == [16, 16]
    assert rows[1].successes > rows[0].successes
    assert len(table(rows, OF_GUIDES).splitlines()) == 2 + 2
    assert {"Beam 1 of 4, the task's own score", "Beam 1 of 4, 32 rollouts, mean"} <= GUIDED.keys()


def test_a_few_instances_are_enough_for_the_guides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "guides.md"
    monkeypatch.setattr(sys, "argv", ["", "--guides", "--instances", "4", "--out", str(out)])
    monkeypatch.setattr(search_costs, "SETS", [])
    monkeypatch.setattr(search_costs, "GUIDED", {"of 2": Beam(1, 2, OWN), "of 4": Beam(1, 4, OWN)})
    search_costs.main()
    text = out.read_text(encoding="utf-8")
    assert [line[4:] for line in text.splitlines() if line.startswith("### ")] == list(SCORELESS)
    assert text.count("| of 2 |") == text.count("| of 4 |") == 2
