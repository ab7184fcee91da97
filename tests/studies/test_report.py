"""The report of a study of known figures, against figures computed by hand, and its files."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

from tsr_lightning.cli import report as report_command
from tsr_lightning.cli.command import main
from tsr_lightning.errors import ConfigError
from tsr_lightning.statistics import Estimate, mean_difference
from tsr_lightning.studies.folder import StudyFolder, write_json
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.report.comparisons import (
    End,
    all_sets,
    at_budgets,
    by_environment,
    ends,
    instance_sets,
    pairs,
    reached,
)
from tsr_lightning.studies.report.curves import Curve, matrix
from tsr_lightning.studies.report.load import curve, load_study, with_start
from tsr_lightning.studies.report.pictures import at_common_evaluations, draw
from tsr_lightning.studies.report.verdict import verdict
from tsr_lightning.studies.result import result_contents

INSTANCES = [[0, 11], [0, 22]]


def evaluation(epochs: int, tokens: int, seconds: float, *successes: int) -> dict[str, Any]:
    """Of two instances with two episodes each; a second of evaluation so far."""
    costs = {"epochs": epochs, "updates": 2 * epochs, "seconds": seconds + 1.0, "evaluation_seconds": 1.0}
    figures = {"success_rate": sum(successes) / 4, "pass@2": sum(map(bool, successes)) / 2, "seconds": 0.5}
    return {
        "costs": {**costs, "tokens_generated": tokens, "env_steps": 3 * tokens},
        "figures": {"sampled": figures},
        "successes": {"sampled": list(successes)},
    }


def history(*evaluations: dict[str, Any], instances: list[list[int]] = INSTANCES) -> dict[str, Any]:
    protocols = {"sampled": {"settings": {"temperature": 1.0}, "episodes": [2, 2]}}
    return {"instances": instances, "protocols": protocols, "evaluations": list(evaluations)}


# Success: plain 0 -> 0.5 and 0 -> 0.75 after 100 tokens; beam 0 -> 0.75 -> 1 and 0 -> 0.5 -> 0.75 after 200 and 400.
HISTORIES = {
    Run("plain", 1): history(evaluation(0, 0, 0, 0, 0), evaluation(10, 100, 20, 2, 0)),
    Run("plain", 2): history(evaluation(0, 0, 0, 0, 0), evaluation(10, 100, 30, 2, 1)),
    Run("beam", 1): history(evaluation(0, 0, 0, 0, 0), evaluation(5, 200, 10, 2, 1), evaluation(10, 400, 20, 2, 2)),
    Run("beam", 2): history(evaluation(0, 0, 0, 0, 0), evaluation(5, 200, 10, 2, 0), evaluation(10, 400, 20, 1, 2)),
}


def write_study(
    root: Path,
    histories: dict[Run, dict[str, Any]] = HISTORIES,
    environment: Mapping[str, Any] = MappingProxyType({"data.env": "tsr/Sokoban-v0"}),
    **changes: Any,
) -> Path:
    folder = StudyFolder(root)
    arms: dict[str, Any] = {name: {"seeds": [1, 2], "points": {}} for name in ("plain", "beam")}
    grid = {"name": "known", "arms": arms, "baselines": dict.fromkeys(arms, "plain"), "thresholds": {}}
    write_json(folder.grid, {**grid, **changes})
    for run, one in histories.items():
        settings = {"model.policy.model": "embedded/sokoban", "data.instances": len(run.arm), **environment}
        write_json(folder.result(run), result_contents(run, settings, one, jobs=2, threads=1))
    return root


def test_ends_by_hand(tmp_path: Path):
    study = load_study(write_study(tmp_path))
    [group] = instance_sets(study)
    plain, beam = ends(study, group)
    assert (plain.seeds, plain.start, plain.end.value) == (2, 0.0, 0.625)  # (0.5 + 0.75) / 2
    assert plain.spread == pytest.approx(0.25 / 2**0.5)
    assert (plain.baseline, plain.against) == (None, None)
    assert plain.gain == mean_difference(np.array([[1, 0], [1, 0.5]]))
    assert beam.end.value == 0.875
    # seed 1: (1, 1) − (1, 0); seed 2: (0.5, 1) − (1, 0.5)
    assert beam.against == mean_difference(np.array([[0, 1], [-0.5, 0.5]]))
    assert beam.against.value == 0.25


def ended(arm: str, against: Estimate | None, seeds: int = 2) -> End:
    end = Estimate(0.5, 0.4, 0.6)
    return End("known", arm, "sampled", "", seeds, seeds, None, end, None, None, "plain", against)


def test_the_headline_names_what_holds_beside_all_other_comparisons(tmp_path: Path):
    """0.04 is below 0.05, and above 0.05 · 2/3, as the second of three; one seed is no comparison."""
    sure, likely, none = Estimate(0.2, 0.1, 0.3, 0.001), Estimate(0.1, 0.01, 0.2, 0.04), Estimate(0.0, -0.1, 0.1, 0.9)
    alone = Estimate(0.4, 0.3, 0.5, 1e-9)
    rows = [ended("a", sure), ended("b", likely), ended("c", none), ended("d", alone, seeds=1), ended("plain", None)]
    lines = list(verdict(load_study(write_study(tmp_path)), rows))
    assert lines[-2] == (
        "After all epochs, of 3 comparisons taken together (Holm, 5%), ahead of the baseline: a, sampled "
        "by +0.200; behind it: none."
    )
    assert lines[-1] == "One seed says nothing of seeds like it, so no verdict is given on d, sampled."
    many = [ended(f"d{i}", alone, seeds=1) for i in range(50)]
    assert list(verdict(load_study(write_study(tmp_path)), many))[-1].endswith("; d7, sampled and 42 more.")


def test_one_seed_that_both_have_gets_no_verdict(tmp_path: Path):
    """As long as a study is not finished; an interval over instances alone says nothing of other seeds."""
    histories = {run: one for run, one in HISTORIES.items() if run != Run("plain", 2)}
    study = load_study(write_study(tmp_path, histories))
    [group] = instance_sets(study)
    rows = list(ends(study, group))
    assert [(row.seeds, row.shared_seeds) for row in rows] == [(1, 0), (2, 1)]
    assert list(verdict(study, rows))[-1].endswith("no verdict is given on beam, sampled.")
    assert "| beam | sampled | 2, of which its baseline has 1 |" in markdown_of(tmp_path)


def with_settings(root: Path, arm: str, **changes: Any) -> Path:
    """Changes the settings of an arm's runs."""
    for path in StudyFolder(root).result(Run(arm, 1)).parent.iterdir():
        result = json.loads(path.read_text())
        write_json(path, {**result, "settings": result["settings"] | changes})
    return root


