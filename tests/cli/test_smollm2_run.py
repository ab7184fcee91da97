"""A run of a real pretrained model: stopped and resumed it has the weights of one that was not; exported, whole or as
an adapter, it is the policy, for plain transformers and peft too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import in_folder, tsr
from peft import AutoPeftModelForCausalLM
from torch import Tensor
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

CHECKPOINTS = '[{"class_path": "ModelCheckpoint", "init_args": {"save_last": true, "save_on_train_epoch_end": true}}]'


def settings(model: Path, epochs: int) -> tuple[object, ...]:
    """An epoch of demonstrations, then epochs of beam search."""
    return (
        *("--config", "quickstart_llm.yaml", "--model.policy.model", model, "--trainer.max_epochs", epochs),
        *("--data.plan.init_args.epochs", "[1]", "--data.instances", 3, "--data.held_out.instances", 3),
        *("--data.updates.min_trajectories", 1, "--model.optimizer.warmup_updates", 1, "--data.evaluations", "[]"),
        *("--trainer.accelerator", "cpu", "--trainer.num_sanity_val_steps", 0, "--trainer.callbacks", CHECKPOINTS),
        *("--trainer.enable_progress_bar", "false"),
    )


def last(folder: Path) -> Path:
    return folder / "runs" / "quickstart_llm" / "version_0" / "checkpoints" / "last.ckpt"


@pytest.mark.exhaustive
def test_a_resumed_run_has_the_weights_of_one_that_was_not_stopped(smollm2: Path, tmp_path: Path):
    whole = tmp_path / "whole"
    whole.mkdir()
    with in_folder(whole):
        tsr("fit", *settings(smollm2, 2))
    with in_folder(tmp_path):
        tsr("fit", *settings(smollm2, 1))
        tsr("fit", *settings(smollm2, 2), "--ckpt_path", last(tmp_path))
    resumed = max((tmp_path / "runs" / "quickstart_llm").rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
    theirs, ours = (torch.load(path, weights_only=True) for path in (last(whole), resumed))
    assert theirs["global_step"] == ours["global_step"] > 1
    assert theirs["state_dict"].keys() == ours["state_dict"].keys()
    assert all(torch.equal(weight, ours["state_dict"][name]) for name, weight in theirs["state_dict"].items())
    assert any(weight.any() for name, weight in theirs["state_dict"].items() if "lora_B" in name)  # it was trained


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    return model.eval()(input_ids=torch.arange(1000, 1040)[None]).logits


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call
@pytest.mark.parametrize(
    ("flags", "loader"),
    [
        pytest.param((), AutoPeftModelForCausalLM, id="adapter", marks=pytest.mark.exhaustive),  # of small models too
        pytest.param(("--merge", "true"), AutoModelForCausalLM, id="merged"),
    ],
)
def test_an_export_is_the_policy_for_plain_transformers_and_peft(
    flags: tuple[str, ...], loader: Any, smollm2: Path, tmp_path: Path
):
    one = ("--data.instances", 1, "--data.held_out.instances", 1, "--model.optimizer.learning_rate", 0.006)
    given = (*settings(smollm2, 1), *one)
    with in_folder(tmp_path):
        trained = tsr("fit", *given).model.policy
        policy = logits(trained.causal_lm)
        with trained.model.disable_adapter():
            assert (policy - logits(trained.causal_lm)).abs().max() > 0.1
        tsr("export", *given, "--ckpt_path", last(tmp_path), "--output", tmp_path / "exported", *flags)
    torch.testing.assert_close(logits(loader.from_pretrained(tmp_path / "exported")), policy, atol=1e-3, rtol=1e-4)
