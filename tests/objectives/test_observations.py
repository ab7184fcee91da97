"""The tokens of observations as targets, against a plain forward pass of each trajectory."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import gymnasium
import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from two_turns import Progress, TwoTurns

from tsr_lightning.batching.schedule import Batch, Updates, schedule
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import GRPO, GSPO, PPO, GreedyBaseline, ObservationLoss, PolicyGradient, TreeCredit
from tsr_lightning.policy.chat import Context, Full, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import CHATML, make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.strategies import Sample
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.optimizer import Optimizer
from tsr_lightning.trajectory import Ended, Group, Message, Origin, Trajectory, Turn

TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
COEFFICIENT = 0.3
# Ids of the prompt, of the responses, and of the observation that answers each; there may be none after the last.
EPISODES = [
    ([5, 6, 7], [[8, 9], [10]], [[11, 12, 13], [20, 21]]),
    ([5, 6, 7], [[8], [9], [10, 11]], [[12], [13, 14], []]),
    ([5, 6], [[9, 9, 9]], [[15]]),
]
Whole = tuple[tuple[int, ...], tuple[bool, ...]]  # ids of a sequence, and which of them are of observations


def trajectory(place: int, reward: float, shows_all: bool) -> Trajectory:
    """An episode whose prompts are the first one with all earlier turns, or the last observation alone."""
    prompt, responses, observations = EPISODES[place]
    turns, context = [], tuple(prompt)
    for number, response in enumerate(responses):
        messages = (Message("user", str(number)),)
        turns.append(
            Turn(context, tuple(response), (-1.0,) * len(response), True, messages, "", reward, True, True, "")
        )
        context = (*context, *response, *observations[number]) if shows_all else tuple(observations[number])
    final = (Message("user", "end"),)
    return Trajectory(0, place, "Sample", Origin.SAMPLED, tuple(turns), Ended.FAILED, (), final)


def following(turns: Sequence[Turn], messages: Sequence[Message]) -> list[int]:
    """The observation after the last of an episode's turns."""
    assert messages[0].content in ("end", str(len(turns)))
    responses = [list(turn.response) for turn in turns]
    [own] = [each for _, known, each in EPISODES if known[: len(turns)] == responses]
    return own[len(turns) - 1]


def sequences(shows_all: bool) -> list[Whole]:
    """The sequences to train: an episode or each of its turns, every observation behind its response."""
    wholes = []
    for prompt, responses, observations in EPISODES:
        ids, is_observation = list(prompt), [False] * len(prompt)
        for response, after in zip(responses, observations, strict=True):
            ids += [*response, *after]
            is_observation += [False] * len(response) + [True] * len(after)
            if not shows_all:
                wholes.append((tuple(ids), tuple(is_observation)))
                ids, is_observation = list(after), [False] * len(after)
        if shows_all:
            wholes.append((tuple(ids), tuple(is_observation)))
    return wholes


def steps(
    objective: PolicyGradient, rewards: Sequence[float], shows_all: bool = True, micro_batch_tokens: int = 1000
) -> list[list[Batch]]:
    group = Group(0, tuple(trajectory(place, reward, shows_all) for place, reward in enumerate(rewards)))
    return scheduled(objective, group, micro_batch_tokens)


def scheduled(objective: PolicyGradient, group: Group, micro_batch_tokens: int = 1000) -> list[list[Batch]]:
    def estimate(asked: Sequence[ToEstimate]) -> list[Estimates]:
        sizes = [one.piece.trained_tokens for one in asked]
        return [Estimates(torch.full((n,), -2.0), torch.zeros(n), torch.zeros(n), 0.0) for n in sizes]

    updates = Updates(minibatches=1, micro_batch_tokens=micro_batch_tokens)
    comparisons = [objective.comparisons(group)]
    credited = credited_sequences(comparisons, objective, estimate, ProcessGroup(), updates, following=following)
    return schedule(credited.sequences, updates, Key(0))


def gradient(policy: Policy, total: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(total, [p for p in policy.model.parameters() if p.requires_grad]))


def cross_entropy(policy: Policy, shows_all: bool) -> Tensor:
    """The mean over all observation tokens, by the model's own pass of each sequence."""
    losses = []
    for ids, is_observation in sequences(shows_all):
        logits = policy.causal_lm(torch.tensor([ids])).logits[0, :-1]
        each = functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        losses.append(each[torch.tensor(is_observation[1:])])
    return torch.cat(losses).mean()


