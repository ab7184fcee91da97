"""What the engine said of its samples: how far that is from the trainer, its correction, and the pass that it saves."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from callback_support import trajectory, turn
from commands import in_folder, tsr
from lightning.pytorch import Callback
from torch import Tensor

from tsr_lightning.batching.corrections import MaskedImportance, TruncatedImportance
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, PPO, RAFT, SFT, ImitateSuccesses
from tsr_lightning.training.collect import credited_sequences
from tsr_lightning.training.distributed import Ranks
from tsr_lightning.training.mismatch import CHECKED, check_reuse, check_updates, mismatch_metrics, reusable
from tsr_lightning.trajectory import Group, Origin, Trajectory


def sampled(member: int, logprobs: list[list[float]], reward: float = 0.0, **given: Any) -> Trajectory:
    """A trajectory whose turns were sampled with these log-probabilities."""
    turns = [
        replace(turn(reward), prompt=(9,), response=tuple(range(len(each))), behaviour_logprobs=tuple(each))
        for each in logprobs
    ]
    return replace(trajectory(0, member, *turns), **given)


def estimates_of(trajectory: Trajectory, gaps: list[float]) -> Estimates:
    """The trainer's log-probabilities are the engine's, plus these."""
    engine = [logprob for each in trajectory.turns for logprob in each.behaviour_logprobs]
    zeros = torch.zeros(len(engine))
    return Estimates(torch.tensor(engine) + torch.tensor(gaps), zeros, zeros, 0.0)


FIRST = sampled(0, [[-1.0, -2.0], [-0.5]], reward=1.0)
SECOND = sampled(1, [[-1.5], [-0.25, -1.0]])
GAPS = [[0.5, -0.25, 1.0], [-1.0, 0.0, 0.125]]


def test_figures_of_the_mismatch() -> None:
    demonstrated = replace(FIRST, origin=Origin.DEMONSTRATED)
    trajectories = [FIRST, demonstrated, SECOND]
    estimates = [estimates_of(FIRST, GAPS[0]), estimates_of(demonstrated, [9.0] * 3), estimates_of(SECOND, GAPS[1])]
    figures = mismatch_metrics(trajectories, estimates)
    gaps = [gap for of_one in GAPS for gap in of_one]
    ratios = [math.exp(gap) for gap in gaps]
    assert figures == {
        "rollout/mismatch/deviation": pytest.approx(sum(map(abs, gaps)) / 6, rel=1e-6),
        "rollout/mismatch/deviation_max": pytest.approx(1.0, rel=1e-6),
        "rollout/mismatch/kl": pytest.approx(sum(math.exp(gap) - 1 - gap for gap in gaps) / 6, rel=1e-6),
        "rollout/mismatch/effective_sample_size": pytest.approx(
            sum(ratios) ** 2 / (6 * sum(ratio**2 for ratio in ratios)), rel=1e-6
        ),
    }
    assert mismatch_metrics([demonstrated], [estimates[1]]) == {}


def advantages(objective: GRPO, updates: Updates, *members: Trajectory) -> list[list[float]]:
    """Of the training sequences of a group, in the order of its turns."""
    gaps = {id(member): gap for member, gap in zip(members, GAPS, strict=True)}

    def estimate(pairs: Any) -> list[Estimates]:
        return [estimates_of(trajectory, gaps[id(trajectory)]) for trajectory, _ in pairs]

    sequences = credited_sequences([[Group(0, members)]], objective, estimate, Ranks(), updates).sequences
    return [sequence.targets.advantages.tolist() for sequence in sequences]


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        (
            TruncatedImportance("token", 2.0),
            [[math.exp(0.5), math.exp(-0.25)], [2.0], [math.exp(-1)], [1, math.exp(0.125)]],
        ),
        (TruncatedImportance("turn", 2.0), [[math.exp(0.25)] * 2, [2.0], [math.exp(-1)], [math.exp(0.125)] * 2]),
        (TruncatedImportance("trajectory", 3.0), [[3.0] * 2, [3.0], [math.exp(-0.875)], [math.exp(-0.875)] * 2]),
        (MaskedImportance("token", 0.5, 2.0), [[math.exp(0.5), math.exp(-0.25)], [0.0], [0.0], [1, math.exp(0.125)]]),
    ],
    ids=repr,
)
def test_a_correction_weights_the_advantages_of_what_is_compared(correction: Any, weights: list[list[float]]) -> None:
    """After the baseline, which sees none of it: plain advantages are 1 and -1, over sqrt(2)."""
    plain = advantages(GRPO(), Updates(), FIRST, SECOND)
    expected = [[a * w for a, w in zip(*pair, strict=True)] for pair in zip(plain, weights, strict=True)]
    for found, wanted in zip(advantages(GRPO(), Updates(correction=correction), FIRST, SECOND), expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)


def test_what_is_imitated_is_not_corrected() -> None:
    searched = [replace(each, origin=Origin.SEARCHED, succeeded=True) for each in (FIRST, SECOND)]
    objective = GRPO(searched=ImitateSuccesses())
    plain = advantages(objective, Updates(), *searched)
    assert plain == [[1.0, 1.0], [1.0], [1.0], [1.0, 1.0]]
    assert advantages(objective, Updates(correction=TruncatedImportance()), *searched) == plain


def test_a_few_of_every_rollout_are_computed_and_all_demonstrations() -> None:
    demonstrated = replace(FIRST, origin=Origin.DEMONSTRATED)
    trajectories = [demonstrated, *[FIRST] * 100]
    reused = reusable(trajectories)
    assert 0 not in reused
    assert 100 - CHECKED <= len(reused) < 100
    assert reusable([FIRST] * 3) == frozenset()


def test_settings_without_effect_are_refused() -> None:
    correction, reuse = Updates(correction=TruncatedImportance()), Updates(reuse_logprobs=True)
    check_updates(GRPO(), correction)
    check_updates(GRPO(), reuse)
    check_updates(RAFT(), reuse)
    for objective in (RAFT(), SFT()):
        with pytest.raises(ConfigError, match=r"data\.updates\.correction is 'TruncatedImportance': \w+ compares no"):
            check_updates(objective, correction)
    with pytest.raises(ConfigError, match=r"data\.updates\.reuse_logprobs is True: SFT computes none"):
        check_updates(SFT(), reuse)
    with pytest.raises(ConfigError, match=r"data\.updates\.reuse_logprobs is True: the critic of PPO needs"):
        check_updates(PPO(), reuse)
    with pytest.raises(ConfigError, match=r"data\.updates\.correction is 'TruncatedImportance': under reuse_logprobs"):
        Updates(correction=TruncatedImportance(), reuse_logprobs=True)


def test_an_engine_that_differs_from_the_trainer_stops_the_run() -> None:
    figures = {"rollout/mismatch/deviation_max": 0.012}
    check_reuse(figures, Updates())
    with pytest.raises(ConfigError, match=r"reuse_logprobs is True: .* differ from the trainer's by up to 0\.012"):
        check_reuse(figures, Updates(reuse_logprobs=True))


# -- in a run ----------------------------------------------------------------------------------------------------------


class Gradients(Callback):
    """Keeps the gradients of all updates."""

    def __init__(self) -> None:
        self.found: list[list[Tensor]] = []

    def on_before_optimizer_step(self, trainer: Any, agent: Any, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.found.append([parameter.grad.clone() for parameter in parameters])


@pytest.fixture
def fit(tiny_model: Callable[[str], Path], tmp_path: Path) -> Callable[..., Any]:
    """One epoch of a tiny Sokoban policy."""

    def run(*flags: str) -> Any:
        settings = {
            "model.policy.model": tiny_model("sokoban"),
            "trainer.accelerator": "cpu",
            "trainer.max_epochs": 1,
            "trainer.num_sanity_val_steps": 0,
            "trainer.enable_progress_bar": "false",
            "trainer.callbacks": '[{"class_path": "test_mismatch.Gradients"}]',
            "data.instances": 2,
            "data.held_out.instances": 1,
            "data.updates.minibatches": 2,
        }
        with in_folder(tmp_path):
            return tsr(
                "fit", "--config", "sokoban.yaml", *[f"--{key}={value}" for key, value in settings.items()], *flags
            )

    return run


def gradients(cli: Any) -> list[list[Tensor]]:
    [recorded] = [callback for callback in cli.trainer.callbacks if type(callback).__name__ == "Gradients"]
    return recorded.found


@pytest.mark.slow
@pytest.mark.parametrize(
    "overlays",
    [("search/sample.yaml", "objective/grpo.yaml"), ("search/beam.yaml", "objective/grpo.yaml", "credit/tree.yaml")],
    ids=["sampled", "tree credit"],
)
def test_without_the_pass_for_old_logprobs_the_gradients_are_the_same(fit, overlays: tuple[str, ...]) -> None:
    flags = [part for name in overlays for part in ("--config", name)]
    with_pass, without = fit(*flags), fit(*flags, "--data.updates.reuse_logprobs=true")
    ours, theirs = gradients(without), gradients(with_pass)
    assert len(ours) == len(theirs) == 2
    for found, expected in zip(ours, theirs, strict=True):
        assert max(float(each.abs().max()) for each in expected) > 1e-3
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    assert without.trainer.callback_metrics["train/ratio_max"] == pytest.approx(
        float(with_pass.trainer.callback_metrics["train/ratio_max"]), rel=1e-4
    )


def test_a_correction_changes_nothing_where_engine_and_trainer_agree(fit) -> None:
    flags = ("--config", "search/sample.yaml", "--config", "objective/grpo.yaml")
    found = gradients(fit(*flags, "--data.updates.correction", "MaskedImportance"))
    for one, two in zip(found, gradients(fit(*flags)), strict=True):
        for ours, theirs in zip(one, two, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_reuse_is_refused_at_run_time_where_precision_makes_a_difference(fit) -> None:
    flags = ("--config", "search/sample.yaml", "--config", "objective/grpo.yaml", "--trainer.precision=bf16-mixed")
    with pytest.raises(ConfigError, match=r"data\.updates\.reuse_logprobs is True: the engine's log-probabilities"):
        fit(*flags, "--data.updates.reuse_logprobs=true")
