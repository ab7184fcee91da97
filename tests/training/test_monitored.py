"""The figures that callbacks may monitor are known by name before the run that logs them."""

from pathlib import Path

import pytest
from commands import QUICK, TINY, in_folder, tsr
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from callbacks import Evaluation
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.monitored import check_monitors, logged_figures

EVALUATIONS = (
    '[{"name": "sampled", "samples": 2}, {"name": "greedy", "temperature": 0.0}, '
    '{"name": "best", "samples": 2, "search": {"class_path": "BestOfN", "init_args": {"n": 2}}}]'
)
LOSSES = {"train/effective_sample_size", "train/grad_norm_critic"}  # of importance ratios, and of a critic
LOST = {f"val/{name}/episodes_lost" for name in ("sampled", "greedy", "best")}


class Own(Callback):
    """A user's, which may log anything."""


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["grpo", "ppo", "raft"])
def test_what_a_run_logs_is_known_before(objective: str, tmp_path: Path) -> None:
    with in_folder(tmp_path):
        run = tsr(
            *("fit", "--config", "sokoban.yaml", "--config", f"objective/{objective}.yaml", *QUICK),
            *("--trainer.max_epochs", "1", "--trainer.num_sanity_val_steps=-1", "--trainer.check_val_every_n_epoch=1"),
            *("--model.policy.model", TINY, "--trainer.callbacks+=Evaluation", "--data.evaluations", EVALUATIONS),
            *(
                "--data.env",
                "corridor:Corridor-v0",
                "--data.env_kwargs",
                '{"slip": 0.5}',
                "--data.held_out.instances=1",
            ),
            *("--config", "search/beam.yaml") * (objective == "raft"),
        )
    known, logged = logged_figures(run.trainer.callbacks, run.model, run.datamodule), set(run.trainer.callback_metrics)
    assert {"val/greedy/success_rate", "val/best/search_gap/return", "train/loss", "train/grad_norm_policy"} <= logged
    assert logged <= known
    assert known - logged <= LOSSES | LOST

    def check(*callbacks: Callback) -> None:
        check_monitors([Evaluation(), *callbacks], run.model, run.datamodule)

    for name in logged:
        check(EarlyStopping(name), ModelCheckpoint(monitor=name))
    check(ModelCheckpoint(), ModelCheckpoint(monitor="step"), ModelCheckpoint(monitor="epoch"))
    check(EarlyStopping("nothere", strict=False))  # which Lightning then only warns of
    check(EarlyStopping("nothere"), Own())
    with pytest.raises(ConfigError, match=r"EarlyStopping\.monitor is nothere"):
        check(EarlyStopping("nothere"))