ELEVEN_TURNS = {"data.env_kwargs.max_turns": 11}


def test_equal_seeds_of_instances_are_other_levels_in_another_task(tmp_path: Path):
    root = with_settings(write_study(tmp_path, pairs=[["beam", "plain"]]), "beam", **ELEVEN_TURNS)
    study = load_study(root)
    groups = all_sets(study)
    assert [list(group.curves) for group in groups] == [["plain"], ["beam"]]
    assert [row.against for group in groups for row in ends(study, group)] == [None, None]
    assert list(pairs(study, groups)) == []
    assert (
        "Not compared, since the other arm plays another task (data.env_kwargs.max_turns): beam. Where that leaves the "
        "task the same, name the argument in the grid's same_task."
    ) in verdict(study, [])


def test_a_grid_may_say_that_the_task_is_the_same(tmp_path: Path):
    root = write_study(tmp_path, same_task=["max_turns"])
    whole = [row.against for row in ends(load_study(root), instance_sets(load_study(root))[0])]
    study = load_study(with_settings(root, "beam", **ELEVEN_TURNS))
    [group] = instance_sets(study)
    assert [row.against for row in ends(study, group)] == whole


@pytest.mark.parametrize(
    "changes", [{"data.env.0.weight": 0.5}, {"data.env.1.first_epoch": 20}, {"data.env_kwargs": {}}]
)
def test_what_rollouts_draw_leaves_the_task_the_same(changes: dict[str, Any], tmp_path: Path):
    root = with_settings(write_study(tmp_path, PLAYED, MIXTURE), "beam", **changes)
    [group] = instance_sets(load_study(root))
    assert list(group.curves) == ["plain", "beam"]