@pytest.mark.parametrize("shows_all", [True, False], ids=["all turns", "no earlier turn"])
@pytest.mark.parametrize("micro_batch_tokens", [1000, 6], ids=["one micro-batch", "several"])
@pytest.mark.parametrize("kind", [GRPO, GSPO, PPO])
def test_the_term_is_the_mean_cross_entropy_of_observations(
    kind: type[PolicyGradient], micro_batch_tokens: int, shows_all: bool
):
    plain, observing = kind(), kind(observations=ObservationLoss(COEFFICIENT))
    policy = Policy(PolicySpec(Scratch(32, 2, 2, 64)), TOKENIZER, critic=plain.needs.values)
    [before], [after] = (steps(each, [1.0, 0.0, 0.5], shows_all, micro_batch_tokens) for each in (plain, observing))
    assert (len(after) > 1) == (micro_batch_tokens == 6)

    def total(objective: PolicyGradient, step: Sequence[Batch]) -> Tensor:
        outputs = [policy.outputs(batch.packed, 1.0, entropies=True) for batch in step]
        return torch.stack(
            [objective.loss(batch.targets, own).total for batch, own in zip(step, outputs, strict=True)]
        ).sum()

    expected = COEFFICIENT * cross_entropy(policy, shows_all)
    torch.testing.assert_close(total(observing, after) - total(plain, before), expected, rtol=1e-5, atol=1e-5)
    of_term = gradient(policy, expected)
    with_term, without = (gradient(policy, total(*each)) for each in ((observing, after), (plain, before)))
    for one, other, of_one in zip(with_term, without, of_term, strict=True):
        torch.testing.assert_close(one - other, of_one, rtol=1e-4, atol=1e-5)
    assert max(float(each.abs().max()) for each in of_term) > 1e-3


def test_observations_teach_where_all_fail_alike():
    assert steps(GRPO(), [0.0, 0.0, 0.0]) == []
    [[batch]] = steps(GRPO(observations=ObservationLoss()), [0.0, 0.0, 0.0])
    assert batch.targets.observation_weights.sum() == pytest.approx(1.0)
    assert not batch.targets.advantages.any()


class Hopeless(TwoTurns):
    """No answer is rewarded, and the observation tells which one was given."""

    def play(self, state: Progress, actions: tuple[str, ...], noise: Draws) -> TurnResult[Progress]:
        result = super().play(state, actions, noise)
        return replace(result, reward=0.0, success=False)

    def show(self, state: Progress) -> str:
        return f"turn {state.turn}, right {state.right} of {state.turn}"


gymnasium.register("Hopeless-v0", Hopeless)


class ObservationLosses(pl.Callback):
    """Remembers the term at the end of every epoch, in nats a token."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.values.append(float(trainer.callback_metrics["train/observation_loss"]))


@pytest.mark.parametrize("context", [SingleTurn(), Full()], ids=repr)
def test_a_policy_learns_to_foresee_the_answers_of_an_environment_that_never_rewards(context: Context):
    seed_everything(1)
    losses = ObservationLosses()
    agent = Agent(
        PolicySpec(Scratch(32, 1, 2, 64)), GRPO(observations=ObservationLoss(1.0)), Optimizer(learning_rate=0.005)
    )
    data = RolloutDataModule(
        "Hopeless-v0",
        plan=Uniform(Sample(), 2),
        instances=8,
        held_out=HeldOut(4),
        sampling=Sampling(1.0, 2),
        context=context,
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=12,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[losses],
    )
    trainer.fit(agent, data)
    assert losses.values[0] > 4.0  # nothing is known of the text
    assert losses.values[-1] < 1.5


def test_a_template_that_rewrites_turns_is_refused_from_python_too(tmp_path, monkeypatch):
    """Before anything is played."""
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
    tokenizer.save_pretrained(tmp_path)
    agent = Agent(PolicySpec(str(tmp_path)), GRPO(observations=ObservationLoss()), Optimizer())
    data = RolloutDataModule("Hopeless-v0", plan=Uniform(Sample(), 2), held_out=HeldOut(4))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        num_sanity_val_steps=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    monkeypatch.setattr(Actor, "driver", lambda *args, **kwargs: pytest.fail("it was played"))
    with pytest.raises(ConfigError, match=r"observations is 'ObservationLoss': the chat template .* changes earlier"):
        trainer.fit(agent, data)


def test_greedy_play_that_samples_are_compared_with_is_no_target():
    objective = GRPO(advantage=GreedyBaseline(), observations=ObservationLoss())
    sampled, greedy = trajectory(0, 1.0, True), replace(trajectory(1, 0.0, True), origin=Origin.GREEDY)
    [[batch]] = scheduled(objective, Group(0, (sampled, greedy)))
    assert int((batch.targets.observation_weights > 0).sum()) == sum(map(len, EPISODES[0][2]))


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ConfigError, match="under TreeCredit a response is trained in its state, and no observation"):
        GRPO(searched=TreeCredit(), observations=ObservationLoss())
    with pytest.raises(ConfigError, match=r"ObservationLoss\.coefficient is -1"):
        ObservationLoss(-1.0)
    objective = GRPO(observations=ObservationLoss())
    group = Group(0, (trajectory(0, 1.0, shows_all=True), trajectory(1, 0.0, shows_all=True)))
    with pytest.raises(ValueError, match=r"pass following, such as Actor\.following"):
        credited_sequences([objective.comparisons(group)], objective, lambda asked: [], ProcessGroup())
