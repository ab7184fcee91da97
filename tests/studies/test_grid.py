"""A grid is read into arms and runs, or refused with one sentence."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.grid import Arm, Run, flag_value, parse_grid, read_grid
from tsr_lightning.studies.settings import differences, flat_settings

ARMS: dict[str, Any] = {"seeds": [1, 2], "configs": ["sokoban.yaml"], "arms": {"plain": None}}
AXES: dict[str, Any] = {
    "seeds": [3],
    "axes": {
        "objective": ["objective/grpo.yaml", "objective/ppo.yaml"],
        "search": {"sample": {"configs": ["search/sample.yaml"]}, "wide": {"overrides": {"data.instances": 64}}},
    },
}


class TestArms:
    def test_common_settings_lie_below_those_of_an_arm(self):
        given = {
            **ARMS,
            "overrides": {"trainer.max_epochs": 5, "data.instances": 8},
            "arms": {"beam": {"configs": ["search/beam.yaml"], "overrides": {"data.instances": 64}}},
        }
        [arm] = parse_grid(given, "mine").arms
        assert arm.flags() == [
            *("--config=sokoban.yaml", "--config=search/beam.yaml"),
            *("--trainer.max_epochs=5", "--data.instances=64"),
        ]

    def test_axes_give_an_arm_for_every_combination(self):
        arms = parse_grid({**AXES, "arms": {"alone": None}}, "mine").arms
        assert [arm.name for arm in arms] == ["alone", "grpo-sample", "grpo-wide", "ppo-sample", "ppo-wide"]
        assert arms[4] == Arm(
            "ppo-wide",
            ("objective/ppo.yaml",),
            {"data.instances": 64},
            (3,),
            {"objective": "ppo", "search": "wide"},
        )

    def test_an_arm_like_another_has_its_files_and_overrides_under_its_own(self):
        beam = {"configs": ["search/beam.yaml"], "overrides": {"data.instances": 64, "trainer.max_epochs": 2}}
        tree = {"like": "beam", "configs": ["credit/tree.yaml"], "overrides": {"data.instances": 8}, "seeds": [7]}
        arms = parse_grid({**ARMS, "arms": {"beam": beam, "tree": tree}}, "mine").arms
        assert arms[1] == Arm(
            "tree",
            ("sokoban.yaml", "search/beam.yaml", "credit/tree.yaml"),
            {"data.instances": 8, "trainer.max_epochs": 2},
            (7,),
        )

    def test_a_point_like_another(self):
        axes = {"search": {"wide": {"overrides": {"data.instances": 64}}, "long": {"like": "wide"}}}
        wide, long = parse_grid({**AXES, "axes": axes}, "mine").arms
        assert wide.overrides == long.overrides == {"data.instances": 64}

    def test_runs_go_seed_after_seed(self):
        grid = parse_grid({**ARMS, "arms": {"a": None, "b": {"seeds": [2]}, "c": None}}, "mine")
        assert grid.runs() == [Run("a", 1), Run("c", 1), Run("a", 2), Run("b", 2), Run("c", 2)]

    @pytest.mark.parametrize(
        ("value", "text"),
        [(5, "5"), (1e-4, "0.0001"), ("1e-4", "1e-4"), (None, "null"), (True, "true"), ({"a": [1]}, '{"a": [1]}')],
    )
    def test_values_are_written_as_flags(self, value: object, text: str):
        assert flag_value(value) == text
        if not isinstance(value, str):
            assert yaml.safe_load(text) == value

    def test_one_baseline_for_all_or_one_by_points(self):
        assert parse_grid({**ARMS, "baseline": "plain"}, "mine").baselines == {"plain": "plain"}
        assert parse_grid({**AXES, "baseline": {"search": "sample"}}, "mine").baselines == {
            "grpo-sample": "grpo-sample",
            "grpo-wide": "grpo-sample",
            "ppo-sample": "ppo-sample",
            "ppo-wide": "ppo-sample",
        }

    def test_pairs_of_arms_or_of_points_everywhere_else_equal(self):
        arms = {"plain": None, "beam": None}
        assert parse_grid({**ARMS, "arms": arms, "pairs": [["beam", "plain"]]}, "mine").pairs == (("beam", "plain"),)
        assert parse_grid({**AXES, "arms": arms, "pairs": {"search": [["wide", "sample"]]}}, "mine").pairs == (
            ("grpo-wide", "grpo-sample"),
            ("ppo-wide", "ppo-sample"),
        )
        assert parse_grid(ARMS, "mine").pairs == ()


REFUSED = [
    ({}, "seeds is missing: give a list of whole numbers, such as [1, 2, 3]"),
    ({"seeds": [1]}, "arms is []: give at least one arm, or axes"),
    ({**ARMS, "seed": [1]}, "seed is no key of a grid: did you mean seeds?"),
    ({**ARMS, "colour": 1}, "colour is no key of a grid: choose from name, configs"),
    ({**ARMS, "seeds": []}, "seeds is []: give a list of whole numbers"),
    ({**ARMS, "seeds": [1, 1]}, "seeds is [1, 1]: give every number once"),
    ({**ARMS, "seeds": [True]}, "seeds is [True]: give a list of whole numbers"),
    ({**ARMS, "jobs": 0}, "jobs is 0: give a whole number of 1 or more"),
    ({**ARMS, "threads": 1.5}, "threads is 1.5: give a whole number of 1 or more"),
    ({**ARMS, "configs": "sokoban.yaml"}, "configs is 'sokoban.yaml': give a list of names"),
    ({**ARMS, "arms": {"plain": {"config": []}}}, "arms.plain.config is no key of a grid: did you mean configs?"),
    ({**ARMS, "arms": {"plain": {"like": "beam"}}}, "arms.plain.like is 'beam': name one of those before it"),
    ({**ARMS, "arms": {"a/b": None}}, "arms is 'a/b': give names of letters, digits"),
    ({**ARMS, "arms": {"plain": {"seeds": "all"}}}, "arms.plain.seeds is 'all': give a list of whole numbers"),
    ({**ARMS, "overrides": [1]}, "overrides is [1]: give a mapping"),
    ({**ARMS, "overrides": {"seed_everything": 1}}, "overrides has seed_everything, which a study sets by itself"),
    ({**ARMS, "overrides": {"trainer.logger.init_args.name": "x"}}, "overrides has trainer.logger.init_args.name"),
    ({**ARMS, "overrides": {"config": "x.yaml"}}, "overrides has config, which is no setting: use configs"),
    ({**AXES, "axes": {"search": []}}, "axes.search is []: give at least one point"),
    ({**AXES, "axes": {"search": {"a": {"seeds": [1]}}}}, "axes.search.a.seeds is no key of a grid"),
    ({**AXES, "arms": {"grpo-wide": None}}, "arms is 'grpo-wide': give every arm a name of its own"),
    ({**ARMS, "baseline": "none"}, "baseline is 'none': give one of plain"),
    ({**AXES, "baseline": {"search": "beam"}}, "baseline.search is 'beam': give an axis and one of its points"),
    ({**ARMS, "pairs": [["plain", "beam"]]}, "pairs is ['plain', 'beam']: give two of plain"),
    ({**ARMS, "pairs": ["plain"]}, "pairs is 'plain': give two of plain"),
    ({**AXES, "pairs": {"search": [["wide", "wide"]]}}, "pairs.search is ['wide', 'wide']: give two of sample, wide"),
    ({**AXES, "pairs": {"task": [["a", "b"]]}}, "pairs.task is [['a', 'b']]: give an axis and a list of pairs"),
    ({**AXES, "pairs": {"search": "wide"}}, "pairs.search is 'wide': give an axis and a list of pairs"),
    ({**ARMS, "thresholds": {"sampled": 50}}, "thresholds.sampled is 50: give success rates above 0 and up to 1"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_bad_grid_is_refused(given: dict[str, Any], sentence: str, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError) as refused:
        read_grid(path)
    assert str(refused.value).startswith(f"{path}: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seeds: [1]\narms: {a: null, b: null, a: null}", "line 2 has a for a second time: keep one"),
        ("seeds: [1", "the grid is no valid YAML: "),
        ("seeds: [1]\narms: {a: {? [b] : 1}}", "the grid is no valid YAML: .*unhashable key"),
        ("seeds: [1]\noverrides: {data.env_kwargs.day: 2024-01-01}", r"day is 2024-01-01, which .* in quotes"),
        ("seeds: [4294967296]\narms: {a: null}", "seeds has 4294967296: give seeds from 0 to 4294967295"),
        ("seeds: [1]\narms: {a: {seeds: [5000000000]}}", r"arms\.a\.seeds has 5000000000: give"),
        ("- 1", "the grid is no mapping of keys"),
    ],
)
def test_a_file_that_is_no_grid_is_refused(text: str, sentence: str, tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_grid(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read: give the path of a YAML file"):
        read_grid(path)


def test_a_mapping_may_be_merged_into_others(tmp_path: Path):
    """YAML's own <<, whose keys a later one replaces."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "seeds: [1]\n"
        "arms:\n"
        "  a: &a {overrides: {data.instances: 3}}\n"
        "  b: {<<: *a, seeds: [4]}\n"
        "  c: {<<: *a, overrides: {data.instances: 5}}\n"
    )
    found = {arm.name: (arm.overrides["data.instances"], arm.seeds) for arm in read_grid(path).arms}
    assert found == {"a": (3, (1,)), "b": (3, (4,)), "c": (5, (1,))}


class TestSettings:
    RESOLVED: dict[str, Any] = {  # noqa: RUF012  (never changed)
        "seed_everything": 3,
        "trainer": {"max_epochs": 2, "logger": {"class_path": "x"}, "callbacks": [{"class_path": "a"}, {"b": {}}]},
        "data": {"sizes": [1, 2], "plan": None},
    }

    def test_are_flat_and_leave_out_what_a_study_sets(self):
        assert flat_settings(self.RESOLVED) == {
            "trainer.max_epochs": 2,
            "trainer.callbacks.0.class_path": "a",
            "trainer.callbacks.1.b": {},
            "data.sizes": [1, 2],
            "data.plan": None,
        }

    def test_differ_by_key(self):
        before = {"a": 1, "b": 2, "c": None}
        assert differences(before, dict(before)) == ""
        assert differences(before, {"a": 1, "b": 3, "d": 4}) == (
            "b was 2 and is 3, c was None and is not set, d was not set and is 4"
        )
        assert differences({}, dict.fromkeys("abcde", 0)).endswith(", 2 more")
