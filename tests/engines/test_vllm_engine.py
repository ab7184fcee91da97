"""vLLM behind the engine's contract, beside the default engine and uncached passes. Skipped where vLLM is not
installed: `make test-extras EXTRAS=vllm` makes the environment that it needs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import parity
import pytest
import torch
from commands import in_folder, tsr
from engine_checks import LOGPROB, Recording, logits_of
from scipy.stats import chi2, ncx2

from tests.fakes import tasks
from tsr_lightning.engines.base import Engine, Prompt, Sampling
from tsr_lightning.engines.local_model import Model
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.vllm.spec import VLLM
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import RunError
from tsr_lightning.policy.chat import Chat, Full
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Lookahead, Sample, Strategy

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's own
    pytest.mark.slow,
    pytest.mark.xdist_group("vllm"),  # an engine takes half a minute to start
]
CONTEXT = 512
SMALL = VLLM(kv_cache_mib=128, max_num_seqs=64, max_num_batched_tokens=2048, enforce_eager=True)


@dataclass(frozen=True)
class Pair:
    """One policy, and both engines on it."""

    spec: PolicySpec
    policy: Policy
    vllm: Engine
    ours: Engine
    chat: Chat


@pytest.fixture(scope="module", params=["all weights", "adapter"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    spec = PolicySpec("embedded/sokoban", adapter=LoRA(rank=4) if request.param == "adapter" else None)
    tokenizer = load_tokenizer(spec, ())
    policy = Policy(spec, tokenizer, critic=True)
    move(policy, 1, 0.002)
    chat = Chat(tokenizer, Full())
    vllm = SMALL.build(policy, chat.end_ids, CONTEXT)
    yield Pair(spec, policy, vllm, Transformers(kv_cache_mib=256).build(policy, chat.end_ids, CONTEXT), chat)
    vllm.close()


@torch.no_grad()
def move(policy: Policy, seed: int, scale: float) -> None:
    """Changes what is trained, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.model.parameters():
        if parameter.requires_grad:
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter.device))


def play(pair: Pair, engine: Engine, strategy: Strategy, temperature: float) -> tuple[list[Any], Recording]:
    """The trajectories of six searches, and the engine's calls."""
    engine.sync()
    recording = Recording(engine)
    env = make_env("tsr/Sokoban-v0", prompt_style="bare", max_turns=4)
    driver = Driver([env], pair.chat, recording, Sampling(temperature, 12), TokenLimits(CONTEXT), concurrency=6)
    return driver.run(tasks(strategy, 6)), recording


def largest_gap(policy: Policy, recording: Recording, temperature: float) -> float:
    """Between the log-probabilities that the engine gave and those of uncached passes, in nats."""
    sampled = [
        (prompt, response)
        for prompt, responses in zip(recording.prompts, recording.responses, strict=True)
        for response in responses
    ]
    gap = 0.0
    contexts = [prompt.ids + response.ids for prompt, response in sampled]
    for logits, (prompt, response) in zip(logits_of(policy, contexts), sampled, strict=True):
        logprobs = (logits[len(prompt.ids) - 1 : -1] / (temperature or 1.0)).log_softmax(-1)
        own = logprobs.gather(1, torch.tensor(response.ids)[:, None])[:, 0]
        gap = max(gap, float((own - torch.tensor(response.logprobs, dtype=own.dtype)).abs().max()))
    return gap


@pytest.mark.parametrize("strategy", [Sample(), Beam(2, 4), Lookahead(3, 2, 2)], ids=repr)
def test_greedy_searches_are_those_of_the_default_engine(pair: Pair, strategy: Strategy) -> None:
    played = [play(pair, engine, strategy, 0.0)[0] for engine in (pair.vllm, pair.ours)]
    theirs, ours = [[[turn.response for turn in each.turns] for each in of_one] for of_one in played]
    assert theirs == ours
    assert sum(len(turns) for turns in ours) >= 12


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_log_probabilities_are_those_of_uncached_passes(pair: Pair, temperature: float) -> None:
    _, recording = play(pair, pair.vllm, Beam(2, 4), temperature)
    assert sum(map(len, recording.responses)) >= 48
    assert largest_gap(pair.policy, recording, temperature) < LOGPROB
    for prompt, responses in zip(recording.prompts, recording.responses, strict=True):
        for response in responses:
            assert 1 <= len(response.ids) <= prompt.max_new_tokens
            assert response.finished == (response.ids[-1] in pair.chat.end_ids)
            assert not pair.chat.end_ids.intersection(response.ids[:-1])


