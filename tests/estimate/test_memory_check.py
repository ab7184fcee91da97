"""`tsr fit` compares the memory that it will need with what is there, before a model loads."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from commands import QUICK, TINY, tsr
from safetensors.torch import save_file

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.command import main
from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.cli.memory_check import too_large
from tsr_lightning.errors import ConfigError
from tsr_lightning.estimate.card_memory import GIB, memory
from tsr_lightning.estimate.cards import CARDS
from tsr_lightning.estimate.here import card_here
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.free_memory import _left_in_container

CPU = torch.device("cpu")
PAPER = ("--config", "paper/sokoban.yaml", "--model.policy.quantisation", "null", "--model.policy.dtype", "float32")


@pytest.fixture(scope="module")
def setup() -> Setup:
    return setup_of(*parsed_run(PAPER))[0]


def test_free_memory_of_this_machine():
    card = card_here(CPU)
    assert 0 < card.memory_gib <= psutil.virtual_memory().total / GIB
    assert card.memory_gib == pytest.approx(psutil.virtual_memory().available / GIB, rel=0.5)  # others take some too


def test_the_limit_of_a_container_counts(tmp_path: Path):
    assert _left_in_container(tmp_path) == float("inf")
    for name, text in (("max", "max\n"), ("current", "3000\n"), ("stat", "anon 2000\ninactive_file 700\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert _left_in_container(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("10000\n")
    assert _left_in_container(tmp_path) == 7700


def test_the_number_of_epochs_costs_no_time(setup: Setup):
    """A run that `max_time` ends may have any `max_epochs`."""
    [(entries, count)] = replace(setup, epochs=10**12).distinct_entries
    assert (entries, count) == (setup.distinct_entries[0][0], 10**12)


def test_a_notice_where_a_phase_may_not_fit(setup: Setup):
    needed = memory(setup)
    room = needed.total(card_here(CPU)) / GIB
    assert memory(setup).fits(replace(card_here(CPU), memory_gib=1.01 * room))
    said = too_large(setup, replace(card_here(CPU), memory_gib=0.99 * room), 1)
    assert isinstance(said, str)
    assert said.startswith(f"memory: up to {room:.1f} GiB may be needed in the {needed.peak_phase}, and ")
    assert "data.engine.init_args.kv_cache_mib" in said  # which the rollout takes most of
    assert " fits" in said


@pytest.mark.parametrize(("cache_mib", "kept_mib"), [(64, 64), (4096, 1024)])
def test_updates_on_a_cpu_run_beside_what_the_engine_keeps(setup: Setup, cache_mib: int, kept_mib: int):
    given = replace(setup, engine=replace(setup.engine, kv_cache_mib=cache_mib))
    here, elsewhere = (memory(given, 1, mib) for mib in (card_here(CPU).kept_cache_mib, CARDS["a100"].kept_cache_mib))
    for phase, more in (("rollout", 0), ("backward pass", kept_mib), ("optimizer step", kept_mib)):
        sizes = [sum(part.bytes for part in one.phases[phase]) for one in (here, elsewhere)]
        assert sizes[0] - sizes[1] == more * 2**20


def test_a_refusal_where_the_model_alone_does_not(setup: Setup):
    """It names what makes weights smaller, and not what makes updates smaller."""
    said = too_large(setup, replace(card_here(CPU), memory_gib=1.0), 1)
    assert isinstance(said, ConfigError)
    assert "1.0 GiB of memory are free on this machine: " in str(said)
    assert "model.policy.quantisation NF4 saves " in str(said)
    assert "micro_batch_tokens" not in str(said)
    assert "gradient_checkpointing" not in str(said)


def test_tsr_fit_refuses_a_model_before_it_loads(
    tiny_model: Callable[[str], Path], empty_folder: Path, capfd: pytest.CaptureFixture[str]
):
    """A folder of a thousand times the parameters of the tiny model; its file of weights has none of them."""
    folder = empty_folder / "large"
    shutil.copytree(tiny_model("sokoban"), folder)
    config = json.loads((folder / "config.json").read_text())
    large = {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 128, "num_attention_heads": 128}
    config |= {**large, "num_key_value_heads": 128, "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({}, folder / "model.safetensors")
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", str(folder)])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert f"model.policy.model is '{folder}': its weights, gradients and optimizer states take " in said
    assert "model.policy.adapter of rank 16" in said
    assert not (empty_folder / "runs").exists()


@pytest.mark.parametrize("subcommand", ["fit", "validate"])
def test_a_cache_larger_than_this_machine(subcommand: str, empty_folder: Path, capfd: pytest.CaptureFixture[str]):
    """It would only be reserved, and the run ended by the system once it fills."""
    with pytest.raises(SystemExit) as ended:
        main([subcommand, "--config", "sokoban.yaml", *QUICK, "--data.engine.init_args.kv_cache_mib", "40000000"])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert "data.engine.init_args.kv_cache_mib is 40000000: this machine has " in said
    assert "give less, or null for a size that fits" in said
    assert not (empty_folder / "runs").exists()


def test_a_small_model_is_not_looked_at(empty_folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    tsr("fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", TINY, "--trainer.max_epochs", "1")
    assert not [record for record in caplog.records if record.getMessage().startswith("memory: ")]
