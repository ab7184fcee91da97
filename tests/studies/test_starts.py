"""Which runs begin alike."""

from typing import Any

import pytest

from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.starts import runs_that_measure_the_start, start_key

SETTINGS: dict[str, Any] = {
    "model.policy.model": "embedded/sokoban",
    "model.objective.class_path": "GRPO",
    "data.env_kwargs.min_solution": 6,
    "data.evaluations.0.samples": 2,
    "trainer.num_sanity_val_steps": -1,
}


@pytest.mark.parametrize(
    ("changes", "is_alike"),
    [
        ({"model.objective.class_path": "PPO"}, True),
        ({"data.instances": 64}, True),
        ({"data.env_kwargs.min_solution": 9}, False),
        ({"data.evaluations.0.samples": 16}, False),
        ({"model.policy.model": "embedded/frozen_lake"}, False),
        ({"data.held_out.seed": 7}, False),
    ],
)
def test_what_decides_a_start(changes: dict[str, Any], is_alike: bool):
    assert (start_key(SETTINGS, 1) == start_key({**SETTINGS, **changes}, 1)) == is_alike


def test_the_seed_counts_where_the_policy_is_made_from_it():
    fresh = {**SETTINGS, "model.policy.model.hidden_size": 32}
    assert start_key(SETTINGS, 1) == start_key(SETTINGS, 2)
    assert start_key(fresh, 1) != start_key(fresh, 2)


def test_the_first_of_those_that_begin_alike_measures():
    harder = {**SETTINGS, "data.env_kwargs.min_solution": 9}
    unmeasured = {**SETTINGS, "trainer.num_sanity_val_steps": 0}
    settings = {"off": unmeasured, "a": SETTINGS, "b": SETTINGS, "c": harder}
    runs = [Run(arm, seed) for seed in (1, 2) for arm in settings]
    assert runs_that_measure_the_start(runs, settings, []) == {Run("a", 1), Run("c", 1)}
    assert runs_that_measure_the_start(runs, settings, [start_key(SETTINGS, 5)]) == {Run("c", 1)}
