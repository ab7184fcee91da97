"""The benchmark measures what it says: its world, its count of prefixes, its rivals and its lines, at tiny sizes."""

import io
import itertools
import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from matplotlib.pyplot import imread

from benchmarks.performance import alternate as alternating
from benchmarks.performance import comparisons, epochs, floor, growth, long_run, profiling, ranks
from benchmarks.performance.alternate import Participant, Record, alternate
from benchmarks.performance.comparisons import Comparison, Invited, Rules
from benchmarks.performance.growth import draw
from benchmarks.performance.line import Line
from benchmarks.performance.ours import sit_down
from benchmarks.performance.recording import Recorder
from benchmarks.performance.report import Measured, Ratio, rollout_table
from benchmarks.performance.rivals import continuous, generate
from benchmarks.performance.rollouts import roll_out
from benchmarks.performance.trie import Trie, grown
from benchmarks.performance.waiting import compare
from benchmarks.performance.workload import LADDER, ModelShape, Workload, make_model, play, tokenizer_of
from benchmarks.performance.world import ID, Pages
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.policy.chat import Chat
from tsr_lightning.rng import Key
from tsr_lightning.training.agent import Agent
from tsr_lightning.trajectory import to_messages

TINY = Workload(
    shape=ModelShape(hidden=32, layers=2, heads=2, key_heads=2, intermediate=48),
    turns=3,
    groups=2,
    members=2,
    prompt_tokens=24,
    response_tokens=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    make_model(TINY.shape, place, TINY.longest)
    return place


# -- the world ---------------------------------------------------------------------------------------------------------


def test_the_world_can_be_branched() -> None:
    check_branchable(make_env(ID, words=12, turns=3))


def test_pages_are_as_long_as_asked_and_differ() -> None:
    env = Pages(words=30, turns=4)
    pages = [env.reset(seed=seed)[0] for seed in range(4)]
    state = env.get_state()
    for answer in ("one", "two", "three"):
        env.set_state(state)
        pages.append(env.step(answer)[0])
    assert {len(page.split()) for page in pages} == {30}
    assert len(set(pages)) == 7


def test_an_episode_has_its_turns_and_the_rewards_add_up_to_the_score() -> None:
    env = Pages(words=5, turns=4)
    env.reset(seed=1)
    first = env.score()
    steps = [env.step("go") for _ in range(4)]
    assert [terminated or truncated for _, _, terminated, truncated, _ in steps] == [False, False, False, True]
    assert sum(reward for _, reward, _, _, _ in steps) == pytest.approx(env.score() - first)


# -- the workload ------------------------------------------------------------------------------------------------------


def test_the_default_model_has_the_size_that_it_is_called_by(folder: Path) -> None:
    assert ModelShape().parameters == pytest.approx(4.9e6, rel=0.01)
    assert [round(shape.parameters / 1e6) for shape in LADDER] == sorted(round(s.parameters / 1e6) for s in LADDER)
    model = generate.load_plain(folder, "float32")
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    assert TINY.shape.parameters == matrices


@pytest.mark.parametrize("shape", [TINY.shape, replace(TINY.shape, layers=30)], ids=["shallow", "deep"])
def test_the_end_is_never_said(shape: ModelShape, tmp_path: Path) -> None:
    """Its probability is nothing after any other token, so that every response has the length asked for."""
    folder = tmp_path / "model"
    make_model(shape, folder, TINY.longest)
    tokenizer = tokenizer_of(folder)
    ids = torch.tensor([Chat(tokenizer).prompt((), to_messages(Pages(40, 1).reset(seed=3)[0], Pages.instructions))])
    with torch.no_grad():
        probabilities = generate.load_plain(folder, "float32")(ids).logits[0].softmax(dim=-1)
    probabilities = probabilities[ids[0] != tokenizer.eos_token_id]
    assert float(probabilities[:, tokenizer.eos_token_id].max()) < 1e-9
    assert float(probabilities.max()) < 0.1  # and everything else is open


@pytest.mark.parametrize("work", [TINY, replace(TINY, past_turns=1), replace(TINY, past_turns=0), TINY.sampled()])
def test_prompts_grow_by_the_tokens_asked_for(folder: Path, work: Workload) -> None:
    recorder = Recorder(sit_down(work, folder).engine)
    play(work, recorder, tokenizer_of(folder))
    waves = [{len(prompt.ids) for prompt in prompts} for prompts, _ in recorder.waves]
    assert [len(lengths) for lengths in waves] == [1] * TINY.turns
    grown_by = [max(after) - max(before) for before, after in itertools.pairwise(waves)]
    seen = TINY.turns if work.past_turns is None else work.past_turns
    turn = work.prompt_tokens + work.response_tokens
    assert grown_by == [turn if past < seen else 0 for past in range(TINY.turns - 1)]
    assert max(map(max, waves)) + work.response_tokens <= work.longest


def test_a_workload_survives_the_way_to_a_participant() -> None:
    work = replace(TINY, past_turns=1)
    assert Workload.of_json(json.loads(json.dumps(work.as_json()))) == work


# -- the floor ---------------------------------------------------------------------------------------------------------


def _said(*ids: int) -> Response:
    return Response(ids, (0.0,) * len(ids), False)


def test_the_floor_of_a_hand_made_tree() -> None:
    """Two prompts that share 1 2; of 1 2 3's responses, 7 8 goes on in a later prompt and 7 9 does not.

    Prefixes in prompts: 1, 12, 123, 124, 1237, 12378, 123785: 7, which see 1+2+3+3+4+5+6 = 24 tokens. In responses
    alone: 1246 (of 6 6; its last token leads nowhere), 1237 being a prompt's already, and 1237855 (of 5 5): 2, seeing
    4 + 7 = 11. Sampled after: 123, 124, 1237, 1246, 123785, 1237855: 6. Asked: 3 responses to prompts of 3 and one to
    one of 6, each with one token that something was sampled after: 3 * 4 + 7 = 19.
    """
    first = (
        [Prompt((1, 2, 3), (0, 1), 2), Prompt((1, 2, 4), (2,), 2)],
        [[_said(7, 8), _said(7, 9)], [_said(6, 6)]],
    )
    second = ([Prompt((1, 2, 3, 7, 8, 5), (3,), 2)], [[_said(5, 5)]])
    assert grown([first, second]) == Trie(7, 2, 24, 11, 6, 19)


def test_the_floor_is_the_set_of_prefixes() -> None:
    """Against sets of tuples, on random trees."""
    for seed in range(20):
        draw = Key(seed).generator()
        prompts = [
            Prompt(tuple(draw.integers(2, size=draw.integers(1, 7)).tolist()), tuple(range(draw.integers(1, 4))), 4)
            for _ in range(6)
        ]
        families = [[_said(*draw.integers(2, size=draw.integers(1, 5)).tolist()) for _ in p.seeds] for p in prompts]
        in_prompts = {p.ids[:end] for p in prompts for end in range(1, len(p.ids) + 1)}
        sampled = {
            p.ids + r.ids[:end] for p, family in zip(prompts, families, strict=True) for r in family
            for end in range(len(r.ids))
        }  # fmt: skip
        trie = grown([(prompts, families)])
        assert trie.in_prompts == len(in_prompts)
        assert trie.in_responses == len(sampled - in_prompts)
        assert trie.sampled == len(sampled)
        assert trie.keys == sum(map(len, in_prompts | sampled))


def test_seconds_of_the_floor_by_hand() -> None:
    """Two layers of width 4 (two heads, of keys one): products of 4 * (2 * 4 + 2 * 2 + 3 * 8) = 144 weights each, of
    which 2 * 4 * 2 = 16 are keys' and values'.

    10 tokens in prompts seeing 55 keys, 3 in responses seeing 33, 4 sampled after, 10 words: prompts
    10 * 2 * (144 + 16) + 88 * 4 * 4 = 4608 at 1000 a second, responses 3 * 2 * (144 + 16) + 4 * 2 * (128 + 40) = 2304
    at 100.
    """
    shape = ModelShape(hidden=4, layers=2, heads=2, key_heads=1, intermediate=8, vocabulary=10)
    trie = Trie(in_prompts=10, in_responses=3, keys_in_prompts=55, keys_in_responses=33, sampled=4)
    assert floor.floor_seconds(trie, shape, floor.Rates(1000, 100)) == pytest.approx(4.608 + 23.04)


def test_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "_SECONDS", 0.02)
    rates = floor.measured(TINY)
    assert rates.prefill > 1e7
    assert rates.decode > 1e7


