"""Two processes make the same draws and weights as one alone under credit, targets and baselines that look across the
members of a group, and under terms whose tokens are counted over all ranks.
"""

from pathlib import Path
from typing import Any

import pytest
from commands import in_folder, tsr
from rank_runs import (
    SECONDS,
    TOLERANCE,
    assert_equal_weights,
    assert_same_draws,
    given_their_rank,
    mixed,
    prepared,
    records_of,
)

SAMPLES = mixed(("Sample", {}, 3))
WITH_GREEDY = mixed(("Sample", {}, 3), ("Greedy", {}, 1))
BEAM = mixed(("Beam", {"width": 2, "candidates": 3}, 1))
CENTRED = {"class_path": "GroupNormalised", "init_args": {"divide_by_std": False}}
TARGET = {"class_path": "TreeCredit", "init_args": {"target": {"class_path": "ImprovedPolicy"}}}
GREEDY_BASELINE = {"class_path": "GreedyBaseline"}

# objective, its arguments, and more of the data module's
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "observations as targets": ("GRPO", {"observations": {"coefficient": 0.1}}, {}),
    "observations of failures": ("RAFT", {"observations": {"coefficient": 0.1}}, {"plan": SAMPLES}),
    "a greedy baseline, whitened": ("GRPO", {"advantage": GREEDY_BASELINE, "whiten": True}, {"plan": WITH_GREEDY}),
    "graph credit": ("GRPO", {"searched": {"class_path": "GraphCredit"}}, {}),
    "a better policy as target": ("GRPO", {"advantage": CENTRED, "searched": TARGET}, {"plan": BEAM}),
    "a mask within turns' means": (
        "GRPO",
        {"surrogate": {"class_path": "GeometricMean"}, "top_entropy_quantile": 0.3},
        {},
    ),
    "an optimal baseline": ("GRPO", {"advantage": {"class_path": "OptimalBaseline"}}, {}),
    "instances by learnability": ("GRPO", {}, {"learnability": {"share": 0.5}}),
}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(2 * SECONDS + 60)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(case: str, tmp_path: Path) -> None:
    name, arguments, data = CASES[case]
    objective = {"class_path": f"tsr_lightning.objectives.{name}", "init_args": arguments}
    one, two = (prepared(tmp_path / str(ranks), objective, "all", ranks, **data) for ranks in (1, 2))
    with in_folder(one):
        tsr("fit", "--config", "run.yaml")
    given_their_rank(two)
    [alone], both = records_of(one, 1), records_of(two, 2)
    for record in both:
        assert record["steps"] == alone["steps"] >= 4
        for mine, theirs in zip(record["groups"], alone["groups"], strict=True):
            assert_same_draws(mine, theirs)
        assert_equal_weights(record["after"], alone["after"], TOLERANCE)
    moved = max(float((weight - alone["before"][name]).abs().max()) for name, weight in alone["after"].items())
    assert moved > 100 * TOLERANCE
