"""Settings and fixtures of all tests: no hub, two threads, fast tests first."""

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Set before torch and transformers are imported, and inherited by the processes that tests start.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"  # lightning 2.6 uses what its version 5 removes
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))

import hypothesis
import pytest
from filelock import FileLock

if TYPE_CHECKING:
    from tsr_lightning.modeling.kernels import Kernels

if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until all tests are collected: what they import stays, and to look for cycles takes a third as long

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a script, as `nohup make test &`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of Ctrl-C, and what they start, need it

# No deadline, since a shared core can be slow; the same examples in every run.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts slow tests after fast ones and exhaustive ones last; otherwise the order stays as written.

    Of parallel workers one runs all fast tests of a file, so that what they share is made once. Slow ones go out one
    by one; those that share something have a group by name, which goes out before them, since it runs on one worker
    while the others go on with what is left.
    """

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        exhaustive, slow, grouped = (item.get_closest_marker(name) for name in ("exhaustive", "slow", "xdist_group"))
        return exhaustive is not None, slow is not None, slow is not None and grouped is None

    items.sort(key=place)
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("exhaustive", "slow", "xdist_group")):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """What was imported stays, and need not be looked at in every search for cycles: 4% of the suite's time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Published data for checks, which only some machines have beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the published material of ../shared/data is not on this machine")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a task's tiny trained model, which the first of parallel workers that needs it makes."""
    from commands import warm_started

    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "tiny"
    folder.mkdir(exist_ok=True)

    def made(task: str) -> Path:
        with FileLock(folder / f"{task}.lock"):
            known = folder / task / "model"
            return known if known.exists() else warm_started(task, folder / task)

    return made


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, which `make smollm2` writes once per checkout."""
    folder = ROOT / "models" / "smollm2"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / "smollm2.lock"):
        if not (folder / "config.json").is_file():
            made = subprocess.run(["make", "-s", "smollm2"], cwd=ROOT, capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"make smollm2 failed: {made.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest) -> "Kernels":
    """The test runs twice: with the C kernels and with PyTorch's."""
    import torch  # here, since the process that starts the workers needs none

    from tsr_lightning.modeling.kernels import Kernels

    chosen = Kernels(request.param)
    if chosen is Kernels.NATIVE and not chosen.uses_native(torch.device("cpu"), torch.float32):
        pytest.skip("there is no C compiler")
    return chosen


@pytest.fixture
def empty_folder(tmp_path: Path) -> Iterator[Path]:
    """The working folder of the test, empty at its start; restores what `tsr` changes of this process."""
    from commands import in_folder

    with in_folder(tmp_path):
        yield tmp_path
