"""Estimated states of recurrent layers, their bytes, counts and operators, against the engine's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import QUICK
from recurrent_models import TINY, recurrent_policy
from safetensors.torch import save_file
from small_models import operators_of_a_step

from tests.hybrid_models import save_random
from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.command import main
from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.cli.memory_check import too_large
from tsr_lightning.engines.transformers.cache import PrefixCache
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.errors import ConfigError
from tsr_lightning.estimate.caches import buffer_tokens, kv_shape, slots, state_counts, wanted_state_mib
from tsr_lightning.estimate.card_memory import GIB, memory
from tsr_lightning.estimate.cards import CARDS, machine_of
from tsr_lightning.estimate.decode_steps import device_seconds, is_captured, operators
from tsr_lightning.estimate.hours import responses_at_once, rollout_seconds
from tsr_lightning.estimate.remedies import remedies
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.estimate.weights import ITEMSIZE
from tsr_lightning.estimate.workload import Wave
from tsr_lightning.policy.spec import LoRA

MIB = 2**20
A100 = CARDS["a100"]


@pytest.fixture(scope="module")
def plain() -> Setup:
    return setup_of(*parsed_run(["--config", "paper/sokoban.yaml"]))[0]


def recurrent(plain: Setup, name: str, **engine: int) -> Setup:
    return replace(plain, shape=shape_of(TINY[name]()), engine=Transformers(**engine))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_the_engine_s_own_bytes_and_counts(name: str, dtype: str, plain: Setup, tmp_path: Path):
    policy = recurrent_policy(TINY[name](), tmp_path, dtype=dtype, adapter=LoRA(4))
    cache = PrefixCache(policy, kv_cache_mib=16, context_tokens=256, stream=None, state_cache_mib=8)
    setup = recurrent(plain, name, kv_cache_mib=16, state_cache_mib=8)
    setup = replace(setup, spec=replace(plain.spec, dtype=dtype, quantisation=None))
    assert cache.states is not None
    states = [tensor for state in cache.states._memory.values() for tensor in state.tensors()]
    assert setup.shape.state_bytes(ITEMSIZE[dtype]) * cache.states.capacity == sum(tensor.nbytes for tensor in states)
    counts = state_counts(setup)
    assert counts is not None
    assert (counts.prefixes, counts.groups, counts.rows) == (
        cache.states.capacity,
        cache.most_groups,
        cache.most_rows,
    )
    assert (slots(setup), buffer_tokens(setup)) == (cache.trie.capacity, cache.backend.buffer.tokens)


@pytest.mark.parametrize("kind", ["all weights, float32", "adapter, bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_operators_of_a_step_within_5_percent(name: str, kind: str, tmp_path: Path):
    settings = {} if kind == "all weights, float32" else {"adapter": LoRA(8, 8), "dtype": "bfloat16"}
    policy = recurrent_policy(TINY[name](), tmp_path, **settings).eval()
    engine = TransformersEngine(policy, frozenset(), 256, 64, 64)
    assert operators(shape_of(TINY[name]()), policy.spec) == pytest.approx(operators_of_a_step(engine), rel=0.05)


@pytest.fixture(scope="module")
def qwen() -> Setup:
    name = ("--model.policy.model", "Qwen/Qwen3.5-0.8B")
    return setup_of(*parsed_run(["--config", "paper/sokoban.yaml", *name]))[0]


def test_a_state_of_qwen_takes_19_mib(qwen: Setup):
    """18 layers of 16 heads · 128 · 128 numbers in float32, and 4 inputs of 6,144 channels in bfloat16."""
    assert qwen.shape.state_bytes(2) == 18 * (4 * 16 * 128 * 128 + 2 * 4 * 6144)


def test_keys_and_values_are_those_of_layers_that_attend(qwen: Setup):
    """Six layers of 2 heads, 256 wide."""
    assert kv_shape(qwen).token_bytes == 6 * 2 * 2 * 256 * 2


def test_the_budget_is_a_part_of_the_rollout_alone(qwen: Setup, plain: Setup):
    parts = {part.name: part.bytes for part in memory(qwen).rollout}
    assert parts["states of recurrent layers (state_cache_mib)"] == 2048 * MIB
    assert not [part for part in memory(plain).rollout if "state_cache_mib" in part.name]
    smaller = replace(qwen, engine=replace(qwen.engine, state_cache_mib=1024))
    rollout, less = (sum(part.bytes for part in memory(one).rollout) for one in (qwen, smaller))
    assert rollout - less == 1024 * MIB


def test_updates_on_a_cpu_run_beside_states_too(qwen: Setup):
    given = replace(qwen, engine=replace(qwen.engine, kv_cache_mib=256, state_cache_mib=512))
    for limit, kept in ((1024, 768), (600, 600)):
        backward, without = (sum(part.bytes for part in memory(given, 1, mib).backward) for mib in (limit, 0))
        assert backward - without == kept * MIB


def test_a_smaller_budget_is_a_remedy_as_long_as_the_engine_takes_it(qwen: Setup):
    card = replace(A100, memory_gib=16)
    assert "data.engine.init_args.state_cache_mib 1024" in [one.change for one in remedies(qwen, card, 1)]
    least = replace(qwen, engine=replace(qwen.engine, state_cache_mib=200))  # 6 states of 18.8 MiB take 114
    assert not [one.change for one in remedies(least, card, 1) if "state_cache_mib" in one.change]
    with pytest.raises(ConfigError, match=r"state_cache_mib is 100: a state .* takes 18.8 MiB, so give 114 or more"):
        state_counts(replace(qwen, engine=replace(qwen.engine, state_cache_mib=100)))


def test_states_limit_the_responses_at_once(qwen: Setup):
    """Half of 2,048 MiB are 54 states: of as many responses, or of 18 groups."""
    assert responses_at_once(qwen, Wave(100, 100, 400, 100, 100)) == 54
    assert responses_at_once(qwen, Wave(100, 100, 100, 100, 100)) == 18


def test_prefixes_whose_states_were_dropped_are_computed_again(qwen: Setup):
    entries, _ = qwen.distinct_entries[0]
    tokens = qwen.rollout(entries, qwen.worst)
    count = qwen.instances * sum(entry.count for entry in entries)
    room = replace(qwen, engine=replace(qwen.engine, state_cache_mib=wanted_state_mib(qwen), kv_cache_mib=2**17))
    little = replace(room, engine=replace(room.engine, state_cache_mib=2048))
    few, many = (
        rollout_seconds(one, one.worst, tokens, count, one.instances, machine_of("a100")).prefill
        for one in (room, little)
    )
    assert many > 2 * few


def test_a_step_reads_and_writes_a_state_of_each_response(qwen: Setup):
    wave = Wave(16, 16, 16, 100, 100)
    more = device_seconds(qwen, wave, 32, 2, A100) - device_seconds(qwen, wave, 16, 2, A100)
    states = 2 * 16 * qwen.shape.state_bytes(2) / (A100.bandwidth * A100.bandwidth_share)
    assert states < more < 1.1 * states
    assert not is_captured(qwen, A100)


def test_a_notice_names_the_budget_of_states(qwen: Setup):
    large = replace(qwen, engine=Transformers(kv_cache_mib=512, state_cache_mib=2**15))
    room = memory(large).total(A100) / GIB
    said = too_large(large, replace(A100, memory_gib=0.99 * room), 1)
    assert isinstance(said, str)
    assert "data.engine.init_args.state_cache_mib 16384 fits" in said


def test_tsr_fit_refuses_a_recurrent_model_before_it_loads(empty_folder: Path, capfd: pytest.CaptureFixture[str]):
    """The configuration is a thousand times as large as the tiny model, and its file of weights is empty."""
    folder = save_random(TINY["lfm2"](), empty_folder / "large")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 128, "num_attention_heads": 128}
    config |= {"layer_types": ["conv", "full_attention"] * 64}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({}, folder / "model.safetensors")
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", str(folder)])
    assert ended.value.code == 2
    assert "its weights, gradients and optimizer states take " in capfd.readouterr().err
