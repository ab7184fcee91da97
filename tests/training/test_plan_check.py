"""Which plans each objective can learn from."""

import re

import pytest
from commands import QUICK, TINY, tsr

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    RAFT,
    RLOO,
    SFT,
    DrGRPO,
    GiGPO,
    GreedyBaseline,
    ImitateSuccesses,
    MaxRL,
    MeanBackup,
    Objective,
    PolicyGradient,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReinforceRej,
    Supervised,
    TreeCredit,
    Unchanged,
)
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.search.branching import SuffixRestarts, Vine
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.plan import Annealed, Mixed, NoRollout, Phases, Plan, PlanEntry, SearchFailedGroups, Uniform
from tsr_lightning.search.scorers import CriticValue, EnvironmentScore, ReturnSoFar, Scorer, WeightedSum
from tsr_lightning.search.strategies import Beam, Expert, Greedy, Sample, Strategy
from tsr_lightning.training.plan_check import check_plan

IMITATING = GRPO(searched=ImitateSuccesses())
COMPARING = GRPO(searched=Unchanged())


def mixed(sampled: int, searched: int) -> Mixed:
    return Mixed([PlanEntry(Sample(), sampled), PlanEntry(Beam(), searched)])


@pytest.mark.parametrize(
    ("objective", "plan"),
    [
        (IMITATING, Uniform(Beam(), 1)),  # imitation needs no group
        (IMITATING, mixed(0, 3)),
        (IMITATING, mixed(2, 1)),
        (IMITATING, Annealed(Beam(), count=4, epochs=8)),
        (IMITATING, SearchFailedGroups(samples=2)),
        (COMPARING, Annealed(Beam(), count=4, epochs=8)),
        (COMPARING, Uniform(Beam(), 2)),
        (COMPARING, mixed(1, 1)),  # searched members are compared too
        (PPO(), Uniform(Sample(), 1)),  # the critic is the baseline
        (PPO(searched=ImitateSuccesses()), mixed(1, 3)),
        (ReinforcePlusPlus(), Uniform(Sample(), 1)),  # the rollout's mean is the baseline
        (RAFT(), Uniform(Sample(), 1)),
        (RAFT(), mixed(1, 1)),
        (SFT(), Uniform(Sample(), 1)),
    ],
    ids=repr,
)
def test_a_plan_with_something_to_learn_is_accepted(objective: Objective, plan: Plan):
    check_plan(objective, plan)


@pytest.mark.parametrize(
    ("objective", "plan", "message"),
    [
        (COMPARING, Uniform(Beam(), 1), "groups of 1, of which GRPO compares 1 in epoch 0"),
        (IMITATING, Uniform(Sample(), 1), "groups of 1, of which GRPO compares 1 in epoch 0"),
        (IMITATING, Uniform(Beam(1, 1), 1), "groups of 1, of which GRPO compares 1 in epoch 0"),  # a plain sample
        *(
            (preset, Uniform(Sample(), 1), f"groups of 1, of which {type(preset).__name__} compares 1 in epoch 0")
            for preset in (DrGRPO(), GiGPO(), MaxRL(), ReinforcePlusPlusBaseline(), ReinforceRej(), RLOO())
        ),
        (IMITATING, mixed(1, 7), "groups of 8, of which GRPO compares 1 in epoch 0"),
        (IMITATING, Annealed(Beam(), count=1, epochs=4), "groups of 1, of which GRPO compares 1 in epoch 2"),
    ],
    ids=repr,
)
def test_a_single_compared_member_is_refused(objective: Objective, plan: Plan, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)) as refusal:
        check_plan(objective, plan)
    assert "at least 2, or none" in str(refusal.value)


