"""The mutual information of prompts and responses."""

import math

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from callbacks.prompt_information import PromptInformation, distinct_turns, information, logprobs_behind_every_prompt
from tsr_lightning import GRPO, Agent, HeldOut, PolicySpec, RolloutDataModule, Sample, Scratch, Uniform
from tsr_lightning.batching.packing import Packed
from tsr_lightning.batching.tensors import Outputs
from tsr_lightning.trajectory import Group, Turn


def test_responses_that_ignore_their_prompts_have_none():
    found = information(torch.full((4, 4), 0.25).log())
    assert found.prompt_information == pytest.approx(0.0)
    assert found.conditional_entropy == pytest.approx(math.log(4))


def test_responses_that_follow_from_their_prompts_have_all():
    found = information(torch.eye(2).log())
    assert found == pytest.approx((0.0, math.log(2)))


def test_between_the_two():
    # I = mean of log(0.9 / 0.5) and log(0.7 / 0.5); H(Z|X) = mean of -log 0.9 and -log 0.7
    found = information(torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log())
    assert found.prompt_information == pytest.approx((math.log(0.9 / 0.5) + math.log(0.7 / 0.5)) / 2)
    assert found.conditional_entropy == pytest.approx(-(math.log(0.9) + math.log(0.7)) / 2)


class Measured(pl.Callback):
    def on_rollout_end(self, trainer: pl.Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        self.turns: list[Turn] = distinct_turns(groups)
        self.logprobs: Tensor = logprobs_behind_every_prompt(agent, self.turns, 100_000)
        self.alone = logprobs_behind_every_prompt(agent, self.turns[:1], 100_000)
        longest = max(len(turn.prompt) for turn in self.turns) + max(len(turn.response) for turn in self.turns)
        policy_outputs, self.passes = agent.policy.outputs, list[int]()

        def counted(packed: Packed, temperature: float, *, entropies: bool = False) -> Outputs:
            self.passes.append(packed.ids.numel())
            return policy_outputs(packed, temperature, entropies=entropies)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agent.policy, "outputs", counted)
            self.split = logprobs_behind_every_prompt(agent, self.turns, longest)
        self.longest = longest
        return groups


class Nothing(pl.Callback):
    """Drops every group."""

    def on_rollout_end(self, trainer: pl.Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        return []


def test_the_packed_pass_gives_each_response_the_probability_that_it_was_sampled_with():
    data = RolloutDataModule(
        "tsr/FrozenLake-v0", {"prompt_style": "bare"}, plan=Uniform(Sample(), 2), instances=4, held_out=HeldOut(4)
    )
    measured, logged = Measured(), PromptInformation(prompts=4)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[measured, Nothing(), logged],
    )
    trainer.fit(Agent(PolicySpec(Scratch(32, 1, 2, 64)), GRPO()), datamodule=data)
    sampled = torch.tensor([sum(turn.behaviour_logprobs) for turn in measured.turns], dtype=torch.float64)
    assert len(measured.turns) == 4
    torch.testing.assert_close(measured.logprobs.diagonal(), sampled, atol=1e-3, rtol=1e-5)
    found = logged.of_training()["prompt_information"]
    assert found == pytest.approx(information(measured.logprobs).prompt_information, abs=1e-6)
    torch.testing.assert_close(measured.alone[0, 0], measured.logprobs[0, 0], atol=1e-3, rtol=1e-5)
    assert not torch.allclose(measured.logprobs[0], measured.logprobs[0, 0].expand(4))
    assert len(measured.passes) > 4
    assert max(measured.passes) <= measured.longest
    torch.testing.assert_close(measured.split, measured.logprobs, atol=1e-3, rtol=1e-5)


def test_a_resumed_run_knows_the_last_figures():
    measured, resumed = PromptInformation(), PromptInformation()
    measured._found = {"rollout/sampled/prompt_information": 0.5}
    resumed.load_state_dict(measured.state_dict())
    assert resumed.of_training() == {"prompt_information": 0.5}
