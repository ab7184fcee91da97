"""NF4, LoRA and PPO on a CPU through the Trainer: frozen weights do not change, and gradients are exact."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from commands import QUICK, in_folder, tsr
from lightning.pytorch import Callback, Trainer
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from tsr_lightning.batching.schedule import Batch
from tsr_lightning.batching.sequences import ToEstimate, training_sequences
from tsr_lightning.policy.model import Policy
from tsr_lightning.training.agent import Agent
from tsr_lightning.trajectory import Group

EPOCHS, UPDATES = 2, 2
CHECKPOINTS = '{"class_path": "ModelCheckpoint", "init_args": {"save_last": true, "save_on_train_epoch_end": true}}'


class Recorder(Callback):
    """Records the order of events, and repeats every update on a copy that has never been in evaluation mode."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.frozen: dict[str, Tensor] = {}
        self.started: dict[str, Tensor] = {}
        self.expected: dict[str, Tensor] = {}
        self.gradients: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []  # the policy's and the copy's
        self.deviations: list[float] = []  # of each update's ratio from 1
        self.groups: list[Group] = []

    def on_fit_start(self, trainer: Trainer, agent: Agent) -> None:
        self.frozen = frozen(agent.policy)
        self.started = {name: tensor.clone() for name, tensor in agent.policy.trainable_state().items()}

    def on_rollout_end(self, trainer: Trainer, agent: Agent, groups: list[Group]) -> list[Group]:
        self.events.append("rollout")
        self.groups = groups
        return groups

    def on_validation_end(self, trainer: Trainer, agent: Agent) -> None:
        self.events.append("validation")

    def on_train_batch_start(self, trainer: Trainer, agent: Agent, batch: Batch, batch_idx: int) -> None:
        copy = Policy(agent.spec, agent.tokenizer, critic=True).train()
        copy.load_trainable_state(agent.policy.trainable_state())
        outputs = copy.outputs(batch.packed, agent.temperature, entropies=True)
        agent.objective.loss(batch.targets, outputs).total.backward()
        self.expected = gradients(copy)

    def on_before_optimizer_step(self, trainer: Trainer, agent: Agent, optimizer: Any) -> None:
        self.gradients.append((gradients(agent.policy), self.expected))

    def on_train_batch_end(self, trainer: Trainer, agent: Agent, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.events.append("update")
        self.deviations.append(float(trainer.callback_metrics["train/ratio_deviation"]))


def frozen(policy: Policy) -> dict[str, Tensor]:
    trained = policy.trainable_state()
    return {name: tensor.clone() for name, tensor in policy.state_dict().items() if name not in trained}


def gradients(policy: Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def base(tiny_model) -> Path:
    return tiny_model("sokoban")


@pytest.fixture(scope="module")
def args(base: Path) -> tuple[object, ...]:
    overlays = ("sokoban.yaml", "objective/ppo.yaml", "model/embedded_nf4.yaml")
    files = [part for name in overlays for part in ("--config", name)]
    reference = ("--model.objective.init_args.kl", "K3", "--model.objective.init_args.kl.coefficient", "0.01")
    return (*files, *QUICK, "--model.policy.model", base, *reference, "--model.optimizer.learning_rate", "0.003")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def agent(args: tuple[object, ...], folder: Path) -> Agent:
    with in_folder(folder):
        callbacks = f'[{{"class_path": "{__name__}.Recorder"}}, {CHECKPOINTS}]'
        steps = ("--data.updates.minibatches", UPDATES, "--trainer.max_epochs", EPOCHS)
        every = ("--trainer.check_val_every_n_epoch", "1", "--trainer.num_sanity_val_steps", "-1")
        return tsr("fit", *args, "--trainer.callbacks", callbacks, *steps, *every).model


@pytest.fixture(scope="module")
def recorder(agent: Agent) -> Recorder:
    return next(callback for callback in agent.trainer.callbacks if isinstance(callback, Recorder))


def test_rollouts_updates_and_validations_alternate(agent: Agent, recorder: Recorder):
    assert recorder.events == ["validation", *(["rollout", "update", "update", "validation"] * EPOCHS)]
    layers = [module for module in agent.policy.modules() if isinstance(module, Linear4bit)]
    assert len(layers) == 7


def test_evaluation_does_not_change_later_gradients(recorder: Recorder):
    assert len(recorder.gradients) == EPOCHS * UPDATES
    for mine, theirs in recorder.gradients:
        assert mine.keys() == theirs.keys() == recorder.started.keys()
        assert any(gradient.any() for name, gradient in mine.items() if "lora" in name)
        assert all(mine[name].any() for name in mine if "value_head" in name)
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name


def test_training_changes_all_trainable_tensors_and_no_frozen_one(agent: Agent, recorder: Recorder):
    after = frozen(agent.policy)
    assert after.keys() == recorder.frozen.keys()
    for name, tensor in recorder.frozen.items():
        assert torch.equal(tensor, after[name]), name
    trained = agent.policy.trainable_state()
    assert all(not torch.equal(tensor, trained[name]) for name, tensor in recorder.started.items())


def test_the_first_ratio_after_every_rollout_is_one(recorder: Recorder):
    first, later = recorder.deviations[::UPDATES], recorder.deviations[1::UPDATES]
    assert max(first) < 1e-6
    assert min(later) > 1e-4


@torch.no_grad()
def test_the_reference_is_the_base_model(agent: Agent, recorder: Recorder, base: Path):
    trajectories = [trajectory for group in recorder.groups for trajectory in group.trajectories]
    rollout = [ToEstimate(trajectory, training_sequences(trajectory)) for trajectory in trajectories]
    estimates = agent.estimates(rollout, 4096)
    quantisation = agent.policy.causal_lm.config.quantization_config
    plain = logits_without_repacking(
        AutoModelForCausalLM.from_pretrained(base, quantization_config=quantisation, dtype=torch.float32)
    )
    for (_, rows, _), estimate in zip(rollout, estimates, strict=True):
        expected = [
            plain(input_ids=row.ids[None])
            .logits[0, :-1]
            .log_softmax(-1)
            .gather(1, row.ids[1:, None])[:, 0][row.mask[1:]]
            for row in rows
        ]
        torch.testing.assert_close(estimate.reference_logprobs, torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert any((estimate.reference_logprobs - estimate.logprobs).abs().max() > 1e-3 for estimate in estimates)


def logits_without_repacking(model: Any) -> Any:
    """On a CPU with AVX512-BF16, plain transformers would compute in bfloat16."""
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call
@pytest.mark.parametrize("merge", [False, True])
def test_exports_have_the_logits_of_the_agent(merge: bool, agent: Agent, args, base: Path, folder: Path):
    with in_folder(folder):
        [checkpoint] = folder.rglob("last.ckpt")
        tsr("export", *args, "--ckpt_path", checkpoint, "--output", f"out-{merge}", "--merge", str(merge).lower())
        out = folder / f"out-{merge}"
    if merge:
        model = AutoModelForCausalLM.from_pretrained(out)
        assert not any(isinstance(module, Linear4bit) for module in model.modules())
    else:
        quantisation = agent.policy.causal_lm.config.quantization_config
        model = AutoModelForCausalLM.from_pretrained(base, quantization_config=quantisation, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, out)
    ids = torch.tensor([agent.tokenizer.encode("Up || Left #_P <answer>Up</answer>")])
    ours = agent.policy.eval().causal_lm(input_ids=ids).logits
    theirs = logits_without_repacking(model)(input_ids=ids).logits
    torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-4)
    with agent.policy.model.disable_adapter():
        assert not torch.allclose(agent.policy.causal_lm(input_ids=ids).logits, theirs, atol=1e-3)