@pytest.mark.parametrize("objective", [GRPO(), IMITATING, PPO(), PPO(searched=ImitateSuccesses())], ids=repr)
@pytest.mark.parametrize(
    "plan",
    [Uniform(Expert(), 8), Annealed(Expert()), Mixed([PlanEntry(Sample(), 7), PlanEntry(Expert(), 1)])],
    ids=repr,
)
def test_a_policy_gradient_refuses_demonstrations(objective: Objective, plan: Plan):
    sentence = r"data\.plan is .*demonstrations of Expert are no samples.*supervised term.*or use the objective SFT"
    with pytest.raises(ConfigError, match=sentence):
        check_plan(objective, plan)


@pytest.mark.parametrize("objective", [SFT(), RAFT()], ids=repr)
def test_imitation_accepts_demonstrations(objective: Objective):
    check_plan(objective, Uniform(Expert(), 1))


DEMONSTRATING = Mixed([PlanEntry(Sample(), 4), PlanEntry(Expert(), 1)])


@pytest.mark.parametrize("kind", [GRPO, PPO])
@pytest.mark.parametrize("plan", [Uniform(Expert(), 1), DEMONSTRATING, Phases([Uniform(Expert(), 1), Uniform()], [0])])
def test_a_supervised_term_accepts_demonstrations(kind: type[PolicyGradient], plan: Plan):
    """Those of a phase of no epochs too, so that a run without them needs no other configuration."""
    check_plan(kind(supervised=Supervised()), plan)


def test_a_supervised_term_needs_an_expert_or_a_file():
    objective = GRPO(supervised=Supervised())
    with pytest.raises(
        ConfigError,
        match=r"objective is 'GRPO': its supervised term needs .*: give .*Expert.*or set",
    ):
        check_plan(objective, Uniform(Sample(), 8))
    check_plan(objective, Uniform(Sample(), 8), Demonstrations("talks.jsonl"))


@pytest.mark.parametrize("objective", [GRPO(), PPO()], ids=repr)
def test_a_file_of_demonstrations_needs_an_objective_that_takes_them(objective: Objective):
    with pytest.raises(ConfigError, match=r"path is 'talks\.jsonl': .*supervised term.*or use the objective SFT"):
        check_plan(objective, Uniform(Sample(), 8), Demonstrations("talks.jsonl"))
    check_plan(SFT(), Uniform(Sample(), 8), Demonstrations("talks.jsonl"))


def test_an_epoch_without_rollout_needs_a_file():
    objective, plan = GRPO(supervised=Supervised()), Phases([Uniform(Expert(), 1), NoRollout()], [2])
    for file in (None, Demonstrations("talks.jsonl", epochs=2)):
        with pytest.raises(ConfigError, match=r"rolls out nothing in epoch 2, and data\.demonstrations has nothing"):
            check_plan(objective, plan, file)
    check_plan(objective, plan, Demonstrations("talks.jsonl"))


def test_a_file_that_ends_before_a_last_phase_without_rollout_is_refused():
    objective = GRPO(supervised=Supervised())
    with pytest.raises(ConfigError, match="rolls out nothing in epoch 7"):
        check_plan(objective, NoRollout(), Demonstrations("talks.jsonl", epochs=7))


def test_a_demonstration_is_no_baseline():
    alone = Mixed([PlanEntry(Sample(), 1), PlanEntry(Expert(), 7)])
    with pytest.raises(ConfigError, match="groups of 8, of which GRPO compares 1"):
        check_plan(GRPO(supervised=Supervised()), alone)


def test_every_phase_is_checked():
    with pytest.raises(ConfigError, match="groups of 1, of which GRPO compares 1 in epoch 3"):
        check_plan(GRPO(), Phases([Uniform(Sample(), 4), Uniform(Sample(), 1)], [3]))


def test_one_search_per_instance_trains(empty_folder):
    """Eight instances, each searched once; successes are imitated."""
    one_each = ("--config", "search/beam.yaml", "--config", "credit/imitate.yaml", "--data.instances", "8")
    parity = ("--data.env", "parity:Parity-v0", "--data.env_kwargs", "null", "--trainer.max_epochs", "1")
    run = tsr("fit", "--config", "sokoban.yaml", *QUICK, *one_each, *parity, "--model.policy.model", TINY).trainer
    assert run.global_step == 2
    assert run.callback_metrics["train/policy_weight"] > 0


