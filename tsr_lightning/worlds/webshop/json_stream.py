"""JSON of any size, plain or gzip, one element at a time: the outer list or object is never in memory as a whole.

The standard library's decoder works on a sliding window of text. ijson is as fast, 10 µs a product, but would be one
more dependency for forty lines, and does not report which element is broken.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from tsr_lightning.errors import ConfigError

_WINDOW = 1 << 20  # characters read at a time
_MAX_ELEMENT = 1 << 26  # characters; a longer element is broken
_MAX_TOKEN = 16  # characters; no literal, escape or end of a number is longer
_BLANK = " \t\n\r"
_decode = json.JSONDecoder(strict=False).raw_decode  # cleaning.py replaces control characters in strings


def elements(path: Path) -> Iterator[Any]:
    """The elements of the list that a file holds.

    Raises:
        ConfigError: one sentence with the file, the position and the remedy, when that position is reached.
    """
    with _open(path) as file:
        window = _Window(file, path)
        window.open("[", "list")
        while window.has_next("]"):
            yield window.value()
        window.finish()


def pairs(path: Path) -> Iterator[tuple[str, Any]]:
    """The (key, value) pairs of the object that a file holds; raises as `elements` does."""
    with _open(path) as file:
        window = _Window(file, path)
        window.open("{", "object")
        while window.has_next("}"):
            key = window.value()
            if not isinstance(key, str) or window.peek() != ":":
                raise window.error("there is no key with a colon")
            window.at += 1
            yield key, window.value()
        window.finish()


def _open(path: Path) -> TextIO:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rt", encoding="utf-8-sig") if packed else path.open(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of one of WebShop's published files."
        ) from None


class _Window:
    """A part of the text, and the position of the next character to read."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self.file, self.path = file, path
        self.text, self.at, self.dropped, self.count = "", 0, 0, 0
        self.ended = False

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _BLANK:
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._more()

    def open(self, opening: str, kind: str) -> None:
        found = self.peek()
        if not found:
            raise ConfigError(f"{self.path}: is empty; get the file again.")
        if found != opening:
            raise ConfigError(
                f"{self.path}: begins with {found!r} instead of {opening!r}; "
                f"give a file that holds one {kind}, as WebShop publishes it."
            )
        self.at += 1

    def has_next(self, closing: str) -> bool:
        """True if there is another element; skips the comma before it, or the closing bracket."""
        found = self.peek()
        if found == closing:
            self.at += 1
            return False
        if self.count:
            if found != ",":
                raise self.error(f"there is {found!r} instead of a comma or {closing}")
            self.at += 1
            self.peek()
        self.count += 1
        return True

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = _decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if not self._is_incomplete(error):
                    raise self.error(error.msg, error.pos) from None
                if self.ended or len(self.text) - self.at > _MAX_ELEMENT:
                    raise self.error("the file ends within it" if self.ended else "it does not end") from None
            except (ValueError, RecursionError):  # a number of thousands of digits, or too many nested lists
                raise self.error("it is too large or too deeply nested") from None
            else:
                if len(self.text) - end >= _MAX_TOKEN or self.ended:  # else a number may continue, as 1e-5 after its 1
                    self.at = end
                    return value
            self._more()

    def finish(self) -> None:
        if found := self.peek():
            raise self.error(f"there is {found!r} after the end")

    def error(self, what: str, at: int | None = None) -> ConfigError:
        at = self.at if at is None else at
        if self.ended and at >= len(self.text):
            what = "the file ends"
        where = f"element {self.count}, character {self.dropped + at}"
        return ConfigError(f"{self.path}: is no complete JSON at {where}: {what}; get the file again.")

    def _is_incomplete(self, error: json.JSONDecodeError) -> bool:
        """True if more text may complete the element: no token but a string is longer than a few characters."""
        if error.msg.startswith("Unterminated string"):
            return True
        left = len(self.text) - error.pos
        return not self.text[error.pos :].strip(_BLANK) if self.ended else left < _MAX_TOKEN

    def _more(self) -> None:
        self.dropped += self.at
        rest = self.text[self.at :]
        try:
            read = self.file.read(max(_WINDOW, len(rest)))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            where = f"after element {self.count}"
            raise ConfigError(f"{self.path}: cannot be read {where} ({error}); get the file again.") from None
        self.text, self.at = rest + read, 0
        self.ended = not read
