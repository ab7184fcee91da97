"""Sharded training: what is refused before a model loads, the overlay that chooses it, and what launches it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from commands import QUICK, ROOT, tsr
from processes import finished, free_port, start_processes
from rank_runs import GRPO, SECONDS, prepared, records_of

from tsr_lightning.cli.app import resolved_settings
from tsr_lightning.errors import ConfigError

SHARDED = ("--config", "sokoban.yaml", "--config", "scale/fsdp2.yaml")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ("--config", "model/embedded_nf4.yaml"),
            r"quantisation is NF4.*cannot be sharded.*strategy ddp",
        ),
        (
            ("--trainer.strategy.class_path", "lightning.pytorch.strategies.ModelParallelStrategy"),
            r"trainer\.strategy is 'ModelParallelStrategy'.*use fsdp2",
        ),
    ],
)
def test_what_cannot_be_sharded_is_refused_before_a_model_loads(
    flags: tuple[str, ...], sentence: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("tsr_lightning.policy.model.load_model", load)
    with pytest.raises(ConfigError, match=sentence):
        tsr("fit", *SHARDED, *QUICK, "--trainer.devices", "2", *flags)


def test_the_overlay_chooses_devices_and_strategy_alone(empty_folder: Path) -> None:
    base, laid = resolved_settings(SHARDED[:2]), resolved_settings([*SHARDED, "--trainer.accelerator", "cpu"])
    stated = yaml.safe_load((ROOT / "configs" / "scale" / "fsdp2.yaml").read_text(encoding="utf-8"))
    assert stated.keys() == {"trainer"}
    assert {key: laid["trainer"].pop(key) for key in stated["trainer"]} == stated["trainer"]
    for key in stated["trainer"]:
        del base["trainer"][key]
    base["trainer"]["accelerator"] = "cpu"
    assert laid == base


def sbatch() -> str:
    return (ROOT / "docs" / "examples" / "train.sbatch").read_text(encoding="utf-8")


def test_the_sbatch_script_is_valid_and_agrees_with_itself() -> None:
    """Lightning refuses a job whose tasks per node or nodes are not its devices or nodes."""
    subprocess.run(["bash", "-n"], input=sbatch(), text=True, check=True)
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", sbatch(), re.MULTILINE))
    given = dict(re.findall(r"--(trainer\.\w+) (\S+)", sbatch()))
    assert given["trainer.devices"] == '"$SLURM_NTASKS_PER_NODE"'
    assert given["trainer.num_nodes"] == '"$SLURM_NNODES"'
    assert int(asked["nodes"]) > 1
    assert int(asked["ntasks-per-node"]) == int(asked["gres"].removeprefix("gpu:")) > 1


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
def test_two_processes_train_together_with_the_variables_of_srun(tmp_path: Path) -> None:
    """Two nodes of one task each; SLURM itself is not needed."""
    nodes = {"devices": 1, "num_nodes": 2, "strategy": "fsdp2"}
    measured = [{"class_path": "callbacks.PromptInformation"}]  # of a rollout whose ranks have unequal parts
    prepared(tmp_path, GRPO, "all", 2, strategy="fsdp2", epochs=1, trainer=nodes, callbacks=measured)
    job = {
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NAME": "tsr",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": "2",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_LOCALID": "0",
        "MASTER_PORT": str(free_port()),  # otherwise made from the job's id
    }
    ranks = [{**job, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)} for rank in range(2)]
    finished(start_processes(("fit", "--config", "run.yaml"), tmp_path, ranks), SECONDS)
    both = records_of(tmp_path, 2)
    assert [record["ranks"] for record in both] == [2, 2]
    assert both[0]["information"] == both[1]["information"]
    assert both[0]["information"][0]["prompt_information"] > 0