def test_sets_of_one_label_have_numbers(tmp_path: Path):
    """Else one would have the picture of the other."""
    points = {name: {"seeds": [1, 2], "points": {"level": "l1", "search": name}} for name in ("plain", "beam")}
    points["plain"]["points"]["search"] = "beam"
    root = with_settings(write_study(tmp_path, arms=points), "beam", **ELEVEN_TURNS)
    labels = [group.label for group in instance_sets(load_study(root))]
    assert labels == ["instances 1", "instances 2"]


def test_a_result_that_ended_early_is_missing(tmp_path: Path):
    limits = {"trainer.max_epochs": 60, "trainer.check_val_every_n_epoch": 10}
    root = with_settings(write_study(tmp_path), "beam", **limits)
    study = load_study(root)
    assert [arm.arm for arm in study.arms] == ["plain"]
    assert study.missing == (Run("beam", 1), Run("beam", 2))


@pytest.mark.parametrize("changed", [{"threads": 2}, {"jobs": 1}, {"versions": {"torch": "1.0"}}])
def test_seconds_of_different_conditions_are_not_compared(changed: dict[str, Any], tmp_path: Path):
    root = write_study(tmp_path, pairs=[["beam", "plain"]])
    budgets = {"tokens_generated", "env_steps", "train_seconds"}

    def compared() -> tuple[set[str], set[str]]:
        study = load_study(root)
        [group] = instance_sets(study)
        [pair] = pairs(study, [group])
        rows = at_budgets(study, group)
        return set(pair.equal), {row.budget for row in rows if row.against is not None} - {"epochs"}

    assert compared() == (budgets, budgets)
    path = StudyFolder(root).result(Run("beam", 2))
    write_json(path, json.loads(path.read_text()) | changed)
    assert compared() == (budgets - {"train_seconds"},) * 2


MIXTURE = {"data.env.0.env": "tsr/Sokoban-v0", "data.env.0.name": "easy", "data.env.1.env": "tsr/Sokoban-v0"}
PLAYED = {run: {**one, "instances": [[0, 11], [1, 11]]} for run, one in HISTORIES.items()}


class TestMixtures:
    def test_each_environment_has_its_own_ends(self, tmp_path: Path):
        study = load_study(write_study(tmp_path, PLAYED, MIXTURE))
        [group] = instance_sets(study)
        easy, other = by_environment(group)
        (plain, beam), (_, other_beam) = ends(study, easy), ends(study, other)
        assert [row.environment for row in (plain, other_beam)] == ["easy", "tsr/Sokoban-v0"]  # the id without a name
        assert (plain.start, plain.end.value, beam.end.value) == (0.0, 1.0, 0.75)  # 2 of 2 and 2 of 2; 2 and 1 of 2
        assert beam.against == mean_difference(np.array([[0], [-0.5]]))
        assert other_beam.against == mean_difference(np.array([[1], [0.5]]))

    def test_the_page_and_the_table_have_them(self, tmp_path: Path):
        text = markdown_of(write_study(tmp_path / "known", PLAYED, MIXTURE, pairs=[["beam", "plain"]]))
        assert text.index("## known, sampled") < text.index("## known, on easy, sampled")
        assert "![known-on-easy-sampled.png](known-on-easy-sampled.png)" in text
        assert text.index("**The first minus the second**") < text.index("**The first minus the second, on easy**")
        report = tmp_path / "known" / "report"
        assert (report / "known-on-easy-sampled.png").is_file()
        table = pd.read_csv(report / "ends.csv").set_index(["arm", "environment"])
        assert table.loc[("beam", "easy"), "end"] == 0.75

    def test_each_environment_has_its_own_pairs_and_budgets(self, tmp_path: Path):
        study = load_study(write_study(tmp_path, PLAYED, MIXTURE, pairs=[["beam", "plain"]]))
        [group] = instance_sets(study)
        easy, _ = by_environment(group)
        [pair] = pairs(study, [easy])
        assert pair.environment == "easy"
        # half way to the evaluation after 200 tokens: 1 / 2 and 1 / 2, minus 1 and 1
        assert pair.equal["tokens_generated"] == mean_difference(np.array([[-0.5], [-0.5]]))
        [tokens] = [row for row in at_budgets(study, easy) if (row.arm, row.budget) == ("beam", "tokens_generated")]
        assert (tokens.environment, tokens.common, tokens.success) == ("easy", 100, 0.5)

    def test_entries_of_one_name_are_one(self, tmp_path: Path):
        study = load_study(write_study(tmp_path, PLAYED, {**MIXTURE, "data.env.1.name": "easy"}))
        [whole, easy] = all_sets(study)
        assert easy.environment == "easy"
        assert [row.end for row in ends(study, easy)] == [row.end for row in ends(study, whole)]

    def test_the_first_lines_count_an_arm_once(self, tmp_path: Path):
        text = markdown_of(write_study(tmp_path, PLAYED, MIXTURE))
        assert "0 of 2 arms and protocols end below their start" in text

    def test_one_environment_is_none(self, tmp_path: Path):
        [group] = instance_sets(load_study(write_study(tmp_path)))
        assert list(by_environment(group)) == []


