"""The estimate of what is left, by hand."""

import pytest

from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.study_progress import describe_change, seconds_left

A, B, C = Run("a", 1), Run("b", 1), Run("a", 2)


def test_nothing_is_known_before_the_first_run_has_ended():
    assert seconds_left({}, [A], {}, 1) is None


@pytest.mark.parametrize(
    ("waiting", "running", "jobs", "seconds"),
    [
        ([], {}, 2, 0),
        ([C], {}, 1, 15),  # arm a takes (10 + 20) / 2
        ([B], {}, 1, 20),  # arm b has not ended yet: (10 + 20 + 30) / 3
        ([B, C], {A: 5}, 1, 45),  # 15 − 5 + 20 + 15
        ([B, C], {A: 5}, 3, 20),  # no sooner than the longest
        ([], {A: 40}, 1, 0),
    ],
)
def test_time_left(waiting: list[Run], running: dict[Run, float], jobs: int, seconds: float):
    assert seconds_left({"a": [10, 20], "c": [30]}, waiting, running, jobs) == pytest.approx(seconds)


def test_a_change_names_every_protocol():
    evaluations = [
        {
            "costs": {"epochs": epochs},
            "figures": {"sampled": {"success_rate": rate}, "greedy": {"success_rate": 2 * rate}},
        }
        for epochs, rate in ((0, 0.1), (10, 0.2), (20, 0.25))
    ]
    assert describe_change(evaluations) == "sampled 0.100 to 0.250, greedy 0.200 to 0.500"
    assert describe_change(evaluations[1:]) == "sampled 0.250, greedy 0.500"  # another run measured the start
