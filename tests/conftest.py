"""What every test shares: no hub, two threads, the fast ones first."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

# Before torch and transformers are imported, and in the environment, so that processes which tests start have it too.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads and a fork do not go together
os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"  # lightning 2.6 uses what its version 5 removes
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))

import hypothesis
import pytest
import torch

from tsr_lightning.modeling.kernels import Kernels

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# No deadline: a shared core is late at times. The same examples each time: whether a change may go in is no lottery.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests after the fast ones, the exhaustive ones last; the order is otherwise as written."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is not None for name in ("exhaustive", "slow")])


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Published material for checks, which lies beside the repository on some machines."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the published material of ../shared/data is not on this machine")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of tiny models that can answer, one per task, each made when it is first asked for."""
    from commands import warm_started

    folder = tmp_path_factory.mktemp("tiny")
    return cache(lambda task: warm_started(task, folder / task))


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The test runs twice: with the C kernels and with PyTorch's."""
    chosen = Kernels(request.param)
    if chosen is Kernels.NATIVE and not chosen.uses_native(torch.device("cpu"), torch.float32):
        pytest.skip("there is no C compiler")
    return chosen


@pytest.fixture
def empty_folder(tmp_path: Path) -> Iterator[Path]:
    """Where the test stands, as a user does: `tsr` in this process leaves nothing behind."""
    from commands import in_folder

    with in_folder(tmp_path):
        yield tmp_path
