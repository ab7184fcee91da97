"""The tables of docs/results.md and the pages beside it: made from the packed studies, and up to date."""

import re
from dataclasses import replace
from functools import cache
from statistics import fmean

import pandas as pd
import pytest
import yaml

from benchmarks.results.figures import points, points_with_interval, rate, rates, table, thousands
from benchmarks.results.finished import finished
from benchmarks.results.headline import AtEqualTokens, headline_row
from benchmarks.results.page import PAGE, ROOT, load_pages, load_studies, tables, with_tables
from benchmarks.results.pairs import TASKS, PairRow, VerdictTask
from benchmarks.results.recipes import ENDS
from benchmarks.results.reports import INDEX, index_page
from benchmarks.results.verdict import Verdict, verdict_cell, verdict_counts, verdicts
from tsr_lightning.statistics import Estimate
from tsr_lightning.studies.report.build import build_report


@pytest.fixture(scope="module")
def studies():
    return load_studies()


@pytest.fixture(scope="module")
def built(studies):
    return {name: build_report([study]) for name, study in studies.items()}


@pytest.fixture(scope="module")
def made(studies, built):
    return tables(studies, built)


def test_the_tables_of_the_pages_are_those_of_the_packed_studies(made):
    texts = load_pages()
    stale = [path.name for path, text in with_tables(texts, made).items() if text != texts[path]]
    assert stale == [], "make them anew with python -m benchmarks.results"


