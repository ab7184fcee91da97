"""Where an extra is installed for its tests, a skipped one has failed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSES = "def test_passes(): pass\n"
SKIPS = {
    "a module": "import pytest\npytest.importorskip('no_such_module', reason='it is not installed')\n" + PASSES,
    "a mark": "import pytest\n@pytest.mark.skipif(True, reason='it is not installed')\n" + PASSES,
    "a call": "import pytest\ndef test_skips(): pytest.skip('it is not installed')\n" + PASSES,
}
MAY_NOT_PASS = {
    "passes": PASSES,
    "needs a GPU": "import pytest\n@pytest.mark.cuda\n@pytest.mark.skipif(True, reason='no GPU')\n" + PASSES,
    "is known to fail": "import pytest\n@pytest.mark.xfail\ndef test_fails(): assert False\n",
}


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers = cuda\npythonpath = {ROOT}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_what_is_skipped_has_failed_with_its_reason(tmp_path: Path):
    for name, text in SKIPS.items():
        (tmp_path / f"test_{name.replace(' ', '_')}.py").write_text(text)
    assert run(tmp_path).returncode == 0  # without the plugin nobody sees it
    seen = run(tmp_path, "-p", "tests.extras.nothing_skips", "--continue-on-collection-errors")
    assert seen.returncode == 1
    assert seen.stdout.count("it is not installed, and nothing may be skipped here") >= len(SKIPS), seen.stdout
    assert "1 failed, 1 passed, 2 errors" in seen.stdout  # of a module in collection, of a mark in setup


@pytest.mark.slow
def test_a_gpu_and_a_known_failure_are_no_such_skips(tmp_path: Path):
    for name, text in MAY_NOT_PASS.items():
        (tmp_path / f"test_{name.replace(' ', '_')}.py").write_text(text)
    seen = run(tmp_path, "-p", "tests.extras.nothing_skips")
    assert "1 passed, 1 skipped, 1 xfailed" in seen.stdout
    assert seen.returncode == 0


def test_an_extra_has_requirements_and_tests():
    """The Makefile names tests for every file of requirements but that of `make docs`, and they exist."""
    makefile = (ROOT / "Makefile").read_text()
    tests = dict(
        line.removeprefix("TESTS_").split(" := ") for line in makefile.splitlines() if line.startswith("TESTS_")
    )
    assert {*tests, "docs"} == {path.stem for path in (ROOT / "tests" / "extras").glob("*.txt")}
    assert all((ROOT / path).is_file() for paths in tests.values() for path in paths.split())