def test_equal_budgets_by_hand(tmp_path: Path):
    study = load_study(write_study(tmp_path))
    [group] = instance_sets(study)
    rows = {(row.arm, row.budget): row for row in at_budgets(study, group)}
    tokens = rows["beam", "tokens_generated"]
    assert (tokens.common, tokens.shared) == (100, 100)  # what plain spent
    # half way to the evaluation after 200 tokens: 0.75 / 2 and 0.5 / 2
    assert tokens.success == pytest.approx((0.375 + 0.25) / 2)
    # seed 1: (1, 0.5) / 2 − (1, 0); seed 2: (1, 0) / 2 − (1, 0.5)
    assert tokens.against == pytest.approx(mean_difference(np.array([[-0.5, 0.25], [-0.5, -0.5]])))
    seconds = rows["plain", "train_seconds"]
    assert seconds.common == 20
    assert seconds.success == pytest.approx((0.5 + 0.75 * 2 / 3) / 2)  # the second run took 30


class TestPairs:
    def test_by_hand(self, tmp_path: Path):
        study = load_study(write_study(tmp_path, pairs=[["beam", "plain"], ["plain", "absent"]]))
        [pair] = pairs(study, instance_sets(study))  # one that has no finished run is left out
        assert (pair.arm, pair.other, pair.protocol, pair.seeds) == ("beam", "plain", "sampled", 2)
        assert pair.end == mean_difference(np.array([[0, 1], [-0.5, 0.5]]))  # as in test_ends_by_hand
        assert pair.spent == {"tokens_generated": 100, "env_steps": 300, "train_seconds": 20}
        by_tokens = mean_difference(np.array([[-0.5, 0.25], [-0.5, -0.5]]))  # as in test_equal_budgets_by_hand
        assert pair.equal["tokens_generated"] == pytest.approx(by_tokens)

    def test_the_page_and_the_table_have_them(self, tmp_path: Path):
        text = markdown_of(write_study(tmp_path / "known", pairs=[["beam", "plain"]]))
        assert "| beam − plain | sampled | 2 | +0.250" in text
        table = pd.read_csv(tmp_path / "known" / "report" / "pairs.csv")
        assert table["end"].tolist() == [0.25]
        assert table["tokens_generated"].tolist() == [100]
        assert table["at_equal_tokens_generated"].tolist() == [-0.3125]

    def test_a_study_of_before_has_none(self, tmp_path: Path):
        write_study(tmp_path)
        assert "pairs" not in json.loads((tmp_path / "grid.json").read_text())
        assert load_study(tmp_path).pairs == ()

    def test_a_budget_that_one_does_not_spend_is_left_out(self, tmp_path: Path):
        silent = {
            **HISTORIES,
            Run("plain", 1): history(evaluation(0, 0, 0, 0, 0), evaluation(10, 0, 20, 2, 0)),
            Run("plain", 2): history(evaluation(0, 0, 0, 0, 0), evaluation(10, 0, 30, 2, 1)),
        }
        study = load_study(write_study(tmp_path, silent, pairs=[["beam", "plain"]]))
        [pair] = pairs(study, instance_sets(study))
        assert list(pair.equal) == list(pair.spent) == ["train_seconds"]


