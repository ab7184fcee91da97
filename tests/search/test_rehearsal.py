"""What a rehearsal on small trees refuses, each in one sentence with class and property, and what it accepts."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import broken_strategies as broken
from tests.search.branching_reference import BRANCHING
from tests.search.reference import STRATEGIES
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, ImitateSuccesses, MeanBackup, TreeCredit
from tsr_lightning.search.branching import Vine
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.process_score import ProcessScore
from tsr_lightning.search.random_rollouts import RandomRollouts
from tsr_lightning.search.rehearsal import rehearse, rehearse_scorer
from tsr_lightning.search.scorers import CriticValue, EnvironmentScore, ReturnSoFar, Scorer, WeightedSum
from tsr_lightning.search.strategies import Beam, Expert, Lookahead, Strategy
from tsr_lightning.training.plan_check import check_plan

ROOT = Path(__file__).resolve().parents[2]
LINE = r"broken_strategies\.py:\d+"


@pytest.mark.parametrize("strategy", [*STRATEGIES[::5], *BRANCHING, Expert(), Vine(share=0.01)], ids=repr)
def test_what_is_shipped_is_as_it_says(strategy: Strategy) -> None:
    rehearse(strategy)


@pytest.mark.parametrize(
    "scorer",
    [
        EnvironmentScore(),
        ReturnSoFar(),
        CriticValue(),
        WeightedSum([EnvironmentScore(), CriticValue()], [1.0, 0.5]),
        RandomRollouts(),
        ProcessScore(),
    ],
    ids=repr,
)
def test_a_scorer_that_is_shipped_is_as_it_says(scorer: Scorer) -> None:
    rehearse_scorer(scorer)


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (broken.NoTraits(), r"NoTraits has no traits: define `traits = Traits\(origin=\.\.\., branches="),
        (broken.OtherTraits(), r"OtherTraits\.traits is \{'origin': 'searched'\}: give a .*Traits"),
        (
            broken.ForgetsScorer(),
            r"ForgetsScorer failed .*: ValueError: Node\.score was read and never set; .*\(scored_by\).*",
        ),
        (
            broken.ForgetsRoot(),
            r"ForgetsRoot failed .*: ValueError: Node\.score was read and never set; this is the root: .*scores_every",
        ),
        (
            broken.GreedyInSecret(),
            r"GreedyInSecret\.traits\.origin is SAMPLED, .* greedy responses, which are no samples",
        ),
        (broken.SamplesAndIsGreedy(), r"SamplesAndIsGreedy\.traits\.origin is GREEDY, .* it samples responses"),
        (
            broken.ForgetsReplacement(),
            r"ForgetsReplacement\.traits\.without_replacement is False, and in a rehearsal it",
        ),
        (broken.DiffersAndIsIndependent(), r"traits\.independent_siblings is True, .* asks for responses without repl"),
        (
            broken.StopsAtSuccess(),
            r"StopsAtSuccess\.traits\.independent_siblings is True, and in a rehearsal it draws further responses in "
            r"a state where earlier ones failed",
        ),
        (broken.ImprovesAndIsIndependent(), r"independent_siblings is True, .* where earlier ones failed: correct"),
        (
            broken.AddsAfterSuccess(),
            r"independent_siblings is True, .* where earlier ones succeeded: correct the trait",
        ),
        (
            broken.SelectsAndIsSampled(),
            r"SelectsAndIsSampled\.traits\.origin is SAMPLED, .* which trajectory it returns",
        ),
        (broken.BranchesInSecret(), r"BranchesInSecret\.traits\.branches is False, .* several responses in a state"),
        (broken.NoExpert(), r"NoExpert\.traits\.origin is DEMONSTRATED, .* the policy plays some of its turns"),
        (broken.NeverEnds(), r"NeverEnds does not end: it has made 20,000 requests in an episode of 4 turns"),
        (broken.ExpandsNothing(), rf"ExpandsNothing failed .*: ValueError: Expand asks for 1 .* of 0 nodes; .*{LINE}"),
        (broken.ExpandsTheEnded(), r"ExpandsTheEnded expands a node whose episode has ended"),
        (broken.ReturnsNothing(), r"ReturnsNothing names None, which is no node of its tree"),
        (broken.ReturnsEarly(), r"ReturnsEarly returns a node whose episode has not ended; return a leaf"),
        (broken.Typo(), rf"Typo failed .*: AttributeError: .*'is_done' at .*{LINE}"),
        (broken.YieldsNodes(), r"YieldsNodes yields \[Node\(.*\]; it may yield Expand, Commit and Demonstrate"),
        (
            broken.CountsOnAll(),
            rf"CountsOnAll failed .* in which responses are lost, .*: ValueError: not enough.*{LINE}",
        ),
        (Beam(scorer=broken.AsksCritic()), r"AsksCritic\.needs_critic is False, and it asks the critic for values"),
        (Beam(scorer=broken.CountsRewards()), r"CountsRewards\.includes_rewards is False, and its score changes"),
        (Beam(scorer=broken.GivesNan()), r"GivesNan gives the scores \[.*nan.*\]: give finite numbers"),
        (Beam(scorer=broken.GivesTooFew()), r"GivesTooFew gives 1 scores for 6 nodes: give one for each"),
        (Beam(scorer=broken.ScorerTypo()), rf"ScorerTypo failed .*: AttributeError: .* at .*{LINE}"),
        (
            Beam(scorer=broken.RanksTheBatch()),
            r"RanksTheBatch gives nodes the scores .* when it is asked for each alone",
        ),
        (Beam(scorer=broken.PrefersFailures()), r"PrefersFailures scores a success below a failure in its place"),
        (broken.KeepsNodes(), r"KeepsNodes names a node of depth 0, which is no node of its tree; keep none"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Strategy) else "",
)
def test_a_mistake_is_one_sentence(strategy: Strategy, sentence: str) -> None:
    started = time.process_time()
    with pytest.raises(ConfigError, match=sentence) as refused:
        rehearse(strategy)
    assert "\n" not in str(refused.value)
    assert time.process_time() - started < 2


def readme_strategy() -> Any:
    [source] = re.findall(r"```python\n# stubborn\.py\n(.*?)```", (ROOT / "docs/extend.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "stubborn"}
    exec(compile(source, "stubborn.py", "exec"), names)
    return names["Stubborn"]


def test_the_readmes_strategy_is_refused_under_tree_credit_and_accepted_otherwise() -> None:
    stubborn = readme_strategy()
    rehearse(stubborn())
    for backup in (None, MeanBackup()):
        objective = GRPO(searched=TreeCredit() if backup is None else TreeCredit(backup))
        with pytest.raises(ConfigError, match=r"data\.plan is 'Stubborn': TreeCredit needs independent responses"):
            check_plan(objective, Uniform(stubborn(), 1))
    check_plan(GRPO(searched=ImitateSuccesses()), Uniform(stubborn(), 1))
    stubborn.traits = replace(stubborn.traits, independent_siblings=True)
    with pytest.raises(ConfigError, match=r"Stubborn\.traits\.independent_siblings is True, .* earlier ones failed"):
        rehearse(stubborn())


def test_a_lookahead_that_rolls_again_is_refused_under_tree_credit() -> None:
    objective = GRPO(searched=TreeCredit())
    with pytest.raises(ConfigError, match=r"data\.plan is 'Lookahead': TreeCredit needs independent responses"):
        check_plan(objective, Uniform(Lookahead(), 1))
    check_plan(objective, Uniform(Lookahead(commit="resample"), 1))
