"""`tsr` with a model that has recurrent layers: trained by search with an adapter, saved and resumed; estimated."""

import json
from pathlib import Path

import pytest
import torch
from commands import QUICK, tsr
from transformers import Qwen3_5TextConfig

from tests.hybrid_models import DELTA, SIZES, save_random
from tsr_lightning.cli.command import main

CHECKPOINTS = {"filename": "{epoch}", "save_top_k": -1, "save_on_train_epoch_end": True}
SHORT = (
    *("--data.env", "two_turns:TwoTurns-v0", "--data.env_kwargs", "null", "--data.instances", "2"),
    *("--data.sampling.max_response_tokens", "3"),
    *("--trainer.check_val_every_n_epoch", "3", "--data.updates.minibatches", "1"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Qwen3_5TextConfig(**SIZES | {"max_position_embeddings": 2048}, **DELTA, head_dim=16)
    return save_random(config, tmp_path_factory.mktemp("model"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the resumed run writes to a new folder on purpose
def test_a_beam_trains_an_adapter_and_a_resumed_run_equals_the_whole(model: Path, empty_folder: Path) -> None:
    overlays = ("search/beam.yaml", "credit/imitate.yaml", "model/embedded_lora.yaml")
    configs = [part for name in ("frozen_lake.yaml", *overlays) for part in ("--config", name)]
    callbacks = json.dumps([{"class_path": "ModelCheckpoint", "init_args": CHECKPOINTS}])
    whole = tsr("fit", *configs, *QUICK, *SHORT, "--model.policy.model", model, "--trainer.callbacks", callbacks)
    first = Path("runs/frozen_lake/version_0")
    checkpoint = first / "checkpoints" / "epoch=0.ckpt"
    resumed = tsr("fit", "--config", first / "config.yaml", "--ckpt_path", checkpoint)
    ours, theirs = resumed.model.policy.trainable_state(), whole.model.policy.trainable_state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any("linear_attn" in name and "lora_B" in name and bool(theirs[name].any()) for name in theirs)


def test_an_estimate_counts_its_states(model: Path, empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "--config", "frozen_lake.yaml", "--model.policy.model", str(model)])
    assert ended.value.code == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if "(state_cache_mib)" in line]
    assert row.startswith("| rollout | states ")
