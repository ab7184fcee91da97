"""The tables of docs/results.md: made from the files of the studies, and up to date."""

import json
from statistics import fmean

import pytest

from benchmarks.results.figures import points, points_with_interval, rate, rates, thousands
from benchmarks.results.markdown import table
from benchmarks.results.page import PAGE, tables, with_tables
from benchmarks.results.pairs import TASKS
from benchmarks.results.recipes import ENDS
from benchmarks.results.verdict import verdict_cell
from tsr_lightning.statistics import Estimate

RESULTS = PAGE.with_suffix("")


@pytest.fixture(scope="module")
def made():
    return tables(RESULTS)


def test_the_tables_of_the_page_are_those_of_the_result_files(made):
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text, made) == text, "make them anew with python -m benchmarks.results"


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_the_successes_in_the_result_files(made, name):
    study, blocks = ENDS[name]
    recipes = [(recipe, block.environment) for block in blocks for recipe in block.recipes]
    files = {one.arm: sorted((RESULTS / study / "results" / one.arm).glob("seed*.json")) for one, _ in recipes}
    rows = iter(made[name].splitlines()[2:])
    for recipe, environment in (one for one in recipes if files[one[0].arm]):
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in files[recipe.arm]]
        sampled = fmean(end_on(environment, run, "sampled") / 2 for run in runs)  # of two episodes an instance
        greedy = fmean(end_on(environment, run, "greedy") for run in runs)
        row = next(rows).replace("**", "")
        assert f"| {recipe.name} | {len(runs)} | {rate(sampled)}" in row
        assert f"| {rate(greedy)} |" in row
    assert list(rows) == []


def end_on(environment, run, protocol):
    """Mean successes of an instance at the end, of all or of those of one environment of a mixture."""
    successes = run["evaluations"][-1]["successes"][protocol]
    if not environment:
        return fmean(successes)
    names = {place: run["settings"][f"data.env.{place}.name"] for place in (0, 1)}
    played = zip(run["instances"], successes, strict=True)
    return fmean(count for (env, _), count in played if names[env] == environment)


def test_every_pair_of_the_verdict_is_also_in_its_studys_report():
    for task in TASKS:
        report = (RESULTS / task.study / "report" / "report.md").read_text(encoding="utf-8")
        for pair in task.pairs:
            assert f"| {pair.arm} − {pair.other} | sampled |" in report


@pytest.mark.parametrize("study", sorted(path.parent.name for path in RESULTS.glob("*/report")))
def test_a_studys_report_is_of_all_its_results(study):
    finished = len(list((RESULTS / study / "results").glob("*/seed*.json")))
    report = (RESULTS / study / "report" / "report.md").read_text(encoding="utf-8")
    assert report.startswith(f"{study}: {finished} of "), f"make it anew with tsr report docs/results/{study}"


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
    with pytest.raises(ValueError, match="the page has places for , and not for verdict"):
        with_tables("no place", {"verdict": "| a |"})
