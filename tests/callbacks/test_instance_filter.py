"""Which groups the filter keeps, worked by hand, and what it logs."""

from dataclasses import replace

import pytest
from callback_support import Agent, Data, events, points, returns, trainer, trajectory, turn
from fakes import driver, tasks

from callbacks import InstanceFilter
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    RAFT,
    SFT,
    ImitateSuccesses,
    MaxRL,
    OverlongPenalty,
    ReinforceRej,
    TreeCredit,
)
from tsr_lightning.objectives.signal import Compared
from tsr_lightning.search.strategies import Beam
from tsr_lightning.training.hooks import OnRolloutEnd, OnRolloutWave
from tsr_lightning.trajectory import Group, Origin

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch

# Standard deviations within the groups: 0, 1, 0.5, 0, 2, 1, 0, 0.25
GROUPS = [
    returns(0, 1.0, 1.0),
    returns(1, 0.0, 2.0),
    returns(2, 0.0, 1.0),
    returns(3, -0.1, -0.1),
    returns(4, -2.0, 2.0),
    returns(5, 3.0, 5.0),
    returns(6, 0.0, 0.0),
    returns(7, 0.0, 0.5),
]


def kept(groups, objective=PPO(), **settings):  # noqa: B008  (frozen)
    return [group.instance for group in InstanceFilter(**settings).select(groups, objective)]


def mixed(instance, sampled, searched):
    """A group with these returns; searched members succeeded where they returned more than 0."""
    members = [trajectory(instance, 0, turn(value)) for value in sampled]
    members += [
        replace(trajectory(instance, 0, turn(value), succeeded=value > 0), origin=Origin.SEARCHED) for value in searched
    ]
    return Group(instance, tuple(members))


def test_the_top_fraction_is_kept_in_the_order_of_the_groups():
    assert kept(GROUPS, keep=0.25) == [1, 4]  # 2 of 8: stds 2 and 1; 5 ties with 1 and comes later
    assert kept(GROUPS, keep=0.375) == [1, 4, 5]
    assert kept(GROUPS, keep=0.5) == [1, 2, 4, 5]


def test_the_number_kept_is_rounded_down_but_at_least_one():
    assert kept(GROUPS, keep=0.49) == [1, 4, 5]  # 3.92
    assert kept(GROUPS, keep=0.01) == [4]
    assert len(kept([returns(i, 0, i + 1) for i in range(100)], keep=0.29)) == 29  # 0.29 · 100 < 29 in floating point


def test_successes_are_ranked_where_the_objective_looks_at_those_alone():
    # Groups of failures of different returns, of successes of different returns, and of one of each, equal in return.
    outcomes = [((0.0, False), (1.0, False)), ((5.0, True), (1.0, True)), ((1.0, True), (1.0, False))]
    groups = [
        Group(i, tuple(trajectory(i, 0, turn(value), succeeded=won) for value, won in pair))
        for i, pair in enumerate(outcomes)
    ]
    assert kept(groups, objective=GRPO(), keep=1.0) == [0, 1]
    assert kept(groups, objective=MaxRL(), keep=1.0) == kept(groups, objective=ReinforceRej(), keep=1.0) == [2]


def test_uniform_groups_are_dropped_only_under_drop_uniform():
    assert kept(GROUPS, keep=0.9) == [1, 2, 4, 5, 7]  # 7 would be kept, two of them uniform
    assert kept(GROUPS, keep=0.9, drop_uniform=False) == [0, 1, 2, 3, 4, 5, 7]  # of the uniform ones the first
    uniform = [returns(i, 1.0, 1.0) for i in range(4)]
    assert kept(uniform, keep=0.25) == []
    assert kept(uniform, keep=0.25, drop_uniform=False) == [0]


