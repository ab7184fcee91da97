"""Seconds of decoding steps: operators as PyTorch dispatches them, captures, and what an H200 measured."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import KINDS, TOKENIZER, operators_of_a_step, saved_model
from transformers import Qwen2Config

from tsr_lightning.cli.app import parsed_run
from tsr_lightning.cli.estimate import setup_of
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.estimate.cards import CARDS
from tsr_lightning.estimate.decode_steps import CAPTURE_STEPS, decode_seconds, is_captured, launches, operators
from tsr_lightning.estimate.here import card_here
from tsr_lightning.estimate.lookup import published_config
from tsr_lightning.estimate.setup import Setup
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.estimate.workload import Wave
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec

H200 = CARDS["h200"]


@pytest.fixture(scope="module")
def setup() -> Setup:
    """Qwen2.5-0.5B in bfloat16, without an adapter, as the H200 decoded it."""
    shape = shape_of(published_config("Qwen/Qwen2.5-0.5B-Instruct"))
    paper = setup_of(*parsed_run(["--config", "paper/sokoban.yaml"]))[0]
    return replace(paper, shape=shape, spec=PolicySpec("qwen", dtype="bfloat16"))


@pytest.mark.parametrize(
    "kind", ["all weights, float32", "all weights, bfloat16", "adapter, float32", "adapter, bfloat16", "NF4"]
)
def test_operators_of_a_step_within_3_percent(kind: str, tmp_path: Path):
    saved_model(tmp_path)
    spec = PolicySpec(str(tmp_path), kernels="torch", **KINDS[kind])
    engine = TransformersEngine(Policy(spec, TOKENIZER, critic=False), frozenset(), 256, 64, 64)
    shape = shape_of(Qwen2Config.from_pretrained(tmp_path))
    assert operators(shape, spec) == pytest.approx(operators_of_a_step(engine), rel=0.03)


@pytest.mark.parametrize(
    ("kernels", "prompts", "siblings", "milliseconds"),  # docs/performance/gpu.md: 1,024 prompt tokens
    [
        *[("auto", 1, 1, 4.4), ("auto", 16, 4, 5.5), ("auto", 64, 8, 13.8)],
        *[("torch", 1, 1, 21.4), ("torch", 16, 4, 23.2), ("torch", 64, 8, 29.1)],
    ],
)
def test_steps_in_bfloat16_as_an_h200_measured_them(
    kernels: str, prompts: int, siblings: int, milliseconds: float, setup: Setup
):
    own = replace(setup, spec=replace(setup.spec, kernels=kernels))
    responses, tokens, laps = prompts * siblings, 128, 10_000  # so many that all shapes have been captured
    wave = Wave(prompts, prompts, responses, 1024, 1024)
    seconds = decode_seconds(own, wave, responses, tokens, laps, H200) / (laps * (tokens - 1))
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=0.08)


@pytest.mark.parametrize(("kernels", "seconds"), [("auto", 3.9), ("torch", 16.1)])
def test_a_rollout_in_nf4_as_an_h200_measured_it(kernels: str, seconds: float, setup: Setup):
    """Five turns of 24 tokens for 8 groups of 8; the measured seconds have prompts and environments too."""
    spec = replace(setup.spec, kernels=kernels, adapter=LoRA(64, 64), quantisation=NF4())
    waves = [Wave(8, 8, 64, 300, 300), *(Wave(64, 64, 64, 300 + 80 * turn, 56) for turn in range(1, 5))]
    decode = sum(decode_seconds(replace(setup, spec=spec), wave, 64, 24, 1, H200) for wave in waves)
    assert decode == pytest.approx(seconds, rel=0.2)


def test_a_shape_runs_once_is_captured_once_and_is_replayed_from_then_on():
    # 4 siblings have 4 columns after the first step and 80 after the twentieth: 16 steps up to 64 columns, 4 beyond
    assert launches(Wave(2, 2, 8, 100, 100), steps=20, batches=1) == (2 + 2 * CAPTURE_STEPS, 18)
    # one step beyond 64 columns is not worth a capture, unless another batch has it too
    assert launches(Wave(2, 2, 8, 100, 100), steps=17, batches=1) == (2 + CAPTURE_STEPS, 15)
    assert launches(Wave(2, 2, 8, 100, 100), steps=17, batches=2) == (2 + 2 * CAPTURE_STEPS, 32)


def test_what_is_captured(setup: Setup):
    assert is_captured(setup, H200)
    assert not is_captured(setup, card_here(torch.device("cpu")))
    assert not is_captured(replace(setup, is_deterministic=True), H200)
    assert not is_captured(replace(setup, spec=replace(setup.spec, kernels="torch")), H200)
    assert not is_captured(replace(setup, shape=replace(setup.shape, head_dim=8)), H200)
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = Qwen2Config(rope_parameters=rope)
    assert not is_captured(replace(setup, shape=shape_of(config)), H200)
    assert is_captured(replace(setup, shape=shape_of(Qwen2Config())), H200)
