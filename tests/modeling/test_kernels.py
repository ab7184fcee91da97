"""Kernels: what each choice builds and uses, and how the C kernels are built."""

import ast
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.commands import ROOT
from tests.native_kernels import needs_compiler
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.kernels import Kernels
from tsr_lightning.modeling.native import building

CPU = torch.device("cpu")


def test_only_kernels_and_the_native_backend_import_native() -> None:
    importers = {
        path.relative_to(ROOT / "tsr_lightning").as_posix()
        for path in (ROOT / "tsr_lightning").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tsr_lightning.modeling.native")
    }
    outside = {name for name in importers if not name.startswith("modeling/native/")}
    assert outside == {"modeling/kernels.py", "engines/transformers/native_backend.py"}


@pytest.fixture
def not_loaded() -> Iterator[None]:
    """As in a new process."""
    building.load.cache_clear()
    yield
    building.load.cache_clear()


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, not_loaded: None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


def test_auto_uses_pytorch_without_a_compiler_and_logs_it_once(
    caplog: pytest.LogCaptureFixture, no_compiler: None
) -> None:
    with caplog.at_level(logging.INFO):
        Kernels.AUTO.check()
        assert not Kernels.AUTO.uses_native(CPU, torch.float32)
        assert not Kernels.AUTO.uses_native(CPU, torch.bfloat16)
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "there is no C compiler (cc, gcc or clang)"
    ]


def test_native_without_a_compiler_is_refused(no_compiler: None) -> None:
    with pytest.raises(ConfigError, match=r"model.policy.kernels is 'native': .*there is no C compiler.*auto or torch"):
        Kernels.NATIVE.check()


@needs_compiler
def test_auto_logs_the_library_once(caplog: pytest.LogCaptureFixture, not_loaded: None) -> None:
    with caplog.at_level(logging.INFO):
        assert Kernels.AUTO.uses_native(CPU, torch.float32)
        assert Kernels.NATIVE.uses_native(CPU, torch.float32)
    [record] = caplog.records
    assert record.getMessage().endswith(".so")


def test_torch_builds_nothing(no_compiler: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Kernels.TORCH.check()
        assert not Kernels.TORCH.uses_native(CPU, torch.float32)
    assert caplog.records == []


@pytest.mark.parametrize(
    "script", ["echo broken: no >&2; exit 1", "case $1 in --version) ;; *) touch $PWD; exit 3;; esac"]
)
def test_compiler_that_fails_is_like_none(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, not_loaded: None
) -> None:
    broken = tmp_path / "cc"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(broken))
    with caplog.at_level(logging.INFO):
        built = building.load()
    assert built.library is None
    assert "failed" in built.detail
    assert len(caplog.records) == 1
    assert list(building.cache_folder().iterdir()) == []


@pytest.mark.slow
def test_engine_and_training_attention_work_without_a_compiler(tmp_path: Path) -> None:
    """A test of each in a process without one: it is skipped with the C kernels and passes with PyTorch's."""
    environment = os.environ | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("CC", None)
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "tests")]
    update = "tests/modeling/test_attention.py::test_gradients_of_shared_and_unshared_rows_are_the_same_in_float32"
    engine = "tests/engines/test_engine.py::test_samples_equal_the_references"
    chosen = [f"{engine}[{kernels}-1.0-3]" for kernels in ("native", "torch")]
    command = [sys.executable, "-m", "pytest", *options, update, *chosen]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    passed, skipped = (int(number) for number in re.findall(r"(\d+) (?:passed|skipped)", done.stdout.splitlines()[-1]))
    assert passed == skipped == 2


@needs_compiler
def test_native_kernels_serve_two_types_on_a_cpu() -> None:
    assert Kernels.AUTO.uses_native(CPU, torch.float32)
    assert Kernels.AUTO.uses_native(CPU, torch.bfloat16)
    assert not Kernels.AUTO.uses_native(CPU, torch.float64)
    assert not Kernels.AUTO.uses_native(CPU, torch.float16)
    assert not Kernels.AUTO.uses_native(torch.device("meta"), torch.float32)


@pytest.mark.exhaustive
@needs_compiler
def test_two_processes_build_at_once_and_a_third_finds_it(tmp_path: Path) -> None:
    script = "from tsr_lightning.modeling.native.building import load; assert load().library is not None"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, env=environment, cwd=tmp_path) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    [library] = (tmp_path / "tsr_lightning" / "native").iterdir()
    before = library.stat().st_mtime_ns
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=120)
    assert library.stat().st_mtime_ns == before
    assert library.parent.stat().st_mode & 0o077 == 0


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file in place of the library: what the compiler writes does not matter here."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo built > "$2"; shift; done\n')
    compiler.chmod(0o700)
    return building.build([str(compiler)], tmp_path)


@pytest.mark.parametrize("spoil", ["truncated", "changed", "empty", "written to by others"])
def test_a_library_that_is_broken_or_not_trusted_is_built_anew(spoil: str, kept: Path) -> None:
    whole = kept.read_bytes()
    if spoil == "written to by others":
        kept.chmod(0o720)
    else:
        kept.write_bytes({"truncated": whole[:-1], "changed": b"B" + whole[1:], "empty": b""}[spoil])
    assert building.build([str(kept.parent / "cc")], kept.parent) == kept
    assert kept.read_bytes() == whole
    assert kept.stat().st_mode & 0o777 == 0o700
    before = kept.stat().st_mtime_ns
    building.build([str(kept.parent / "cc")], kept.parent)
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("folder", "mode"), [("tsr_lightning/native", 0o770), ("tsr_lightning/native", 0o702), (".", 0o777)]
)
def test_a_folder_that_others_may_write_to_is_not_trusted(
    folder: str,
    mode: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    not_loaded: None,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    building.cache_folder()
    (tmp_path / "cache" / folder).chmod(mode)
    with caplog.at_level(logging.INFO):
        assert building.load().library is None
    assert re.search(r"(by everybody|others may write to it), so .*XDG_CACHE_HOME", caplog.text)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    os.chown(building.cache_folder(), 12345, 12345)
    with pytest.raises(PermissionError, match="another user's"):
        building.cache_folder()


@needs_compiler
def test_one_openmp_library_is_loaded() -> None:
    """The kernel uses PyTorch's: two thread pools would compete for the cores."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc here")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines() if "gomp" in line or "libomp" in line}
    assert len(loaded) == 1
