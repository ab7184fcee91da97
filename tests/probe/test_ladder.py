"""`tsr probe` names planted faults, and finds none in shipped objectives and searches."""

from typing import Any
from unittest.mock import Mock

import broken_runs
import pytest
import torch
from callback_support import eval_result, outcomes

from tsr_lightning import (
    GRPO,
    PPO,
    Agent,
    Beam,
    EngineSpec,
    ImitateSuccesses,
    Objective,
    Optimizer,
    PolicySpec,
    RolloutDataModule,
    Sample,
    Scorer,
    Scratch,
    Transformers,
    Uniform,
)
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.probe import answers, rungs
from tsr_lightning.probe.ladder import probe
from tsr_lightning.probe.parts import Outcome, one_of
from tsr_lightning.probe.watch import Watch
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.strategies import Strategy

TINY = PolicySpec(Scratch(32, 1, 2, 64))
FAST = Optimizer(learning_rate=5e-3, critic_learning_rate=0.02)
TRAINER = {"accelerator": "cpu", "devices": 1, "gradient_clip_val": 1.0}


def climbed(objective: Objective, strategy: Strategy, count: int, engine: EngineSpec) -> dict[str, Outcome]:
    """The rungs that were climbed, by name."""
    data = RolloutDataModule("tsr/Sokoban-v0", plan=Uniform(strategy, count), engine=engine)
    return {outcome.rung: outcome for outcome in probe(Agent(TINY, objective, FAST), data, TRAINER)}


@pytest.mark.parametrize(
    ("objective", "engine", "rung", "fault"),
    [
        (broken_runs.FlippedSign(), Transformers(), "constant", "less likely: change the sign"),
        (broken_runs.ShiftedMask(), Transformers(), "constant", "shifted mask"),
        (broken_runs.ZeroAdvantage(), Transformers(), "constant", "zero advantage"),
        (GRPO(), broken_runs.Stale(), "constant", "weights that it did not take over"),
        pytest.param(broken_runs.DeafCritic(), Transformers(), "critic", "deaf critic", marks=pytest.mark.exhaustive),
    ],
    ids=["sign", "mask", "advantage", "weights", "critic"],
)
def test_a_planted_fault_is_named(
    objective: Objective, engine: EngineSpec, rung: str, fault: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rungs, "_EPOCHS", 10)  # that a rung goes on in vain; the fault shows in the first
    outcomes = climbed(objective, Sample(), 8, engine)
    failed = {name: outcome.fault for name, outcome in outcomes.items() if outcome.fault}
    assert list(failed) == [rung]
    assert fault in failed[rung]


@pytest.mark.parametrize(
    "scorer",
    [pytest.param(None, marks=pytest.mark.exhaustive, id="shipped"), pytest.param(broken_runs.Noise(), id="noise")],
)
def test_a_scorer_of_noise_is_named(scorer: Scorer | None):
    beam = Beam(width=1, candidates=4) if scorer is None else Beam(width=1, candidates=4, scorer=scorer)
    outcomes = climbed(GRPO(searched=ImitateSuccesses()), beam, 1, Transformers())
    failed = {name: outcome.fault for name, outcome in outcomes.items() if outcome.fault}
    assert list(failed) == ([] if scorer is None else ["search"])
    assert scorer is None or "noise" in failed["search"]


@pytest.mark.exhaustive
def test_ppo_passes_with_its_critic():
    outcomes = climbed(PPO(), Sample(), 8, Transformers())
    assert [str(outcome) for outcome in outcomes.values() if outcome.fault] == []
    assert list(outcomes) == ["constant", "prompt", "turns", "noise", "critic"]


def test_an_evaluation_of_several_batches_is_judged_as_one():
    plain, searched = EvalProtocol(), EvalProtocol(name="searched", search=Beam(width=1, candidates=2))
    watch, trainer = Watch(goal=0.9), Mock(sanity_checking=False, should_stop=False)
    for first, ends in ((outcomes(1, 0, 0, 0), False), (outcomes(1, 1, 1, 1), True)):
        watch.on_validation_start(trainer, Mock())
        for protocol in (plain, searched):
            for group in (first, outcomes(2, 1)):  # the last batch alone would reach the goal
                watch.on_validation_batch_end(trainer, Mock(), eval_result(protocol, group), None, 0)
        watch.on_validation_end(trainer, Mock())
        assert trainer.should_stop is ends
    assert watch.success == [0.25, 1.0]
    assert [result.success_rate for result in watch.searched] == [0.25, 1.0]


@pytest.mark.parametrize(
    ("given", "one"), [("auto", 1), (4, 1), ("-1", 1), ("3", 1), ([2, 3], [2]), ("2,3", [2]), ("1,", [1])]
)
def test_a_rung_has_one_device(given: Any, one: int | list[int]):
    assert one_of(given) == one


def test_a_model_that_hesitates_after_the_longest_prefix_is_asked(monkeypatch: pytest.MonkeyPatch):
    """It is sure of the tokens of the longest prefix, and of none behind it."""
    size = len(load_tokenizer(TINY, answers._PROMPTS))
    asked: list[int] = []

    def first_tokens(*given: object) -> torch.Tensor:
        sure = 0.95 if len(asked) < answers._LONGEST else 0.3
        asked.append(1)
        chances = torch.full((size,), (1 - sure) / (size - 1))
        chances[40] = sure
        return chances

    monkeypatch.setattr(answers, "_first_tokens", first_tokens)
    chosen = answers.choose(TINY, 1.0, 1)
    assert len(asked) == answers._LONGEST + 1
    assert chosen.chance >= 0.25
    assert chosen.wrong not in chosen.right