# -- who takes part ----------------------------------------------------------------------------------------------------


def test_ours_computes_the_floor_and_generate_everything(folder: Path) -> None:
    tokenizer = tokenizer_of(folder)
    ours = play(TINY, sit_down(TINY, folder).engine, tokenizer)
    assert ours.costs.tokens_computed == ours.floor.tokens
    engine = generate.GenerateEngine(generate.load_plain(folder, "float32"), 0, rows=8)
    theirs = play(TINY, engine, tokenizer)
    assert theirs.costs.tokens_computed == theirs.floor.asked
    assert theirs.costs.tokens_padding == 0
    assert theirs.costs.tokens_generated == ours.costs.tokens_generated == 4 * 4 * (1 + 2 + 2) * 4


def test_renewed_weights_leave_nothing_to_use_again(folder: Path) -> None:
    seat = sit_down(TINY, folder)
    tokenizer = tokenizer_of(folder)
    computed = []
    for _ in range(2):
        seat.renew()
        computed.append(play(TINY, seat.engine, tokenizer, 5).costs.tokens_computed)
    assert computed[0] == computed[1] > 0
    assert play(TINY, seat.engine, tokenizer, 5).costs.tokens_computed < computed[0]


def test_generate_answers_ragged_prompts_in_their_order(folder: Path) -> None:
    """Greedy, so that answers can be compared with those of one prompt after the other."""
    model = generate.load_plain(folder, "float32")
    many, one = generate.GenerateEngine(model, 0, rows=6), generate.GenerateEngine(model, 0, rows=1)
    prompts = [Prompt(tuple(range(3, 6 + i)), (0, 1)[: 1 + i % 2], 3 + i % 2) for i in range(7)]
    said = many.generate(prompts, 1e-4)
    assert [[r.ids for r in family] for family in said] == [
        [r.ids for r in family] for prompt in prompts for family in one.generate([prompt], 1e-4)
    ]
    assert many.take_costs().tokens_padding > 0


