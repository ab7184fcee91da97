"""The gradients of a whole optimizer step do not depend on micro-batches and ranks, and are those of the formulas.

The step is a Trainer's, on ragged groups and with weights that have moved since the rollout. The reference is a plain
loop over the trajectories in float64, with Hugging Face's own forward pass of one turn at a time.
"""

import copy
import math
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_steps import ONE, SEVERAL, SIZES, Step, optimizer_step, run_rank
from presets import PRESETS
from processes import CONTEXT
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tsr_lightning.objectives import (
    CISPO,
    GRPO,
    GSPO,
    PPO,
    Clipped,
    ClippedWeight,
    K1Reward,
    MeanBackup,
    Objective,
    PolicyGradient,
    TokenMean,
    TreeCredit,
    TurnClipped,
    UnbiasedK3,
)
from tsr_lightning.trajectory import Origin

# Of parallel workers one makes the steps, which all tests here look at.
pytestmark = pytest.mark.xdist_group("optimizer_step")

SECONDS = 240
VARIANTS: dict[str, Objective] = {
    "TokenMean": PolicyGradient(aggregation=TokenMean()),
    "dual clip, K1Reward": GRPO(surrogate=Clipped(dual=1.2), kl=K1Reward(0.05)),
    "GSPO, wide": GSPO(surrogate=TurnClipped(0.05, 0.05)),
    "CISPO, two-sided": CISPO(surrogate=ClippedWeight(0.2, 0.28)),
    "PPO, UnbiasedK3": PPO(kl=UnbiasedK3(0.1)),
    "GRPO, tree credit": GRPO(searched=TreeCredit()),
    "PPO, tree credit": PPO(searched=TreeCredit(MeanBackup(), size_power=0.0, imitation=0.5)),
}
OBJECTIVES = {kind.__name__: kind() for kind in (*PRESETS, PolicyGradient)} | VARIANTS


@dataclass(frozen=True)
class Scored:
    """A turn under the three sets of weights, in float64: [R] each."""

    reward: float
    logprobs: Tensor  # with gradients, as are entropies and values
    entropies: Tensor
    values: Tensor
    old_logprobs: Tensor
    old_values: Tensor
    reference_logprobs: Tensor


@dataclass(frozen=True)
class Episode:
    turns: list[Scored]
    group: int
    demonstrated: bool

    @property
    def tokens(self) -> int:
        return sum(len(turn.logprobs) for turn in self.turns)


Surrogate = Callable[[Tensor, Tensor, float], Iterator[Tensor]]  # of a turn's logprobs, old logprobs and advantage


def clipped(ratio: Tensor, advantage: float, low: float, high: float, dual: float = math.inf) -> Tensor:
    """-min(r A, clip(r) A), and at most -dual A where A < 0."""
    r = ratio.item()
    bound = min(max(r, 1 - low), 1 + high) * advantage
    if r * advantage > bound:
        return torch.tensor(-bound, dtype=torch.float64)
    if advantage < 0 and r > dual:
        return torch.tensor(-dual * advantage, dtype=torch.float64)
    return -ratio * advantage


def by_token(dual: float = math.inf) -> Surrogate:
    def of(logprobs: Tensor, old: Tensor, advantage: float) -> Iterator[Tensor]:
        for logprob, before in zip(logprobs, old, strict=True):
            yield clipped((logprob - before).exp(), advantage, 0.2, 0.28, dual)

    return of


def by_turn(low: float, high: float) -> Surrogate:
    def of(logprobs: Tensor, old: Tensor, advantage: float) -> Iterator[Tensor]:
        s = (logprobs - old).mean().exp().item()
        for logprob in logprobs:
            yield clipped(s * (logprob - logprob.item()).exp(), advantage, low, high)

    return of


def weighted(low: float, high: float) -> Surrogate:
    def of(logprobs: Tensor, old: Tensor, advantage: float) -> Iterator[Tensor]:
        for logprob, before in zip(logprobs, old, strict=True):
            weight = min(max(math.exp(logprob.item() - before.item()), low), high)
            yield -weight * advantage * logprob

    return of


def group_objective(
    episodes: Sequence[Episode], surrogate: Surrogate, *, by_trajectory: bool, k1: float = 0.0
) -> Tensor:
    """GRPO's loss with the given surrogate: the mean over tokens, or over trajectories of their means over tokens."""
    samples = [episode for episode in episodes if not episode.demonstrated]
    losses = []
    for episode in samples:
        returns = [penalised_return(other, k1) for other in samples if other.group == episode.group]
        mean = sum(returns) / len(returns)
        std = math.sqrt(sum((value - mean) ** 2 for value in returns) / (len(returns) - 1))
        advantage = (penalised_return(episode, k1) - mean) / (std + 1e-6)
        terms = [
            loss - 0.001 * entropy
            for turn in episode.turns
            for loss, entropy in zip(
                surrogate(turn.logprobs, turn.old_logprobs, advantage), turn.entropies, strict=True
            )
        ]
        losses.append((sum(terms), len(terms)))
    if by_trajectory:
        return sum(total / count for total, count in losses) / len(losses)
    return sum(total for total, _ in losses) / sum(count for _, count in losses)


