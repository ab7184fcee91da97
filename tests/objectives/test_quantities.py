"""Further quantities per token reach the loss by name, and a forgotten or misspelt one is refused before a run."""

from collections.abc import Sequence

import pytest
import torch
from fakes import driver, tasks

from tests import own_quantities as own
from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates, Outputs
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import CISPO, GRPO, GroupNormalised, Objective, TreeCredit
from tsr_lightning.objectives.rehearsal import rehearse
from tsr_lightning.rng import Key
from tsr_lightning.search.strategies import Beam, Sample, Strategy
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Group

GAP = 0.25  # trainer over engine, in nats


def estimate(asked: Sequence[ToEstimate]) -> list[Estimates]:
    found = []
    for one in asked:
        logprobs = torch.tensor([logprob for turn in one.piece.turns for logprob in turn.behaviour_logprobs])
        found.append(Estimates(logprobs + GAP, torch.zeros_like(logprobs), torch.zeros_like(logprobs), 0.0))
    return found


def batches(objective: Objective, strategy: Strategy, *, keep_tree: bool = False) -> list[Batch]:
    trajectories = driver(keep_tree=keep_tree).run(tasks(strategy, 8))
    groups = [Group(i, tuple(trajectories[2 * i : 2 * i + 2])) for i in range(4)]
    parts = [objective.comparisons(group) for group in groups]
    sequences = credited_sequences(parts, objective, estimate, ProcessGroup()).sequences
    return [batch for step in schedule(sequences, Updates(micro_batch_tokens=60), Key(1)) for batch in step]


def loss_of(objective: Objective, batch: Batch) -> float:
    zeros = torch.zeros_like(batch.targets.old_logprobs)
    return objective.loss(batch.targets, Outputs(batch.targets.old_logprobs, zeros, zeros)).total.item()


@pytest.mark.parametrize("tree", [False, True])
def test_the_samplers_log_probabilities_reach_the_loss(tree: bool) -> None:
    searched = {"searched": TreeCredit()} if tree else {}
    strategy = Beam(width=2, candidates=4) if tree else Sample()
    decoupled = GRPO(surrogate=own.Decoupled(), entropy_coefficient=0.0, **searched)
    plain = GRPO(entropy_coefficient=0.0, **searched)
    found = batches(decoupled, strategy, keep_tree=tree)
    assert len(found) > 4
    for batch in found:
        gap = batch.targets.old_logprobs - batch.targets.quantities["behaviour_logprobs"]
        torch.testing.assert_close(gap, torch.full_like(gap, GAP))
        expected = loss_of(plain, batch) * torch.tensor(GAP).exp().item()
        assert loss_of(decoupled, batch) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert any(abs(loss_of(plain, batch)) > 1e-3 for batch in found)


def test_a_quantity_of_an_estimators_own_reaches_the_loss_of_its_tokens() -> None:
    objective = GRPO(advantage=own.WithTurnsLeft(), surrogate=own.LateTurnsFirst())
    seen: set[float] = set()
    for batch in batches(objective, Sample()):
        left, starts = batch.targets.quantities["turns_left"].tolist(), batch.targets.turn_starts.tolist()
        for before, after, starts_turn in zip(left[:-1], left[1:], starts[1:], strict=True):
            assert after == before or starts_turn
        seen |= set(left)
    assert {0.0, 1.0} <= seen


def test_nothing_is_carried_that_no_loss_reads() -> None:
    assert all(not batch.targets.quantities for batch in batches(GRPO(), Sample()))


@pytest.mark.parametrize(
    "objective",
    [
        GRPO(surrogate=own.Decoupled()),
        GRPO(advantage=own.WithTurnsLeft(), surrogate=own.LateTurnsFirst()),
        GRPO(surrogate=own.Decoupled(), searched=TreeCredit()),
    ],
    ids=repr,
)
def test_they_pass_their_rehearsal(objective: Objective) -> None:
    rehearse(objective)


@pytest.mark.parametrize(
    ("objective", "sentence"),
    [
        (
            GRPO(surrogate=own.ForgetsToDeclare()),
            r"GRPO reads the quantity 'behaviour_logprobs' per token, and its needs name none: add it to Needs",
        ),
        (
            GRPO(surrogate=own.Misspells()),
            r"GRPO\.needs names the quantity 'behavior_logprobs' .*; did you mean 'behaviour_logprobs'\?",
        ),
        (
            CISPO(advantage=own.GivesUndeclared()),
            r"CISPO gives the quantity 'turns_left' per token, which its needs",
        ),
        (CISPO(advantage=own.GivesOnePerTurn()), r"CISPO gives the quantity 'turns_left' .*shape \(2,\) for 6 trained"),
        (CISPO(advantage=own.ForgetsToGive()), r"CISPO\.needs names the quantity 'turns_left' .*credit gives none"),
        (
            GRPO(advantage=GroupNormalised(), surrogate=own.LateTurnsFirst()),
            r"GRPO\.needs names the quantity 'turns_left' per token, and its credit gives none",
        ),
    ],
)
def test_a_mistake_is_refused_before_a_model_loads(objective: Objective, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        rehearse(objective)
