"""Edits of a text as commands of sed: the fewest pieces of a line where that is enough, whole lines otherwise."""

import re
import shlex
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import NamedTuple

_PIECES = re.compile(r"\w+|[^\w\s]+|\s+")
_SPECIAL = re.compile(r"[][\\.*^$]")  # in a basic regular expression
_BAR = "|"  # between the parts of a substitution: "/" is Python's


class Change(NamedTuple):
    """Lines of a text and what takes their place."""

    first: int  # from 1
    last: int
    script: str  # of sed


def changes(now: str, wanted: str) -> list[Change]:
    """What makes one text of another, from its beginning to its end."""
    old, new = now.split("\n"), wanted.split("\n")
    found = list[Change]()
    for tag, first, end, begin, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            found += _changes(first, old[first:end], new[begin:stop])
    return found


def sed(found: Sequence[Change], path: str) -> str:
    """A command that makes changes of a file, at least one."""
    scripts = [shlex.quote(change.script) for change in found]
    return f"sed -i {scripts[0]} {path}" if len(scripts) == 1 else f"sed -i -e {' -e '.join(scripts)} {path}"


def _changes(before: int, old: Sequence[str], new: Sequence[str]) -> list[Change]:
    """Changes of neighbouring lines after so many that stay."""
    first, last = before + 1, before + max(1, len(old))
    if len(old) == len(new) and all(parts := [_substitution(*pair) for pair in zip(old, new, strict=True)]):
        return [Change(line, line, f"{line}{part}") for line, part in enumerate(parts, first)]
    lines = f"{first}" if len(old) <= 1 else f"{first},{last}"
    if not new:
        return [Change(first, last, f"{lines}d")]
    command = f"{lines}c" if old else f"{before}a" if before else "1i"
    return [Change(first, last, "\\\n".join([command, *(line.replace("\\", "\\\\") for line in new)]))]


def _substitution(old: str, new: str) -> str:
    """A substitution that makes one line of another; "" where none does."""
    before, after = _PIECES.findall(old), _PIECES.findall(new)
    begin = _shared(before, after)
    end = min(_shared(before[::-1], after[::-1]), len(before) - begin, len(after) - begin)
    end -= begin + end == len(before)  # what only comes in takes the place of its neighbour
    gone, come = "".join(before[begin : len(before) - end]), "".join(after[begin : len(after) - end])
    if not gone or _BAR in gone + come:
        return ""
    parts = old.split(gone)
    fitting = (n for n in range(1, len(parts)) if gone.join(parts[:n]) + come + gone.join(parts[n:]) == new)
    if (number := next(fitting, 0)) == 0:  # those before it overlap with it
        return ""
    pattern = _SPECIAL.sub(r"\\\g<0>", gone)
    inserted = come.replace("\\", r"\\").replace("&", r"\&")
    return f"s|{pattern}|{inserted}|{number if number > 1 else ''}"


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Counts the pieces that two lines begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
