"""Which runs begin alike."""

from typing import Any

import pytest

from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.starts import SharedStarts, start_key

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


class TestSharedStarts:
    A, B, C = Run("a", 1), Run("b", 1), Run("c", 1)

    def test_one_at_a_time_measures_until_one_is_finished(self):
        finished: set[str] = set()
        starts = SharedStarts(lambda: finished)
        assert starts.begin(self.A, SETTINGS, None)
        assert not starts.begin(self.B, SETTINGS, None)
        assert starts.begin(self.C, {**SETTINGS, "data.env_kwargs.min_solution": 9}, None)
        starts.end(self.A)  # it failed
        assert starts.begin(self.B, SETTINGS, None)
        finished.add(start_key(SETTINGS, 1))
        starts.end(self.B)
        assert not starts.begin(self.A, SETTINGS, None)

    def test_a_start_that_another_process_measured_is_known(self):
        starts = SharedStarts(lambda: {start_key(SETTINGS, 5)})
        assert not starts.begin(self.A, SETTINGS, None)

    def test_nobody_measures_a_start_that_is_not_asked_for(self):
        starts = SharedStarts(set)
        assert not starts.begin(self.A, {**SETTINGS, "trainer.num_sanity_val_steps": 0}, None)

    def test_a_run_that_goes_on_has_its_start_or_never_will(self):
        starts = SharedStarts(set)
        assert not starts.begin(self.A, SETTINGS, False)
        assert starts.begin(self.B, SETTINGS, True)
        assert not starts.begin(self.C, SETTINGS, None)
