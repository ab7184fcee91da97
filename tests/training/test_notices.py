"""Notices that a run logs once."""

import logging
from collections import defaultdict

import pytest
from fakes import Walk

from tests.saved_episodes import recorded
from tsr_lightning.objectives import GRPO, GraphCredit, MaxBackup, MeanBackup, Objective, TreeCredit
from tsr_lightning.objectives.state_graph import action_of_two_outcomes
from tsr_lightning.search.strategies import Beam, Sample, Strategy
from tsr_lightning.training.notices import ChanceNotice
from tsr_lightning.trajectory import Group


def groups_of(strategy: Strategy, slip: float) -> list[Group]:
    by_instance = defaultdict(list)
    for trajectory in recorded(strategy, 24, Walk(slip)):
        by_instance[trajectory.instance].append(trajectory)
    return [Group(instance, tuple(trajectories)) for instance, trajectories in by_instance.items()]


@pytest.mark.parametrize("strategy", [Sample(), Beam(2, 4)], ids=repr)
def test_two_outcomes_of_an_action_are_chance(strategy: Strategy) -> None:
    """Though budgets end some of the episodes, whose turns then led nowhere."""
    groups = groups_of(strategy, slip=0.0)
    assert any(each.truncated for group in groups for each in group.trajectories)
    assert [action_of_two_outcomes(group.trajectories) for group in groups] == [None] * len(groups)
    assert any(action_of_two_outcomes(group.trajectories) for group in groups_of(strategy, slip=0.5))


@pytest.mark.parametrize(
    ("objective", "slip", "times"),
    [
        (GRPO(searched=GraphCredit(MaxBackup())), 0.5, 1),
        (GRPO(searched=GraphCredit(MaxBackup())), 0.0, 0),
        (GRPO(searched=GraphCredit(MeanBackup())), 0.5, 0),  # it averages them
        (GRPO(searched=TreeCredit(MaxBackup())), 0.5, 0),  # it tells states apart by depth and budget
    ],
)
def test_luck_is_told_once(objective: Objective, slip: float, times: int, caplog: pytest.LogCaptureFixture) -> None:
    groups, notice = groups_of(Beam(2, 4), slip), ChanceNotice()
    with caplog.at_level(logging.INFO, "lightning"):
        for _ in range(3):
            notice.log("rollout", groups, objective)
    said = [record.message for record in caplog.records if "led from one state to two" in record.message]
    assert len(said) == times
    assert all("use MeanBackup (--config credit/graph.yaml)" in message for message in said)
