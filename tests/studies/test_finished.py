"""A run is finished where its history reaches the last validation of its settings, or says why it ended before."""

from typing import Any

import pytest
from commands import ROOT

from tsr_lightning.studies.packed import read_packed
from tsr_lightning.studies.result import last_validation, missing_evaluations

SETTINGS = {"trainer.max_epochs": 10, "trainer.check_val_every_n_epoch": 4}


def history(*epochs: int, **end: Any) -> dict[str, Any]:
    return {"evaluations": [{"costs": {"epochs": one}} for one in epochs], **({"end": end} if end else {})}


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        (SETTINGS, 8),
        ({**SETTINGS, "trainer.max_epochs": 12}, 12),
        ({**SETTINGS, "trainer.max_epochs": -1}, None),
        ({**SETTINGS, "trainer.check_val_every_n_epoch": None}, None),
        ({}, None),
    ],
)
def test_the_last_validation_is_at_the_last_whole_interval(settings: dict[str, Any], last: int | None):
    assert last_validation(settings) == last


def test_a_run_that_ended_before_its_last_validation_is_not_finished():
    assert missing_evaluations(history(0, 4, 8), SETTINGS) == ""
    assert missing_evaluations(history(0, 4), SETTINGS) == "it was evaluated after 4 epochs at last, of 8"
    assert missing_evaluations(history(0, 4, epochs=5, stopped_by="a callback"), SETTINGS) == ""
    assert missing_evaluations(history(0, 4, epochs=5, stopped_by=None), SETTINGS) != ""


def test_every_result_of_this_project_is_of_a_finished_run():
    records = [read_packed(path) for path in sorted((ROOT / "docs" / "results").glob("*.yaml"))]
    results = [(run, result) for record in records for run, result in record.results.items() if "settings" in result]
    assert len(results) > 400
    for run, result in results:
        assert missing_evaluations(result, result["settings"]) == "", run
