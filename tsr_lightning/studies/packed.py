"""Keeps a study in two files: NAME.yaml says how its runs were made, NAME.csv.gz what they measured.

The table has a row per run, evaluation and protocol, and `pandas.read_csv` reads it. In the YAML, what all runs of the
study or of an arm share is written once, and so is each list of instances. Nothing is lost: what is read equals what
was packed, number for number, and the same record has the same bytes.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tsr_lightning.errors import ConfigError
from tsr_lightning.files import write_whole, write_whole_bytes
from tsr_lightning.studies.grid import Run
from tsr_lightning.studies.packed_table import read_table, table
from tsr_lightning.studies.record import StudyRecord
from tsr_lightning.unique_keys import LOADER

SUFFIX = ".yaml"
FORMAT = 1
_SETTINGS = "settings"
_SHORT = 80  # characters of a mapping that stands in one line


def write_packed(record: StudyRecord, path: Path) -> None:
    """Writes both files of a packed study.

    Args:
        record: of a study.
        path: of the YAML; the table goes beside it.

    Raises:
        ConfigError: the path is no YAML's, or of another file that is there, or of a packed study with runs that this
            one lacks.
    """
    if path.suffix != SUFFIX:
        raise ConfigError(f"a study is packed into NAME{SUFFIX} and a table beside it: {path} has another ending")
    if path.exists():
        _check_replaced(path, record)
    write_whole_bytes(table_path(path), table(record))
    write_whole(path, _yaml(_head(record)))


def _check_replaced(path: Path, record: StudyRecord) -> None:
    """Refuses to replace another file, or what is nowhere else."""
    head = _readable_head(path)
    if not {"packed", "grid", "runs"} <= head.keys():
        raise ConfigError(f"{path} is there, and no packed study, such as a grid: pack into another file")
    if (name := head["grid"]["name"]) != record.grid["name"]:
        raise ConfigError(f"{path} is the packed study {name}: pack {record.grid['name']} into another file")
    known = {Run(arm, seed) for arm, seeds in head["runs"].items() for seed in seeds}
    if lost := sorted(map(str, known - set(record.results))):
        raise ConfigError(
            f"{path} has {lost[0]}{f' and {len(lost) - 1} more' if lost[1:] else ''}, which would be lost: bring them "
            f"to the study's folder by tsr study --from {path}, or pack into another file"
        )


def _readable_head(path: Path) -> Mapping[str, Any]:
    """The top-level mapping of a YAML file; empty if it cannot be read or is no mapping."""
    try:
        head = _load(path)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return head if isinstance(head, dict) else {}


def _load(path: Path) -> Any:
    return yaml.load(path.read_bytes(), Loader=LOADER)


def read_packed(path: Path) -> StudyRecord:
    """Reads the record that `write_packed` wrote.

    Args:
        path: of the YAML.

    Raises:
        ConfigError: it is none, or has no table beside it.
    """
    try:
        head = _load(path)
        is_packed = isinstance(head, dict) and head.get("packed") == FORMAT
        evaluations = read_table(table_path(path)) if is_packed else {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} and {table_path(path).name} cannot be read: tsr report --pack makes both") from error
    if not is_packed:
        raise ConfigError(f"{path} is no packed study of this version: tsr report --pack makes one")
    instances = [[[env, seed] for env, seeds in named for seed in seeds] for named in head["instances"]]
    results = {}
    for arm, seeds in head["runs"].items():
        for seed, own in seeds.items():
            made = {**head["study"], **head["arms"].get(arm, {}), **own}
            results[Run(arm, seed)] = _result(made, instances, evaluations.get(Run(arm, seed), []))
    return StudyRecord(head["grid"], results)


def table_path(path: Path) -> Path:
    """Returns the path of a packed study's table."""
    return path.with_suffix(".csv.gz")


