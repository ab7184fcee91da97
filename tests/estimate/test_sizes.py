"""Sizes that are null are chosen by model and memory, those that are given stay."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from commands import QUICK, tsr

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.estimate.caches import evaluation_cache_mib, least_cache_mib, wanted_cache_mib
from tsr_lightning.estimate.card_memory import GIB, memory
from tsr_lightning.estimate.cards import CARDS
from tsr_lightning.estimate.chosen_sizes import sized
from tsr_lightning.estimate.here import card_here, whole_card
from tsr_lightning.estimate.setup import Setup

PAPER = ("--config", "paper/sokoban.yaml", "--config", "model/qwen_lora_nf4.yaml")


@pytest.fixture(scope="module")
def setup() -> Setup:
    return setup_of(*parsed_run((*PAPER, "--model.policy.model", "Qwen/Qwen2.5-3B-Instruct")))[0]


@pytest.mark.parametrize("gib", [24, 40, 80, 140])
def test_what_is_chosen_fits_with_room(setup: Setup, gib: float):
    card = replace(CARDS["a100"], memory_gib=gib)
    chosen = sized(setup, card)
    assert chosen.updates.micro_batch_tokens is not None
    assert chosen.engine.kv_cache_mib is not None
    assert memory(chosen).total(card) <= 0.6 * gib * GIB


def test_more_memory_gives_larger_sizes_up_to_what_is_of_use(setup: Setup):
    cards = [replace(CARDS["a100"], memory_gib=gib) for gib in (16, 24, 80, 5000)]
    chosen = [sized(setup, card) for card in cards]
    caches = [one.engine.cache_mib for one in chosen]
    tokens = [one.updates.tokens_at_once for one in chosen]
    assert caches == sorted(caches)
    assert tokens == sorted(tokens)
    assert caches[0] < caches[-1] < 2 * wanted_cache_mib(setup)
    assert tokens[0] < tokens[-1]


def test_a_run_whose_rollouts_sample_nothing_has_room_for_a_response_and_for_evaluations():
    formed = (
        "--config",
        "frozen_lake.yaml",
        "--config",
        "model/qwen_lora_nf4.yaml",
        "--config",
        "warm_start/form.yaml",
    )
    setup = setup_of(*parsed_run((*formed, "--model.policy.model", "Qwen/Qwen2.5-3B-Instruct")))[0]
    card = replace(CARDS["a100"], memory_gib=5000)
    assert wanted_cache_mib(setup) < least_cache_mib(setup)
    assert sized(replace(setup, evaluations=()), card).engine.cache_mib >= least_cache_mib(setup)
    assert sized(setup, card).engine.cache_mib >= evaluation_cache_mib(setup) > 0
    longer = replace(setup, context_tokens=16 * setup.context_tokens)
    assert sized(longer, card).engine.cache_mib >= least_cache_mib(longer) > 10 * least_cache_mib(setup)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # of PEFT
@pytest.mark.parametrize(("targets", "is_known"), [('["self_attn.q_proj"]', True), ('["q_proj", "lm_head"]', False)])
def test_an_adapter_that_estimates_do_not_know_stops_no_run(
    targets: str,
    is_known: bool,
    tiny_model: Callable[[str], Path],
    empty_folder: Path,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("INFO")
    model = ("--model.policy.model", str(tiny_model("sokoban")), "--model.policy.adapter.target_modules", targets)
    nulls = ("--data.updates.micro_batch_tokens", "null", "--data.engine.init_args.kv_cache_mib", "null")
    tsr("fit", "--config", "sokoban.yaml", *model, *QUICK, *nulls, "--trainer.max_epochs", "1")
    said = [record for record in caplog.records if record.getMessage().startswith("sizes by ")]
    assert len(said) == is_known


def test_given_sizes_stay(setup: Setup):
    given = replace(setup, updates=replace(setup.updates, micro_batch_tokens=777))
    given = replace(given, engine=replace(setup.engine, kv_cache_mib=333))
    assert sized(given, CARDS["a100"]) == given


def test_total_memory_counts_whatever_is_free(monkeypatch: pytest.MonkeyPatch):
    cpu, now = torch.device("cpu"), psutil.virtual_memory()
    before = whole_card(cpu).memory_gib
    assert before >= card_here(cpu).memory_gib
    monkeypatch.setattr(psutil, "virtual_memory", lambda: now._replace(available=now.available // 8))
    assert whole_card(cpu).memory_gib == before
    assert card_here(cpu).memory_gib < before
    assert whole_card(cpu, ranks=2).memory_gib == before / 2


def test_tsr_fit_says_what_it_chose(
    tiny_model: Callable[[str], Path], empty_folder: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    model = ("--config", "sokoban.yaml", "--model.policy.model", str(tiny_model("sokoban")))
    nulls = ("--data.updates.micro_batch_tokens", "null", "--data.engine.init_args.kv_cache_mib", "null")
    cli = tsr("fit", *model, *QUICK, *nulls, "--trainer.max_epochs", "1")
    [said] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("sizes by ")]
    engine, updates = cli.datamodule.engine, cli.datamodule.updates
    assert f"micro_batch_tokens {updates.micro_batch_tokens}, " in said
    assert f"kv_cache_mib {engine.kv_cache_mib}" in said
    assert updates.micro_batch_tokens >= 1024
    assert engine.kv_cache_mib >= 256
    caplog.clear()
    tsr("fit", *model, *QUICK, "--trainer.max_epochs", "1")
    assert not [record for record in caplog.records if record.getMessage().startswith("sizes by ")]