@pytest.mark.slow
def test_continuous_batching_says_what_generate_does_and_counts_it(folder: Path) -> None:
    model = generate.load_plain(folder, "float32")
    prompts = [Prompt((3,) * length, (0,) * copies, 3) for length, copies in ((5, 1), (9, 2), (4, 2), (7, 1))]
    engine = continuous.ContinuousEngine(model, 0, pages=64)
    said = [[r.ids for r in family] for family in engine.generate(prompts, 1e-4)]
    engine.renew()
    plain = generate.GenerateEngine(generate.load_plain(folder, "float32"), 0, rows=6).generate(prompts, 1e-4)
    assert said == [[r.ids for r in family] for family in plain]
    costs = engine.take_costs()
    assert (costs.tokens_prefilled, costs.prompt_tokens) == (5 + 9 + 4 + 7, 5 + 2 * 9 + 2 * 4 + 7)
    assert (costs.tokens_generated, costs.tokens_computed) == (6 * 3, 25 + 6 * 2)


def test_generate_takes_the_fastest_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "BATCHES", (2, 8, 4096))
    engine = generate.GenerateEngine(generate.load_plain(folder, "float32"), 0)
    tried = generate.tuned(engine, TINY)
    assert set(tried) == {2, 8}  # no more than a wave has
    assert engine.rows == min(tried, key=lambda rows: tried[rows])


def test_a_line_asks_and_answers(folder: Path) -> None:
    answers = io.StringIO()
    roll_out(Line(io.StringIO("0\n1\n"), answers), TINY, folder, sit_down)
    ready, *laps = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert "rows side by side" in ready["settings"]
    assert [lap["trajectories"] for lap in laps] == [4, 4]
    for lap in laps:
        assert lap["costs"]["tokens_computed"] >= lap["floor"]["in_prompts"] + lap["floor"]["in_responses"] > 0


# -- what is made of it ------------------------------------------------------------------------------------------------


def record(name: str, work: Workload, *seconds: float) -> Record:
    return Record(name, work, "", tuple({"seconds": s} for s in seconds))


def test_ratios() -> None:
    mine, theirs = record("ours", TINY, 2.0, 1.0, 9.0), record("generate", TINY, 12.0, 8.0, 7.0)
    [ratio] = comparisons._faster(mine, [theirs])
    assert (ratio.value, ratio.bound, ratio.holds) == (4.0, 5.0, False)
    assert Ratio("at most", 1.2, 1.3, at_least=False).holds
    assert Ratio("nothing asked", 1.2).holds is None