def test_time_to_a_threshold_by_hand(tmp_path: Path):
    study = load_study(write_study(tmp_path, thresholds={"sampled": [0.5, 0.6, 0.9]}))
    [group] = instance_sets(study)
    rows = {(row.arm, row.threshold): row for row in reached(study, group)}
    # plain reaches 0.5 after 100 tokens and after 100 · 0.5 / 0.75
    assert rows["plain", 0.5].spent["tokens_generated"] == pytest.approx((100 + 100 / 1.5) / 2)
    assert rows["plain", 0.6].reached == 1
    assert rows["plain", 0.6].spent["epochs"] == float("inf")  # the median of two with an endless one
    # beam's first run reaches 0.6 after 200 · 0.6 / 0.75 tokens, its second 0.4 of the way from 200 to 400
    assert rows["beam", 0.6].spent["tokens_generated"] == pytest.approx((160 + 280) / 2)
    assert rows["beam", 0.9].reached == 1


def test_without_thresholds_the_end_of_the_baseline_is_one(tmp_path: Path):
    study = load_study(write_study(tmp_path))
    [group] = instance_sets(study)
    assert {row.threshold for row in reached(study, group)} == {0.625}


class TestCurves:
    CURVE = Curve(
        1,
        ((0, 1),),
        {"epochs": np.array([0.0, 1.0, 1.0, 3.0])},  # an evaluation that cost nothing more
        np.array([[0.2], [0.4], [0.6], [1.0]]),
        np.full((4, 1), 5.0),
    )

    @pytest.mark.parametrize(("amount", "rate"), [(-1, 0.2), (0, 0.2), (0.5, 0.3), (1, 0.4), (2, 0.8), (3, 1), (9, 1)])
    def test_are_linear_between_evaluations(self, amount: float, rate: float):
        assert self.CURVE.at("epochs", amount) == pytest.approx([rate])

    @pytest.mark.parametrize(("success", "spent"), [(0.1, 0), (0.3, 0.5), (0.5, 1), (0.8, 2), (1.0, 3)])
    def test_reach_a_success_between_evaluations(self, success: float, spent: float):
        assert self.CURVE.spent_until("epochs", success) == pytest.approx(spent)

    def test_reach_a_rate_that_floating_point_misses(self):
        """24 of 96 episodes, as the mean of shares of three."""
        below = replace(self.CURVE, costs={"epochs": np.array([1.0])}, rates=np.array([[np.nextafter(0.25, 0)]]))
        assert below.success[0] < 0.25
        assert below.spent_until("epochs", 0.25) == 1

    def test_are_joined_by_instance_and_not_by_position(self):
        first = Curve(1, ((0, 1), (0, 2), (0, 3)), {}, np.zeros((1, 3)), np.ones((1, 3)))
        second = Curve(2, ((0, 3), (0, 1)), {}, np.zeros((1, 2)), np.ones((1, 2)))
        joined = matrix([first, second], [np.array([1.0, 2.0, 3.0]), np.array([30.0, 10.0])])
        assert joined.tolist() == [[1, 3], [10, 30]]

    def test_are_drawn_at_the_epochs_that_all_seeds_have(self):
        short = Curve(2, ((0, 1),), {"epochs": np.array([0.0, 3.0])}, np.array([[0.0], [0.5]]), np.full((2, 1), 2.0))
        spent, success = at_common_evaluations([self.CURVE, short], "epochs")
        assert spent.tolist() == [0, 3]
        assert success.tolist() == [[0.2, 1], [0, 0.5]]


def test_arms_on_different_instances_are_not_compared(tmp_path: Path):
    others = {
        run: {**one, "instances": [[0, 33], [0, 44]]} if run.arm == "beam" else one for run, one in HISTORIES.items()
    }
    points = {
        name: {"seeds": [1, 2], "points": {"levels": level, "search": "x"}}
        for name, level in (("plain", "easy"), ("beam", "hard"))
    }
    study = load_study(write_study(tmp_path, others, arms=points))
    groups = instance_sets(study)
    assert [(group.label, list(group.curves)) for group in groups] == [
        ("levels easy", ["plain"]),
        ("levels hard", ["beam"]),
    ]
    assert [row.against for group in groups for row in ends(study, group)] == [None, None]