def test_greedy_play_and_its_baseline_go_together():
    remax, both = GRPO(advantage=GreedyBaseline()), Mixed([PlanEntry(Sample(), 1), PlanEntry(Greedy(), 1)])
    check_plan(remax, both)
    with pytest.raises(ConfigError, match=r"no greedy trajectory in epoch 2.*by the strategy Greedy"):
        check_plan(remax, Phases([both, Uniform(Sample(), 8)], [2]))
    with pytest.raises(ConfigError, match=r"greedy trajectories are a baseline, and PPO has another; leave them out"):
        check_plan(PPO(), both)
    raft = RAFT(advantage=GreedyBaseline())
    with pytest.raises(ConfigError, match=r"a baseline, and RAFT compares nothing with it in epoch 0; use another"):
        check_plan(raft, both)
    with pytest.raises(ConfigError, match=r"a baseline, and RAFT compares nothing with it"):
        check_plan(RAFT(), both)
    with pytest.raises(ConfigError, match=r"under TreeCredit .* no greedy play of the instance; use LeaveOneOut"):
        GRPO(advantage=GreedyBaseline(), searched=TreeCredit())


TREE = GRPO(searched=TreeCredit())


@pytest.mark.parametrize(
    "plan",
    [
        Uniform(Beam(), 1),  # one search is enough
        mixed(2, 1),
        Annealed(Beam(), count=4, epochs=8),
    ],
    ids=repr,
)
def test_tree_credit_takes_a_single_search(plan: Plan):
    check_plan(TREE, plan)
    check_plan(PPO(searched=TreeCredit()), plan)
    check_plan(GRPO(searched=TreeCredit(MeanBackup())), plan)


@pytest.mark.parametrize("strategy", [Vine(), SuffixRestarts()], ids=repr)
def test_what_measures_a_state_by_plain_samples_wants_their_mean(strategy: Strategy):
    check_plan(GRPO(searched=TreeCredit(MeanBackup())), Uniform(strategy, 1))
    message = r"backup is 'MaxBackup': \w+ plays plain samples on from a state .* use MeanBackup"
    with pytest.raises(ConfigError, match=message):
        check_plan(TREE, Uniform(strategy, 1))


@pytest.mark.parametrize(
    "scorer", [ReturnSoFar(), CriticValue(), WeightedSum([EnvironmentScore(), CriticValue()], [1.0, 0.5])], ids=repr
)
def test_means_refuse_a_score_that_counts_past_rewards(scorer: Scorer):
    plan = Uniform(Beam(scorer=scorer), 1)
    with pytest.raises(
        ConfigError, match=rf"Beam.scorer is '{type(scorer).__name__}': under MeanBackup a score stands"
    ):
        check_plan(GRPO(searched=TreeCredit(MeanBackup())), plan)
    check_plan(GRPO(searched=TreeCredit(MeanBackup(score_share=0.0))), plan)
    check_plan(TREE, plan)
    check_plan(IMITATING, plan)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Uniform(Sample(), 8), "TreeCredit.*no strategy of data.plan proposes several; use a search"),
        (Uniform(Beam(1, 1), 8), "no strategy of data.plan proposes several"),
        (Uniform(Expert(), 8), "demonstrations of Expert"),
        (mixed(1, 1), "of which GRPO compares 1 in epoch 0"),  # the plain one has no other
        (Uniform(FirstImprovement(), 1), "data.plan is 'FirstImprovement': TreeCredit needs independent responses"),
        (Uniform(SearchFailures(), 1), "data.plan is 'SearchFailures': TreeCredit needs independent responses"),
    ],
    ids=repr,
)
def test_tree_credit_refuses_a_plan_in_which_nothing_is_compared(plan: Plan, message: str):
    with pytest.raises(ConfigError, match=message):
        check_plan(TREE, plan)