def test_a_response_depends_on_prompt_and_seed_alone(pair: Pair) -> None:
    pair.vllm.sync()
    prompts = [Prompt(tuple(range(5, 5 + length)), (2**64 - 1 - length, length, 7), 6) for length in (33, 64, 70)]
    together = pair.vllm.generate(prompts, 1.3)
    alone = [
        [pair.vllm.generate([Prompt(prompt.ids, (seed,), 6)], 1.3)[0][0].ids for seed in reversed(prompt.seeds)]
        for prompt in prompts
    ]
    assert [[response.ids for response in responses] for responses in together] == [own[::-1] for own in alone]
    assert len({response.ids for responses in together for response in responses}) > 3


def test_prompts_of_more_tokens_than_a_pass_holds(pair: Pair) -> None:
    pair.vllm.sync()
    prompts = [Prompt(tuple(range(start, start + 70)), (start,), 4) for start in range(5, 85)]
    assert sum(len(prompt.ids) for prompt in prompts) > 2 * SMALL.max_num_batched_tokens
    recording = Recording(pair.vllm)
    recording.generate(prompts, 1.0)
    assert largest_gap(pair.policy, recording, 1.0) < LOGPROB


def pairs_of_tokens(policy: Policy, prompt: tuple[int, ...], temperature: float) -> np.ndarray:
    """[V, V] the probabilities of the first two tokens of a response, by uncached passes."""
    [logits] = logits_of(policy, [prompt])
    first = (logits[-1] / temperature).softmax(-1)
    after = logits_of(policy, [(*prompt, token) for token in range(len(first))])
    second = torch.stack([(each[-1] / temperature).softmax(-1) for each in after])
    return (first[:, None] * second).numpy()


@pytest.mark.parametrize("engine", ["vllm", "ours"])
def test_sampled_distributions_are_those_of_the_model(pair: Pair, engine: str) -> None:
    """Chi-squared at 0.1%, over the first two tokens of 4500 responses; a temperature 7% off is found in 99 of 100
    tests."""
    count, temperature, prompt = 4500, 1.2, tuple(range(5, 75))
    exact = pairs_of_tokens(pair.policy, prompt, temperature)
    exact[sorted(pair.chat.end_ids)] = 0  # such a response has one token
    other = pairs_of_tokens(pair.policy, prompt, 1.07 * temperature)
    other[sorted(pair.chat.end_ids)] = 0
    cells = list(zip(*np.nonzero(count * exact >= 5), strict=True))

    def with_rest(each: np.ndarray) -> np.ndarray:
        own = np.array([each[cell] for cell in cells])
        return np.append(own, 1 - own.sum())

    expected, alternative = with_rest(exact), with_rest(other)
    limit = chi2.ppf(0.999, len(cells))
    power = ncx2.sf(limit, len(cells), count * ((alternative - expected) ** 2 / expected).sum())
    assert power > 0.99
    chosen: Engine = {"vllm": pair.vllm, "ours": pair.ours}[engine]
    chosen.sync()
    seeds = tuple(Key(3).fold_in(i).bits() for i in range(count))
    [responses] = chosen.generate([Prompt(prompt, seeds, 2)], temperature)
    drawn = np.zeros_like(exact)
    for response in responses:
        if len(response.ids) == 2:
            drawn[response.ids] += 1 / count
    assert count * ((with_rest(drawn) - expected) ** 2 / expected).sum() < limit


def test_an_update_is_taken_over_by_sync_and_not_before(pair: Pair) -> None:
    """Prompts are those of before the update, whose blocks are in the prefix cache."""
    prompt = Prompt(tuple(range(5, 75)), tuple(range(8)), 8)
    for update in range(2, 5):
        pair.vllm.sync()
        pair.vllm.generate([prompt], 1.0)
        move(pair.policy, update, 0.02)
        stale, fresh = Recording(pair.vllm), Recording(pair.vllm)
        stale.generate([prompt], 1.0)
        assert largest_gap(pair.policy, stale, 1.0) > 0.05
        pair.vllm.sync()
        fresh.generate([prompt], 1.0)
        assert largest_gap(pair.policy, fresh, 1.0) < LOGPROB


