"""What the engine said of its samples: how far that is from the trainer, its correction, and the pass that it saves."""

import copy
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from callback_support import trajectory, turn
from commands import in_folder, tsr
from lightning.pytorch import Callback
from torch import Tensor

from tsr_lightning.batching.corrections import MaskedImportance, TruncatedImportance
from tsr_lightning.batching.schedule import Updates
from tsr_lightning.batching.sequences import training_sequences
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.engines.local_model import weights_version
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.objectives import (
    GRPO,
    K3,
    PPO,
    RAFT,
    SFT,
    ImitateSuccesses,
    K1Reward,
    PolicyGradient,
    Supervised,
    Unclipped,
)
from tsr_lightning.objectives.base import Needs
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.rng import Key
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.mismatch import (
    LARGEST,
    LOW_PRECISION_TOLERANCE,
    TOLERANCE,
    check_mismatch,
    check_updates,
    mismatch_metrics,
    reuse_obstacle,
    tolerance_of,
)
from tsr_lightning.training.shared_estimates import CHECKED, PieceEstimator, compared
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory


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
    trajectories = [FIRST, demonstrated, SECOND, FIRST]
    given = [GAPS[0], [9.0] * 3, GAPS[1], [9.0] * 3]
    estimates = [estimates_of(*pair) for pair in zip(trajectories, given, strict=True)]
    figures = mismatch_metrics(trajectories, estimates, {0, 1, 2})  # the last was not computed
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
    assert mismatch_metrics([demonstrated], [estimates[1]], {0}) == {}
    assert mismatch_metrics([FIRST], [estimates[0]], set()) == {}


def advantages(objective: GRPO, updates: Updates, *members: Trajectory) -> list[list[float]]:
    """Of the training sequences of a group, in the order of its turns."""
    gaps = {id(member): gap for member, gap in zip(members, GAPS, strict=True)}

    def estimate(pairs: Any) -> list[Estimates]:
        return [estimates_of(trajectory, gaps[id(trajectory)]) for trajectory, *_ in pairs]

    sequences = credited_sequences([[Group(0, members)]], objective, estimate, ProcessGroup(), updates).sequences
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
    searched = [replace(each, origin=Origin.SEARCHED, ended=Ended.SUCCEEDED) for each in (FIRST, SECOND)]
    objective = GRPO(searched=ImitateSuccesses())
    plain = advantages(objective, Updates(), *searched)
    assert plain == [[1.0, 1.0], [1.0], [1.0], [1.0, 1.0]]
    assert advantages(objective, Updates(correction=TruncatedImportance()), *searched) == plain


DEMONSTRATED = replace(FIRST, origin=Origin.DEMONSTRATED)
MANY = [DEMONSTRATED, *[FIRST] * 100]
EVERY = frozenset(range(101))
REUSE, AUTO = Updates(reuse_logprobs=True), Updates(reuse_logprobs="auto")


class Passes:
    """Stands for the trainer's pass: it finds the engine's log-probabilities, plus a gap, and counts."""

    def __init__(self, gap: float = 0.0) -> None:
        self.gap = gap
        self.computed: list[Trajectory] = []
        self.asked: list[int] = []

    def __call__(self, asked: Any) -> list[Estimates]:
        self.asked.append(len(asked))
        self.computed += [one.piece for one in asked if one.computed]
        return [estimates_of(one.piece, [self.gap * one.computed] * one.piece.trained_tokens) for one in asked]


def passed(
    needs: Needs,
    updates: Updates = Updates(),  # noqa: B008  (frozen)
    read: frozenset[int] = EVERY,
    gap: float = 0.0,
    key: Key = Key(1),  # noqa: B008  (frozen)
) -> Passes:
    """The passes over a hundred samples and a demonstration."""
    passes = Passes(gap)
    sequences = [training_sequences(one) for one in MANY]
    found = PieceEstimator(MANY, sequences, passes, ProcessGroup(), needs, updates, key)(read)
    assert len(found.estimates) == len(MANY)
    return passes


@pytest.mark.parametrize("needs", [Needs(), Needs(values=True), Needs(logprobs=False, values=True)])
def test_all_are_computed_where_all_are_needed(needs: Needs) -> None:
    passes = passed(needs)
    assert (len(passes.computed), passes.asked) == (101, [101])