def test_the_first_page_begins_with_six_rows_one_picture_and_three_sentences(made):
    """The aim is that of each task's study; the last column is the verdict's."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("![") == text.count("<!-- made") == 1
    assert len(made["headline"].splitlines()) == 2 + 6
    after = text.partition("search_wins.png)")[2].partition("**Where the numbers")[0]
    assert len(re.findall(r"[a-z]\.(?=\s)", after)) == 3
    assert re.search(r"\| FrozenLake, slippery \| 29% .* \+14 \[6, 21\] points \| 5 \| no \|", made["headline"])


def test_every_study_has_a_page_with_its_arms(studies):
    for name, study in studies.items():
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        assert f"tsr report docs/results/{name}.yaml" in text
        assert all(f"| {arm.arm} |" in text for arm in study.arms)


def test_one_seed_is_never_called_ahead(studies):
    """Though its difference is large and its p-value over instances small; nor does it lower what the others need."""
    [task] = [task for task in TASKS if task.name == "Sokoban, 8 to 10 moves"]
    study = studies[task.study]
    whole = verdicts({task.study: study}, [task])
    alone = replace(study, arms=[replace(arm, results=dict(list(arm.results.items())[:1])) for arm in study.arms])
    one = verdicts({task.study: alone}, [task])
    assert any(any(each.surely) for each in whole)
    assert not any(any(each.surely) for each in one)
    assert {each.seeds for each in one} == {1}
    assert min(cell[0].p_value for each in one for cell in each.cells if cell) < 1e-6


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_the_successes_in_the_packed_studies(made, name):
    study, blocks = ENDS[name]
    recipes = [(recipe, block.environment) for block in blocks for recipe in block.recipes]
    table = pd.read_csv(ROOT / f"{study}.csv.gz")
    last = table[table["evaluation"] == table.groupby(["arm", "seed"])["evaluation"].transform("max")]
    rows = iter(made[name].splitlines()[2:])
    for recipe, environment in (one for one in recipes if (last["arm"] == one[0].arm).any()):
        own = last[last["arm"] == recipe.arm]
        places = instances_of(study, recipe.arm, environment)
        means = {
            protocol: fmean(fmean(int(text.split()[place]) for place in places) for text in runs["successes"])
            for protocol, runs in own.groupby("protocol")
        }
        row = next(rows).replace("**", "")
        sampled = means["sampled"] / 2  # of two episodes an instance
        assert f"| {recipe.name} | {own['seed'].nunique()} | {rate(sampled)}" in row
        assert f"| {rate(means['greedy'])} |" in row
    assert list(rows) == []


@cache
def head_of(study):
    return yaml.load((ROOT / f"{study}.yaml").read_bytes(), yaml.CSafeLoader)


def instances_of(study, arm, environment):
    """The places of all instances of an arm, or of those of one environment of a mixture."""
    head = head_of(study)
    made = {**head["study"], **head["arms"].get(arm, {})}
    envs = [env for env, seeds in head["instances"][made["instances"]] for _ in seeds]
    names = {place: made.get(f"settings.data.env.{place}.name") for place in (0, 1)}
    return [place for place, env in enumerate(envs) if not environment or names[env] == environment]


def test_the_counts_are_of_cells_on_several_seeds():
    row = PairRow("beam", "raft", "GRPO", "RAFT")
    task = VerdictTask("study", "Sokoban", 0.08, [row])
    ahead, behind, unclear, short = (
        [Estimate(value, value - half, value + half) for _ in range(2)]
        for value, half in ((0.2, 0.1), (-0.2, 0.1), (0.2, 0.3), (0.07, 0.01))
    )
    found = [
        Verdict(task, row, (0.0, 0.0), 5, [ahead, behind, []], [True, True, False]),
        Verdict(task, row, (0.0, 0.0), 3, [ahead, unclear, short], [False, False, True]),
        Verdict(task, row, (0.0, 0.0), 1, [ahead, ahead, ahead], [False, False, False]),
    ]
    assert [int(number) for number in re.findall(r"\d+", verdict_counts(found))] == [5, 3, 1, 2, 1]


def test_every_pair_of_the_verdict_is_also_on_the_page_of_its_study():
    for task in TASKS:
        own = (ROOT / f"{task.study}.md").read_text(encoding="utf-8")
        for pair in task.pairs:
            assert f"| {pair.arm} − {pair.other} | sampled |" in own


def test_the_short_table_has_a_searched_recipe_minus_the_best_plain_one_of_each_task(studies):
    """The best at equal tokens of all plain recipes on those instances."""
    tasks = [task for task in TASKS if task.headline]
    assert len(tasks) == len(TASKS) - 2  # two have their levels with other seconds
    blocks = [(study, block) for study, several in ENDS.values() for block in several]
    for task in tasks:
        [block] = [
            block
            for study, block in blocks
            if study == task.study and task.headline in {recipe.arm for recipe in block.recipes}
        ]
        study = studies[task.study]
        plain = [one.recipe.arm for one in finished(study, block) if one.recipe.kind == "plain"]
        rows = [PairRow(task.headline, arm, "GRPO", arm) for arm in plain]
        best = max(rows, key=lambda row: AtEqualTokens.of(study, task, row, "sampled").rates[0])
        assert headline_row(study, task).other == best.other


def test_the_list_of_the_studies_is_made_from_their_files(built):
    page = (ROOT / INDEX).read_text(encoding="utf-8")
    assert index_page(built) == page, "make it anew with python -m benchmarks.results"


def test_every_picture_is_shown_and_every_one_that_is_shown_is_there():
    shown = [
        name for path, text in load_pages().items() if path != PAGE for name in re.findall(r"\(([^)]*png)\)", text)
    ]
    assert sorted(shown) == sorted(path.name for path in ROOT.glob("*.png"))


@pytest.mark.parametrize(
    ("estimates", "bold"),
    [
        ([(0.08, 0.01, 0.2), (0.09, 0.002, 0.2)], True),
        ([(0.079, 0.01, 0.2), (0.09, 0.002, 0.2)], False),  # rounds to the aim, and is below it
    ],
)
def test_bold_is_what_reaches_the_aim_by_both_protocols_and_holds_beside_the_others(estimates, bold):
    cells = [verdict_cell([Estimate(*one) for one in estimates], 0.08, surely) for surely in (True, False)]
    assert cells[0].startswith("**+8 [1, 20] / +9 [") == bold
    assert cells[1].startswith("+8 [1, 20] / +9 [")


@pytest.mark.parametrize(
    ("value", "written"), [(0.125, "13"), (-0.125, "-13"), (0.004, "0"), (-0.004, "-0"), (0.0, "0"), (0.3, "30")]
)
def test_points_are_rounded_away_from_zero_and_keep_their_sign(value, written):
    assert points(value) == written


def test_figures_as_the_page_writes_them():
    assert points_with_interval(Estimate(0.054, -0.013, 0.122)) == "+5 [-1, 12]"
    assert (rate(0.4984), rate(1.0), rate(0.25, bold=True)) == (".498", "1.000", "**.250**")
    assert (rates([0.5]), rates([0.5, 0.25])) == ("", " (.500 .250)")
    assert (thousands(281_440), thousands(0)) == ("281k", "")


def test_an_empty_cell_stays_a_cell():
    assert table(("a", "b"), [("", "1")]) == "| a | b |\n|---|---|\n| | 1 |"


def test_a_table_without_a_place_is_refused():
    with pytest.raises(ValueError, match="the pages have places for , and not verdict"):
        with_tables({PAGE: "no place"}, {"verdict": "| a |"})
