"""Losses and gradients of TRL's own trainers, on the same model and the same ragged groups: within 2e-6.

Both sides are whole: ours goes from trajectories over credit, packing and micro-batches to the loss; TRL's from padded
rows to `_compute_loss` of a trainer that its constructor made. All in float64, but for our logits, estimates and credit
(float32). Trajectories have turns of several lengths; TRL masks the observations between them as a tool's tokens.

Given to TRL, not computed by it: advantages, since it adds 1e-4 to a group's deviation where we add 1e-6. Not compared:
its `vespo` and `luspo`, which we do not have, and a sequence's ratio over several turns, which is a turn's here.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tsr_lightning.batching.schedule import Updates, schedule
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.objectives import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    K3,
    RLOO,
    Clipped,
    ClippedWeight,
    Constant,
    CorrectedK3,
    DrGRPO,
    Objective,
    PolicyGradient,
    SoftGate,
    TokenMean,
    TurnClipped,
)
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory, Turn

trl = pytest.importorskip("trl", reason="TRL is not installed; make test-extras does that")
datasets = pytest.importorskip("datasets", reason="TRL's data sets are not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its libraries'

TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
MEMBERS, GROUPS, LONGEST = 3, 3, 24
ROWS = MEMBERS * GROUPS


class Case(NamedTuple):
    ours: Objective
    theirs: dict[str, Any]  # of GRPOConfig
    turns: int = 3  # at most


def objective(kind: type[PolicyGradient], **settings: Any) -> PolicyGradient:
    return kind(**{"surrogate": Clipped(0.2, 0.28), "entropy_coefficient": 0.0} | settings)


CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
PLAIN_KL = {"use_bias_correction_kl": False}  # GRPO's own; True multiplies it by the importance ratio
CASES = {
    "grpo": Case(objective(GRPO), {"loss_type": "grpo", **CLIP}),
    "grpo, dual clip": Case(
        objective(GRPO, surrogate=Clipped(0.2, 0.28, 1.3)), {"loss_type": "grpo", "delta": 1.3, **CLIP}
    ),
    "grpo with KL": Case(objective(GRPO, kl=K3(0.1)), {"loss_type": "grpo", "beta": 0.1, **PLAIN_KL, **CLIP}),
    "grpo, entropy bonus": Case(
        objective(GRPO, aggregation=TokenMean(), entropy_coefficient=0.05),
        {"loss_type": "dapo", "entropy_coef": 0.05, **CLIP},
    ),
    "dapo": Case(objective(DAPO), {"loss_type": "dapo", **CLIP}),
    "dapo with KL": Case(objective(DAPO, kl=K3(0.1)), {"loss_type": "dapo", "beta": 0.1, **PLAIN_KL, **CLIP}),
    "bnpo": Case(objective(GRPO, aggregation=TokenMean()), {"loss_type": "bnpo", **CLIP}),
    "dr_grpo": Case(objective(DrGRPO, aggregation=Constant(LONGEST)), {"loss_type": "dr_grpo", **CLIP}),
    "grpo with corrected KL": Case(objective(GRPO, kl=CorrectedK3(0.1)), {"loss_type": "grpo", "beta": 0.1, **CLIP}),
    "sapo": Case(objective(GRPO, surrogate=SoftGate()), {"loss_type": "sapo"}),
    "dr_grpo with KL": Case(
        objective(DrGRPO, aggregation=Constant(LONGEST), kl=K3(0.1)),
        {"loss_type": "dr_grpo", "beta": 0.1, **PLAIN_KL, **CLIP},
    ),
    "cispo": Case(
        objective(CISPO, surrogate=ClippedWeight(None, 0.28)),
        {"loss_type": "cispo", "epsilon_high": 1.28},  # TRL's is the bound itself
    ),
    "gspo": Case(
        objective(GSPO, surrogate=TurnClipped(0.05, 0.05)),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.05},
        turns=1,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=TOKENIZER.pad_token_id,
        eos_token_id=TOKENIZER.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def ragged_groups(turns: int) -> list[Group]:
    """Groups of trajectories of up to so many turns of one to five tokens, whose prompts extend one another."""
    draws = torch.Generator().manual_seed(turns)

    def ids(least: int, most: int) -> tuple[int, ...]:
        count = int(torch.randint(least, most + 1, (), generator=draws))
        return tuple(torch.randint(4, len(TOKENIZER), (count,), generator=draws).tolist())

    def member(first: tuple[int, ...], place: int) -> Trajectory:
        played: list[Turn] = []
        prompt = first
        for _ in range(int(torch.randint(1, turns + 1, (), generator=draws))):
            response = ids(1, 5)
            reward = float(torch.rand((), generator=draws))
            played.append(Turn(prompt, response, (0.0,) * len(response), True, (), "", reward, True, True, ""))
            prompt = (*prompt, *response, *ids(1, 3))
        return Trajectory(0, place, "Sample", Origin.SAMPLED, tuple(played), Ended.FAILED, prompt, ())

    firsts = [ids(2, 6) for _ in range(GROUPS)]
    return [Group(i, tuple(member(first, place) for place in range(MEMBERS))) for i, first in enumerate(firsts)]


class Encoded(NamedTuple):
    """A trajectory as TRL sees it."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]  # of the completion: 1 where it was sampled


