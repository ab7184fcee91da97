"""Processes that torchrun or srun starts train together, or are refused before a model loads."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import tsr
from lightning.pytorch.utilities import rank_zero_only

from tsr_lightning.cli.app import CheckingCLI, run
from tsr_lightning.cli.command import main
from tsr_lightning.errors import ConfigError

TORCHRUN = {
    **{"RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    **{"TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
BATCH = {  # of a script of sbatch
    **{"SLURM_JOB_ID": "4242", "SLURM_JOB_NAME": "tsr", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"},
    **{"SLURM_NNODES": "1", "SLURM_NODELIST": "127.0.0.1", "SLURM_PROCID": "0", "SLURM_NODEID": "0"},
    "SLURM_LOCALID": "0",
}
SRUN = {**BATCH, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
CPU = ("--config", "sokoban.yaml", "--trainer.accelerator", "cpu")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
    """No launcher's variables, and rank 0."""
    for name in {*TORCHRUN, *SRUN}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # Lightning's own, put back after the test: rank 1 logs nothing


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("launcher", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
class TestTwoProcesses:
    @pytest.fixture(autouse=True)
    @staticmethod
    def variables(launcher: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, started: None) -> None:
        for name, value in launcher.items():
            monkeypatch.setenv(name, value)

    @pytest.mark.parametrize("command", ["fit", "validate"])
    @pytest.mark.parametrize("devices", [(), ("--trainer.devices", "2", "--trainer.num_nodes", "2")])
    def test_that_would_not_train_together_are_refused(self, command: str, devices: tuple[str, ...]) -> None:
        given = 2 if devices else 1
        sentence = (
            rf"trainer\.devices is {given} and trainer\.num_nodes {given}, but 2 processes were started, .*"
            r"give --trainer\.devices, .*, and --trainer\.num_nodes, whose product is 2"
        )
        with pytest.raises(ConfigError, match=sentence):
            tsr(command, *CPU, *devices)

    def test_with_as_many_devices_are_two_ranks(self) -> None:
        assert run(["fit", *CPU, "--trainer.devices", "2"], CheckingCLI).trainer.world_size == 2

    @pytest.mark.parametrize("command", ["rollout", "play"])
    def test_write_no_file_of_episodes(self, command: str) -> None:
        with pytest.raises(ConfigError, match=r"2 processes were started, .* start one process, without a launcher"):
            tsr(command, *CPU, "--output", "e.jsonl.gz")
        assert not Path("e.jsonl.gz").exists()

    def test_do_not_probe(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["probe", *CPU, "--trainer.devices", "2"])
        assert ended.value.code == 2
        assert re.search(r"2 processes were started, .* start one process, without a launcher", capsys.readouterr().err)

    def test_write_no_file_in_python_either(self) -> None:
        checked = run(["fit", *CPU, "--trainer.devices", "2"], CheckingCLI)
        agent, data, trainer = checked.model, checked.datamodule, checked.trainer
        for write in (
            lambda: trainer.rollout(agent, data, "e.jsonl.gz"),
            lambda: trainer.play(agent, data, "e.jsonl.gz"),
            lambda: trainer.export(agent, data, "a.ckpt", "policy"),
        ):
            with pytest.raises(ConfigError, match=r"2 processes were started, .* start one process"):
                write()
        assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("started")
def test_a_batch_script_without_srun_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    assert run(["fit", *CPU], CheckingCLI).trainer.world_size == 1
