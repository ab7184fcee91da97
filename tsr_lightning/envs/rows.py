"""Rows of a data set, from a JSONL or CSV file or from Python."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.trajectory import Message, to_messages

Row = Mapping[str, Any]

_EXCERPT = 80  # characters of a row in a sentence


def read_rows(key: str, source: str | Path | Iterable[Row]) -> Sequence[Row]:
    """The rows of a file, by the ending of its name, or the given ones; at least one.

    Args:
        key: names the argument in a sentence.
        source: a path that ends in .jsonl (an object a line) or .csv (names of the columns first), or the rows.

    Raises:
        ConfigError: there is no such file, or one of its rows cannot be read.
    """
    if isinstance(source, str | Path):
        rows = _read_file(key, Path(source))
    else:
        rows = tuple(_checked(key, number, row) for number, row in enumerate(source, start=1))
    require(len(rows) > 0, key, source if isinstance(source, str | Path) else rows, "it has no row; give at least one.")
    return rows


def messages_in(prompt: Any) -> tuple[Message, ...]:
    """A prompt of the form `[{"role": "user", "content": "..."}]` as messages; none where it has another form."""
    try:
        return to_messages([Message(message["role"], message["content"]) for message in prompt])
    except (KeyError, TypeError):
        return ()


def _read_file(key: str, path: Path) -> Sequence[Row]:
    formats = ", ".join(_FORMATS)
    require(
        path.suffix in _FORMATS, key, str(path), f"give a file whose name ends in one of {formats}, or a list of rows."
    )
    require(path.is_file(), key, str(path), f"there is no such file in {Path.cwd()}.")
    changed = path.stat()
    return _read_once(key, path.resolve(), changed.st_mtime_ns, changed.st_size)


@lru_cache(maxsize=8)  # many environments are made from one file
def _read_once(key: str, path: Path, changed: int, size: int) -> Sequence[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} is {str(path)!r}: it is no UTF-8 text, so write it as UTF-8.") from error
    return tuple(_FORMATS[path.suffix](key, text))


def _json_lines(key: str, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):  # JSON may hold other line separators within a text
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{key}: line {number} is no JSON ({error.msg}); write an object on each.") from error
            yield _checked(key, number, row)


def _table(key: str, text: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise ConfigError(
                    f"{key}: row {number} has not the {len(reader.fieldnames or ())} columns of the head."
                )
            yield row
    except csv.Error as error:
        raise ConfigError(f"{key}: line {reader.line_num} is no CSV ({error}).") from error


_FORMATS: Mapping[str, Callable[[str, str], Iterator[Row]]] = {".jsonl": _json_lines, ".csv": _table}


def _checked(key: str, number: int, row: Any) -> Row:
    if isinstance(row, Mapping) and all(isinstance(name, str) for name in row):
        return row
    shown = repr(row)
    cut = shown[:_EXCERPT] + ("..." if len(shown) > _EXCERPT else "")
    raise ConfigError(f"{key}: row {number} is {cut}; give an object of columns, such as {{'prompt': '1 + 1 = ?'}}.")