def row_of(trajectory: Trajectory) -> Encoded:
    first, *_ = trajectory.turns
    ids, mask = list(first.prompt), [0] * len(first.prompt)
    for turn in trajectory.turns:
        fresh = turn.prompt[len(ids) :]
        ids += [*fresh, *turn.response]
        mask += [0] * len(fresh) + [1] * len(turn.response)
    count = len(first.prompt)
    return Encoded(list(first.prompt), ids[count:], mask[count:])


def padded(rows: Sequence[Sequence[float]], *, left: bool = False, value: float = 0) -> Tensor:
    width = max(map(len, rows))
    fill = [[value] * (width - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if left else [*row, *f] for f, row in zip(fill, rows, strict=True)])


def moved(model: LlamaForCausalLM, size: float, seed: int) -> LlamaForCausalLM:
    """In float64, its weights moved by noise."""
    draws = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
    return model


def logprobs_of(model: LlamaForCausalLM, row: Encoded) -> Tensor:
    """[C] of the completion, by a plain forward pass."""
    ids = torch.tensor([[*row.prompt, *row.completion]])
    scores = model(ids).logits[0, len(row.prompt) - 1 : -1].log_softmax(-1)
    return scores.gather(-1, ids[0, len(row.prompt) :, None]).squeeze(-1)


def entropies_of(model: LlamaForCausalLM, row: Encoded) -> Tensor:
    """[C] of the completion."""
    scores = model(torch.tensor([[*row.prompt, *row.completion]])).logits[0, len(row.prompt) - 1 : -1].log_softmax(-1)
    return -(scores.exp() * scores).sum(-1)


class Rollout(NamedTuple):
    groups: list[Group]
    rows: list[Encoded]  # of all members
    old: list[Tensor]  # [C] of each row, float32
    reference: list[Tensor]
    entropies: list[Tensor]


@torch.no_grad()
def rollout_of(folder: Path, turns: int, since: float = 0.03) -> Rollout:
    """Of a policy that the present one is `since` away from."""
    groups = ragged_groups(turns)
    rows = [row_of(trajectory) for group in groups for trajectory in group.trajectories]
    models = [moved(LlamaForCausalLM.from_pretrained(folder), size, seed) for size, seed in ((since, 1), (0.05, 2))]
    old, reference = ([logprobs_of(model, row).float() for row in rows] for model in models)
    return Rollout(groups, rows, old, reference, [entropies_of(models[0], row).float() for row in rows])


class Side(NamedTuple):
    loss: float
    gradients: dict[str, Tensor]


def gradients_of(model: LlamaForCausalLM) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def estimates_of(rollout: Rollout, asked: Sequence[Any]) -> list[Estimates]:
    trajectories = [trajectory for group in rollout.groups for trajectory in group.trajectories]
    place_of = {id(trajectory): place for place, trajectory in enumerate(trajectories)}

    def of(trajectory: Trajectory) -> Estimates:
        place = place_of[id(trajectory)]
        sampled = torch.tensor(rollout.rows[place].mask, dtype=torch.bool)
        old, reference = rollout.old[place][sampled], rollout.reference[place][sampled]
        return Estimates(old, torch.zeros_like(old), reference, 0.0, rollout.entropies[place][sampled])

    return [of(one.piece) for one in asked]


def our_side(folder: Path, ours: Objective, rollout: Rollout, micro_batch_tokens: int) -> Side:
    """The loss and gradients of an optimizer step, summed over its packed micro-batches."""
    policy = Policy(PolicySpec(str(folder), kernels="torch"), TOKENIZER, critic=False).double()
    updates = Updates(minibatches=1, micro_batch_tokens=micro_batch_tokens)
    estimate = partial(estimates_of, rollout)
    comparisons = [ours.comparisons(group) for group in rollout.groups]
    sequences = credited_sequences(comparisons, ours, estimate, ProcessGroup(), updates).sequences
    [step] = schedule(sequences, updates, Key(0))
    assert len(step) > (micro_batch_tokens < 1000)
    total = 0.0
    for batch in step:
        loss = ours.loss(batch.targets, policy.outputs(batch.packed, 1.0, entropies=True)).total
        loss.backward()
        total += loss.item()
    return Side(total, gradients_of(policy.causal_lm))


