"""Peaks are seen, also those that are over before the end."""

import time
from pathlib import Path

import pytest
import torch

from tsr_lightning.memory import peak

MIB = 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell a process's memory")
def test_a_peak_within_is_seen() -> None:
    with peak(torch.device("cpu")) as seen:
        held = torch.ones(200 * MIB // 4)
        time.sleep(0.1)
        del held
    assert 190 * MIB < seen.added < 260 * MIB
    with peak(torch.device("cpu")) as little:
        time.sleep(0.02)
    assert little.added < 20 * MIB
    assert little.highest == little.before + little.added


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_peak_on_cuda_is_seen() -> None:
    device = torch.device("cuda")
    with peak(device) as seen:
        held = torch.ones(64 * MIB // 4, device=device)
        del held
    assert seen.added == 64 * MIB
