"""What SIGTERM does to a run, with and without SLURM's requeueing, and the sentence that it ends with."""

import os
import signal
from pathlib import Path

import pytest
from lightning.pytorch.plugins.environments import SLURMEnvironment

from tsr_lightning.signals import Terminated
from tsr_lightning.training.lightning_compat import Position
from tsr_lightning.training.stopping import says_how_to_go_on, state_of_fit
from tsr_lightning.training.trainer import Trainer

TASK = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def trainer(tmp_path: Path, *plugins: SLURMEnvironment) -> Trainer:
    settings = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    return Trainer(default_root_dir=tmp_path, plugins=list(plugins), **settings)


@pytest.fixture(autouse=True)
def _handlers_are_restored():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_ends_a_run_where_it_arrives(tmp_path: Path):
    trainer(tmp_path)._signal_connector.register_signal_handlers()
    with pytest.raises(Terminated):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_handler_of_the_program_is_called_first(tmp_path: Path):
    called = []
    signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    trainer(tmp_path)._signal_connector.register_signal_handlers()
    with pytest.raises(Terminated):
        os.kill(os.getpid(), signal.SIGTERM)
    assert called == [signal.SIGTERM]


@pytest.mark.parametrize("requeues", [True, False])
def test_under_slurm_sigterm_passes_where_the_job_is_requeued(requeues: bool, tmp_path: Path, monkeypatch):
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    run = trainer(tmp_path, SLURMEnvironment(auto_requeue=requeues))
    run._signal_connector.register_signal_handlers()
    if not requeues:
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        return
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.received_sigterm  # which ends it at the end of a batch
    assert signal.getsignal(signal.SIGUSR1).signal_handlers == [run._signal_connector._slurm_sigusr_handler_fn]


def test_the_sentence_of_a_fit_says_what_is_saved_and_the_command(tmp_path: Path):
    folder, last = tmp_path / "a run", tmp_path / "a run" / "checkpoints" / "last.ckpt"
    folder.mkdir()
    assert state_of_fit(None, None, None, None) == "no checkpoint was written yet, and the same command begins again"
    assert state_of_fit(folder, None, None, Path("x.ckpt")).endswith("the same command goes on from x.ckpt again")
    flags = f"--trainer.run_folder '{folder}' --ckpt_path last"
    assert state_of_fit(folder, last, None, None) == f"saved is {last}; go on with the same run and {flags}"
    (folder / "config.yaml").touch()
    command = f"tsr fit --config '{folder}/config.yaml' {flags}"
    state = state_of_fit(folder, last, (last, Position(3, 6)), None)
    assert state == f"saved is {last} (epochs trained: 3); go on with {command}"


def test_other_exits_of_a_run_pass(capsys):
    with pytest.raises(SystemExit) as ended, says_how_to_go_on(lambda: "nothing", is_first_rank=True):
        raise SystemExit(3)
    assert ended.value.code == 3
    with pytest.raises(SystemExit) as ended, says_how_to_go_on(lambda: "nothing", is_first_rank=True):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    with pytest.raises(SystemExit) as ended, says_how_to_go_on(lambda: "nothing", is_first_rank=False):
        raise Terminated
    assert ended.value.code == 143
    assert capsys.readouterr().err == "tsr: stopped by Ctrl-C: nothing\n"
