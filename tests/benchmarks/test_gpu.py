"""The GPU's benchmark runs to its end without one, counts what steps must read, and outlives a rival that fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.contest import Entry, Outcome, of_same_work, play, ratio
from benchmarks.gpu.decode import Steps
from benchmarks.gpu.models import of_folder, of_shape
from benchmarks.performance.alternate import Record
from benchmarks.performance.ours import sit_down
from benchmarks.performance.workload import ModelShape, Workload
from tests.hybrid_models import HYBRIDS, save_random
from tsr_lightning.engines.base import Prompt

KEY_BYTES = 2 * 2 * 16 * 2  # a token's: keys and values, 2 heads of 16 numbers, bfloat16


@pytest.mark.exhaustive
def test_it_runs_to_its_end_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--out", str(tmp_path)])
    said = capsys.readouterr().out
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert said.startswith("there is no CUDA device: sizes are tiny")
    assert {"vllm is absent: give --vllm PYTHON", "trl is absent: give --trl PYTHON"} == set(written["absent"])
    steps, contests = written["decode"], written["rollouts_and_iterations"]
    count = len(steps) + len(contests)
    assert f"[{count}/{count}] generate" in said
    assert all(min(one["roofline_seconds"], one["roofline_share"], one["tokens_per_second"]) > 0 for one in steps)
    assert all(one["failure"] is None and one["tokens_per_second"] > 0 for one in contests)
    assert {one["name"] for one in contests} == {"ours", "ours, whole iteration", "generate"}
    assert (tmp_path / "gpu.md").read_text() in said


@pytest.mark.slow
def test_only_what_is_asked_for_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--only", "decode (torch): 1 × 1", "generate", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert [(one["kernels"], one["steps"]["prompts"]) for one in written["decode"]] == [("torch", 1)]
    assert [one["name"] for one in written["rollouts_and_iterations"]] == ["generate"]
    with pytest.raises(SystemExit):
        gpu.main(["--only", "no such title", "--out", str(tmp_path)])
    assert "--only no such title: no title has that in it" in capsys.readouterr().err


def test_a_steps_bytes_are_weights_prompts_once_and_each_branchs_own() -> None:
    """Two prompts of ten tokens, three siblings each, four tokens: three steps, which read 1, 2 and 3 own tokens."""
    shape = ModelShape(hidden=64, layers=1, heads=4, key_heads=2, intermediate=96, vocabulary=100)
    weights = 64 * (2 * 64 + 2 * 32 + 3 * 96) + 100 * 64
    keys = 3 * 2 * 10 + 6 * (1 + 2 + 3)
    reads = of_shape("small", shape).reads
    assert Steps(2, 3, 10, 4).read_bytes(reads, "bfloat16") == 3 * 2 * weights + KEY_BYTES * keys
    states = replace(reads, convolutions=5, recurrences=7)  # of six branches in three steps, read and written
    more = Steps(2, 3, 10, 4).read_bytes(states, "bfloat16") - Steps(2, 3, 10, 4).read_bytes(reads, "bfloat16")
    assert more == 2 * 6 * 3 * (2 * 5 + 4 * 7)


@pytest.mark.parametrize("config", ["qwen3_5_text", "lfm2", "granitemoehybrid"])
def test_a_model_of_ones_own_is_read_as_it_is(config: str, tmp_path: Path) -> None:
    """Weights and states are those that transformers and the engine have."""
    wide = {"vocab_size": 1200} | ({"num_local_experts": 0} if config == "granitemoehybrid" else {})
    folder = save_random(type(HYBRIDS[config]()).from_dict(HYBRIDS[config]().to_dict() | wide), tmp_path / "given")
    model = of_folder(folder)
    model.write(tmp_path, 100)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    untied = 0 if loaded.config.tie_word_embeddings else loaded.get_input_embeddings().weight.numel()
    assert model.reads.weights == sum(weight.numel() for weight in loaded.parameters()) - untied
    seat = sit_down(Workload(kv_cache_mib=16), tmp_path)
    seat.engine.generate([Prompt((1, 2, 3), (1,), 2)], 1.0)
    with seat.engine._running() as cache:
        shape = cache.store.keys
        assert model.reads.token == sum(2 * keys.shape[0] * keys.shape[2] for keys in shape)
        states = [tensor for state in cache.states._memory.values() for tensor in state.tensors()]
        assert model.reads.convolutions + model.reads.recurrences == sum(tensor[0].numel() for tensor in states)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no config\.json in it; name the folder of a Hugging Face model"):
        gpu.main(["--model", str(tmp_path)])
    (tmp_path / "config.json").write_text(HYBRIDS["lfm2"]().to_json_string())
    with pytest.raises(SystemExit, match="the benchmark needs 1,000"):
        gpu.main(["--model", str(tmp_path)])


def test_the_shape_is_that_of_qwen() -> None:
    """494M parameters; matrices alone are counted."""
    assert gpu.QWEN.parameters == pytest.approx(494e6, rel=0.001)


def test_a_rival_that_fails_is_an_outcome_and_beside_ours_only_on_the_same_work(tmp_path: Path) -> None:
    work = Workload(response_tokens=4)
    lost = play(Entry("vllm", work, python="/no/such/python"), tmp_path, 1, 1, tmp_path)
    assert lost.record is None
    assert "No such file" in (lost.failure or "")
    mine, theirs = (
        Outcome(Entry(name, work), Record(name, work, "", ({"seconds": seconds, "costs": {"tokens_generated": 10}},)))
        for name, work, seconds in (("ours", replace(work, kernels="flex"), 2.0), ("vllm", work, 5.0))
    )
    plain = replace(mine, entry=Entry("ours", replace(work, kernels="torch")))
    others = replace(mine, entry=Entry("ours", replace(mine.entry.work, groups=1)))
    assert of_same_work([plain, others, mine], theirs) is mine
    assert of_same_work([plain, others], theirs) is None
    assert ratio(theirs, mine) == 2.5
    assert ratio(lost, mine) is None


def test_everyone_who_is_there_takes_part() -> None:
    plan = gpu.tiny("cpu", gpu.SMALL)
    alone, all_three = gpu.entries(plan, None, None), gpu.entries(plan, "a/python", "b/python")
    assert [entry.python for entry in alone] == [None] * len(alone)
    assert {(e.name, e.python) for e in all_three[len(alone) :]} == {("vllm", "a/python"), ("trl", "b/python")}
    assert {entry.work.kernels for entry in alone if entry.name.startswith("ours")} == {"flex", "torch"}