def test_a_seed_that_was_evaluated_on_other_instances_is_refused(tmp_path: Path):
    others = {**HISTORIES, Run("beam", 2): {**HISTORIES[Run("beam", 2)], "instances": [[0, 11], [0, 44]]}}
    with pytest.raises(ConfigError, match=r"beam: seeds 2 were evaluated on other instances than seed 1, .*held_out"):
        load_study(write_study(tmp_path, others))


def test_instances_of_a_seed_may_stand_in_another_order(tmp_path: Path):
    """An instance that failed in the first evaluation is listed last."""
    reversed_ = [evaluation(*each) for each in ((0, 0, 0, 0, 0), (5, 200, 10, 0, 2), (10, 400, 20, 2, 1))]
    others = {**HISTORIES, Run("beam", 2): history(*reversed_, instances=INSTANCES[::-1])}
    study, same = load_study(write_study(tmp_path / "a", others)), load_study(write_study(tmp_path / "b"))
    [group], [own] = instance_sets(study), instance_sets(same)
    assert list(ends(study, group)) == list(ends(same, own))


def test_a_damaged_grid_is_refused(tmp_path: Path):
    (write_study(tmp_path) / "grid.json").write_text('{"name": ')
    with pytest.raises(ConfigError, match=r"grid\.json is damaged .*: run tsr study again"):
        load_study(tmp_path)


def test_an_instance_that_a_protocol_did_not_play_is_left_out(tmp_path: Path):
    one = HISTORIES[Run("plain", 1)]
    part = {**one, "protocols": {"sampled": {"settings": {}, "episodes": [2, 0]}}}
    study = load_study(write_study(tmp_path, {Run("plain", 1): part}))
    [curve] = study.arms[0].curves("sampled")
    assert curve.instances == ((0, 11),)
    assert curve.success.tolist() == [0, 1]


def test_an_arm_that_lost_an_instance_is_compared_on_the_others(tmp_path: Path):
    """The environment failed on all its episodes, in one evaluation of one run."""
    first, *others = HISTORIES[Run("beam", 1)]["evaluations"]
    lost = {**others[-1], "protocols": {"sampled": {"settings": {}, "episodes": [2, 0]}}}
    histories = {**HISTORIES, Run("beam", 1): history(first, *others[:-1], lost)}
    study = load_study(write_study(tmp_path, histories))
    [group] = instance_sets(study)
    _, beam = ends(study, group)
    assert beam.against == mean_difference(np.array([[0], [-0.5]]))  # on the first instance alone


