"""Writes and reads the evaluations of a study as one compressed CSV: a row per run, evaluation and protocol."""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.record import StudyRecord

_RUN = ("arm", "seed", "evaluation", "protocol")  # the first columns: `evaluation` counts those of a run
_SUCCESSES = "successes"  # of each instance, in the order of the run's list
_OWN = "own_protocol"  # of an evaluation by other settings than the run's first (callbacks/history.py), as JSON


def table(record: StudyRecord) -> bytes:
    """Returns the contents of the file; the same record has the same bytes."""
    rows = list(_rows(record))
    several = dict.fromkeys(column for row in rows for column in row)
    kinds = (*_RUN, "costs.", "figures.", _SUCCESSES, _OWN)
    columns = [name for kind in kinds for name in several if _is_of(kind, name)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write(text.getvalue().encode())
    return packed.getvalue()


def read_table(path: Path) -> dict[Run, list[dict[str, Any]]]:
    """Reads the evaluations of every run, as its result file had them."""
    found: dict[Run, list[dict[str, Any]]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            several = found.setdefault(Run(row["arm"], int(row["seed"])), [])
            if int(row["evaluation"]) == len(several):
                several.append({"costs": _values(row, "costs."), "figures": {}, "successes": {}})
            evaluation, protocol = several[-1], row["protocol"]
            evaluation["figures"][protocol] = _values(row, "figures.")
            evaluation["successes"][protocol] = [int(count) for count in row[_SUCCESSES].split()]
            if row.get(_OWN):
                evaluation.setdefault("protocols", {})[protocol] = json.loads(row[_OWN])
    return found


def _is_of(kind: str, column: str) -> bool:
    return column.startswith(kind) if kind.endswith(".") else column == kind


def _rows(record: StudyRecord) -> Iterator[dict[str, str]]:
    for run, result in record.results.items():
        for number, evaluation in enumerate(result["evaluations"]):
            for protocol, figures in evaluation["figures"].items():
                own = evaluation.get("protocols", {}).get(protocol)
                yield {
                    **dict(zip(_RUN, (run.arm, str(run.seed), str(number), protocol), strict=True)),
                    **{f"costs.{name}": json.dumps(value) for name, value in evaluation["costs"].items()},
                    **{f"figures.{name}": json.dumps(value) for name, value in figures.items()},
                    _SUCCESSES: " ".join(map(str, evaluation["successes"][protocol])),
                    **({} if own is None else {_OWN: json.dumps(own)}),
                }


def _values(row: Mapping[str, str], kind: str) -> dict[str, Any]:
    return {name.removeprefix(kind): json.loads(text) for name, text in row.items() if name.startswith(kind) and text}