def trainer_of(kind: Any, config: Any, folder: Path, scratch: Path, **settings: Any) -> Any:
    arguments = config(
        output_dir=str(scratch),
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        per_device_train_batch_size=ROWS,
        num_generations=MEMBERS,
        max_completion_length=LONGEST,
        report_to="none",
        **settings,
    )
    return kind(
        model=LlamaForCausalLM.from_pretrained(folder).double(),
        reward_funcs=lambda completions, **others: [0.0] * len(completions),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["Up"] * ROWS}),
        processing_class=TOKENIZER,
    )


def inputs_of(rollout: Rollout, advantages: Sequence[float]) -> dict[str, Tensor]:
    rows = rollout.rows
    return {
        "prompt_ids": padded([row.prompt for row in rows], left=True, value=TOKENIZER.pad_token_id),
        "prompt_mask": padded([[1] * len(row.prompt) for row in rows], left=True),
        "completion_ids": padded([row.completion for row in rows], value=TOKENIZER.pad_token_id),
        "completion_mask": padded([[1] * len(row.completion) for row in rows]),
        "tool_mask": padded([row.mask for row in rows]),
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "old_per_token_logps": padded([each.tolist() for each in rollout.old]).double(),
        "ref_per_token_logps": padded([each.tolist() for each in rollout.reference]).double(),
        "num_items_in_batch": torch.tensor(float(sum(sum(row.mask) for row in rows)), dtype=torch.float64),
    }


def their_side(trainer: Any, inputs: dict[str, Tensor]) -> Side:
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return Side(loss.item(), gradients_of(trainer.model))


def advantages_of(ours: Objective, rollout: Rollout) -> list[float]:
    asked = [
        [Estimates(*[torch.zeros(t.trained_tokens)] * 3, 0.0) for t in group.trajectories] for group in rollout.groups
    ]
    credits = replace(ours, kl=None).credit(rollout.groups, asked)
    return [float(credit.advantages[0]) for group in credits for credit in group]


def assert_equal(ours: Side, theirs: Side) -> None:
    assert max(float(each.abs().max()) for each in theirs.gradients.values()) > 1e-3
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-6)
    assert set(ours.gradients) == set(theirs.gradients)
    for name, gradient in theirs.gradients.items():
        torch.testing.assert_close(ours.gradients[name], gradient, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("micro_batch_tokens", [10_000, 20], ids=["one micro-batch", "several"])
@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_trls_grpo_trainer(name: str, micro_batch_tokens: int, folder: Path, tmp_path: Path) -> None:
    case = CASES[name]
    rollout = rollout_of(folder, case.turns)
    trainer = trainer_of(trl.GRPOTrainer, trl.GRPOConfig, folder, tmp_path, **case.theirs)
    theirs = their_side(trainer, inputs_of(rollout, advantages_of(case.ours, rollout)))
    assert_equal(our_side(folder, case.ours, rollout, micro_batch_tokens), theirs)


def test_the_entropy_mask_of_trls_grpo_trainer(folder: Path, tmp_path: Path) -> None:
    """In the first update of a rollout, where the policy whose entropies count is the same; not in the KL term."""
    ours = objective(GRPO, top_entropy_quantile=0.3, kl=CorrectedK3(0.1))
    rollout = rollout_of(folder, turns=3, since=0.0)
    settings = {"loss_type": "grpo", "beta": 0.1, "top_entropy_quantile": 0.3, **CLIP}
    trainer = trainer_of(trl.GRPOTrainer, trl.GRPOConfig, folder, tmp_path, **settings)
    inputs = inputs_of(rollout, advantages_of(replace(ours, top_entropy_quantile=1.0), rollout))
    assert_equal(our_side(folder, ours, rollout, 10_000), their_side(trainer, inputs))


def test_the_gradient_of_trls_rloo_trainer(folder: Path, tmp_path: Path) -> None:
    """In the first update of a rollout. Its loss has one ratio and one clip per response, ours per token, so that the
    gradients are equal where the ratios are 1; the values of the losses differ by the responses' lengths."""
    ours = objective(RLOO, aggregation=Constant(1))
    rollout = rollout_of(folder, turns=1, since=0.0)
    returns = torch.tensor([[t.episode_return for t in group.trajectories] for group in rollout.groups])
    advantages = (returns - (returns.sum(1, keepdim=True) - returns) / (MEMBERS - 1)).flatten().tolist()
    assert advantages_of(ours, rollout) == pytest.approx(advantages, abs=1e-6)
    inputs = inputs_of(rollout, advantages)
    inputs["old_logps"] = (inputs["old_per_token_logps"] * inputs["completion_mask"]).sum(1)
    theirs = their_side(trainer_of(trl.RLOOTrainer, trl.RLOOConfig, folder, tmp_path), inputs)
    found = our_side(folder, ours, rollout, 10_000)
    assert_equal(found._replace(loss=theirs.loss), theirs)
