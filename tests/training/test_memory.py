"""Peak memory is measured, and free memory goes back to the machine."""

import gc
import platform
import threading
import time
from pathlib import Path

import pytest
import torch
from commands import QUICK, TINY, tsr
from lightning.pytorch import Callback, LightningModule, Trainer

from tsr_lightning.engines.transformers.trie import PAGE, ROOT, Trie
from tsr_lightning.rollout import memory as memory_module
from tsr_lightning.rollout.memory import HeapTrimmer, PeakMemory
from tsr_lightning.trajectory import Group

MIB = 2**20
CPU = torch.device("cpu")

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's allocator")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc/self/statm")
def test_a_peak_that_is_over_before_the_end_is_measured() -> None:
    with PeakMemory(torch.device("cpu")) as peak:
        held = torch.ones(200 * MIB // 4)
        time.sleep(0.1)
        del held
    assert 190 * MIB < peak.added < 260 * MIB
    with PeakMemory(torch.device("cpu")) as little:
        time.sleep(0.02)
    assert little.added < 20 * MIB
    assert little.highest == little.before + little.added


def resident() -> int:
    """The resident bytes of this process."""
    with PeakMemory(CPU) as peak:
        pass
    return peak.before


def scattered() -> list[bytes]:
    """Every hundredth block of 200 MiB; the free ones lie between them."""
    return [b"1" * (100_000 + i) for i in range(2100)][::100]


@glibc
def test_sampling_ends_with_an_object_that_is_never_stopped() -> None:
    """As in a run that ends in an error: samplers that pile up slow the process down."""
    peak = PeakMemory(CPU)
    [sampler] = [thread for thread in threading.enumerate() if thread.name == "peak memory"]
    del peak
    gc.collect()
    sampler.join(timeout=5)
    assert not sampler.is_alive()


def goes_back(interval: float, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if free memory is returned once `interval` seconds have passed; it never is before."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    heap = HeapTrimmer()
    gc.collect()
    now += memory_module.TRIM_INTERVAL
    heap.trim()  # of earlier tests
    before = resident()
    kept = scattered()
    now += interval - 1
    heap.trim()
    assert resident() - before > 150 * MIB
    now += 1
    heap.trim()
    assert len(kept) == 21
    return resident() - before < 50 * MIB


@glibc
def test_free_memory_goes_back_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert goes_back(memory_module.TRIM_INTERVAL, monkeypatch)


@glibc
@pytest.mark.parametrize(("least_mib", "is_due"), [(100, True), (1000, False)])
def test_where_much_was_added_free_memory_goes_back_sooner(
    least_mib: int, is_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "GROWN", least_mib * MIB)
    assert goes_back(memory_module.GROWN_INTERVAL, monkeypatch) is is_due


def test_an_empty_trie_of_many_slots_takes_no_memory() -> None:
    """4 GiB of a tiny model are eleven million slots, of which a run uses some thousand."""
    before = resident()
    trie = Trie(11_000_000)
    for epoch in range(2):
        for token in range(1000):
            trie.reserve(1)
            assert trie.add(ROOT, token, 0) == token * PAGE, epoch  # the same slots first
        trie.clear()
    assert resident() - before < 20 * MIB


class Scattering(Callback):
    """Fragments the heap in the rollout and in the update of one epoch, and records the growth at their ends."""

    def __init__(self) -> None:
        self.grown: dict[str, int] = {}  # since the rollout was about to end
        self._kept: list[bytes] = []
        self._before = 0

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self._before = resident()
        self._kept += scattered()
        return groups

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        self.grown["rollout"] = resident() - self._before

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept += scattered()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.grown["update"] = resident() - self._before


@glibc
@pytest.mark.usefixtures("empty_folder")
def test_a_run_gives_memory_back_between_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "TRIM_INTERVAL", 0.0)
    config = ("--config", "warm_start/frozen_lake.yaml", "--model.policy.model", TINY, *QUICK)
    scattering = ("--trainer.callbacks", f'[{{"class_path": "{__name__}.Scattering"}}]')
    one = ("--trainer.max_epochs", "1", "--data.evaluations", "[]")
    trainer = tsr("fit", *config, *scattering, *one).trainer
    grown = next(callback.grown for callback in trainer.callbacks if isinstance(callback, Scattering))
    assert grown.keys() == {"rollout", "update"}
    assert max(grown.values()) < 120 * MIB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_peak_on_cuda_is_measured() -> None:
    device = torch.device("cuda")
    with PeakMemory(device) as peak:
        held = torch.ones(64 * MIB // 4, device=device)
        del held
    assert peak.added == 64 * MIB