class TestStarts:
    def test_a_start_that_another_run_measured_is_taken(self, tmp_path: Path):
        late = history(*HISTORIES[Run("plain", 2)]["evaluations"][1:])
        study = load_study(write_study(tmp_path, {**HISTORIES, Run("plain", 2): late}))
        [plain, _] = study.arms
        first, second = (result["evaluations"][0] for result in plain.results.values())
        assert first["successes"] == second["successes"]
        assert second["costs"] == dict.fromkeys(first["costs"], 0)

    def test_keeps_its_own_episodes(self):
        """An environment's failure left one episode of the first instance out, where it was measured, and all of the
        second; its list has them in another order."""
        late = history(evaluation(10, 100, 20, 1, 1))
        lost = {"sampled": {"settings": {}, "episodes": [0, 1]}}
        first = {**history(evaluation(0, 0, 0, 0, 1), instances=[[0, 22], [0, 11]]), "protocols": lost}
        found = curve(1, with_start(late, first), "sampled")
        assert found is not None
        assert found.instances == ((0, 11),)
        assert found.rates.tolist() == [[1.0], [0.5]]

    def test_of_other_instances_is_not(self):
        late = history(evaluation(10, 100, 20, 1, 1))
        other = history(evaluation(0, 0, 0, 1, 1), instances=[[0, 1], [0, 2]])
        assert with_start(late, other) == late
        assert with_start(late, None) == late

    def test_that_nobody_measured_leaves_no_gain(self, tmp_path: Path):
        late = history(*HISTORIES[Run("plain", 2)]["evaluations"][1:])
        study = load_study(write_study(tmp_path, {Run("plain", 2): late}))
        [group] = instance_sets(study)
        [row] = ends(study, group)
        assert (row.start, row.gain) == (None, None)


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The report of an unfinished study."""
    part = {run: one for run, one in HISTORIES.items() if run != Run("beam", 2)}
    with pytest.raises(SystemExit) as ended:
        main(["report", str(write_study(tmp_path / "known", part)), "--output", str(tmp_path / "out")])
    assert ended.value.code == 0
    named = capsys.readouterr().out.split()
    assert sorted(map(Path, named)) == sorted((tmp_path / "out").iterdir())
    return tmp_path / "out"


def markdown_of(folder: Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 0
    return (folder / "report" / "report.md").read_text()


class TestWhatIsSaid:
    def test_of_arms_without_a_start(self, tmp_path: Path):
        own = history(*HISTORIES[Run("plain", 1)]["evaluations"], instances=[[0, 11], [0, 44]])  # no start of beam's
        late = history(*HISTORIES[Run("plain", 2)]["evaluations"][1:], instances=[[0, 11], [0, 44]])
        text = markdown_of(write_study(tmp_path / "part", {**HISTORIES, Run("plain", 1): own, Run("plain", 2): late}))
        assert "No gain is known of plain, sampled: the start was not measured for every seed." in text
        assert "0 of 1 arms and protocols end below their start" in text
        assert "No gain is known" not in markdown_of(write_study(tmp_path / "whole"))

    def test_of_seeds_with_different_settings(self, tmp_path: Path):
        path = StudyFolder(write_study(tmp_path)).result(Run("beam", 2))
        result = json.loads(path.read_text())
        result["settings"] |= {"data.instances": 9, "data.extra": 1}
        write_json(path, result)
        [said] = [line for line in markdown_of(tmp_path).splitlines() if "different settings" in line]
        assert said == (
            "The seeds of beam were run with different settings (data.extra, data.instances), and are reported as one "
            "arm."
        )

    def test_of_one_seed_and_of_one_instance(self, tmp_path: Path):
        """One seed has no spread, and the intervals that its own table prints."""
        alone = Run("plain", 1)
        text = markdown_of(write_study(tmp_path / "seed", {alone: HISTORIES[alone]}))
        assert "| plain | sampled | 1 | 0.000 | 0.500 [0.095, 0.905] | one seed |" in text  # Wilson's of 1 of 2
        protocols = {"sampled": {"settings": {}, "episodes": [2, 0]}}
        text = markdown_of(write_study(tmp_path / "value", {alone: {**HISTORIES[alone], "protocols": protocols}}))
        # Wilson's of 1 of 1; Agresti and Min's of a change by 1: 1/3 ± 1.96 · √(2/3 − 1/9)/√3
        assert "| plain | sampled | 1 | 0.000 | 1.000 [0.207, 1.000] | one seed | +1.000 [-0.510, +1.000] |" in text


def test_an_evaluation_by_more_samples_is_divided_by_its_own_episodes():
    """As of a run that went on with more samples (`callbacks.history`)."""
    first, second = HISTORIES[Run("plain", 2)]["evaluations"]
    changed = {**second, "protocols": {"sampled": {"settings": {}, "episodes": [4, 8]}}}
    found = curve(1, history(first, changed), "sampled")
    assert found is not None
    assert found.rates.tolist() == [[0, 0], [2 / 4, 1 / 8]]


class TestPictures:
    """Of a dozen arms with long names, whose names fit."""

    def drawn(self, root: Path, *evaluations: dict[str, Any]) -> np.ndarray:
        names = [f"{number}-a-search-and-an-objective-with-long-names" for number in range(12)]
        histories = {Run(name, 1): history(*evaluations) for name in names}
        arms = {name: {"seeds": [1], "points": {}} for name in names}
        study = load_study(write_study(root, histories, arms=arms, baselines={}))
        [group] = instance_sets(study)
        return np.asarray(pyplot.imread(BytesIO(draw(group, list(ends(study, group))))))[..., :3]

    def test_nothing_is_cut_off(self, tmp_path: Path):
        start, middle, end = evaluation(0, 0, 0, 0, 0), evaluation(5, 50, 10, 1, 0), evaluation(10, 100, 20, 2, 0)
        for name, evaluations in (("gains", (start, end)), ("curves", (start, middle, end))):
            picture = self.drawn(tmp_path / name, *evaluations)
            assert (picture[:, [0, 1, -2, -1]] == 1).all()
            assert (picture[[0, 1, -2, -1]] == 1).all()

    def test_arms_of_a_start_and_an_end_have_their_gains(self, tmp_path: Path):
        start, end, same = evaluation(0, 0, 0, 1, 0), evaluation(10, 100, 20, 2, 0), evaluation(10, 100, 20, 1, 0)
        gains, curves = self.drawn(tmp_path / "a", start, end), self.drawn(tmp_path / "b", start, end, end)
        assert gains.shape != curves.shape
        assert not np.array_equal(gains, self.drawn(tmp_path / "c", start, same))
        without = self.drawn(tmp_path / "d", evaluation(5, 50, 10, 1, 0), end)  # no start, and so no gain
        assert without.shape == curves.shape


class TestFiles:
    def test_the_table_has_a_row_per_run_protocol_and_epoch(self, written: Path):
        table = pd.read_csv(written / "evaluations.csv")
        pd.testing.assert_frame_equal(table, pd.read_parquet(written / "evaluations.parquet"), check_dtype=False)
        assert len(table) == 2 + 2 + 3
        [last] = table[(table["arm"] == "beam") & (table["epochs"] == 10)].to_dict("records")
        known = {"study": "known", "seed": 1, "protocol": "sampled", "tokens_generated": 400, "env_steps": 1200}
        assert known.items() <= last.items()
        assert (last["train_seconds"], last["success_rate"], last["pass@2"]) == (20, 1, 1)

    def test_the_page_says_what_is_missing_and_needs_no_other_file(self, written: Path):
        page = (written / "report.html").read_text()
        assert "known: 3 of 4 runs are finished; missing: beam seed 2." in page
        assert page.count("data:image/png;base64,") == 1
        assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []

    def test_markdown_has_the_figures_of_the_tables(self, written: Path):
        text = (written / "report.md").read_text()
        assert "| plain | sampled | 2 | 0.000 | 0.625 [" in text
        assert "![known-sampled.png](known-sampled.png)" in text
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            assert len({line.count("|") for line in table.splitlines()}) == 1

    def test_the_comparisons_are_tables_too(self, written: Path):
        table = pd.read_csv(written / "ends.csv").set_index("arm")
        assert table.loc["beam", "against"] == 0.5  # seed 1 alone: 1 − 0.5
        assert {"budgets.csv", "thresholds.csv"} <= {path.name for path in written.iterdir()}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["absent"], "absent has no grid.json: give a folder that tsr study wrote to"),
        (["empty"], "no run of known is finished: run tsr study first"),
        (["known", "--baseline", "best"], "--baseline is 'best': give one of plain, beam"),
        (["known", "--threshold", "smapled=0.5"], "--threshold smapled is [0.5]: no finished run was evaluated by a"),
        (["known", "--threshold", "sampled"], "sampled is no PROTOCOL=RATE"),
        (["known", "known"], "STUDY is 'known': give each study once"),
        ([], "the following arguments are required: STUDY"),
    ],
)
def test_what_cannot_be_reported_is_refused(args: list[str], sentence: str, capsys, empty_folder: Path):
    write_study(empty_folder / "known")
    write_study(empty_folder / "empty", {})
    with pytest.raises(SystemExit) as ended:
        main(["report", *args])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (empty_folder / "known" / "report").exists()


def test_a_broken_result_is_refused(tmp_path: Path):
    write_study(tmp_path)
    path = StudyFolder(tmp_path).result(Run("beam", 1))
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"seed1\.json is no result of this version: delete it"):
        load_study(tmp_path)


def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_command, "_LIBRARIES", ("pandas", "no_such_library"))
    with pytest.raises(ConfigError, match=r"tsr report needs no_such_library: pip install 'tsr-lightning\[study\]'"):
        report_command.report([str(tmp_path)])