def test_keep_of_one_without_drop_uniform_keeps_all():
    assert InstanceFilter(keep=1.0, drop_uniform=False).select(GROUPS, PPO()) == GROUPS
    uniform = [returns(i, 1.0, 1.0) for i in range(4)]
    assert InstanceFilter(keep=1.0, drop_uniform=False).select(uniform, PPO()) == uniform
    assert kept(GROUPS, keep=1.0) == [1, 2, 4, 5, 7]


def test_returns_within_minimum_std_count_as_equal():
    noisy = [returns(0, 0.1 + 0.2, 0.3), returns(1, 0.0, 1.0)]  # 0.30000000000000004 and 0.3
    assert kept(noisy, keep=1.0) == [1]
    assert kept(noisy, keep=1.0, minimum_std=0.0) == [0, 1]
    assert kept(noisy, keep=1.0, minimum_std=0.5) == []  # the std of (0, 1) is 0.5, and that is not above it


IMITATING = [GRPO(searched=ImitateSuccesses()), PPO(searched=ImitateSuccesses())]


@pytest.mark.parametrize("objective", IMITATING, ids=["GRPO", "PPO"])
def test_the_deviation_of_compared_returns_ranks_first(objective):
    """All have a deviation over all returns; by that alone, 2 would be kept and 1 dropped first. What teaches by
    imitation alone is no part of the share."""
    groups = [
        mixed(0, [0.0, 0.0], [10.0, 10.0]),  # compared 0, overall 5; its successes are imitated
        mixed(1, [0.0, 1.0], [1.0, 1.0]),  # compared 0.5, overall 0.43
        mixed(2, [0.0, 0.0], [-4.0, -8.0]),  # compared 0, and failures are left out: nothing to learn
        mixed(3, [1.0, 1.0], [2.0, 2.0]),  # compared 0, overall 0.5; imitated
    ]
    for keep in (0.25, 0.5, 0.75, 1.0):
        assert kept(groups, objective, keep=keep) == [0, 1, 3]
    ranked = [*groups, mixed(4, [0.0, 0.2], [-4.0, -8.0])]  # compared 0.1, overall 3.4
    assert kept(ranked, objective, keep=0.34) == [0, 1, 3]  # one of the three ranked, by what is compared
    assert kept(ranked, objective, keep=0.67) == [0, 1, 3, 4]
    assert kept(groups, objective, keep=1.0, drop_uniform=False) == [0, 1, 2, 3]
    assert kept(groups, GRPO(), keep=0.25) == [0]  # where all are compared, as in the paper: 5 is the largest deviation
    assert kept(groups, GRPO(), keep=1.0) == [0, 1, 2, 3]


@pytest.mark.parametrize("objective", [*IMITATING, RAFT()], ids=["GRPO", "PPO", "RAFT"])
def test_a_group_of_one_search_is_kept_if_it_succeeded(objective):
    """Nothing is compared, so `keep`, which is a fraction of the ranked groups, drops none."""
    groups = [mixed(i, [], [value]) for i, value in enumerate([-0.5, 1.0, -0.1, 0.9])]
    assert kept(groups, objective, keep=0.25) == kept(groups, objective, keep=1.0) == [1, 3]
    assert kept(groups, objective, keep=0.25, drop_uniform=False) == [0, 1, 2, 3]
    ranked = [*groups, returns(4, 0.0, 1.0), returns(5, 0.0, 2.0)]
    assert kept(ranked, objective, keep=0.5) == [1, 3, *([] if objective == RAFT() else [5])]


def test_it_ranks_by_the_returns_after_shaping():
    """A penalty of 2 for 9 tokens, of which 4 are free."""
    short, long = turn(1.0, tokens=3), turn(1.0, tokens=9)
    equal = Group(0, (trajectory(0, 0, short), trajectory(0, 1, long)))
    shaped = GRPO(shaping=[OverlongPenalty(8, 4, 2.0)])
    assert kept([equal, returns(1, 0.0, 1.0)], GRPO(), keep=0.5) == [1]
    assert kept([equal, returns(1, 0.0, 1.0)], shaped, keep=0.5) == [0]


