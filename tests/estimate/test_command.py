"""`tsr estimate`: its page, its arithmetic on a whole configuration, and what it refuses."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import ROOT, TINY

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.command import main
from tsr_lightning.cli.estimate import known_setup, setup_of
from tsr_lightning.estimate.caches import kv_shape
from tsr_lightning.estimate.card_memory import GIB, largest_cache_mib, memory
from tsr_lightning.estimate.cards import CARDS, Machine, machine_of
from tsr_lightning.estimate.chosen_sizes import sized
from tsr_lightning.estimate.here import card_here, measured_card
from tsr_lightning.estimate.hours import hours
from tsr_lightning.estimate.markdown import page
from tsr_lightning.estimate.remedies import remedies
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.policy.model import Policy
from tsr_lightning.search.strategies import Greedy

PAPER = ("--config", "paper/sokoban.yaml")
WHOLE = "--model.policy.adapter null --model.policy.quantisation null"
SEVEN_BILLION = f"--model.policy.model Qwen/Qwen2.5-7B-Instruct {WHOLE}"
FSDP2 = ("--trainer.strategy", "fsdp2")
SMALL_CACHE = ("--data.engine.init_args.kv_cache_mib", "4096")  # so that a rollout is not the peak


@pytest.fixture
def empty(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, without a network and without a model."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built, or a connection opened")

    monkeypatch.setattr(Policy, "__init__", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return empty_folder


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", *args])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    return said.out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", *args])
    assert ended.value.code == 2
    return capsys.readouterr().err


def setup(*flags: str) -> Setup:
    return setup_of(*parsed_run([*PAPER, *flags]))[0]


def test_greedy_play_costs_a_rollout_and_no_training(empty: Path):
    """But where credit reads estimates: then they are made for all."""
    flags = ("--config", "objective/remax.yaml", "--config", "search/greedy_baseline.yaml")
    begun = setup(*flags)
    [(both, _)] = begun.distinct_entries
    sampled, greedy = both
    assert isinstance(greedy.strategy, Greedy)
    for case in begun.cases:
        assert begun.trained(both, case) == begun.trained([sampled], case)
        assert begun.estimated(both, case) == begun.estimated([sampled], case)
        assert begun.rollout(both, case).generated > begun.rollout([sampled], case).generated
    read = setup(*flags, "--model.objective.init_args.top_entropy_quantile", "0.2")
    assert read.estimated(both, read.worst).outputs == 2 * begun.estimated(both, begun.worst).outputs


def test_demonstrations_cost_no_pass_before_the_updates(empty: Path):
    split = (
        "--config",
        "objective/grpo.yaml",
        "--config",
        "warm_start/supervised.yaml",
        "--config",
        "warm_start/split.yaml",
    )
    begun = setup(*split, "--model.objective.init_args.kl", "null")
    demonstrated, sampled = [entries for entries, _ in begun.distinct_entries]
    assert begun.scored(demonstrated) == []
    assert begun.scored(sampled) == sampled
    assert hours(begun, begun.worst, machine_of("a100")).epoch.estimates == 0.0


def test_the_page_of_a_paper_configuration(capsys, empty: Path):
    page = printed(capsys, *PAPER, "--response_tokens", "150", "--turns", "4")
    assert "Qwen/Qwen2.5-3B-Instruct: 3,085,938,688 parameters" in page
    assert "the table of published shapes" in page
    assert re.search(r"\| always \| linear layers in NF4 \| 1\.33 \| 1\.33 \| 1\.33 \|", page)
    assert "RTX 4090 24 GB | A100 80 GB | 8 × A100 80 GB" in page
    # beam 2 of 4 over five turns has 36 responses: 16 instances × 16 members × 36 × 400 tokens
    assert re.search(r"\| tokens generated \| 1,075,200 \| 3,686,400 \|", page)
    assert re.search(r"\| groups trained on, of 16 \| 4 \| 4 \|", page)  # InstanceFilter keeps a quarter
    assert page.startswith("- RTX 4090 24 GB: fits, with ")  # the verdict is the first line
    assert re.search(r"the run takes [\d.]+ h, or [\d.]+ h if all responses", page.splitlines()[0])
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    "flags",
    [
        "--config paper/sokoban.yaml",
        "--config paper/frozen_lake.yaml",
        "--config paper/webshop.yaml",
        f"--config paper/sokoban.yaml {SEVEN_BILLION} --trainer.strategy fsdp2 --machine 8xa100 --machine 8xh100",
    ],
)
def test_the_docs_have_the_pages_that_the_command_makes(flags: str, capsys, empty: Path):
    page = printed(capsys, *flags.split())
    docs = (ROOT / "docs" / "estimate.md").read_text(encoding="utf-8")
    assert f"<!-- made by tsr estimate {flags} -->\n{page}<!-- end -->" in docs, "python -m benchmarks.estimate_page"


def test_one_callback_counts_as_a_list_of_it_and_none_as_an_empty_list(empty: Path):
    one, listed = ("--trainer.callbacks", "callbacks.InstanceFilter"), "[callbacks.InstanceFilter]"
    given = [setup(*flags) for flags in (one, (one[0], listed), (one[0], "null"))]
    assert [each.kept(16) for each in given] == [4, 4, 16]
    chosen = sized(known_setup(*parsed_run([*PAPER, *one])), CARDS["a100"], 1)  # as `tsr fit` does before its model
    assert chosen.engine.kv_cache_mib


def test_the_note_says_which_response_tokens_are_counted(capsys, empty: Path):
    most, cut = (printed(capsys, *PAPER, "--machine", "a100", "--response_tokens", given) for given in ("300", "600"))
    assert "expected: 300, and 400 at most\n" in most
    assert "expected: 400, and 400 at most (--response_tokens 600 is cut to data.sampling.max_response_tokens)" in cut
    assert re.search(r"\| tokens of a response \| 400 \| 400 \|", cut)


def test_assumptions_are_those_of_each_card(empty: Path):
    cpu = replace(CARDS["a100"], name="a processor", compute_share=1.0, is_gpu=False, fragmentation=0.15)
    text = page(setup(), [machine_of("a100"), machine_of("8xa100"), Machine(cpu)], [])
    assert "- A100 80 GB: 40% of the operations and 60% of the bandwidth are reached" in text
    assert "- a processor: 100% of the operations and 60% of the bandwidth are reached" in text
    assert "- A100 80 GB: decoding steps are captured as CUDA graphs" in text
    assert "- a processor: decoding steps are not captured" in text
    assert "- A100 80 GB: 0.8 GiB for the CUDA context, or on a CPU for the process, and libraries; 8% more" in text
    assert "- a processor: 0.8 GiB for the CUDA context, or on a CPU for the process, and libraries; 15% more" in text


def test_all_weights_of_three_billion_do_not_fit_on_a_small_card(capsys, empty: Path):
    flags = ("--model.policy.adapter", "null", "--model.policy.quantisation", "null", "--machine", "rtx4090")
    page = printed(capsys, *PAPER, *flags, *SMALL_CACHE)
    [line] = [line for line in page.splitlines() if "does not fit, " in line]
    assert re.search(r"[\d.]+ GiB are missing in the optimizer step", line)
    assert re.search(r"model.policy.adapter of rank 16 saves [\d.]+ and fits", line)
    assert "micro_batch_tokens" not in line  # which would not help an optimizer's step


def test_own_flags_and_those_of_fit_are_read(capsys, empty: Path):
    page = printed(capsys, "--config", "sokoban.yaml", "--model.policy.model", TINY, "--machine", "2xh100")
    assert "the sizes given" in page
    assert "counted by the model's tokenizer" in page
    assert "| 2 × H100 80 GB |" in page
    assert "--response_tokens" in printed(capsys, "--help")


def test_the_machine_that_asks_is_measured(capsys, empty: Path):
    page = printed(capsys, "--config", "sokoban.yaml", "--model.policy.model", TINY, "--machine", "here")
    assert re.match(
        r"- this machine: fits, with [\d.]+ GiB to spare at its peak, the [a-z ]+; the run takes [\d.]+ ", page
    )
    card = measured_card(torch.device("cpu"))
    assert card.memory_gib == pytest.approx(card_here(torch.device("cpu")).memory_gib, rel=0.2)
    assert 1e8 < card.float32 < 1e14
    assert 1e8 < card.bandwidth < 1e13
    assert 1e-8 < card.operator_seconds < 1e-3


def test_autocast_computes_and_keeps_keys_in_bfloat16():
    wide = ("--model.policy.quantisation", "null", "--model.policy.adapter", "null", "--model.policy.dtype", "float32")
    exact, mixed, low = (
        setup_of(*parsed_run((*PAPER, *wide, *flags)))[0]
        for flags in (
            ("--trainer.precision", "32-true"),
            ("--trainer.precision", "bf16-mixed"),
            ("--trainer.precision", "32-true", "--model.policy.dtype", "bfloat16"),
        )
    )
    updates = [hours(one, one.worst, machine_of("h200")).epoch.updates for one in (exact, mixed, low)]
    assert updates[0] > 5 * updates[1]
    assert updates[1] == pytest.approx(updates[2], rel=0.05)
    hidden = exact.shape.hidden_size
    assert kv_shape(mixed).token_bytes == kv_shape(low).token_bytes == kv_shape(exact).token_bytes / 2
    assert kv_shape(mixed).slot_bytes - kv_shape(mixed).token_bytes == 4 * hidden  # the hidden state stays in float32


def test_evaluations_that_are_off_cost_nothing():
    on, off = (setup_of(*parsed_run((*PAPER, *flags)))[0] for flags in ((), ("--trainer.limit_val_batches", "0")))
    assert hours(on, on.worst, machine_of("a100")).evaluation > 0
    assert hours(off, off.worst, machine_of("a100")).evaluation == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "tsr estimate needs a configuration: give --config FILE"),
        (
            (*PAPER, "--ckpt_path", "a.ckpt"),
            "tsr estimate takes no --ckpt_path, since it counts whole runs: leave it out",
        ),
        (
            (*PAPER, "--machine", "abacus"),
            "--machine is 'abacus': choose from rtx4090, a100, h100, h200, here, or several",
        ),
        ((*PAPER, "--machine", "0xa100"), "--machine is '0xa100': choose"),
        ((*PAPER, "--response_tokens", "0"), "argument --response_tokens: 0 is no whole number of 1 or more"),
        ((*PAPER, "--characters_per_token", "none"), "none is no number above 0"),
        ((*PAPER, "--model.policy.model", "some/model"), "model.policy.model is 'some/model': its shape is neither"),
        ((*PAPER, "--trainer.max_epochs", "-1"), "trainer.max_epochs is -1: give the number of epochs to estimate"),
        (
            (*PAPER, *FSDP2),
            "model.policy.quantisation is NF4(double_quant=True, compute_dtype='bfloat16'): 4-bit weights",
        ),
        (
            (*PAPER, "--trainer.strategy.class_path", "tsr_lightning.training.fsdp2.FSDP2"),
            "compute_dtype='bfloat16'): 4-bit weights are packed",
        ),
        ((*PAPER, "--data.held_out.instances", "0"), "data.held_out.instances is 0: hold out at least 1"),
        ((*PAPER, "--data.instances", "0"), "data.instances is 0: give 1 or more"),
        ((*PAPER, "--data.concurrency", "0"), "data.concurrency is 0: give 1 or more"),
        ((*PAPER, "--data.sampling.max_response_tokens", "0"), "data.sampling.max_response_tokens is 0: give 1 or"),
        ((*PAPER, "--data.context_tokens", "400"), "max_response_tokens is 400, which fills the context of 400 tokens"),
        (
            (*PAPER, "--data.context_tokens", "50", "--data.sampling.max_response_tokens", "8"),
            "data.env is tsr/Sokoban-v0, whose first prompt has",
        ),
        ((*PAPER, "--data.instancs", "4"), "did you mean --data.instances?"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(flags: tuple[str, ...], sentence: str, capsys, empty: Path):
    assert sentence in refused(capsys, *flags)


class TestAWholeConfiguration:
    def test_memory_is_the_sum_of_its_parts(self, empty: Path):
        """Beside the rounded bytes of Qwen2.5-3B: 119,734,272 adapter weights in float32, four times."""
        found = memory(setup())
        sizes = {part.name: part.bytes for part in found.resident}
        assert sizes["adapter in float32"] == sizes["gradients"] == 4 * 119_734_272
        assert sizes["AdamW's two averages"] == 8 * 119_734_272
        assert sizes["embeddings, norms and biases in bfloat16"] == 2 * (3_085_938_688 - 36 * 77_070_336)
        assert "copy for the reference" not in sizes
        largest = max(sum(part.bytes for part in phase) for phase in found.phases.values())
        assert found.peak == sum(sizes.values()) + largest
        card = CARDS["a100"]
        assert found.total(card) == pytest.approx(found.peak * 1.08 + 0.8 * GIB)

    def test_of_several_cards_each_has_the_model_and_fewer_tokens(self, empty: Path):
        own, shared = memory(setup()), memory(setup(), 8)
        ddp = [part for part in shared.resident if part not in own.resident]
        assert [part.bytes for part in ddp] == [4 * 119_734_272]  # DDP's buckets
        assert sum(part.bytes for part in shared.backward) < sum(part.bytes for part in own.backward)

    def test_a_reference_costs_a_copy_without_an_adapter(self, empty: Path):
        kl = ("--model.objective.init_args.kl", '{"class_path": "K3", "init_args": {"coefficient": 0.001}}')
        whole = ("--model.policy.adapter", "null", "--model.policy.quantisation", "null")
        names = [[part.name for part in memory(setup(*flags)).resident] for flags in (kl, (*kl, *whole))]
        assert ["copy for the reference" in each for each in names] == [False, True]

    def test_remedies_bring_what_they_say(self, empty: Path):
        before, card = setup(*SMALL_CACHE), CARDS["rtx4090"]
        [tokens] = [one for one in remedies(before, card, 1) if "micro_batch_tokens" in one.change]
        after = setup(*SMALL_CACHE, "--data.updates.micro_batch_tokens", tokens.change.split()[-1])
        assert memory(before).total(card) - memory(after).total(card) == pytest.approx(tokens.saves)

    def test_the_largest_cache_just_fits(self, empty: Path):
        before, card = setup(), CARDS["rtx4090"]
        most = largest_cache_mib(before, card)
        fits = [
            memory(replace(before, engine=replace(before.engine, kv_cache_mib=most + more))).fits(card)
            for more in (0, 2)
        ]
        assert fits == [True, False]

    def test_hours_fall_with_more_and_faster_cards_and_shorter_responses(self, empty: Path):
        own = setup()
        [slow, fast, eight] = [hours(own, own.worst, machine_of(name)).total for name in ("a100", "h100", "8xa100")]
        assert fast < slow
        assert slow / 8 <= eight < slow / 4
        assert hours(own, own.expected, machine_of("a100")).total < slow

    def test_a_step_reads_the_weights_no_faster_than_the_bandwidth_allows(self, empty: Path):
        """The decoding steps alone: responses / responses at once · 399 steps · the bytes of the weights."""
        own, card = setup(), CARDS["a100"]
        found = hours(own, own.worst, machine_of("a100")).epoch.rollout
        weights = memory(own).resident[0].bytes + memory(own).resident[1].bytes
        least = 16 * 16 * 36 / found.at_once * 399 * weights / card.bandwidth
        assert found.decode > least


class TestUnderFSDP2:
    def test_a_card_holds_its_part_and_a_rollout_the_whole(self, empty: Path):
        """Rows of Qwen2.5-7B's weights are divided by eight: 7,615,616,512 parameters in bfloat16."""
        found = memory(setup(*SEVEN_BILLION.split(), *FSDP2), 8)
        sizes = {part.name: part.bytes for part in (*found.resident, *found.rollout)}
        of_weights = 2 * 7_615_616_512
        critic = 4 * (3584 + 1) + 7 * 4  # one bias, for which each of eight cards has room
        assert sizes["shards of the weights in bfloat16"] == sizes["shards of the gradients"] == of_weights // 8
        assert sizes["shards of AdamW's two averages"] == 2 * of_weights // 8
        assert sizes["whole weights, beside the shards"] == pytest.approx(of_weights, abs=10 * critic)
        assert "whole copy for the reference" not in sizes

    def test_an_adapter_alone_has_gradients(self, empty: Path):
        flags = ("--model.policy.quantisation", "null", *FSDP2)
        sizes = {part.name: part.bytes for part in memory(setup(*flags), 8).resident}
        assert sizes["shards of the weights in bfloat16"] == 2 * 3_085_938_688 // 8
        assert sizes["shards of the adapter in float32"] == sizes["shards of the gradients"] == 4 * 119_734_272 // 8

    def test_it_is_the_remedy_where_a_copy_on_each_card_does_not_fit(self, empty: Path):
        copies, card = setup(*SEVEN_BILLION.split()), CARDS["a100"]
        found = {remedy.change: remedy for remedy in remedies(copies, card, 8)}
        assert not memory(copies, 8).fits(card)
        assert found["trainer.strategy fsdp2"].fits
        assert "trainer.strategy fsdp2" not in {remedy.change for remedy in remedies(copies, card, 1)}
        shards = remedies(replace(copies, is_sharded=True), CARDS["rtx4090"], 8)
        assert not any("NF4" in remedy.change for remedy in shards)  # which cannot be sharded

    def test_collectives_count_where_they_take_longer_than_the_updates(self, empty: Path):
        own = setup(*SEVEN_BILLION.split(), *FSDP2)
        short = replace(own, updates=replace(own.updates, micro_batch_tokens=2048))
        near = hours(own, own.worst, machine_of("8xa100")).epoch
        far = hours(short, own.worst, machine_of("8xrtx4090")).epoch
        assert near.collectives < near.updates
        assert far.collectives == far.updates  # over PCIe, and of more micro-batches
        # two micro-batches gather and reduce about three times the weights, of which seven eighths are sent
        assert near.collectives == pytest.approx(2 * 3 * 2 * 7_615_616_512 * 7 / 8 / (0.7 * 300e9), rel=0.1)
        assert near.total == pytest.approx(near.rollout.total + near.estimates + near.updates + near.gathering)