def _head(record: StudyRecord) -> dict[str, Any]:
    instances: list[Any] = []
    made = {run: _made(result, instances) for run, result in record.results.items()}
    study = _shared(list(made.values()))
    arms = {
        arm: _shared([made[run] for run in made if run.arm == arm]) for arm in dict.fromkeys(run.arm for run in made)
    }
    runs: dict[str, Any] = {arm: {} for arm in arms}
    for run, own in made.items():
        runs[run.arm][run.seed] = _without(_without(own, study), arms[run.arm])
    return {
        "packed": FORMAT,
        "grid": record.grid,
        "study": study,
        "arms": {arm: own for arm, every in arms.items() if (own := _without(every, study))},
        "runs": runs,
        "instances": [_by_environment(one) for one in instances],
    }


def _made(result: Mapping[str, Any], instances: list[Any]) -> dict[str, Any]:
    """Returns how a run was made as one flat mapping; adds its instances to those of the study if they are new."""
    made: dict[str, Any] = {}
    for key, value in result.items():
        if key == _SETTINGS and value:
            made |= {f"{_SETTINGS}.{name}": one for name, one in value.items()}
        elif key == "instances":
            if value not in instances:
                instances.append(value)
            made[key] = instances.index(value)
        elif key == "protocols":
            made[key] = {name: {**one, "episodes": _one_for_all(one["episodes"])} for name, one in value.items()}
        elif key != "evaluations":
            made[key] = value
    return dict(sorted(made.items()))


def _result(made: Mapping[str, Any], instances: Sequence[Any], evaluations: list[Any]) -> dict[str, Any]:
    """Returns the contents of a result file, the inverse of `_made`."""
    result: dict[str, Any] = {}
    for key, value in made.items():
        name = key.removeprefix(f"{_SETTINGS}.")
        if name != key:
            result.setdefault(_SETTINGS, {})[name] = value
        else:
            result[key] = value
    played = instances[made["instances"]]
    protocols = {
        name: {**one, "episodes": _for_each(one["episodes"], len(played))} for name, one in made["protocols"].items()
    }
    return {**result, "instances": played, "protocols": protocols, "evaluations": evaluations}


def _one_for_all(counts: list[int]) -> Any:
    return counts[0] if len(set(counts)) == 1 else counts


def _for_each(counts: Any, instances: int) -> list[int]:
    return counts if isinstance(counts, list) else [counts] * instances


def _by_environment(instances: Iterable[Sequence[int]]) -> list[Any]:
    """Returns instances as [environment, seeds]: those of one environment stand together."""
    return [[env, [seed for _, seed in own]] for env, own in itertools.groupby(instances, key=lambda one: one[0])]


def _shared(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what all mappings have, with equal values."""
    first, *others = several or [{}]
    return {key: value for key, value in first.items() if all(_has(other, key, value) for other in others)}


def _without(own: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in own.items() if not _has(shared, key, value)}


def _has(mapping: Mapping[str, Any], key: str, value: Any) -> bool:
    """True if the mapping has the same text in JSON there: 1, 1.0 and true are equal in Python alone."""
    return key in mapping and (mapping[key] is value or json.dumps(mapping[key]) == json.dumps(value))


_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")  # YAML's, besides \n and \r, which PyYAML keeps in double quotes alone


class _Dumper(yaml.SafeDumper):
    """Writes lists and short mappings within a line, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def list_in_line(self, data: list[Any]) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def short_mapping_in_line(self, data: dict[Any, Any]) -> yaml.Node:
        return self.represent_mapping("tag:yaml.org,2002:map", data, flow_style=len(json.dumps(data)) <= _SHORT)

    def text(self, data: str) -> yaml.Node:
        style = '"' if _LINE_BREAKS.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_representer(list, _Dumper.list_in_line)
_Dumper.add_representer(dict, _Dumper.short_mapping_in_line)


def _yaml(head: Mapping[str, Any]) -> str:
    return yaml.dump(head, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