def test_else_a_sample_of_every_rollout_is_drawn_by_key() -> None:
    draws = [compared(MANY, Key(1).fold_in("epoch", epoch)) for epoch in range(200)]
    assert all(0 not in drawn and len(drawn) == CHECKED for drawn in draws)
    assert draws[3] == compared(MANY, Key(1).fold_in("epoch", 3))
    counts = [sum(place in drawn for drawn in draws) for place in range(1, 101)]
    assert sum((count - 16) ** 2 / (16 * 0.92) for count in counts) < 149  # chi2 of 99 degrees, at 0.1%
    assert compared([FIRST] * 3, Key(1)) == {0, 1, 2}
    passes = passed(Needs(), REUSE)
    assert (len(passes.computed), passes.asked) == (1 + CHECKED, [1 + CHECKED, 100 - CHECKED])


def test_demonstrations_without_a_policy_weight_cost_no_pass() -> None:
    """Under a supervised term; another objective imitates them with importance ratios."""
    beside, alone = GRPO(supervised=Supervised()), RAFT()
    assert len(passed(beside.needs).computed) == 100
    assert len(passed(beside.needs, REUSE).computed) == CHECKED
    assert len(passed(alone.needs).computed) == 101


def test_where_none_are_needed_only_the_sample_is_computed() -> None:
    passes = passed(SFT().needs)
    assert len(passes.computed) == CHECKED
    assert DEMONSTRATED not in passes.computed  # the engine said nothing of a demonstration
    assert compared([DEMONSTRATED] * 3, Key(1)) == frozenset()


def test_what_nobody_reads_is_not_computed() -> None:
    read = frozenset({0, *(place for place in range(1, 101) if place not in compared(MANY, Key(1)))})
    few = frozenset(sorted(read)[:20])
    assert passed(Needs(), read=few).asked == [20 + CHECKED]
    assert passed(Needs(reference=True), REUSE, read=few).asked == [1 + CHECKED, 19]


@pytest.mark.parametrize(("gap", "computed"), [(LARGEST / 2, 1 + CHECKED), (-2 * LARGEST, 101), (math.nan, 101)])
def test_under_auto_the_sample_decides(gap: float, computed: int) -> None:
    passes = passed(Needs(), AUTO, gap=gap)
    assert (len(passes.computed), passes.asked) == (computed, [1 + CHECKED, 100 - CHECKED])


def test_auto_computes_where_log_probabilities_cannot_be_reused() -> None:
    float32, needs = PolicySpec("embedded/sokoban"), GRPO().needs
    assert reuse_obstacle(needs, AUTO, float32, "32-true", 0) is None
    for obstacle, word in (
        ((PPO().needs, AUTO, float32, "32-true", 0), "values"),
        ((needs, replace(AUTO, correction=TruncatedImportance()), float32, "32-true", 0), "correction"),
        ((needs, AUTO, replace(float32, dtype="bfloat16"), "32-true", 0), "float32"),
        ((needs, AUTO, float32, "bf16-mixed", 0), "float32"),
        ((needs, AUTO, replace(float32, adapter=LoRA(dropout=0.1)), "32-true", 0), "dropout"),
        ((needs, AUTO, float32, "32-true", 1), "staleness"),
    ):
        assert word in str(reuse_obstacle(*obstacle))


@pytest.mark.parametrize("updates", [Updates(), AUTO])
def test_ranks_find_the_estimates_of_one_process(updates: Updates) -> None:
    barrier, sent = Barrier(2), {}

    class Rank(ProcessGroup):
        """A thread in place of a process."""

        def gather_tensors(self, own: Tensor, lengths: Any) -> list[Tensor]:
            sent[self.rank] = own
            barrier.wait()
            both = [sent[0], sent[1]]
            barrier.wait()
            assert [len(each) for each in both] == list(lengths)
            return both

    def estimates(ranks: ProcessGroup) -> list[Tensor]:
        sequences = [training_sequences(one) for one in MANY]
        estimator = PieceEstimator(MANY, sequences, Passes(LARGEST / 2), ranks, Needs(), updates, Key(1))
        return [each.logprobs for each in estimator(frozenset(range(0, 101, 3))).estimates]

    with ThreadPoolExecutor(2) as pool:
        found = [list(of_rank) for of_rank in pool.map(estimates, [Rank(0, 2), Rank(1, 2)])]
    for of_rank in found:
        for ours, one in zip(of_rank, estimates(ProcessGroup()), strict=True):
            assert torch.equal(ours, one)


SUCCEEDED = replace(SECOND, ended=Ended.SUCCEEDED)


