"""The comparison of estimates with a machine runs to its end on a CPU, and its peaks are those that were estimated."""

import pytest

from benchmarks.estimate import main


@pytest.mark.exhaustive  # tests/estimate/test_passes.py measures peaks of smaller models
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="NF4"),
        pytest.param(
            ("--model.policy.adapter", "null", "--model.policy.quantisation", "null"),
            id="all weights",
        ),
    ],
)
def test_peaks_of_a_small_paper_configuration(flags: tuple[str, ...], empty_folder):
    found = {one.name: one for one in main(["--config", "paper/sokoban.yaml", "--tiny", *flags])}
    held = found["held after a first step"]
    assert held.measured == pytest.approx(held.estimated, rel=0.02)
    for name in ("peak of a backward pass", "peak of an optimizer step", "peak of a rollout"):
        assert 0.75 < found[name].measured / found[name].estimated < 1.1, found[name]
    assert all(one.measured > 0 for one in found.values())
