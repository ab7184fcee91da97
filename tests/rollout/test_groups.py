"""Rollout and credit as plain functions, on a small environment with a scripted policy."""

from collections.abc import Sequence
from itertools import count

import torch
from fakes import driver

from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.objectives import GRPO
from tsr_lightning.objectives.base import Credit, Estimates
from tsr_lightning.rng import Key
from tsr_lightning.rollout.groups import epoch_tasks, roll_out, run_groups, shares_by_kind
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.plan import PlanEntry
from tsr_lightning.search.progress import Progress, unreported
from tsr_lightning.search.strategies import Beam, BestOfN, Sample
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Group

ENTRIES = [PlanEntry(Sample(), 3), PlanEntry(BestOfN(n=2), 1)]
INSTANCES = ((0, 4), (0, 9), (0, 2))


def test_every_instance_gets_the_members_of_the_plan() -> None:
    tasks = epoch_tasks(INSTANCES, ENTRIES, Key(1), epoch=5)
    assert [[task.instance for task in group] for group in tasks] == [[4] * 4, [9] * 4, [2] * 4]
    assert [[task.member for task in group] for group in tasks] == [[0, 1, 2, 3]] * 3
    assert [type(task.strategy) for task in tasks[1]] == [Sample, Sample, Sample, BestOfN]


def test_draws_differ_by_epoch_position_and_member() -> None:
    keys = [
        task.key
        for epoch in range(3)
        for group in epoch_tasks([(0, 7), (0, 7)], ENTRIES, Key(1), epoch)  # even of one instance twice
        for task in group
    ]
    assert len(set(keys)) == len(keys) == 3 * 2 * 4


def test_ranks_roll_out_the_groups_that_one_process_does() -> None:
    tasks = epoch_tasks(INSTANCES, ENTRIES, Key(1), epoch=0)
    rollout = roll_out(driver(), tasks, unreported, ProcessGroup())
    assert [group.instance for group in rollout.groups] == [4, 9, 2]
    assert [len(group.trajectories) for group in rollout.groups] == [4, 4, 4]
    assert rollout.costs.tokens_generated > 0
    first, second = (run_groups(driver(), ProcessGroup(rank, 2).shard(tasks), unreported) for rank in range(2))
    assert [first[0], second[0], first[1]] == rollout.groups


def test_groups_without_a_success_get_further_members() -> None:
    entries, further = [PlanEntry(Sample(), 2)], [PlanEntry(Beam(1, 2), 1)]
    instances = [(0, seed) for seed in range(24)]
    tasks = epoch_tasks(instances, entries, Key(1), epoch=0)
    fallback = epoch_tasks(instances, further, Key(1), epoch=0, first_member=2)
    seen: list[tuple[int, int, int]] = []
    with_fallback = driver()

    def watched(progress: Progress) -> None:
        seen.append((progress.done, progress.total, progress.costs.tokens_generated))

    rollout = roll_out(with_fallback, tasks, watched, ProcessGroup(), fallback=fallback)
    groups = rollout.groups
    plain = roll_out(driver(), tasks, unreported, ProcessGroup()).groups
    searched = run_groups(driver(), fallback, unreported)
    failed = [not any(t.succeeded for t in group.trajectories) for group in plain]
    assert 0 < sum(failed) < len(failed)
    assert rollout.searches == 2 * 24 + sum(failed)
    for group, samples, search, without_success in zip(groups, plain, searched, failed, strict=True):
        assert group.instance == samples.instance
        assert group.trajectories == samples.trajectories + (search.trajectories if without_success else ())
    assert seen == sorted(seen)
    assert seen[-1] == (48 + sum(failed), 48 + sum(failed), with_fallback.costs.tokens_generated)


def test_shares_have_as_many_of_each_kind() -> None:
    assert shares_by_kind([0, 0, 0, 0, 0], 2) == [[0, 2, 4], [1, 3]]  # of one kind: every second
    kinds = [1, 0, 1, 0, 1, 0, 1, 1]  # every second would be four of kind 1 and none of kind 0
    assert shares_by_kind(kinds, 2) == [[1, 2, 5, 6], [0, 3, 4, 7]]  # two and two, one and three
    assert shares_by_kind(kinds, 1) == [list(range(8))]


def test_estimates_are_the_same_after_they_were_sent() -> None:
    for tokens in (0, 1, 4):
        columns = torch.arange(3.0 * tokens).reshape(3, tokens)
        sent = Estimates.from_flat(Estimates(*columns, 0.5).flat(), tokens)
        assert torch.equal(torch.stack([sent.logprobs, sent.values, sent.reference_logprobs]), columns)
        assert sent.final_value == 0.5
        assert len(sent.entropies) == 0
        with_entropies = Estimates.from_flat(Estimates(*columns, 0.5, columns[2] + 9).flat(), tokens)
        assert torch.equal(with_entropies.entropies, columns[2] + 9)


def zeros(asked: Sequence[ToEstimate]) -> list[Estimates]:
    counts = [one.piece.trained_tokens for one in asked]
    return [Estimates(torch.zeros(n), torch.zeros(n), torch.zeros(n), 0.0) for n in counts]


class Numbered(GRPO):
    """Every token's advantage is the number of its trajectory."""

    def credit(self, groups: Sequence[Group], estimates: Sequence[Sequence[Estimates]]) -> list[list[Credit]]:
        numbers = count()
        return [[self._one(len(estimate.logprobs), next(numbers)) for estimate in group] for group in estimates]

    @staticmethod
    def _one(tokens: int, number: int) -> Credit:
        zeros, ones = torch.zeros(tokens), torch.ones(tokens)
        return Credit(
            number * ones,
            value_targets=zeros,
            weights=ones,
            normalizers=ones,
            value_weights=zeros,
            supervised_weights=zeros,
        )


def test_credit_lies_on_the_tokens_of_its_own_trajectory() -> None:
    groups = roll_out(driver(), epoch_tasks(INSTANCES, ENTRIES, Key(1), epoch=0), unreported, ProcessGroup()).groups
    sequences, credits, *_ = credited_sequences([[group] for group in groups], Numbered(), zeros, ProcessGroup())
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(sequences) == len(trajectories) == 12
    assert [float(credit.advantages[0]) for group in credits for credit in group] == list(range(12))
    for number, (sequence, trajectory) in enumerate(zip(sequences, trajectories, strict=True)):
        assert sequence.ids[sequence.mask].tolist() == [token for turn in trajectory.turns for token in turn.response]
        assert sequence.targets is not None
        assert sequence.targets.advantages.unique().tolist() == [number]


def test_without_groups_nothing_is_estimated() -> None:
    assert credited_sequences([], GRPO(), zeros, ProcessGroup()) == ([], [], {}, [])


def test_evaluation_draws_depend_on_protocol_position_and_sample_alone() -> None:
    protocol = EvalProtocol("sampled", samples=2)
    numbered = list(enumerate([(0, 30), (0, 10), (0, 20)]))
    tasks = protocol.tasks(numbered, held_out_seed=123)
    assert [[task.instance for task in samples] for samples in tasks] == [[30, 30], [10, 10], [20, 20]]
    assert protocol.tasks(numbered[1:], held_out_seed=123) == tasks[1:]
    others = EvalProtocol("other", samples=2).tasks(numbered, held_out_seed=123)
    keys = [task.key for samples in [*tasks, *others] for task in samples]
    assert len(set(keys)) == len(keys)
