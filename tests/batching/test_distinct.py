"""Equal responses of a state are trained as one sequence, and nothing that is learned from them changes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import pytest
import torch
from fakes import Walk, driver, tasks
from torch import Tensor

from tsr_lightning.batching.distinct import summed
from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import ToEstimate, TrainingSequence, training_sequences, with_credit
from tsr_lightning.batching.tensors import Credit, Estimates, Outputs, columns
from tsr_lightning.objectives import (
    CISPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    Constant,
    GroupNormalised,
    MeanBackup,
    PolicyGradient,
    TokenMean,
    TreeCredit,
    UnbiasedK3,
)
from tsr_lightning.rng import Key
from tsr_lightning.search.strategies import Beam
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Comparison, Ended, Group, Member, Piece, TreePath, TreeTurn

TREE = TreeCredit()
OBJECTIVES = {
    "GRPO": GRPO(searched=TREE),
    "GRPO, divided, whitened, penalised": GRPO(searched=TREE, whiten=True, format_penalty=0.3, entropy_coefficient=0.1),
    "all states, imitation": GRPO(searched=TreeCredit(imitation=0.5, size_power=0.0, drop_uniform=False)),
    "masked": GRPO(searched=TREE, mask_truncated=True),
    "RLOO, token mean": RLOO(searched=TreeCredit(backup=MeanBackup()), aggregation=TokenMean()),
    "CISPO, constant": CISPO(searched=TREE, aggregation=Constant(tokens=7)),
    "GSPO": GSPO(searched=TREE),
    "PPO, KL": PPO(searched=TreeCredit(drop_uniform=False), kl=UnbiasedK3(0.1)),
}


class Bigrams:
    """A model that looks at one token: tables of logits and values by the token before."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(128, 128, generator=draw, dtype=torch.float64).requires_grad_()
        self.values = torch.randn(128, generator=draw, dtype=torch.float64).requires_grad_()

    def outputs(self, before: Tensor, tokens: Tensor) -> Outputs:
        logprobs = self.logits[before].log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return Outputs(logprobs.gather(1, tokens[:, None])[:, 0], entropies, self.values[before])

    def of(self, batch: Batch) -> Outputs:
        packed = batch.packed
        before = packed.ids[packed.output_positions]
        return self.outputs(before[packed.target_index], packed.target_ids[packed.target_index])


OLD, REFERENCE = Bigrams(1), Bigrams(2)


@torch.no_grad()
def estimate(asked: Sequence[ToEstimate]) -> list[Estimates]:
    found = []
    for _, sequences, _ in asked:
        places = [sequence.mask.nonzero()[:, 0] for sequence in sequences]
        before = torch.cat([sequence.ids[at - 1] for sequence, at in zip(sequences, places, strict=True)])
        tokens = torch.cat([sequence.ids[at] for sequence, at in zip(sequences, places, strict=True)])
        old = OLD.outputs(before, tokens)
        found.append(Estimates(old.logprobs, old.values, REFERENCE.outputs(before, tokens).logprobs, 0.0))
    return found


class Learned(NamedTuple):
    loss: float
    gradients: list[Tensor]
    rows: int


def comparisons(groups: Sequence[Group], objective: PolicyGradient) -> list[list[Group | Comparison]]:
    return [objective.comparisons(group) for group in groups]