def test_the_full_plan_has_every_claim() -> None:
    plan = comparisons.full(TINY, Invited("vllm/python", "trl/python", "agile/python", "llama/python"))
    found = {(c.kind.__name__, c.work.dtype, c.work.candidates, tuple(r.name for r in c.rivals)) for c in plan}
    assert found == {
        ("searched", "float32", 4, ("generate", "llama.cpp", "vllm")),
        ("sampled", "float32", 1, ("generate", "llama.cpp", "vllm")),
        ("searched", "bfloat16", 4, ("llama.cpp", "vllm")),
        ("sampled", "bfloat16", 1, ("llama.cpp", "vllm")),
        ("whole", "float32", 4, ("trl",)),
        ("whole", "float32", 1, ("trl",)),
        ("adapted", "float32", 4, ("agilerl",)),
        ("adapted", "float32", 1, ("agilerl",)),
    }
    alone = comparisons.full(TINY, Invited())
    assert {r.name for c in alone for r in c.rivals} == {"generate"}


def test_profiled_operators_have_kinds() -> None:
    assert profiling.kind_of("aten::addmm") == "linear layers"
    assert profiling.kind_of("aten::_scaled_dot_product_flash_attention_for_cpu") == "attention"
    assert profiling.kind_of("aten::index_select") == "gathering and copying"
    assert profiling.kind_of("aten::rsqrt").startswith("other")


@pytest.mark.exhaustive
def test_a_point_of_growth_is_measured_in_a_process_of_its_own() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        point = pool.apply(growth.measure, ("tiny", TINY, 1))
    assert point.tokens_computed == pytest.approx(point.floor_tokens, rel=0.1)
    assert min(point.seconds, point.floor_seconds, point.update_seconds, point.rollout_peak) > 0
    assert growth.table("size", [point]).splitlines()[-1].startswith("| tiny |")


def test_growth_is_drawn_a_panel_for_each_size(tmp_path: Path) -> None:
    points = [
        {"label": label, "seconds": 2.0 * size, "floor_seconds": 1.0 * size, "update_seconds": 3.0 * size}
        for size, label in enumerate(("one", "two", "all"), start=1)
    ]
    sizes = []
    for count in (1, 6):
        draw({f"size {i}": points for i in range(count)}, tmp_path / "growth.png")
        sizes.append(imread(tmp_path / "growth.png").shape)
    assert sizes[1][0] == 2 * sizes[0][0]  # a second row
    assert sizes[1][1] == sizes[0][1]


@pytest.mark.usefixtures("empty_folder")
def test_a_long_run_is_seen_epoch_by_epoch() -> None:
    config = ("--config", "warm_start/frozen_lake.yaml", "--model.policy.model", commands.TINY, *commands.QUICK)
    footprint = f'[{{"class_path": "{long_run.__name__}.Footprint", "init_args": {{"file": "epochs.csv"}}}}]'
    commands.tsr("fit", *config, "--data.evaluations", "[]", "--trainer.callbacks", footprint)
    epochs = long_run.read(Path("epochs.csv"))
    assert len(epochs) == 2
    for epoch in epochs:
        assert epoch.peak_mib >= epoch.end_mib > 100  # PyTorch alone takes that
        assert epoch.seconds > 0
        assert epoch.cpu_seconds > 0
    long_run.draw({"one": epochs, "another": epochs}, Path("run.png"))
    assert imread("run.png").std() > 0


def test_a_long_run_is_compared_with_its_first_epochs() -> None:
    peaks = [500.0, 900.0, 1000.0, 800.0, 900.0, 1250.0, 1100.0]
    epochs = [long_run.Epoch(peak, peak - 100, 3.0, 2.0) for peak in peaks]
    assert long_run.line("some", epochs) == "| some | 7 | 500 | 1,000 | 1,250 | 1.25 | 3.00 | 2.00 |\n"


def test_environments_that_wait_are_waited_for_less_where_they_step_beside_generation() -> None:
    """By figures that no clock can spoil: as many steps, and all of their waiting found only where nothing hides it."""
    in_turn, beside = compare(replace(TINY, wait=0.01), (0, 4), laps=1)
    assert in_turn.env_steps == beside.env_steps > 0
    assert in_turn.seconds_environment >= 0.01 * in_turn.env_steps
    assert beside.seconds_environment < in_turn.seconds_environment