def penalised_return(episode: Episode, k1: float) -> float:
    return sum(turn.reward - k1 * float((turn.old_logprobs - turn.reference_logprobs).sum()) for turn in episode.turns)


def ppo(episodes: Sequence[Episode], *, unbiased_k3: float = 0.0) -> Tensor:
    """GAE with gamma = lambda = 1 over tokens, whitened over the samples, whose values the critic learns."""
    rows = []  # (turn, token, the rewards still to come, whether the policy learns from it)
    for episode in episodes:
        for place, turn in enumerate(episode.turns):
            to_come = sum(later.reward for later in episode.turns[place:])
            rows += [(turn, i, to_come, not episode.demonstrated) for i in range(len(turn.logprobs))]
    sampled = [to_come - float(turn.old_values[i]) for turn, i, to_come, learns in rows if learns]
    mean = sum(sampled) / len(sampled)
    variance = sum((value - mean) ** 2 for value in sampled) / len(sampled)
    policy, critic = [], []
    for turn, i, to_come, learns in rows:
        change = (turn.values[i] - turn.old_values[i]).clamp(-0.5, 0.5)
        errors = torch.stack([turn.values[i] - to_come, turn.old_values[i] + change - to_come]).square()
        if learns:
            critic.append(errors.max() / 2)
            advantage = (to_come - float(turn.old_values[i]) - mean) / math.sqrt(variance + 1e-8)
            [loss] = by_token()(turn.logprobs[i : i + 1], turn.old_logprobs[i : i + 1], advantage)
            kl = (turn.logprobs[i] - turn.reference_logprobs[i]).square() / 2  # its gradient is that of UnbiasedK3
            policy.append(loss - 0.001 * turn.entropies[i] + unbiased_k3 * kl)
    return sum(policy) / len(policy) + sum(critic) / len(critic)


FORMULAS: dict[str, Callable[[Sequence[Episode]], Tensor]] = {
    "GRPO": lambda episodes: group_objective(episodes, by_token(), by_trajectory=True),
    "PolicyGradient": lambda episodes: group_objective(episodes, by_token(), by_trajectory=True),
    "TokenMean": lambda episodes: group_objective(episodes, by_token(), by_trajectory=False),
    "dual clip, K1Reward": lambda episodes: group_objective(episodes, by_token(1.2), by_trajectory=True, k1=0.05),
    "GSPO": lambda episodes: group_objective(episodes, by_turn(3e-4, 4e-4), by_trajectory=True),
    "GSPO, wide": lambda episodes: group_objective(episodes, by_turn(0.05, 0.05), by_trajectory=True),
    "CISPO": lambda episodes: group_objective(episodes, weighted(0.0, 1.28), by_trajectory=False),
    "CISPO, two-sided": lambda episodes: group_objective(episodes, weighted(0.8, 1.28), by_trajectory=False),
    "PPO": ppo,
    "PPO, UnbiasedK3": lambda episodes: ppo(episodes, unbiased_k3=0.1),
}


MICRO_BATCHES = {"one": ONE, "several": SEVERAL}


@cache
def step_of(name: str, micro_batches: str) -> Step:
    """Of an objective, with one micro-batch or with several."""
    return optimizer_step(OBJECTIVES[name], MICRO_BATCHES[micro_batches])


# By what ranks must share: group means, a batch's moments, token counts, a critic, demonstrations, trees.
SHARING = ("GRPO", "PPO", "DAPO", "GSPO", "ReinforcePlusPlus", "SFT", "GRPO, tree credit", "PPO, tree credit")
OTHERS = tuple(name for name in OBJECTIVES if name not in SHARING)


@pytest.fixture(scope="module")
def sharing_on_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Step]]:
    return on_ranks(SHARING, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def others_on_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Step]]:
    return on_ranks(OTHERS, tmp_path_factory.mktemp("ranks"))


def on_ranks(names: Sequence[str], folder: Path) -> list[dict[str, Step]]:
    """The steps of the named objectives on each of two ranks."""
    cases = {name: OBJECTIVES[name] for name in names}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        CONTEXT.Process(target=run_rank, args=(cases, folder, {**common, "LOCAL_RANK": rank}), daemon=True)
        for rank in "01"
    ]
    try:
        for rank in ranks:
            rank.start()
        for number, rank in enumerate(ranks):
            rank.join(SECONDS)
            assert rank.exitcode == 0, (folder / f"output{number}.txt").read_text()
    finally:
        for rank in ranks:  # the other may wait for one that failed
            rank.kill()
    return [pickle.loads((folder / f"rank{number}.pkl").read_bytes()) for number in range(2)]


