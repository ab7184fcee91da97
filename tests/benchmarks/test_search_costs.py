"""The commands of docs/search.md, on a few instances."""

import pytest

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