@pytest.mark.parametrize(
    ("objective", "reads_all"),
    [
        (RAFT(), False),
        (RAFT(kl=K3(0.1)), False),
        (GRPO(), True),  # failures are compared
        (GRPO(kl=K1Reward(0.1), searched=ImitateSuccesses()), True),  # credit reads log-probabilities
    ],
    ids=["imitated", "with a reference", "compared", "penalised rewards"],
)
def test_credit_comes_first_where_it_reads_no_estimates(objective: PolicyGradient, reads_all: bool) -> None:
    """One success among a hundred failures."""
    members = [*(replace(FIRST, member=member) for member in range(100)), SUCCEEDED]
    passes, sample = Passes(), compared(members, Key(2))
    credited = credited_sequences([[Group(0, tuple(members))]], objective, passes, ProcessGroup(), key=Key(2))
    assert passes.asked == [101 if reads_all else len(sample | {100})]
    assert SUCCEEDED in passes.computed
    assert set(credited.mismatch.values()) == {0.0, 1.0}


def test_the_automatic_tolerance_is_that_of_the_precision() -> None:
    exact, bf16 = PolicySpec("embedded/sokoban"), PolicySpec("a", dtype="bfloat16")
    assert tolerance_of(Updates(), exact, "32-true", 1.0, of_others=False) == TOLERANCE
    assert tolerance_of(Updates(), replace(exact, adapter=LoRA()), "32-true", 1.0, of_others=False) == TOLERANCE
    for spec, precision in ((exact, "bf16-mixed"), (bf16, "32-true"), (replace(exact, quantisation=NF4()), "32-true")):
        assert tolerance_of(Updates(), spec, precision, 1.0, of_others=False) == LOW_PRECISION_TOLERANCE
        assert tolerance_of(Updates(), spec, precision, 2.0, of_others=False) == LOW_PRECISION_TOLERANCE
        assert tolerance_of(Updates(), spec, precision, 0.25, of_others=False) == 4 * LOW_PRECISION_TOLERANCE
    dropout = replace(exact, adapter=LoRA(dropout=0.1))
    assert tolerance_of(Updates(), dropout, "32-true", 1.0, of_others=False) is None
    assert tolerance_of(Updates(mismatch_tolerance=0.2), dropout, "32-true", 0.5, of_others=False) == 0.2
    assert tolerance_of(Updates(mismatch_tolerance=None), exact, "32-true", 1.0, of_others=False) is None
    assert tolerance_of(Updates(), exact, "32-true", 1.0, of_others=True) is None


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_that_no_engine_meets_is_refused(tolerance: float) -> None:
    with pytest.raises(ConfigError, match=r"data\.updates\.mismatch_tolerance is .*: give a KL in nats a token"):
        Updates(mismatch_tolerance=tolerance)


def test_settings_without_effect_are_refused() -> None:
    correction, reuse = Updates(correction=TruncatedImportance()), Updates(reuse_logprobs=True)
    check_updates(GRPO(), correction)
    check_updates(GRPO(), reuse)
    check_updates(RAFT(), reuse)
    for objective in (RAFT(), SFT()):
        with pytest.raises(ConfigError, match=r"data\.updates\.correction is 'TruncatedImportance': \w+ compares no"):
            check_updates(objective, correction)
    for updates in (reuse, AUTO):
        with pytest.raises(ConfigError, match=r"data\.updates\.reuse_logprobs is \S+: SFT computes none"):
            check_updates(SFT(), updates)
    with pytest.raises(ConfigError, match=r"data\.updates\.target_kl is 0\.1: SFT learns from demonstrations"):
        check_updates(SFT(), Updates(target_kl=0.1))
    check_updates(PPO(), AUTO)
    with pytest.raises(ConfigError, match=r"data\.updates\.reuse_logprobs is True: the critic of PPO needs"):
        check_updates(PPO(), reuse)
    with pytest.raises(ConfigError, match=r"data\.updates\.correction is 'TruncatedImportance': under reuse_logprobs"):
        Updates(correction=TruncatedImportance(), reuse_logprobs=True)


def test_a_loss_without_a_ratio_makes_one_update():
    """GPG's: a second step would take samples of the policy before the first for the present policy's."""
    objective = GRPO(surrogate=Unclipped())
    check_updates(objective, Updates(epochs=1, minibatches=1))
    for updates, key in ((Updates(), "minibatches is 4"), (Updates(epochs=3, minibatches=1), "epochs is 3")):
        with pytest.raises(ConfigError, match=rf"data\.updates\.{key}: the loss of GRPO has no ratio, .*; use 1"):
            check_updates(objective, updates)
    check_updates(GRPO(), Updates())
    check_updates(RAFT(surrogate=Unclipped()), Updates())  # compares no samples


