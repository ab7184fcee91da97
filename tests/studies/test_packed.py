"""Packed studies: what is read equals what was packed, whatever the runs measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from commands import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tsr_lightning.cli.command import main
from tsr_lightning.cli.study import study
from tsr_lightning.errors import ConfigError
from tsr_lightning.studies.folder import StudyFolder, write_json
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.packed import read_packed, table_path, write_packed
from tsr_lightning.studies.record import StudyRecord, read_folder
from tsr_lightning.studies.report.load import load_study

SHIPPED = sorted((ROOT / "docs" / "results").glob("*.yaml"))
GRID = {"name": "known", "baselines": {"beam": "plain"}, "pairs": [["beam", "plain"]], "thresholds": {"greedy": [0.5]}}
PLAIN = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    *(st.text(max_size=6), st.sampled_from(["1e-3", "1.0", "true", "null", "12:30", "~", "0x1F", "- a", "é"])),
)
SETTINGS = st.dictionaries(st.sampled_from(["a", "a.b", "trainer.x", "0"]), PLAIN | st.lists(PLAIN, max_size=3))


@st.composite
def results(draw: st.DrawFn) -> dict[str, Any]:
    """The contents of a result file, with and without an end, a start and settings of an evaluation's own."""
    instances = draw(st.sampled_from([[[0, 11], [0, 22], [1, 11]], [[0, 7]], [[1, 3], [0, 3]]]))
    counts = st.lists(st.integers(0, 128), min_size=len(instances), max_size=len(instances))
    protocols = {
        name: {"settings": draw(SETTINGS), "episodes": draw(counts)}
        for name in draw(st.permutations(["sampled", "greedy"]))
    }
    evaluations = []
    for epochs in range(draw(st.integers(1, 3))):
        played = draw(st.sampled_from([["sampled"], ["greedy", "sampled"]]))
        own = {name: {"settings": {}, "episodes": draw(counts)} for name in played if draw(st.booleans())}
        evaluations.append(
            {
                "costs": {"epochs": epochs, "seconds": draw(st.floats(0, 1e9))},
                "figures": {name: {"success_rate": draw(st.floats(0, 1)), "pass@2": 1.0} for name in played},
                "successes": {name: draw(counts) for name in played},
                **({"protocols": own} if own else {}),
            }
        )
    head = draw(st.sampled_from([{}, {"format": 1, "jobs": 2, "versions": {"torch": "2.13.0+cpu"}}, {"jobs": 2.0}]))
    made_by = draw(st.sampled_from([{}, {"settings": draw(SETTINGS)}, {"end": {"epochs": 3, "stopped_by": None}}]))
    return {**head, **made_by, "instances": instances, "protocols": protocols, "evaluations": evaluations}


def as_text(record: StudyRecord) -> list[str]:
    """Returns JSON, in which 1, 1.0 and true differ and protocols keep their order."""
    return [
        json.dumps(record.grid),
        *(f"{run}: {json.dumps(result, sort_keys=True)}" for run, result in record.results.items()),
        *(json.dumps(list(result["protocols"])) for result in record.results.values()),
    ]


