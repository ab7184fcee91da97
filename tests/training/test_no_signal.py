"""Without an outcome that says something no optimizer step is made: regularisers alone would move the policy, since
AdamW takes full steps of whatever gradient there is."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from optimizer_steps import SIZES, copied
from presets import PRESETS

from tsr_lightning.batching.schedule import Updates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    RAFT,
    SFT,
    ImitateSuccesses,
    K1Reward,
    Objective,
    PolicyGradient,
    UnbiasedK3,
)
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.search.plan import Plan, Uniform
from tsr_lightning.search.strategies import Beam, Sample
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.optimizer import Optimizer
from tsr_lightning.training.trainer import Trainer
from tsr_lightning.trajectory import Ended, Group

OBJECTIVES: dict[str, Objective] = {kind.__name__: kind() for kind in (*PRESETS, PolicyGradient) if kind is not SFT}
VARIANTS: dict[str, Objective] = {
    "GRPO, strong entropy bonus": GRPO(entropy_coefficient=1.0),
    "GRPO, K1Reward": GRPO(kl=K1Reward(1.0)),
    "GRPO, UnbiasedK3": GRPO(kl=UnbiasedK3(1.0)),
    "PPO, K1Reward": PPO(kl=K1Reward(1.0)),
    "RAFT, UnbiasedK3": RAFT(kl=UnbiasedK3(1.0)),
}

LEARN_FROM_SUCCESSES = ("RAFT", "GiGPO")  # by imitation; by how soon a success comes after a state


class Outcomes(Callback):
    """Gives every trajectory the outcome of its member, and records the weights before the updates."""

    def __init__(self, returns: tuple[float, ...]) -> None:
        self.returns = returns
        self.before: dict[str, torch.Tensor] = {}
        self.groups: list[Group] = []

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        self.before = self.before or copied(agent)
        self.groups = [
            replace(group, trajectories=tuple(self._given(i, each) for i, each in enumerate(group.trajectories)))
            for group in groups
        ]
        return self.groups

    def _given(self, member: int, trajectory: Any) -> Any:
        last = self.returns[member % len(self.returns)]
        *first, end = (replace(turn, reward=0.0, valid=True) for turn in trajectory.turns)
        return replace(
            trajectory,
            turns=(*first, replace(end, reward=last)),
            ended=Ended.SUCCEEDED if last > 0 else Ended.TURN_LIMIT,
        )


class Steps(DummyLogger):
    """Keeps what the figures of updates are logged against."""

    def __init__(self) -> None:
        super().__init__()
        self.of_updates: list[int | None] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if "train/loss" in metrics:
            self.of_updates.append(step)


def fitted(
    objective: Objective,
    outcomes: Outcomes,
    *,
    plan: Plan = Uniform(Sample(), 4),  # noqa: B008  (frozen)
    adapter: LoRA | None = None,
    optimizer: Optimizer = Optimizer(learning_rate=1e-2, critic_learning_rate=1e-2, weight_decay=0.1),  # noqa: B008
    updates: Updates = Updates(minibatches=2, min_trajectories=1, mismatch_tolerance=None),  # noqa: B008  (frozen)
    epochs: int = 2,
    logger: Steps | None = None,
) -> tuple[Trainer, Agent]:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=logger or False,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[outcomes],
    )
    data = RolloutDataModule(
        "corridor:Corridor-v0",
        plan=plan,
        instances=4,
        held_out=HeldOut(instances=2),
        sampling=Sampling(max_response_tokens=4),
        updates=updates,
    )
    agent = Agent(PolicySpec(SIZES, adapter), objective, optimizer)
    trainer.fit(agent, data)
    return trainer, agent


SOME = ("GRPO", "PPO", "RAFT", *VARIANTS)  # the other presets are exhaustive where outcomes are not all failures
SOME_OR_ALL = [
    pytest.param(name, marks=[] if name in SOME else pytest.mark.exhaustive) for name in (*OBJECTIVES, *VARIANTS)
]


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        *(pytest.param(name, (0.0,), id=f"{name}-all fail") for name in (*OBJECTIVES, *VARIANTS)),
        *(
            pytest.param(*each.values, (1.0,), marks=each.marks, id=f"{each.values[0]}-all succeed")
            for each in SOME_OR_ALL
        ),
    ],
)
def test_equal_outcomes_leave_every_weight_as_it_is(name: str, returns: tuple[float, ...]):
    objective = {**OBJECTIVES, **VARIANTS}[name]
    if returns == (1.0,) and name.startswith(LEARN_FROM_SUCCESSES):
        pytest.skip("it learns from successes alone")
    outcomes = Outcomes(returns)
    trainer, agent = fitted(objective, outcomes)
    assert trainer.global_step == 0
    assert_equal(copied(agent), outcomes.before)


@pytest.mark.parametrize("objective", [GRPO(), PPO(kl=UnbiasedK3(0.1))], ids=["GRPO", "PPO"])
def test_with_an_adapter_too(objective: Objective):
    outcomes = Outcomes((0.0,))
    trainer, agent = fitted(objective, outcomes, adapter=LoRA(rank=2, alpha=2))
    assert trainer.global_step == 0
    assert_equal(copied(agent), outcomes.before)


@pytest.mark.parametrize("name", SOME_OR_ALL)
def test_differing_outcomes_move_it(name: str):
    """The test above could not fail otherwise."""
    outcomes = Outcomes((0.0, 1.0))
    trainer, agent = fitted({**OBJECTIVES, **VARIANTS}[name], outcomes, epochs=1)
    assert trainer.global_step >= 1
    assert any(not torch.equal(weight, outcomes.before[key]) for key, weight in copied(agent).items())


@pytest.mark.parametrize("critic", [False, True])
def test_searches_without_a_success_move_nothing(critic: bool):
    objective = PPO(searched=ImitateSuccesses()) if critic else GRPO(searched=ImitateSuccesses())
    outcomes = Outcomes((0.0,))
    trainer, agent = fitted(objective, outcomes, plan=Uniform(Beam(2, 2), 1))
    assert trainer.global_step == 0
    assert_equal(copied(agent), outcomes.before)


def test_few_trajectories_with_signal_are_few_steps():
    """Of four searches two succeed: two steps of one trajectory each, unless a step needs more."""
    objective = GRPO(searched=ImitateSuccesses())
    for least, steps in ((1, 2), (2, 1), (8, 1)):
        updates = Updates(minibatches=4, min_trajectories=least, mismatch_tolerance=None)

        class Half(Outcomes):
            def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
                given = super().on_rollout_end(trainer, agent, groups)
                failed = Outcomes((0.0,)).on_rollout_end(trainer, agent, groups)
                return [*given[:2], *failed[2:]]

        trainer, _ = fitted(objective, Half((1.0,)), plan=Uniform(Beam(2, 2), 1), updates=updates, epochs=1)
        assert trainer.global_step == steps, least


def test_a_step_past_the_target_kl_is_not_taken():
    """The first step, at a KL of 0, is taken; the second would be past the target, and changes neither the weights nor
    AdamW's state nor any count."""
    updates = Updates(epochs=4, minibatches=1, target_kl=1e-6, mismatch_tolerance=None)
    bounded, agent = fitted(GRPO(), Outcomes((0.0, 1.0)), updates=updates, epochs=1)
    once = replace(updates, epochs=1, target_kl=None)
    single, expected = fitted(GRPO(), Outcomes((0.0, 1.0)), updates=once, epochs=1)
    assert bounded.global_step == single.global_step == 1
    assert_equal(copied(agent), copied(expected))
    states = [trainer.optimizers[0].state_dict()["state"] for trainer in (bounded, single)]
    for place, state in states[1].items():
        assert_equal(states[0][place], state)
    assert bounded.lr_scheduler_configs[0].scheduler.last_epoch == 1