def test_prompts_are_computed_once_by_blocks(pair: Pair) -> None:
    pair.vllm.sync()
    ids = tuple(range(100, 200))
    pair.vllm.generate([Prompt(ids, (1,), 4)], 1.0)
    pair.vllm.take_costs()
    pair.vllm.generate([Prompt(ids, (1, 2, 3), 4)], 1.0)
    costs = pair.vllm.take_costs()
    assert costs.prompt_tokens == 300
    assert costs.tokens_prefilled == 3 * (100 - 3 * SMALL.block_size)


@dataclass(frozen=True)
class Sleeping(VLLM):
    """vLLM that sleeps on a CPU too, where its scheduler stops and serves nothing, and no memory moves."""

    calls: ClassVar[list[object]] = []

    def build(self, model: Model, end_ids: frozenset[int], context_tokens: int) -> Engine:
        engine: Any = super().build(model, end_ids, context_tokens)
        engine._sleeps = True
        sleep, wake_up = engine._llm.sleep, engine._llm.wake_up
        engine._llm.sleep = lambda level: (self.calls.append(f"sleep {level}"), sleep(level))
        engine._llm.wake_up = lambda tags: (self.calls.append(tags), wake_up(tags))
        return engine


def test_it_sleeps_when_released_and_wakes_when_it_is_used(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm: Any = pair.vllm
    monkeypatch.setattr(vllm, "_sleeps", True)
    server = vllm._llm.llm_engine
    prompt = Prompt(tuple(range(5, 75)), tuple(range(8)), 8)
    vllm.sync()
    vllm.release()
    before = vllm.generate([prompt], 1.0)
    for _ in range(2):  # an epoch without an update
        vllm.release()
        assert server.is_sleeping()
    vllm.sync()
    vllm.take_costs()
    assert vllm.generate([prompt], 1.0) == before
    assert vllm.take_costs().tokens_prefilled >= len(prompt.ids)  # its blocks were dropped
    assert not server.is_sleeping()
    vllm.release()
    move(pair.policy, 5, 0.02)
    vllm.sync()
    assert server.is_sleeping()  # the weights are awake; keys and values are not
    vllm.release()
    vllm.sync()
    fresh = Recording(vllm)
    fresh.generate([prompt], 1.0)
    assert largest_gap(pair.policy, fresh, 1.0) < LOGPROB


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("adapter", [None, LoRA(rank=4)], ids=["all weights", "adapter"])
def test_a_gpus_memory_is_free_while_it_sleeps(adapter: LoRA | None) -> None:
    cuda, cache = torch.device("cuda"), 2048 * 2**20
    spec = PolicySpec("embedded/sokoban", adapter=adapter)
    tokenizer = load_tokenizer(spec, ())
    policy = Policy(spec, tokenizer, critic=False, seed=1, device=cuda)
    vllm = replace(SMALL, kv_cache_mib=2048).build(policy, Chat(tokenizer, Full()).end_ids, CONTEXT)
    prompt = Prompt(tuple(range(5, 75)), tuple(range(8)), 8)
    try:
        for update in range(2, 5):
            vllm.generate([prompt], 1.0)
            awake = torch.cuda.mem_get_info(cuda)[0]
            vllm.release()
            assert torch.cuda.mem_get_info(cuda)[0] > awake + 0.95 * cache
            move(policy, update, 0.02)
            stale, fresh = Recording(vllm), Recording(vllm)
            stale.generate([prompt], 1.0)
            assert largest_gap(policy, stale, 1.0) > 0.05
            vllm.release()
            vllm.sync()
            fresh.generate([prompt], 1.0)
            assert largest_gap(policy, fresh, 1.0) < 0.01  # a GPU's kernels may round products to TF32
    finally:
        vllm.close()


def test_values_are_the_critics(pair: Pair) -> None:
    assert pair.policy.value_head is not None
    with torch.no_grad():
        pair.policy.value_head.weight.add_(0.1)
    prompts = [tuple(range(5, 40)), tuple(range(9, 80))]
    assert pair.vllm.values(prompts) == pytest.approx(pair.ours.values(prompts), abs=1e-5)
    assert abs(pair.vllm.values(prompts)[0]) > 1e-3


# -- in a run ----------------------------------------------------------------------------------------------------------

TINY = (  # of a head size that its kernels for CPUs have
    '{"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, '
    '"max_position_embeddings": 512}'
)
ARGUMENTS = '{"kv_cache_mib": 128, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "enforce_eager": true}'


def without_sync(engine: Any) -> None:
    engine.sync = lambda: None


def with_old_blocks(engine: Any) -> None:
    engine._empty_prefix_cache = lambda: None


@dataclass(frozen=True)
class Broken(VLLM):
    """vLLM with a part of the synchronisation taken out."""

    breaks: str = ""

    def build(self, model: Model, end_ids: frozenset[int], context_tokens: int) -> Engine:
        engine = super().build(model, end_ids, context_tokens)
        {"sync": without_sync, "prefix cache": with_old_blocks}[self.breaks](engine)
        return engine


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Any]:
    def run(*flags: object, **settings: object) -> Any:
        common = {
            "trainer.accelerator": "cpu",
            "trainer.enable_progress_bar": "false",
            "trainer.num_sanity_val_steps": 0,
            "data.held_out.instances": 1,
        }
        given = [f"--{key}={value}" for key, value in (common | settings).items()]
        with in_folder(tmp_path):
            return tsr("fit", "--config", "sokoban.yaml", "--config", "objective/grpo.yaml", *flags, *given).trainer

    return run