def figures(deviation: float, largest: float, kl: float, ess: float) -> dict[str, float]:
    names = ("deviation", "deviation_max", "kl", "effective_sample_size")
    return {f"rollout/mismatch/{name}": each for name, each in zip(names, (deviation, largest, kl, ess), strict=True)}


BF16 = PolicySpec("embedded/sokoban", dtype="bfloat16", adapter=LoRA())


@pytest.mark.parametrize(
    ("temperature", "measured"),
    [  # a model of 135M in 4 bits and bfloat16
        (1.0, figures(0.055, 0.41, 0.0027, 0.995)),
        (0.7, figures(0.049, 0.41, 0.0031, 0.994)),
        (0.3, figures(0.040, 0.70, 0.0060, 0.989)),
        (0.1, figures(0.031, 1.88, 0.0136, 0.953)),
    ],
)
def test_rounding_of_a_real_model_goes_on(temperature: float, measured: dict[str, float]) -> None:
    check_mismatch(measured, tolerance_of(Updates(), BF16, "32-true", temperature, of_others=False))


@pytest.mark.parametrize(
    "measured",
    [
        figures(0.178, 1.39, 0.0321, 0.918),  # the same model, the engine's temperature 0.9 instead of 1
        figures(0.475, 2.65, 0.152, 0.808),  # 1.2
        figures(0.096, 3.36, 0.083, 0.384),  # the embedded policy in bf16-mixed, 0.7
        figures(0.01, 5.0, 0.009, 0.5),  # a few tokens carry all ratios
        figures(float("nan"), float("nan"), float("nan"), float("nan")),
    ],
)
def test_other_distributions_stop_the_run_in_low_precision_too(measured: dict[str, float]) -> None:
    tolerance = tolerance_of(Updates(), BF16, "32-true", 1.0, of_others=False)
    with pytest.raises(RunError, match="are not the trainer's: a KL of"):
        check_mismatch(measured, tolerance)
    check_mismatch(measured, None)


def test_kl_and_sample_size_of_a_wrong_temperature_are_those_of_the_distributions() -> None:
    """Samples of four tokens at temperature 0.5, drawn as often as they are likely: the figures are exact.

    k3 of samples of mu has the mean KL(mu || pi), since the mean of pi / mu is 1; so the effective sample size is
    1 / sum(pi^2 / mu).
    """
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    pi, mu = logits.softmax(0), (2 * logits).softmax(0)
    draws = (mu * 20000).round().long()
    ids = torch.arange(4).repeat_interleave(draws)
    one = sampled(0, [mu.log()[ids].tolist()])
    estimates = Estimates(pi.log()[ids], torch.zeros(len(ids)), torch.zeros(len(ids)), 0.0)
    found = mismatch_metrics([one], [estimates], {0})
    assert found["rollout/mismatch/kl"] == pytest.approx(float((mu * (mu / pi).log()).sum()), abs=1e-3)
    assert found["rollout/mismatch/effective_sample_size"] == pytest.approx(1 / float((pi**2 / mu).sum()), abs=1e-3)
    with pytest.raises(RunError, match=r"another temperature"):
        check_mismatch(found, LOW_PRECISION_TOLERANCE)


