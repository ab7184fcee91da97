"""Levels, their intervals and collapse: hand-computed numbers."""

from math import sqrt

import pytest

from callbacks.levels import FigureWindow, Level, has_collapsed, rate

Z = 1.959963984540054


def single(successes: int, episodes: int) -> list[tuple[float, float]]:
    """One episode per instance."""
    return [(1.0, 1.0)] * successes + [(0.0, 1.0)] * (episodes - successes)


def test_single_episodes_have_wilsons_interval():
    level = rate(single(40, 100), None)
    # centre (0.4 + z²/200) / (1 + z²/100), half width z √(0.24/100 + z²/40000) / (1 + z²/100)
    centre, half = (0.4 + Z**2 / 200) / (1 + Z**2 / 100), Z * sqrt(0.0024 + Z**2 / 40000) / (1 + Z**2 / 100)
    assert level.value == 0.4
    assert (level.low, level.high) == pytest.approx((centre - half, centre + half), rel=1e-12)
    assert level.design_effect == pytest.approx(1)


def test_episodes_of_unequal_instances_have_a_design_effect():
    # 4 of 8 instances always succeed, 4 never: variance 1/4 = 0.5 · 0.5, so 8 independent episodes of 32
    assert rate([(4, 4)] * 4 + [(0, 4)] * 4, None).design_effect == 4


def test_failure_everywhere_takes_the_design_effect_of_the_best():
    best = rate([(4, 4)] * 4 + [(0, 4)] * 12, None)  # 16 of 64 effective
    assert best.design_effect == 4
    # 16 instances of 8 failures are 128 / 4 = 32 effective episodes: z² / (32 + z²)
    assert rate([(0, 8)] * 16, best).high == pytest.approx(Z**2 / (32 + Z**2), rel=1e-12)
    assert rate([(0, 8)] * 16, None).high == pytest.approx(Z**2 / (16 + Z**2), rel=1e-12)


@pytest.mark.parametrize(("high", "collapsed"), [(0.149, True), (0.15, False), (0.4, False)])
def test_collapsed_if_the_intervals_are_further_apart_than_the_drop(high: float, collapsed: bool):
    assert has_collapsed(Level(0.1, 0.05, high), Level(0.4, 0.3, 0.5), drop=0.5) == collapsed


def test_a_fall_by_chance_is_no_collapse():
    """4 of 8 and then 0 of 8: three quarters of the best's lower end, 0.215, is below the upper end 0.324."""
    history = FigureWindow(window=1, drop=0.25)
    history.observe(0, single(4, 8))
    history.observe(1, single(0, 8))
    assert not history.collapsed
    history = FigureWindow(window=1, drop=0.25)
    history.observe(0, single(40, 80))  # from 0.393
    history.observe(1, single(0, 80))  # to 0.046
    assert history.collapsed


def test_a_fall_within_the_drop_is_no_collapse_however_certain():
    history = FigureWindow(window=1, drop=0.5)
    history.observe(0, single(8000, 10000))
    history.observe(1, single(5000, 10000))
    assert not history.collapsed
    history.observe(2, single(3000, 10000))
    assert history.collapsed


def test_a_level_covers_the_window():
    history = FigureWindow(window=2, drop=0.5)
    for epoch, successes in enumerate([10, 10, 6, 2]):
        history.observe(epoch, single(successes, 10))
    assert history.current is not None
    assert history.current.value == 0.4
    assert history.fraction_of_best == 0.4  # the best is that of the first two


def test_the_best_has_the_highest_lower_end():
    """2 of 2 (from 0.342) is less than 70 of 100 (from 0.604)."""
    history = FigureWindow(window=1, drop=0.5)
    history.observe(0, single(2, 2))
    history.observe(1, single(70, 100))
    assert history.best is not None
    assert history.best.value == 0.7


def test_a_repeated_observation_counts_once():
    history = FigureWindow(window=3, drop=0.5)
    history.observe(0, single(5, 10))
    history.observe(1, single(8, 10))
    once = history.current
    history.observe(1, single(8, 10))
    assert history.current == once


def test_a_loaded_state_continues_alike():
    history, again = (FigureWindow(window=2, drop=0.5) for _ in range(2))
    history.observe(0, single(5, 10))
    again.load_state_dict(history.state_dict())
    assert (again.current, again.best) == (history.current, history.best)
    for each in (history, again):
        each.observe(1, single(0, 10))
    assert again.state_dict() == history.state_dict()


def test_a_fall_beyond_chance_is_seen_in_the_last_observation_alone():
    """20 of 40 has [0.352, 0.648]; 15 of 40 reaches up to 0.530, 5 of 40 up to 0.261."""
    history = FigureWindow(window=5, drop=None)
    for epoch in range(3):
        history.observe(epoch, single(20, 40))
    history.observe(3, single(15, 40))
    assert not history.has_fallen
    history.observe(4, single(5, 40))
    assert history.has_fallen
    assert not history.collapsed  # without a drop nothing is
    again = FigureWindow(window=5, drop=None)
    again.load_state_dict(history.state_dict())
    assert again.has_fallen
    history.forget_recent()
    assert not history.has_fallen