def learned(sequences: Sequence[TrainingSequence], objective: PolicyGradient) -> Learned:
    """The loss of one optimizer step over all sequences, and its gradients."""
    [step] = schedule(sequences, Updates(minibatches=1, micro_batch_tokens=200), Key(3))
    now = Bigrams(1)
    with torch.no_grad():  # near the old policy, so that some ratios are clipped and some are not
        now.logits += 0.3 * torch.randn(128, 128, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        now.values += 0.3
    loss = torch.stack([objective.loss(batch.targets, now.of(batch)).total for batch in step]).sum()
    gradients = torch.autograd.grad(loss, [now.logits, now.values], materialize_grads=True)
    return Learned(loss.item(), list(gradients), len(sequences))


def unmerged(groups: Sequence[Group], objective: PolicyGradient) -> list[TrainingSequence]:
    """A sequence per response, each estimated and credited by itself."""
    compared = list(chain.from_iterable(map(objective.comparisons, groups)))
    pieces = [[piece_of(member) for member in part.members] for part in compared]
    sequences = [[training_sequences(piece) for piece in own] for own in pieces]
    estimates = [
        estimate([ToEstimate(*pair) for pair in zip(*pairs, strict=True)])
        for pairs in zip(pieces, sequences, strict=True)
    ]
    flat = zip(*map(chain.from_iterable, (sequences, estimates, objective.credit(compared, estimates))), strict=True)
    return [row for parts, estimated, credit in flat for row in with_credit(parts, estimated, credit)]


def piece_of(member: Member) -> Piece:
    """The one piece of a trajectory, or of a single response."""
    if not isinstance(member, TreePath):
        return member
    [turn], [state] = member.turns, member.states
    return TreeTurn(turn, state)


def searched(count: int = 12) -> list[Group]:
    """Searches whose responses are often equal, two of each instance; half of them end by a limit of tokens."""
    trajectories = driver(Walk(slip=0.0), keep_tree=True).run(tasks(Beam(width=2, candidates=6), count))
    cut = [
        replace(
            t,
            tree=tuple(replace(c, ended=Ended.TOKEN_LIMIT if c.done and not c.succeeded else c.ended) for c in t.tree),
        )
        for t in trajectories
    ]
    return [Group(i, (trajectories[i], cut[i + 1])) for i in range(0, count, 2)]


GROUPS = searched()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_are_those_of_a_sequence_per_response(name: str) -> None:
    objective = OBJECTIVES[name]
    merged = learned(
        credited_sequences(comparisons(GROUPS, objective), objective, estimate, ProcessGroup()).sequences, objective
    )
    expected = learned(unmerged(GROUPS, objective), objective)
    assert merged.rows < 0.9 * expected.rows
    assert merged.loss == pytest.approx(expected.loss, rel=1e-6)
    for gradient, wanted in zip(merged.gradients, expected.gradients, strict=True):
        assert (gradient - wanted).abs().max() <= 1e-6 * wanted.abs().max()
    assert expected.gradients[0].abs().max() > 1e-4


def test_each_distinct_response_is_estimated_and_trained_once_and_counts_as_often_as_it_was_drawn() -> None:
    estimated: list[tuple[int, ...]] = []

    def counting(asked: Sequence[ToEstimate]) -> list[Estimates]:
        estimated.extend(piece.turns[0].prompt + piece.turns[0].response for piece, *_ in asked)
        return estimate(asked)

    objective = GRPO(searched=TreeCredit(size_power=0.0))
    for group in GROUPS:
        estimated.clear()
        states = objective.comparisons(group)
        rows = credited_sequences([states], objective, counting, ProcessGroup()).sequences
        drawn = [[each.turns[0].prompt + each.turns[0].response for each in state.members] for state in states]
        assert estimated == [tuple(row.ids.tolist()) for row in rows]
        assert estimated == list(chain.from_iterable(map(dict.fromkeys, drawn)))
        times = [own.count(row) for own in drawn for row in dict.fromkeys(own)]
        weights = [state.weight for state, own in zip(states, drawn, strict=True) for _ in dict.fromkeys(own)]
        for row, count, weight in zip(rows, times, weights, strict=True):
            assert row.targets is not None
            assert float(row.targets.weights.sum()) == pytest.approx(count * weight)


def test_a_baseline_counts_every_copy() -> None:
    """Of returns 1, 1, 0, 0, 0, 0 the advantages are 2/3 and -1/3, and not 1/2 and -1/2."""
    [state] = GRPO(searched=TREE).comparisons(GROUPS[0])[:1]
    one = state.members[0]
    assert isinstance(one, TreePath)
    worth = replace(one, value=1.0)
    nothing = replace(one, turns=(replace(one.turns[0], response=(65, 66)),), value=0.0)

    class Given(TreeCredit):
        def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
            return [Comparison((worth, nothing, nothing, worth, nothing, nothing), weight=1.0)]

    objective = PolicyGradient(searched=Given(), advantage=GroupNormalised(divide_by_std=False))
    rows = credited_sequences(comparisons(GROUPS[:1], objective), objective, estimate, ProcessGroup()).sequences
    assert [float(row.targets.advantages[0]) for row in rows if row.targets] == pytest.approx([2 / 3, -1 / 3])
    assert [float(row.targets.weights.sum()) for row in rows if row.targets] == pytest.approx([2, 4])


def test_copies_are_one_with_the_sums_of_their_weights_and_the_means_of_the_rest() -> None:
    def credit(advantage: float, weight: float, target: float = 0.0, value_weight: float = 0.0) -> Credit:
        def full(value: float) -> Tensor:
            return torch.full((2,), value)

        return Credit(full(advantage), full(target), full(weight), full(weight), full(value_weight), full(0.0))

    def figures(*credits: Credit) -> list[float]:
        return [float(getattr(summed(credits), field.name)[1]) for field in columns(Credit)]

    assert figures(credit(0.1, 1.0), credit(0.1, 3.0)) == pytest.approx([0.1, 0, 4, 4, 0, 0], abs=1e-7)
    assert torch.equal(summed([credit(0.1, 0.3)] * 3).advantages, credit(0.1, 0.3).advantages)  # without rounding
    assert figures(credit(0.5, 1.0), credit(0.0, 0.0)) == [0.5, 0, 1, 1, 0, 0]  # the other is masked
    assert figures(credit(0.5, 1.0), credit(-0.5, 3.0)) == [-0.25, 0, 4, 4, 0, 0]
    assert figures(credit(0.0, 0.0, 1.0, 1.0), credit(0.0, 0.0, 3.0, 1.0)) == [0, 2, 0, 0, 2, 0]


def test_without_a_tree_equal_trajectories_stay() -> None:
    """A sequence per trajectory, as every plan without a search's tree had it."""
    trajectory = replace(GROUPS[0].trajectories[0], tree=())
    twins = [Group(0, (trajectory, trajectory))]
    assert len(credited_sequences([twins], GRPO(), estimate, ProcessGroup()).sequences) == 2 * len(
        training_sequences(trajectory)
    )