def test_the_message_says_what_is_known() -> None:
    measured = figures(0.0009, 0.012, 2e-6, 0.99999)
    check_mismatch({}, 1e-6)
    check_mismatch(measured, 1e-5)
    words = (
        r"a KL of 2e-06 nats a token and .* of 0\.99999, where data\.updates\.mismatch_tolerance allows at most 1e-06"
    )
    with pytest.raises(RunError, match=words + r".*mean distance 0\.0009, largest 0\.012.*did not take over"):
        check_mismatch(measured, 1e-6)
    with pytest.raises(RunError, match=words + r".*not stale ones: no update was made yet"):
        check_mismatch(measured, 1e-6, is_updated=False)


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
    ("overlays", "reuse"),
    [
        (("search/sample.yaml", "objective/grpo.yaml"), "auto"),
        (("search/beam.yaml", "objective/grpo.yaml", "credit/tree.yaml"), "true"),
    ],
    ids=["sampled", "tree credit"],
)
def test_without_the_pass_for_old_logprobs_the_gradients_are_the_same(
    fit, overlays: tuple[str, ...], reuse: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    flags = [part for name in overlays for part in ("--config", name)]
    with_pass, without = fit(*flags), fit(*flags, f"--data.updates.reuse_logprobs={reuse}")
    said = "epoch 0: old log-probabilities are taken from the engine, whose differ from the trainer's by up to"
    assert sum(said in entry.message for entry in caplog.records) == (reuse == "auto")
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


@dataclass(frozen=True)
class EstimatesFirst(RAFT):
    """Computes the log-probabilities of failures too."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, logprobs_in_credit=True)


def test_gradients_are_the_same_whether_credit_or_estimates_come_first(fit) -> None:
    flags = ("--config", "search/sample.yaml", "--config", "objective/raft.yaml")
    found = gradients(fit(*flags))
    for one, two in zip(found, gradients(fit(*flags, "--model.objective=test_mismatch.EstimatesFirst")), strict=True):
        assert max(float(each.abs().max()) for each in two) > 1e-3
        for ours, theirs in zip(one, two, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_reuse_in_lower_precision_takes_ratios_to_the_engine(fit) -> None:
    flags = (
        *("--config", "search/sample.yaml", "--config", "objective/grpo.yaml"),
        *("--trainer.precision=bf16-mixed", "--model.policy.kernels=torch"),
    )
    with_pass, without = (fit(*flags, f"--data.updates.reuse_logprobs={value}") for value in ("false", "true"))
    for one, two in zip(gradients(without), gradients(with_pass), strict=True):
        apart = max(float((ours - theirs).abs().max()) for ours, theirs in zip(one, two, strict=True))
        assert 0 < apart < 0.02 * max(float(each.abs().max()) for each in two)


# -- engines that do not sample from the policy ------------------------------------------------------------------------


# Each keeps the contract in its first two rollouts, as in the rehearsal, which refuses what breaks it from the start.


class StopsSyncing(TransformersEngine):
    """Takes over the weights twice, and from then on samples from those it has."""

    def __init__(self, model: Any, *settings: Any) -> None:
        super().__init__(copy.deepcopy(model), *settings)
        self._trained = model
        self._syncs = 0

    def sync(self) -> None:
        self._syncs += 1
        if self._syncs <= 2:
            self.model.load_trainable_state(self._trained.trainable_state())


@dataclass(frozen=True)
class StaleWeights(Transformers):
    def build(self, model: Any, end_ids: frozenset[int], context_tokens: int) -> TransformersEngine:
        return StopsSyncing(model, end_ids, context_tokens, self.kv_cache_mib, self.max_num_seqs)


class KeepsCache(TransformersEngine):
    """Has the weights of now, and from its third rollout on keys and values of prefixes from before."""

    _syncs = 0

    def sync(self) -> None:
        self._syncs += 1

    @contextmanager
    def _running(self) -> Iterator[Any]:
        if self._syncs > 2 and self._version is not None:
            self._version = weights_version(self.model)
        with super()._running() as cache:
            yield cache


@dataclass(frozen=True)
class StalePrefixes(Transformers):
    def build(self, model: Any, end_ids: frozenset[int], context_tokens: int) -> TransformersEngine:
        return KeepsCache(model, end_ids, context_tokens, self.kv_cache_mib, self.max_num_seqs)


STOPS = r"are not the trainer's: a KL of .*mismatch_tolerance allows at most 1e-08 .*did not take over"
CORRIDOR = ("--data.env=corridor:Corridor-v0", "--data.env_kwargs=null")  # three first observations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("StaleWeights", ("--config", "objective/grpo.yaml", "--config", "model/embedded_lora.yaml")),
        pytest.param("StaleWeights", ("--config", "objective/grpo.yaml"), marks=pytest.mark.exhaustive),
        pytest.param("StaleWeights", ("--config", "objective/sft.yaml"), marks=pytest.mark.exhaustive),
        pytest.param("StalePrefixes", ("--config", "objective/sft.yaml", *CORRIDOR), marks=pytest.mark.exhaustive),
    ],
)
def test_an_engine_with_stale_weights_is_stopped(fit, engine: str, flags: tuple[str, ...]) -> None:
    """In the first rollout that it spoils, before it is trained on; the engine that is not stale goes on."""
    longer = ("--trainer.max_epochs=3", "--data.instances=4", "--trainer.limit_val_batches=0")
    model = "--model.policy.model=embedded/sokoban"
    right = fit(*flags, model, *longer)
    assert right.trainer.current_epoch == 3
    with pytest.raises(RunError, match=STOPS):
        fit(*flags, model, *longer, "--data.engine", f"test_mismatch.{engine}")