@pytest.mark.parametrize(
    ("breaks", "overlays"),
    [("sync", ()), ("sync", ("--config", "model/embedded_lora.yaml")), ("prefix cache", ())],
    ids=["base weights", "stale adapter", "stale prefix cache"],
)
def test_the_run_time_comparison_stops_what_is_stale(fit, breaks: str, overlays: tuple[str, ...]) -> None:
    engine = f'{{"class_path": "{__name__}.Broken", "init_args": {ARGUMENTS[:-1]}, "breaks": "{breaks}"}}}}'
    settings = {
        "trainer.max_epochs": 3,
        "trainer.limit_val_batches": 0,
        "trainer.callbacks": "null",
        "model.policy.model": "embedded/sokoban",
        "model.optimizer.learning_rate": 0.003,
        "data.env": "corridor:Corridor-v0",  # of three first observations, so that prompts come again
        "data.env_kwargs": '{"slip": 0.5}',  # returns differ by chance, or there would be no update
        "data.instances": 8,
        "data.updates.min_trajectories": 1,
    }
    with pytest.raises(RunError, match=r"the engine's log-probabilities .*mismatch_tolerance allows at most 1e-08"):
        fit(*overlays, "--data.engine", engine, **settings)


@pytest.mark.parametrize("overlays", [(), ("--config", "model/embedded_lora.yaml")], ids=["all weights", "adapter"])
def test_a_run_that_sleeps_during_updates_samples_with_their_weights(fit, overlays: tuple[str, ...]) -> None:
    """The comparison with the trainer passes in every epoch."""
    settings = {
        "trainer.max_epochs": 4,
        "trainer.check_val_every_n_epoch": 2,
        "trainer.callbacks": "null",
        "model.policy.model": "embedded/sokoban",
        "model.optimizer.learning_rate": 0.003,
        "data.instances": 8,
    }
    engine = f'{{"class_path": "{__name__}.Sleeping", "init_args": {ARGUMENTS}}}'
    Sleeping.calls.clear()
    trainer = fit(*overlays, "--data.engine", engine, **settings)
    assert trainer.global_step >= 6
    assert Sleeping.calls == ["sleep 1", ["weights"], ["kv_cache"]] * 4  # the last evaluation wakes it too


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.exhaustive), pytest.param(3, marks=pytest.mark.exhaustive)]
)
def test_success_rises_above_0_9(fit, seed: int) -> None:
    """As by the default engine, in tests/training/test_learning.py; the comparison passes in every epoch."""
    settings = parity.RUN | {"model.policy.model": TINY, "seed_everything": seed}
    engine = f'{{"class_path": "VLLM", "init_args": {ARGUMENTS}}}'
    trainer = fit("--config", "search/sample.yaml", "--data.engine", engine, **settings)
    assert trainer.callback_metrics["val/sampled/success_rate"] > 0.9
