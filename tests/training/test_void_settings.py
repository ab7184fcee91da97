"""Settings without effect are refused before a model loads: those of a comparison where nothing is compared."""

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import tsr

from tsr_lightning.batching.corrections import TruncatedImportance
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    RAFT,
    SFT,
    ImitateSuccesses,
    K1Reward,
    Objective,
    ReinforcePlusPlus,
    Scale,
    TreeCredit,
    UnbiasedK3,
)
from tsr_lightning.search.plan import Mixed, Plan, PlanEntry, SearchFailedGroups, Uniform
from tsr_lightning.search.strategies import Beam, Expert, Sample
from tsr_lightning.training.setting_checks import check_void, says_nothing_is_compared
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory, Turn

ENDED = (Ended.TURN_LIMIT, Ended.SUCCEEDED)
SEARCHES, SAMPLES = Uniform(Beam(2, 2), 2), Uniform(Sample(), 4)
BOTH = Mixed([PlanEntry(Sample(), 2), PlanEntry(Beam(2, 2), 1)])


def imitating(**settings: Any) -> GRPO:
    return GRPO(searched=ImitateSuccesses(), **settings)


VOID = [
    (imitating(shaping=[Scale(0.1)]), r"GRPO\.shaping is \['Scale'\]: all that data\.plan rolls out is imitated"),
    (imitating(whiten=True), r"GRPO\.whiten is True: all that"),
    (imitating(kl=K1Reward(0.1)), r"GRPO\.kl is 'K1Reward': all that"),
]


@pytest.mark.parametrize(("objective", "words"), VOID, ids=["shaping", "whiten", "kl"])
def test_what_reaches_no_advantage_is_refused(objective: Objective, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_void(objective, SEARCHES, Updates())
    for plan in (SAMPLES, BOTH, SearchFailedGroups(Beam(2, 2), 4, 1)):
        check_void(objective, plan, Updates())


@pytest.mark.parametrize("objective", [objective for objective, _ in VOID], ids=["shaping", "whiten", "kl"])
def test_what_is_refused_changes_no_credit(objective: GRPO) -> None:
    turns = (Turn((1,), (2, 3), (-1.0, -1.0), True, (), "", 1.0, True, True, ""),)
    members = [Trajectory(0, i, "Beam", Origin.SEARCHED, turns, ENDED[i], (1,), ()) for i in range(2)]
    own = [Estimates(torch.rand(2), torch.zeros(2), torch.rand(2), 0.0) for _ in members]
    (plain,), (with_it,) = (each.credit([Group(0, tuple(members))], [own]) for each in (imitating(), objective))
    for one, two in zip(plain, with_it, strict=True):
        assert torch.equal(one.advantages, two.advantages)
        assert torch.equal(one.weights, two.weights)


def test_a_correction_of_nothing_is_refused() -> None:
    correcting = Updates(correction=TruncatedImportance())
    with pytest.raises(ConfigError, match=r"data\.updates\.correction is 'TruncatedImportance': all that data\.plan"):
        check_void(imitating(), SEARCHES, correcting)
    check_void(imitating(), BOTH, correcting)


@pytest.mark.parametrize(
    ("objective", "plan"),
    [
        (PPO(searched=ImitateSuccesses()), SEARCHES),  # whitening is its own default
        (ReinforcePlusPlus(searched=ImitateSuccesses()), SEARCHES),
        (GRPO(searched=TreeCredit(), whiten=True), SEARCHES),  # the responses of a tree are compared
        (GRPO(whiten=True, shaping=[Scale(0.1)]), SEARCHES),  # credited as samples (the paper)
        (imitating(kl=UnbiasedK3(), format_penalty=0.1), SEARCHES),
    ],
    ids=repr,
)
def test_what_has_an_effect_is_taken(objective: Objective, plan: Plan) -> None:
    check_void(objective, plan, Updates())


def test_a_run_is_refused_before_its_model_loads(empty_folder: Path) -> None:
    beam = ("fit", "--config", "sokoban.yaml", "--config", "search/beam.yaml", "--config", "credit/imitate.yaml")
    with pytest.raises(ConfigError, match=r"GRPO\.whiten is True"):
        tsr(*beam, "--model.objective.init_args.whiten", "true")


@pytest.mark.parametrize(
    ("objective", "plan", "line"),
    [
        (
            imitating(),
            SEARCHES,
            "GRPO compares nothing here: all trajectories are of searches (Beam), whose successes are imitated and "
            "whose failures are left out (expert iteration)",
        ),
        (SFT(), Uniform(Expert(), 1), "SFT compares nothing here: demonstrations are imitated (supervised learning)"),
        (
            RAFT(),
            SAMPLES,
            "RAFT compares nothing: the trajectories that it imitates become more likely, others are left out",
        ),
        (imitating(), SAMPLES, None),
        (imitating(), BOTH, None),
        (GRPO(), SEARCHES, None),
        (GRPO(searched=TreeCredit()), SEARCHES, None),
    ],
    ids=str,
)
def test_a_run_that_compares_nothing_says_so(objective: Objective, plan: Plan, line: str | None) -> None:
    assert says_nothing_is_compared(objective, plan) == line
