"""examples/loop.py trains as `tsr fit` does: the same weights, bit for bit, without Lightning."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import QUICK, in_folder, tsr

from examples.loop import FROZEN_LAKE, Recipe, train
from tsr_lightning import PPO, HeldOut, Optimizer, Sample, Uniform, Updates
from tsr_lightning.objectives import K3

TASK = ("--config", "frozen_lake.yaml", *QUICK, "--data.env_kwargs.success_rate", "1.0")
SHORT = replace(FROZEN_LAKE, instances_per_epoch=4, epochs=2, held_out=HeldOut(4), evaluate_every=2)

SEARCHED = replace(SHORT, updates=Updates(minibatches=2, min_trajectories=1), seed=2)
SEARCHED_FLAGS = (
    *("--config", "search/beam.yaml", "--config", "credit/imitate.yaml", "--data.instances", "4"),
    *("--model.optimizer.learning_rate", "1e-3", "--seed_everything", "2"),
)
# A critic, a reference, two passes, several micro-batches, clipped gradients, and rates that rise and fall.
COMPARED = replace(
    SHORT,
    plan=Uniform(Sample(), 4),
    objective=PPO(kl=K3()),
    updates=Updates(epochs=2, minibatches=2, min_trajectories=1, micro_batch_tokens=512),
    optimizer=Optimizer(2e-4, 1e-3, warmup_updates=2, decay="cosine", decay_updates=9),
    clip_norm=0.1,
)
COMPARED_FLAGS = (
    *("--config", "objective/ppo.yaml", "--model.objective.init_args.kl", "K3", "--data.plan.init_args.count", "4"),
    *("--data.updates.epochs", "2", "--data.updates.micro_batch_tokens", "512", "--trainer.gradient_clip_val", "0.1"),
    *("--model.optimizer.warmup_updates", "2", "--model.optimizer.decay", "cosine"),
    *("--model.optimizer.decay_updates", "9"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "flags"),
    [(SEARCHED, SEARCHED_FLAGS), pytest.param(COMPARED, COMPARED_FLAGS, marks=pytest.mark.exhaustive)],
    ids=["searched", "compared"],
)
def test_the_loop_ends_with_the_weights_of_fit(
    recipe: Recipe, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with in_folder(tmp_path):
        cli = tsr("fit", *TASK, *flags)
    fitted = cli.model.policy.trainable_state()
    capsys.readouterr()
    trained = train(recipe).trainable_state()
    assert [line[:9] for line in capsys.readouterr().out.splitlines()] == ["epoch   0", "epoch   2"]
    assert list(trained) == list(fitted)
    assert [name for name in fitted if not torch.equal(trained[name], fitted[name])] == []
    started = train(replace(recipe, epochs=0)).trainable_state()
    assert [name for name in fitted if torch.equal(started[name], fitted[name])] == []
