"""`tsr probe` names planted faults, and finds none in shipped objectives and searches."""

import broken_runs
import pytest

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
from tsr_lightning.probe import rungs
from tsr_lightning.probe.ladder import probe
from tsr_lightning.probe.parts import Outcome
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
