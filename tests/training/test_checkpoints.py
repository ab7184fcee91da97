"""Checkpoint files: what is written is whole, and what is damaged is refused by name."""

import os
import resource
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.files import newest_checkpoint
from tsr_lightning.training import checkpoints


def contents(size: int = 1000) -> dict[str, Any]:
    return {"state_dict": {"weight": torch.arange(float(size))}, "loops": {}, "global_step": 7}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "last.ckpt"
    checkpoints.write(contents(), path)
    return path


def flipped(path: Path, place: int) -> None:
    """Flips the lowest bit of a byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_loads_it_without_this_project(mmap: bool, written: Path):
    loaded = torch.load(written, weights_only=True, mmap=mmap)
    assert torch.equal(loaded["state_dict"]["weight"], torch.arange(1000.0))
    assert loaded["global_step"] == checkpoints.load(written)["global_step"] == 7
    assert [path.name for path in written.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("place", [0, 100, 2000, -3000, -200, -90, -71, -30, -1])
def test_one_flipped_bit_anywhere_is_seen(place: int, written: Path):
    assert checkpoints.fault(written) is None
    flipped(written, place)
    assert checkpoints.fault(written) is not None


@pytest.mark.parametrize("left", [1, 3, 100, 4000, -100, -71, -1])
def test_a_truncated_file_is_seen(left: int, written: Path):
    written.write_bytes(written.read_bytes()[:left])
    assert checkpoints.fault(written) in ("is truncated", "is no readable checkpoint")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:3000]), "is truncated"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (lambda path: path.write_text("hello"), "is no readable checkpoint"),
    "another program's": (lambda path: torch.save({"model": torch.ones(3)}, path), "is no checkpoint of tsr fit"),
    "no mapping": (lambda path: torch.save([1, 2], path), "is no checkpoint of tsr fit"),
    "flipped": (lambda path: flipped(path, 2000), "has changed since it was written"),
    "link": (
        lambda path: (path.unlink(), path.symlink_to("gone.ckpt")),
        "is a link to gone.ckpt, which does not exist",
    ),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "is a folder"),
    "gone": (lambda path: path.unlink(), "does not exist"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_refused_and_the_newest_whole_one_beside_it_offered(kind: str, written: Path):
    damage, reason = DAMAGES[kind]
    for age, name in enumerate(("epoch=9.ckpt", "epoch=5.ckpt", "epoch=7.ckpt")):
        path = written.with_name(name)
        checkpoints.write(contents(), path)
        os.utime(path, (1e9 - age, 1e9 - age))
    written.with_name("epoch=9.ckpt").write_text("damaged too")
    os.utime(written.with_name("epoch=9.ckpt"), (2e9, 2e9))
    damage(written)
    with pytest.raises(ConfigError) as refused:
        checkpoints.load(written)
    assert f"ckpt_path is {written}, which {reason}" in str(refused.value)
    assert str(refused.value).endswith(f"go on from {written.with_name('epoch=5.ckpt')} beside it")


def test_tensors_are_not_copied_in_memory_nor_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no temporary folder"))
    large = contents(5_000_000)  # 20 MB
    tracemalloc.start()
    try:
        checkpoints.write(large, tmp_path / "a.ckpt")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "a.ckpt").stat().st_size > 20_000_000
    assert peak < 1_000_000


def test_a_write_that_fails_leaves_the_earlier_file_and_no_other(written: Path):
    before = written.read_bytes()
    with pytest.raises(AttributeError, match=r"pickle|local object"):  # up to Python 3.12, and after it
        checkpoints.write({**contents(), "function": lambda: None}, written)
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == ["last.ckpt"]


def test_a_full_disk_is_one_sentence_and_the_earlier_file_is_kept(written: Path):
    before = written.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(RunError, match=r"last.ckpt could not be written \(File too large\): make room"):
            checkpoints.write(contents(1_000_000), written)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == ["last.ckpt"]


def test_a_file_in_the_place_of_the_folder_is_one_sentence(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    folder.touch()
    with pytest.raises(RunError, match=r"last\.ckpt could not be written \(File exists\): make room or mend"):
        checkpoints.write(contents(), folder / "last.ckpt")


def test_files_of_earlier_versions_have_no_digest_and_are_read(tmp_path: Path):
    path = tmp_path / "old.ckpt"
    torch.save(contents(), path)
    assert checkpoints.load(path)["global_step"] == 7
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoints.fault(path) == "is truncated"


def test_the_newest_is_last_whatever_else_is_there(tmp_path: Path):
    assert newest_checkpoint([tmp_path, tmp_path / "none"]) is None
    for age, name in enumerate(("epoch=4.ckpt", "epoch=9.ckpt", "last-v1.ckpt", "last.ckpt", "lasting.ckpt", "x.txt")):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (1e9 + 10 - age, 1e9 + 10 - age))
        expected = {0: "epoch=4.ckpt", 1: "epoch=4.ckpt"}.get(age, "last-v1.ckpt")
        assert newest_checkpoint([tmp_path]) == tmp_path / expected
