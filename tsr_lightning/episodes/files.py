"""Files of episodes: gzipped JSON lines, each with the digest of the rest of it."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tsr_lightning.episodes.schema import (
    READABLE,
    SCHEMA,
    VERSION,
    Episode,
    Header,
    SchemaError,
    check_header,
    check_tree,
    parsed,
    plain,
)
from tsr_lightning.errors import ConfigError, printable
from tsr_lightning.files import write_whole_bytes

SUFFIX = ".jsonl.gz"
_BEGINNING = b'{"digest":"'
_DIGEST = 16  # characters


@dataclass(frozen=True, slots=True)
class Line:
    """A line after the header: an episode, what is wrong with it, or both."""

    number: int  # in the file, counted from 1
    episode: Episode | None
    problem: str = ""  # a sentence


def write(path: Path, header: Header, episodes: Iterable[Episode]) -> None:
    """Writes a whole file or none, and its folders."""
    lines = [_line(as_written(plain(header))), *(_line(plain(episode)) for episode in episodes)]
    write_whole_bytes(path, gzip.compress(b"".join(lines), compresslevel=5, mtime=0))


def as_written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a header holds them: with lists for tuples, and texts for what JSON lacks, such as paths."""
    written: dict[str, Any] = json.loads(json.dumps(arguments, default=_as_text), parse_constant=str)
    return written


def read_header(path: Path) -> Header:
    """The first line of a file.

    Raises:
        ConfigError: there is no such file, it is of another kind or version, or its first line was altered.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: there is no such file; tsr rollout and callbacks.EpisodeLog write files of episodes"
        )
    found: Any = None
    is_whole = False
    for _, raw, _ in _raw_lines(path):
        body, is_whole = _body(raw or b"")
        found = _json(body)
        break
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is no file of episodes: its first line has no schema {SCHEMA}")
    if found.get("version") not in READABLE:
        raise ConfigError(
            f"{path} has version {found.get('version')} of the schema, and this tsr reads up to version {VERSION}: "
            "write it anew, or read it with the version of tsr that wrote it"
        )
    if not is_whole:  # its model, limits or environments may be others than those that played
        raise ConfigError(f"{path}: {_altered(1)}: take a copy of the file as it was written")
    try:
        header = parsed(Header, found)
        check_header(header)
        return header
    except SchemaError as error:
        raise ConfigError(f"{path}: line 1 is not as the schema says: {printable(str(error))}") from error


def read_lines(path: Path) -> Iterator[Line]:
    """The episodes of a file whose header was read, and what is wrong with their lines."""
    for number, raw, problem in _raw_lines(path):
        if number == 1 and raw is not None:
            continue
        if raw is None:
            yield Line(number, None, problem)
            continue
        body, is_whole = _body(raw)
        altered = "" if is_whole else f"{path}: {_altered(number)}"
        try:
            episode = parsed(Episode, _json(body))
            check_tree(episode)
        except SchemaError as error:
            wrong = f"{path}: line {number} is not as the schema says: {printable(str(error))}"
            yield Line(number, None, altered or wrong)
            continue
        yield Line(number, episode, altered)


def read(path: Path) -> tuple[Header, list[Episode]]:
    """All of a file.

    Raises:
        ConfigError: it has a line that is not whole.
    """
    header, lines = read_header(path), list(read_lines(path))
    if problem := next((line.problem for line in lines if line.problem), ""):
        raise ConfigError(problem)
    return header, [line.episode for line in lines if line.episode is not None]


def _line(record: Any) -> bytes:
    """JSON with the digest of all that follows it, by which an altered line is found."""
    body = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()[1:]
    return b"".join([_BEGINNING, _digest(body), b'",', body, b"\n"])


def _as_text(value: object) -> str:
    return str(value) if isinstance(value, PurePath) else repr(value)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST // 2).hexdigest().encode()


def _body(raw: bytes) -> tuple[bytes, bool]:
    """A line without its digest, and whether that is the digest of it."""
    line = raw.rstrip(b"\n")
    start = len(_BEGINNING) + _DIGEST
    body = line[start + 2 :]
    is_whole = line.startswith(_BEGINNING) and line[start : start + 2] == b'",' and raw.endswith(b"\n")
    return b"{" + body, is_whole and line[len(_BEGINNING) : start] == _digest(body)


def _altered(number: int) -> str:
    return f"line {number} was altered after it was written (its digest differs)"


def _json(body: bytes) -> Any:
    """What a line holds; None where it is no JSON, which no schema takes."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes | None, str]]:
    """The lines with their numbers; at the end perhaps None, and a sentence of why there are no more."""
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw, ""
    except EOFError:
        yield number + 1, None, f"{path} is cut off after line {number}"
    except (gzip.BadGzipFile, zlib.error) as error:
        yield number + 1, None, f"{path} is damaged after line {number} ({error})"
