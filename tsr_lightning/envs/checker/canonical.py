"""Values as text that is the same in every process if they are equal."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def canonical(value: Any) -> str:
    """A value's repr, in which dictionaries and sets are sorted and addresses of objects left out."""
    match value:
        case dict():
            pairs = sorted(f"{canonical(name)}: {canonical(part)}" for name, part in value.items())
            return f"{{{', '.join(pairs)}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(canonical, value)))}}}"
        case list():
            return f"[{_listed(value)}]"
        case tuple():
            return f"({_listed(value)})"
        case np.ndarray():
            return f"array({canonical(value.tolist())})"
        case _:
            return _ADDRESS.sub("", repr(value))


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(canonical, values))