def breaks_a_line(text: str) -> list[dict[str, Any]]:
    protocols = {"sampled": {"settings": {"a": text}, "episodes": [1]}}
    return [{"instances": [[0, 7]], "protocols": protocols, "evaluations": []}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@example(breaks_a_line("\x85"))
@example(breaks_a_line("one\u2028two: \u2029\r\n # three"))
@given(st.lists(results(), max_size=4))
def test_what_is_read_equals_what_was_packed(tmp_path: Path, several: list[dict[str, Any]]):
    runs = [Run("plain", 1), Run("plain", 2), Run("beam", 1), Run("beam", 7)][: len(several)]
    arms = {arm: {"seeds": [1, 2, 7], "points": {"search": arm}} for arm in ("plain", "beam")}
    record = StudyRecord({**GRID, "arms": arms}, dict(zip(runs, several, strict=True)))
    path = tmp_path / "known.yaml"
    path.unlink(missing_ok=True)  # of the example before
    write_packed(record, path)
    read = read_packed(path)
    assert as_text(read) == as_text(record)
    assert read.missing == record.missing


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_study_packs_into_the_same_files(path: Path, tmp_path: Path):
    again = tmp_path / path.name
    write_packed(read_packed(path), again)
    assert again.read_bytes() == path.read_bytes()
    table, own = (pd.read_csv(table_path(one), keep_default_na=False, dtype=str) for one in (again, path))
    pd.testing.assert_frame_equal(table, own)  # the compressed bytes may differ by the version of zlib


def test_what_runs_share_is_written_once(tmp_path: Path):
    def result(arm: str, seed: int) -> dict[str, Any]:
        made = {"arm": arm, "seed": seed, "settings": {"data.env": "tsr/Sokoban-v0", "data.plan": arm}}
        protocols = {"sampled": {"settings": {"samples": 2}, "episodes": [2, 2]}}
        return {**made, "instances": [[0, 11], [0, 22]], "protocols": protocols, "evaluations": []}

    runs = [Run("plain", 1), Run("plain", 2), Run("beam", 1)]
    arms = {"plain": {"seeds": [1, 2], "points": {}}, "beam": {"seeds": [1], "points": {}}}
    record = StudyRecord({**GRID, "arms": arms}, {run: result(run.arm, run.seed) for run in runs})
    write_packed(record, tmp_path / "a.yaml")
    head = yaml.safe_load((tmp_path / "a.yaml").read_text())
    protocols = {"sampled": {"settings": {"samples": 2}, "episodes": 2}}
    assert head["study"] == {"instances": 0, "protocols": protocols, "settings.data.env": "tsr/Sokoban-v0"}
    assert head["arms"]["plain"] == {"arm": "plain", "settings.data.plan": "plain"}
    assert head["runs"] == {"plain": {1: {"seed": 1}, 2: {"seed": 2}}, "beam": {1: {}}}
    assert head["instances"] == [[[0, [11, 22]]]]


@pytest.mark.parametrize(
    ("name", "contents", "sentence"),
    [
        ("absent.yaml", None, r"absent\.yaml and absent\.csv\.gz cannot be read: tsr report --pack makes both"),
        ("alone.yaml", "packed: 1", r"alone\.yaml and alone\.csv\.gz cannot be read"),
        ("other.yaml", "packed: 2", r"other\.yaml is no packed study of this version"),
        ("a.yaml", "[1, 2]", r"a\.yaml is no packed study of this version"),
    ],
)
def test_what_is_not_packed_is_refused(name: str, contents: str | None, sentence: str, tmp_path: Path):
    if contents is not None:
        (tmp_path / name).write_text(contents)
    with pytest.raises(ConfigError, match=sentence):
        read_packed(tmp_path / name)


def test_evaluations_without_settings_are_no_study():
    with pytest.raises(ConfigError, match=r"sokoban_in_depth\.yaml has evaluations without the settings of their runs"):
        load_study(ROOT / "docs" / "results" / "sokoban_in_depth.yaml")


EVALUATION: dict[str, Any] = {
    "costs": dict.fromkeys(("epochs", "seconds", "evaluation_seconds", "tokens_generated", "env_steps"), 3),
    "figures": {"sampled": {"success_rate": 0.5}},
    "successes": {"sampled": [1]},
}


def write_study(root: Path) -> Path:
    """One run of two."""
    arms = {arm: {"seeds": [1], "points": {}} for arm in ("plain", "beam")}
    write_json(StudyFolder(root).grid, {**GRID, "arms": arms})
    protocols = {"sampled": {"settings": {"samples": 2}, "episodes": [2]}}
    made = {"format": 1, "arm": "plain", "seed": 1, "settings": {"data.env": "tsr/Sokoban-v0"}}
    result = {**made, "instances": [[0, 1]], "protocols": protocols, "evaluations": [EVALUATION]}
    write_json(StudyFolder(root).result(Run("plain", 1)), result)
    return root


class TestCommands:
    def run(self, *args: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["report", *args])
        assert ended.value.code == 0

    def test_a_report_packs_a_folder_and_reads_what_it_packed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        folder, packed = write_study(tmp_path / "known"), tmp_path / "kept" / "known.yaml"
        self.run(str(folder), "--pack", str(packed))
        assert capsys.readouterr().out.split()[:2] == [str(packed), str(table_path(packed))]
        assert as_text(read_packed(packed)) == as_text(read_folder(folder))
        self.run(str(packed))
        text = (folder / "report" / "report.md").read_text()
        assert (tmp_path / "kept" / "known" / "report.md").read_text() == text
        assert "known: 1 of 2 runs are finished; missing: beam seed 1." in text

    def test_a_grid_is_not_replaced_by_a_packed_study(self, empty_folder: Path):
        record, grid = read_folder(write_study(empty_folder / "known")), Path("known.yaml")
        grid.write_text("seeds: [1]\n")
        with pytest.raises(
            ConfigError, match=r"known\.yaml is there, and no packed study, such as a grid: pack into an"
        ):
            write_packed(record, grid)
        assert grid.read_text() == "seeds: [1]\n"
        assert not table_path(grid).exists()
        grid.unlink()
        write_packed(record, grid)
        write_packed(record, grid)  # one of its own may be written again

    def test_a_packed_study_of_another_version_is_not_replaced(self, empty_folder: Path):
        Path("kept.yaml").write_text("packed: 2\n")
        with pytest.raises(ConfigError, match=r"kept\.yaml is there, and no packed study.*: pack into another file"):
            write_packed(read_folder(write_study(empty_folder / "known")), Path("kept.yaml"))
        assert Path("kept.yaml").read_text() == "packed: 2\n"

    def test_nothing_that_is_packed_is_lost(self, empty_folder: Path):
        record, packed = read_folder(write_study(empty_folder / "known")), Path("kept.yaml")
        write_packed(record, packed)
        before = packed.read_bytes()
        with pytest.raises(ConfigError, match=r"kept\.yaml has plain seed 1, which would be lost: bring them "):
            write_packed(replace(record, results={}), packed)
        other = replace(record, grid={**record.grid, "name": "other"})
        with pytest.raises(ConfigError, match=r"kept\.yaml is the packed study known: pack other into another file"):
            write_packed(other, packed)
        assert packed.read_bytes() == before

    def test_a_packed_study_is_packed_again(self, empty_folder: Path):
        write_packed(read_folder(write_study(empty_folder / "known")), Path("kept.yaml"))
        self.run("kept.yaml", "--pack", "copy.yaml")
        assert Path("copy.yaml").read_bytes() == Path("kept.yaml").read_bytes()

    def test_a_study_goes_on_from_a_packed_one(self, empty_folder: Path):
        record = read_folder(write_study(empty_folder / "known"))
        write_packed(record, Path("kept.yaml"))
        Path("known.yaml").write_text(yaml.safe_dump({"seeds": [1], "arms": {"plain": None, "beam": None}}))
        callbacks = [{"class_path": "callbacks.Evaluation"}]
        resolved = {"trainer": {"callbacks": callbacks}, "data": {"evaluations": [{"name": "sampled"}]}}
        flags = ["--keep-changed", "--only", "plain", "--output", "out"]
        assert study(["known.yaml", "--from", "kept.yaml", *flags], lambda _: resolved) == 0  # nothing is left to run
        assert read_folder(Path("out")).results == record.results
        Path("other.yaml").write_text(Path("known.yaml").read_text())
        with pytest.raises(ConfigError, match=r"--from is 'kept\.yaml': give a packed study of the name other"):
            study(["other.yaml", "--from", "kept.yaml", *flags], lambda _: resolved)
