"""Rounds of instances are drawn until enough groups have signal, or the budget of sampled tokens is spent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import QUICK, tsr
from fakes import Scripted, Walk, driver
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import DAPO, GRPO
from tsr_lightning.objectives.signal import has_signal
from tsr_lightning.rng import Key
from tsr_lightning.rollout.collect import DynamicSampling, sample_dynamically
from tsr_lightning.rollout.groups import Rollout, epoch_tasks, roll_out
from tsr_lightning.search.plan import Annealed, Mixed, Phases, PlanEntry, Uniform
from tsr_lightning.search.progress import unreported
from tsr_lightning.search.strategies import Beam, Expert, Sample
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Ended, Group

PLENTY = 10**9
MEMBERS = 12


class Lottery(Walk):
    """One turn; the answer "a" wins where the seed is divisible by four, and nowhere else.

    A quarter of the groups has signal: all of these, since not all of their members give the same answer.
    """

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, _, _, _, info = super().step(action)
        won = self.start == 0 and action == "a"
        return observation, float(won), True, False, info | {"success": won}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        answer = super().reset(seed=seed)
        self.start = self.place
        return answer

    def get_state(self) -> Any:
        return super().get_state(), self.start

    def set_state(self, state: Any, /) -> None:
        before, self.start = state
        super().set_state(before)


def lottery(count: int, epoch: int = 0) -> Callable[[int], Rollout]:
    """Rounds of `count` instances with the seeds 0, 1, 2, ...; every group samples a token per member."""
    ours = driver(Lottery(), Scripted(["a", "b"]))
    entries = Uniform(Sample(), MEMBERS).entries(epoch)

    def draw(number: int) -> Rollout:
        first = number * count
        tasks = epoch_tasks([(0, seed) for seed in range(first, first + count)], entries, Key(1), epoch, first=first)
        return roll_out(ours, tasks, unreported, ProcessGroup())

    return draw


def instances(groups: list[Group]) -> list[int]:
    return [group.instance for group in groups]


@pytest.mark.parametrize(("wanted", "rounds"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_rounds_are_drawn_until_enough_groups_have_signal(wanted: int, rounds: int):
    """Rounds of six: 0, 4 | 8 | 12, 16 | 20 have signal."""
    sampling = DynamicSampling(wanted, PLENTY)
    rollout = sample_dynamically(lottery(6), sampling, GRPO())
    assert rollout.rounds == rounds
    assert instances(rollout.groups) == list(range(6 * rounds))
    assert rollout.costs.tokens_generated == 6 * rounds * MEMBERS
    # those beyond the wanted number are dropped, the later first
    assert instances(sampling.select(rollout.groups, GRPO())) == [4 * i for i in range(wanted)]


def test_rounds_equal_one_rollout_of_as_many_instances():
    rollout = sample_dynamically(lottery(6), DynamicSampling(6, PLENTY), GRPO())
    assert rollout.groups == lottery(24)(0).groups
    assert replace(rollout.costs, seconds_generation=0.0, seconds_environment=0.0, waves=0) == replace(
        lottery(24)(0).costs, seconds_generation=0.0, seconds_environment=0.0, waves=0
    )


@pytest.mark.parametrize(("budget", "rounds"), [(1, 1), (72, 1), (73, 2), (144, 2), (145, 3)])
def test_no_round_begins_once_the_budget_is_spent(budget: int, rounds: int):
    """A round samples 72 tokens."""
    sampling = DynamicSampling(100, budget)
    rollout = sample_dynamically(lottery(6), sampling, GRPO())
    assert rollout.rounds == rounds
    assert instances(sampling.select(rollout.groups, GRPO())) == [4 * i for i in range([2, 3, 5][rounds - 1])]


def test_masked_groups_do_not_count():
    """Under DAPO a group of overlong trajectories has no signal, however their returns differ."""

    def overlong(number: int) -> Rollout:
        rollout = lottery(6)(number)
        cut = [
            replace(
                group,
                trajectories=tuple(
                    replace(t, ended=Ended.FAILED if number else Ended.TOKEN_LIMIT) for t in group.trajectories
                ),
            )
            for group in rollout.groups
        ]
        return replace(rollout, groups=cut)

    sampling = DynamicSampling(1, PLENTY)
    assert sample_dynamically(overlong, sampling, GRPO()).rounds == 1
    assert sample_dynamically(overlong, sampling, DAPO()).rounds == 2


@pytest.mark.parametrize(
    ("sampling", "plan", "message"),
    [
        (DynamicSampling(16, 127), Uniform(Sample(), 8), "data.dynamic_sampling.groups is 16: in groups of 8"),
        (DynamicSampling(1, 100), Uniform(Expert(), 8), "data.plan samples nothing"),
    ],
)
def test_plans_under_which_it_cannot_end_are_refused(sampling: DynamicSampling, plan: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        sampling.check(plan)


def test_other_plans_are_allowed():
    DynamicSampling(16, 128).check(Uniform(Sample(), 8))
    DynamicSampling(16, 32).check(Mixed([PlanEntry(Sample(), 2), PlanEntry(Expert(), 6)]))
    DynamicSampling(16, 128).check(Annealed(Beam(width=2, candidates=2), 8, 3))
    DynamicSampling(16, 128).check(Phases([Uniform(Expert(), 1), Uniform(Sample(), 8)], [5]))  # a warm start


# -- runs --------------------------------------------------------------------------------------------------------------


class Recorder(Callback):
    """Keeps the groups of each epoch."""

    def __init__(self) -> None:
        self.groups: list[list[Group]] = []

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self.groups.append(groups)
        return groups


class Run:
    """A run of `tsr fit` on Sokoban with rounds of four instances, that leaves out groups without signal."""

    def __init__(self, model: Path, *args: object, epochs: int = 2, checkpoints: str = "") -> None:
        recorder = f'{{"class_path": "{__name__}.Recorder"}}'
        self.cli = tsr(
            *("fit", "--config", "sokoban.yaml", "--config", "objective/grpo.yaml", *QUICK),
            *("--model.policy.model", model, "--trainer.max_epochs", epochs),
            *("--trainer.callbacks", f"[{recorder}, {FILTER}{checkpoints}]", *args),
        )
        [record] = [callback for callback in self.cli.trainer.callbacks if isinstance(callback, Recorder)]
        self.groups = record.groups
        self.weights = {name: value.clone() for name, value in self.cli.model.state_dict().items()}
        self.figures = self.cli.trainer.callback_metrics

    def has_weights_of(self, other: "Run") -> bool:
        assert self.weights.keys() == other.weights.keys()
        return all(torch.equal(value, other.weights[name]) for name, value in self.weights.items())

    def signals(self, epoch: int) -> int:
        return sum(has_signal(group, self.cli.model.objective) for group in self.groups[epoch])


CSV = '{"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "figures"}}'
FILTER = '{"class_path": "callbacks.InstanceFilter", "init_args": {"keep": 1.0}}'
PAIRS = ("--data.plan.init_args.count", "2", "--data.sampling.temperature", "0.15")  # of which many are equal


def dynamic(groups: int, max_sampled_tokens: int = 100_000) -> tuple[str, str]:
    return "--data.dynamic_sampling", f'{{"groups": {groups}, "max_sampled_tokens": {max_sampled_tokens}}}'


def test_draws_of_the_first_round_are_those_without_it(tiny_model: Callable[[str], Path], empty_folder: Path):
    """And an epoch that wants no more than they have trains on the same groups, to the same weights."""
    plain = Run(tiny_model("sokoban"), *PAIRS, epochs=1)
    signals = plain.signals(0)
    assert 0 < signals < 4  # otherwise choose another seed
    same = Run(tiny_model("sokoban"), *PAIRS, *dynamic(signals), epochs=1)
    assert same.groups == plain.groups
    assert same.has_weights_of(plain)
    more = Run(tiny_model("sokoban"), *PAIRS, *dynamic(signals + 1), epochs=1)
    assert len(more.groups[0]) > 4
    assert more.groups[0][:4] == plain.groups[0]
    assert more.signals(0) > signals
    assert not same.has_weights_of(more)


CHECKPOINTS = (
    ', {"class_path": "ModelCheckpoint", "init_args": {"filename": "{epoch}", "every_n_epochs": 1, "save_top_k": -1, '
    '"save_on_train_epoch_end": true}}'
)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_draws_the_rounds_of_the_straight_one(tiny_model: Callable[[str], Path], empty_folder: Path):
    flags = (*dynamic(5), "--trainer.logger", "false")
    straight = Run(tiny_model("sokoban"), *flags, epochs=3, checkpoints=CHECKPOINTS)
    assert all(len(groups) > 4 for groups in straight.groups)
    [first] = empty_folder.rglob("epoch=0.ckpt")
    resumed = Run(tiny_model("sokoban"), *flags, "--ckpt_path", first, epochs=3, checkpoints=CHECKPOINTS)
    assert resumed.groups == straight.groups[1:]
    assert resumed.has_weights_of(straight)


def test_a_spent_budget_is_said_and_the_epoch_goes_on(
    tiny_model: Callable[[str], Path], empty_folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    run = Run(tiny_model("sokoban"), *dynamic(100, 2000), "--trainer.logger", CSV, epochs=1)
    rounds, remainder = divmod(len(run.groups[0]), 4)
    assert rounds > 1
    assert remainder == 0
    tokens = sum(trajectory.trained_tokens for group in run.groups[0] for trajectory in group.trajectories)
    last = sum(trajectory.trained_tokens for group in run.groups[0][-4:] for trajectory in group.trajectories)
    assert tokens - last < 2000 <= tokens
    assert [entry.message for entry in caplog.records if "dynamic_sampling" in entry.message] == [
        f"epoch 0: data.dynamic_sampling.max_sampled_tokens is spent: {tokens:,} tokens in {rounds} rounds gave "
        f"{run.signals(0)} of the 100 groups with signal"
    ]
    assert run.cli.trainer.global_step == 2
    [written] = empty_folder.rglob("metrics.csv")
    header, *lines = [line.split(",") for line in written.read_text().splitlines()]
    figures = {name: cell for line in lines for name, cell in zip(header, line, strict=True) if cell}
    assert float(figures["rollout/rounds"]) == rounds
    assert float(figures["rollout/groups"]) == 4 * rounds
    assert float(figures["rollout/groups_with_signal"]) == float(figures["rollout/groups_kept"]) == run.signals(0)
    assert float(figures["cost/tokens_generated"]) == tokens