@pytest.mark.parametrize(  # the others are made of the same parts
    "name",
    [pytest.param(name, marks=[] if name in (*SHARING, *FORMULAS) else pytest.mark.exhaustive) for name in OBJECTIVES],
)
def test_micro_batches_do_not_change_the_step(name: str):
    one, several = step_of(name, "one"), step_of(name, "several")
    assert one.micro_batches == 1
    assert several.micro_batches > 4
    assert max(float(gradient.abs().max()) for gradient in one.gradients.values()) > 1e-3
    assert_same(several, one)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", SHARING)
def test_ranks_do_not_change_the_step(name: str, sharing_on_ranks: list[dict[str, Step]]):
    assert_ranks_same(name, sharing_on_ranks)


@pytest.mark.exhaustive
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", OTHERS)
def test_ranks_do_not_change_other_steps(name: str, others_on_ranks: list[dict[str, Step]]):
    assert_ranks_same(name, others_on_ranks)


def assert_ranks_same(name: str, ranks: list[dict[str, Step]]) -> None:
    for rank in ranks:
        assert rank[name].micro_batches > 2
        assert_same(rank[name], step_of(name, "one"), figures=rank is ranks[0])  # which rank 0 alone reports


def assert_same(actual: Step, expected: Step, *, figures: bool = True) -> None:
    assert actual.gradients.keys() == expected.gradients.keys()
    for key, gradient in expected.gradients.items():
        torch.testing.assert_close(actual.gradients[key], gradient, rtol=0, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")
    if figures:
        assert actual.figures == pytest.approx(expected.figures, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_step_is_that_of_the_formulas(name: str):
    step = step_of(name, "one")
    model, head = double(step.config, step.weights["now"])
    FORMULAS[name](episodes(step, model, head)).backward()
    expected = {f"model.{key}": p.grad for key, p in model.named_parameters() if p.grad is not None}
    if head.weight.grad is not None:
        expected |= {f"value_head.{key}": p.grad for key, p in head.named_parameters()}
    assert step.gradients.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(
            step.gradients[key].double(), gradient, rtol=0, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_the_clips_were_active():
    for name in FORMULAS:
        figures = step_of(name, "one").figures
        assert figures["train/clip_fraction_high"] > 0.01, name
        if name != "CISPO":  # which has no lower bound
            assert figures["train/clip_fraction_low"] > 0.01, name


def double(config: PretrainedConfig, weights: dict[str, Tensor]) -> tuple[PreTrainedModel, nn.Linear]:
    """The model and the critic in float64, without any of our code."""
    own = {key.removeprefix("model."): weight for key, weight in weights.items() if key.startswith("model.")}
    model: Any = AutoModelForCausalLM.from_config(
        copy.deepcopy(config), dtype=torch.float64, attn_implementation="eager"
    )
    model.load_state_dict(own)
    head = nn.Linear(SIZES.hidden_size, 1, dtype=torch.float64)
    critic = {k.removeprefix("value_head."): w for k, w in weights.items() if k.startswith("value_head.")}
    head.load_state_dict(critic or {"weight": torch.zeros(1, SIZES.hidden_size), "bias": torch.zeros(1)})
    return model, head


def episodes(step: Step, model: PreTrainedModel, head: nn.Linear) -> list[Episode]:
    old, reference = (double(step.config, step.weights[name]) for name in ("old", "reference"))

    def scored(turn: Any) -> Scored:
        with torch.no_grad():
            old_logprobs, _, old_values = score(*old, turn)
            reference_logprobs, _, _ = score(*reference, turn)
        return Scored(turn.reward, *score(model, head, turn), old_logprobs, old_values, reference_logprobs)

    return [
        Episode([scored(turn) for turn in trajectory.turns], number, trajectory.origin is Origin.DEMONSTRATED)
        for number, group in enumerate(step.groups)
        for trajectory in group.trajectories
    ]


def score(model: Any, head: nn.Linear, turn: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropies and values of a turn's response, each at the position before its token."""
    ids = torch.tensor([*turn.prompt, *turn.response])
    places = torch.arange(len(turn.prompt) - 1, len(ids) - 1)
    out = model(input_ids=ids[None], output_hidden_states=True)
    logprobs = out.logits[0, places].log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    values = head(out.hidden_states[-1][0, places].detach()).squeeze(-1)
    return logprobs[torch.arange(len(places)), ids[places + 1]], entropies, values
