"""tsr-ray's flags, what it refuses before a worker starts, and the newest checkpoint; none of it needs Ray."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from commands import QUICK, in_folder

from tsr_lightning.cli.ray.checkpoints import Newest, Reporting
from tsr_lightning.cli.ray.command import check_trainer, checked_settings, main
from tsr_lightning.cli.ray.options import RayOptions, parse
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.lightning_compat import CheckpointFiles

TRAINER = {"strategy": "auto", "devices": 1, "num_nodes": 1, "accelerator": "auto"}


def test_flags_of_ray_are_taken_out_and_the_others_stay():
    flags = ["--config", "a.yaml", "--ray.num_workers", "2", "--ray.use_gpu=true", "--trainer.max_epochs", "3"]
    options, others = parse([*flags, "--ray.storage_path", "disk", "--ray.max_failures", "-1"])
    assert options == RayOptions(num_workers=2, use_gpu=True, max_failures=-1, storage_path=Path("disk"))
    assert others == ["--config", "a.yaml", "--trainer.max_epochs", "3"]
    assert parse([]) == (RayOptions(), [])


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (("--ray.workers", "2"), r"--ray\.workers is no flag of tsr-ray: use --ray\.num_workers, "),
        (("--ray.num_workers", "0"), r"0 is no whole number of 1 or more"),
        (("--ray.use_gpu", "yes"), r"yes is neither true nor false"),
        (("--ray.max_failures", "-2"), r"-2 is no whole number of -1 or more"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(flags: tuple[str, ...], pattern: str):
    with pytest.raises(ConfigError, match=pattern):
        parse(flags)


@pytest.mark.parametrize(
    ("trainer", "options", "pattern"),
    [
        ({"strategy": "fsdp"}, RayOptions(), r"trainer\.strategy is 'fsdp': .* use auto or ddp"),
        ({"devices": 2}, RayOptions(), r"trainer\.devices is 2: .*--ray\.num_workers"),
        ({"num_nodes": 2}, RayOptions(), r"trainer\.num_nodes is 2: .*--ray\.num_workers"),
        ({"accelerator": "gpu"}, RayOptions(), r"trainer\.accelerator is 'gpu': --ray\.use_gpu is false"),
        ({"accelerator": "cpu"}, RayOptions(use_gpu=True), r"trainer\.accelerator is 'cpu': --ray\.use_gpu is true"),
    ],
)
def test_devices_that_ray_does_not_give_are_refused(trainer: dict[str, object], options: RayOptions, pattern: str):
    check_trainer(TRAINER, options)
    with pytest.raises(ConfigError, match=pattern):
        check_trainer({**TRAINER, **trainer}, options)


def test_a_run_is_validated_for_as_many_ranks_and_its_configuration_names_none_of_them(tmp_path: Path):
    flags = ["--config", "sokoban.yaml", *QUICK]
    with in_folder(tmp_path):
        settings = checked_settings(flags, RayOptions(num_workers=2))
        assert (settings["trainer"]["devices"], settings["trainer"]["strategy"]) == (1, "auto")
        assert settings["trainer"]["plugins"] is None
        with pytest.raises(ConfigError, match=r"data\.staleness is 1: .*single process, and there are 2"):
            checked_settings([*flags, "--data.staleness", "1"], RayOptions(num_workers=2))
        assert list(tmp_path.iterdir()) == []


def test_the_memory_of_this_machine_says_nothing_of_the_workers_devices(tmp_path: Path):
    """Each has a cache that this machine may not have as often as there are workers."""
    flags = ["--config", "sokoban.yaml", *QUICK, "--data.engine.init_args.kv_cache_mib", "40000000"]
    flags += ["--trainer.accelerator", "auto"]
    with in_folder(tmp_path):
        settings = checked_settings(flags, RayOptions(num_workers=64, use_gpu=True))
    assert settings["data"]["engine"]["init_args"]["kv_cache_mib"] == 40000000


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "no subcommand is given: tsr-ray runs fit alone"),
        (["validate"], "validate is given: tsr-ray runs fit alone"),
        pytest.param(
            ["fit", "--config", "sokoban.yaml"],
            "Ray is not installed: pip install 'tsr-lightning[ray]'",
            marks=pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed"),
        ),
    ],
)
def test_the_command_ends_with_one_sentence(args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(args)
    [line] = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(f"tsr-ray: error: {sentence}")


def test_the_newest_checkpoint_is_the_last_that_was_written_whole(tmp_path: Path):
    newest = Newest(tmp_path / "newest.txt")
    checkpoints = Reporting(CheckpointFiles(), newest.write)
    first, second, weights = (tmp_path / f"{name}.ckpt" for name in ("first", "second", "weights"))
    assert newest.read() is None
    counts = {"ready": 0, "processed": 0}
    loop = {"epoch_loop.batch_progress": {"current": counts}, "epoch_progress": {"current": counts}}
    plain = {"loops": {"fit_loop": loop}, "global_step": 0}
    checkpoints.save_checkpoint({"optimizer_states": [], "state_dict": {"w": torch.ones(2)}, **plain}, first)
    checkpoints.save_checkpoint({"optimizer_states": [], **plain}, second)
    checkpoints.save_checkpoint({"state_dict": {}, **plain}, weights)  # of weights alone: no run can go on from it
    assert newest.read() == str(second)
    assert torch.equal(checkpoints.load_checkpoint(first)["state_dict"]["w"], torch.ones(2))
    checkpoints.remove_checkpoint(second)
    assert not second.exists()
    assert newest.read() is None