def test_figures_are_logged_against_the_steps_that_were_taken(empty_folder: object):
    """The first step of both epochs exceeds the target KL."""
    updates, logger = Updates(epochs=4, minibatches=1, target_kl=1e-6, mismatch_tolerance=None), Steps()
    trainer, _ = fitted(GRPO(), Outcomes((0.0, 1.0)), updates=updates, logger=logger)
    assert trainer.global_step == 2
    assert len(logger.of_updates) > 2
    assert set(logger.of_updates) == {0, 1}


def test_a_loss_that_is_not_finite_ends_the_run_before_its_step():
    outcomes = Outcomes((0.0, 1.0))
    updates = Updates(epochs=3, minibatches=1, mismatch_tolerance=None)
    with pytest.raises(RunError, match=r"epoch 0, update 2: .* is nan.*, so no step is taken") as ended:
        fitted(GRPO(), outcomes, optimizer=Optimizer(learning_rate=1e30), updates=updates)
    assert "lower model.optimizer.learning_rate" in str(ended.value)


def test_a_policy_that_a_step_has_destroyed_samples_no_more():
    """One finite step of 1e30 leaves finite weights, whose log-probabilities are not."""
    updates = Updates(minibatches=1, mismatch_tolerance=None)
    with pytest.raises(RunError, match=r"log-probabilities are not finite.* lower model\.optimizer\.learning_rate"):
        fitted(GRPO(), Outcomes((0.0, 1.0)), optimizer=Optimizer(learning_rate=1e30), updates=updates)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_optimizer_refuses_what_would_destroy_the_policy(rate: float):
    for key in ("learning_rate", "critic_learning_rate", "weight_decay"):
        with pytest.raises(ConfigError, match=f"model.optimizer.{key} is {rate}: give a finite"):
            Optimizer(**{key: rate})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"warmup_updates": -5}, "warmup_updates"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (float("nan"), 0.9)}, "betas"),
        ({"decay": "step"}, "decay"),
        ({"decay": "linear"}, "decay_updates"),
        ({"decay": "cosine", "warmup_updates": 5, "decay_updates": 5}, "decay_updates"),
        ({"decay_updates": 5}, "decay_updates"),
    ],
)
def test_other_settings_of_the_optimizer(settings: dict[str, Any], key: str):
    with pytest.raises(ConfigError, match=f"model.optimizer.{key} is "):
        Optimizer(**settings)


def test_learning_rates_of_the_updates():
    """Warm-up over one update: half the rate, then all of it; zero after five updates, and from then on."""
    linear = Optimizer(warmup_updates=1, decay="linear", decay_updates=5)
    assert [linear.factor(update) for update in range(7)] == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    cosine = Optimizer(decay="cosine", decay_updates=4)  # (1 + cos(pi k / 4)) / 2
    assert [cosine.factor(update) for update in range(5)] == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0])
    assert [Optimizer(warmup_updates=1).factor(update) for update in range(3)] == [0.5, 1.0, 1.0]


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(actual[name], weight), name