def test_a_format_penalty_apart_from_the_return_moves_no_rank():
    unreadable = Group(0, (trajectory(0, 0, turn(1.0, valid=False)), trajectory(0, 1, turn(1.0))))
    assert kept([unreadable], GRPO(format_penalty=5.0), keep=1.0) == []


def test_sft_keeps_all_demonstrations():
    assert kept([returns(0, 1.0), returns(1, 0.0, 0.0)], SFT(), keep=1.0) == [0, 1]


def test_no_groups_and_groups_of_one_trajectory():
    assert kept([], keep=0.25) == []
    assert kept([returns(0, 1.0)], GRPO(), keep=0.25) == []
    assert kept([returns(0, 1.0)], GRPO(), keep=0.25, drop_uniform=False) == [0]
    assert kept([returns(0, 1.0)], PPO(), keep=0.25) == [0]  # the critic is its baseline


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 0.0}, "InstanceFilter.keep is 0.0"),
        ({"keep": 1.5}, "InstanceFilter.keep is 1.5"),
        ({"keep": float("nan")}, "InstanceFilter.keep is nan"),
        ({"minimum_std": -1.0}, "InstanceFilter.minimum_std is -1.0"),
    ],
)
def test_bad_arguments_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        InstanceFilter(**settings)


def test_rollouts_are_filtered_and_figures_logged_against_epochs(tmp_path):
    data = Data(rollout=lambda epoch: GROUPS if epoch == 0 else [returns(0, 1.0, 1.0)])
    trainer(tmp_path, InstanceFilter(keep=0.25), max_epochs=2, limit_val_batches=0).fit(Agent(), data)

    assert [[group.instance for group in groups] for groups in data.kept] == [[1, 4], []]
    assert points(tmp_path, "rollout/filter/kept_share") == [(0, 0.25), (1, 0.0)]
    assert points(tmp_path, "rollout/filter/uniform_share") == [(0, 0.375), (1, 1.0)]
    # stds: (0 + 1 + 0.5 + 0 + 2 + 1 + 0 + 0.25) / 8 and (1 + 2) / 2
    assert points(tmp_path, "rollout/filter/in_group_std") == [(0, pytest.approx(4.75 / 8)), (1, 0.0)]
    assert points(tmp_path, "rollout/filter/in_group_std_kept") == [(0, 1.5)]  # none kept, none logged
    total = 2 + 2 + 1 - 0.2 + 0 + 8 + 0 + 0.5
    assert points(tmp_path, "rollout/filter/return") == [(0, pytest.approx(total / 16)), (1, 1.0)]
    assert points(tmp_path, "rollout/filter/return_kept") == [(0, 0.5)]


def test_a_rollout_without_groups_logs_nothing(tmp_path):
    trainer(tmp_path, InstanceFilter(), limit_val_batches=0).fit(Agent(), Data())
    assert not [tag for tag in events(tmp_path).Tags()["scalars"] if tag.startswith("rollout/filter")]


def test_it_has_the_hook_of_the_data_module():
    assert isinstance(InstanceFilter(), OnRolloutEnd)
    assert not isinstance(InstanceFilter(), OnRolloutWave)


def test_under_tree_credit_the_groups_whose_states_vary_most_are_kept():
    """Searched trajectories are compared in their trees, so one search per instance is ranked too."""
    objective = GRPO(searched=TreeCredit())
    searched = driver(keep_tree=True).run(tasks(Beam(2, 4), 16))
    groups = [Group(i, (one,)) for i, one in enumerate(searched)]
    spread = [Compared.of(group, objective).std for group in groups]
    assert len(set(spread)) > 4
    chosen = kept(groups, objective, keep=0.25)
    assert sorted(spread[i] for i in chosen) == sorted(spread)[-len(chosen) :]
    assert 0 < len(chosen) <= 4
