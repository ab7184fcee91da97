"""Two workers of Ray Train make the weights of two ranks under DDP, whether one is killed or not. Skipped where Ray is
not installed: `make test-extras` installs it."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, in_folder, tsr
from processes import run_as_ranks
from test_ranks import PPO, TOLERANCE, prepared

pytest.importorskip("ray", reason="Ray is not installed")

SECONDS = 500  # a run takes one to four minutes where a core is shared
EPOCHS = 4
CHECKPOINTS = {
    "filename": "{epoch}",
    "save_last": True,
    "save_top_k": -1,
    "every_n_epochs": 1,
    "save_on_train_epoch_end": True,
}
pytestmark = [pytest.mark.timeout(2 * SECONDS), pytest.mark.xdist_group("ray")]


def run_folder(folder: Path, ranks: int, **kill: Any) -> Path:
    """A folder with what a run needs."""
    folder = prepared(folder, PPO, "all", ranks)
    settings = json.loads((folder / "run.yaml").read_text())
    settings["trainer"] |= {
        "max_epochs": EPOCHS,
        "enable_checkpointing": True,
        "callbacks": [
            {"class_path": "kill_one_rank.KillOneRank", "init_args": {"folder": str(folder), **kill}},
            {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": CHECKPOINTS},
        ],
    }
    (folder / "run.yaml").write_text(json.dumps(settings))
    return folder


def ray_fit(folder: Path, *, status: int = 0) -> str:
    """Runs two workers to this exit status, and returns what was printed."""
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tsr_lightning.cli.ray",
            "fit",
            "--config",
            "run.yaml",
            "--ray.num_workers",
            "2",
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(folder)]),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that Ray's processes are killed with it
    )
    try:
        output, _ = run.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        output, _ = run.communicate()
        pytest.fail(f"Ray's workers did not end within {SECONDS} seconds:\n{output}")
    assert run.returncode == status, output
    return output


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks under DDP."""
    folder = run_folder(tmp_path_factory.mktemp("ranks") / "2", 2)
    run_as_ranks(("fit", "--config", "run.yaml"), folder, SECONDS)
    return folder


def final(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "final.pt", weights_only=True)


def assert_equal_to_the_bit(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["updates"] == theirs["updates"] == EPOCHS * 2 * 2  # passes, minibatches
    assert ours["weights"].keys() == theirs["weights"].keys()
    for name, weight in theirs["weights"].items():
        assert torch.equal(weight, ours["weights"][name]), name
    for number, state in theirs["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, ours["optimizer"]["state"][number][name]), (number, name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # Lightning's, of a run that goes on in another folder
def test_two_workers_equal_two_ranks_and_one_process(two_ranks: Path, tmp_path: Path):
    """And `tsr fit` goes on from a checkpoint of theirs as from its own."""
    alone, workers = run_folder(tmp_path / "1", 1), run_folder(tmp_path / "ray", 1)
    with in_folder(alone):
        tsr("fit", "--config", "run.yaml")
    ray_fit(workers)
    assert (workers / "events.1").exists()  # there was a second rank
    assert_equal_to_the_bit(final(workers), final(two_ranks))
    for name, weight in final(alone)["weights"].items():
        torch.testing.assert_close(final(workers)["weights"][name], weight, rtol=0, atol=TOLERANCE)

    [config] = workers.glob("runs/**/config.yaml")
    assert "ray" not in config.read_text().replace(str(workers), "")
    earlier = config.parent / "checkpoints" / f"epoch={EPOCHS - 2}.ckpt"
    (workers / "final.pt").unlink()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    with in_folder(elsewhere):
        tsr("fit", "--config", config, "--ckpt_path", earlier)
    assert final(workers)["updates"] == EPOCHS * 2 * 2
    for name, weight in final(alone)["weights"].items():
        torch.testing.assert_close(final(workers)["weights"][name], weight, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 10)),
    ],
)
def test_a_run_whose_worker_is_killed_equals_one_that_is_not(seed: int, two_ranks: Path, tmp_path: Path):
    rng = random.Random(seed)
    rank = rng.randrange(2)
    event = rng.randint(1, int((two_ranks / f"events.{rank}").read_text()) - 2)  # the last end the run
    folder = run_folder(tmp_path / "ray", 1, rank=rank, event=event, seed=seed)
    output = ray_fit(folder)
    assert (folder / "killed.txt").read_text() == str(event)
    assert_equal_to_the_bit(final(folder), final(two_ranks))

    attempts: dict[str, list[int]] = {}
    for line in (folder / "rollouts.txt").read_text().splitlines():
        process, epoch = line.split()
        attempts.setdefault(process, []).append(int(epoch))
    *killed, resumed = attempts.values()
    assert len(killed) <= 1, output  # none where it was killed in its first rollout
    reached = killed[0][-1] if killed else 0
    assert resumed in (list(range(reached, EPOCHS)), list(range(reached + 1, EPOCHS)))


REFUSES = '''
import os
from pathlib import Path

from lightning.pytorch import Callback

from tsr_lightning.errors import ConfigError


class Refuses(Callback):
    """Raises on one rank what no other process can know; the other rank waits for it."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def on_rollout_end(self, trainer, agent, groups):
        if trainer.global_rank == 1:
            (self.folder / f"attempt-{os.getpid()}").touch()
            raise ConfigError("data.levels is 'a.txt': this machine has no such file; use levels that all have")
        return groups
'''


@pytest.mark.slow
def test_bad_input_that_one_worker_alone_sees_is_not_tried_again(tmp_path: Path):
    folder = run_folder(tmp_path / "ray", 1)
    (folder / "refuses.py").write_text(REFUSES)
    settings = json.loads((folder / "run.yaml").read_text())
    settings["trainer"]["callbacks"] = [{"class_path": "refuses.Refuses", "init_args": {"folder": str(folder)}}]
    (folder / "run.yaml").write_text(json.dumps(settings))
    last = ray_fit(folder, status=2).splitlines()[-1]
    assert last == "tsr-ray: error: data.levels is 'a.txt': this machine has no such file; use levels that all have"
    assert len(list(folder.glob("attempt-*"))) == 1
