"""Durations, as runs and studies print them."""

import pytest

from tsr_lightning.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (7.44, "7.4 s"), (59.7, "1 min 0 s"), (67, "1 min 7 s"), (7384, "2 h 3 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