def test_epochs_are_compared_under_two_settings() -> None:
    work = replace(TINY.sampled(), wait=0.02)
    before, beside = epochs.compare(work, epochs.STALENESS, laps=2, epochs=1)
    assert [len(one.seconds) for one in (before, beside)] == [2, 2]
    for one in (before, beside):
        for whole, *parts in zip(one.seconds, one.waiting, one.updates, strict=True):
            assert sum(parts) == pytest.approx(whole)
    steps = work.trajectories * work.turns
    assert min(before.waiting) >= steps * work.wait
    assert "| rollout beside the updates | 4 | 20 | 0 |" in beside.line(before)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_base_weights_of_two_types_are_compared() -> None:
    work = replace(TINY.sampled(), past_turns=0)
    wide, narrow = epochs.compare(work, epochs.BITS, laps=1, epochs=1)
    assert 0 <= wide.kl[0] < 1e-9
    assert 0 <= narrow.kl[0] < 1e-2
    assert min(wide.tokens_per_second + narrow.tokens_per_second) > 0
    assert narrow.updates_cpu[0] > 0


def test_kernels_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, make = [], epochs.agent_of

    def recorded(work: Workload, *rest: Any) -> Agent:
        asked.append((work.dtype, work.kernels))
        return make(work, *rest)

    monkeypatch.setattr(epochs, "agent_of", recorded)
    for settings in epochs.KERNELS:
        before, after = epochs.compare(replace(TINY.sampled(), past_turns=0), settings, laps=1, epochs=1)
        assert len(before.seconds) == len(after.seconds) == 1
    assert asked == [("float32", "torch"), ("float32", "native"), ("bfloat16", "torch"), ("bfloat16", "native")]


@pytest.mark.exhaustive
def test_participants_take_turns_in_processes_of_their_own(tmp_path: Path) -> None:
    rules = Rules(laps=2, threads=1, log=tmp_path)
    results = Comparison(comparisons.searched, TINY, (Participant("generate", TINY, sys.executable),)).run(rules)
    names = [(one.record.name, one.record.work.candidates) for one in results.rollouts]
    assert names == [("ours", 4), ("ours", 1), ("generate", 4)]
    assert {len(one.record.laps) for one in results.rollouts} == {2}
    ours, sample, theirs = results.rollouts
    assert ours.record.median_of("costs", "tokens_computed") <= ours.floor.tokens * 1.1
    assert theirs.record.median_of("costs", "tokens_computed") > 2 * theirs.floor.tokens
    assert sample.floor.tokens < ours.floor.tokens
    assert len(results.ratios) == 2
    assert rollout_table(results.rollouts).count("\n") == 5
    assert isinstance(ours, Measured)


@pytest.mark.exhaustive  # the benchmark of GPUs measures one in every suite
@pytest.mark.parametrize("kind", ["whole", "adapted"])
def test_a_whole_iteration_is_measured_in_its_phases(kind: str, tmp_path: Path) -> None:
    results = Comparison(comparisons.KINDS[kind], TINY.sampled(), ()).run(Rules(laps=2, threads=1, log=tmp_path))
    [ours] = results.iterations
    for lap in ours.laps:
        assert lap["seconds"] == pytest.approx(lap["seconds_rollout"] + lap["seconds_update"])
        assert lap["seconds_update"] > 0
        assert lap["costs"]["tokens_generated"] == 4 * 3 * 4
    assert [lap["optimizer_steps"] for lap in ours.laps] == [4, 6]  # two of the epoch that is not counted


@pytest.mark.slow
def test_a_participant_that_dies_is_named(tmp_path: Path, folder: Path) -> None:
    dying = Participant("ours", TINY, "/bin/false")
    with pytest.raises(RuntimeError, match="'ours' ended without an answer"):
        alternate([dying], tmp_path / "no model", laps=1, threads=1, log=tmp_path)


@pytest.mark.slow
def test_two_ranks_shares_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--model.policy.model", commands.TINY, "--data.instances", "2", "--data.held_out.instances", "2")
    with commands.in_folder(tmp_path):  # null, as configurations of pretrained models have it
        ranks.main(("--config", "sokoban.yaml", *small, "--data.updates.micro_batch_tokens", "null"))
    lines = capsys.readouterr().out.splitlines()
    for start in ("rollout, rank 1: ", "estimates, every n-th, rank 1: ", "estimates, by tokens, rank 1: "):
        assert sum(line.startswith(start) for line in lines) == 1, lines
    assert sum(line.startswith("gathering estimates, ") for line in lines) == 4, lines


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which cores a process may use")
def test_rivals_are_bound_to_cores_that_the_benchmark_may_use() -> None:
    """Under `taskset -c 1` a rival on core 0 would compete with what runs there, and ours would not."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed)})
        assert alternating._environment(threads=1)["VLLM_CPU_OMP_THREADS_BIND"] == str(max(allowed))
    finally:
        os.sched_setaffinity(0, allowed)
