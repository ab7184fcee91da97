"""A digest of a Python object by its values, the same in every process."""

import hashlib
import io
import pickle
from typing import Any


def digest(value: Any) -> str:
    """A hash of what pickle writes of an object: equal for equal values, whichever objects hold them, and for sets in
    any order.

    Raises:
        Exception: pickle's or the object's own, where it cannot be written.
    """
    written = io.BytesIO()
    try:
        _Pickler(written, fast=True).dump(value)
    except (ValueError, RecursionError):  # an object within itself, which the fast mode cannot write
        written = io.BytesIO()
        _Pickler(written, fast=False).dump(value)
    return hashlib.blake2b(written.getvalue(), digest_size=16).hexdigest()


class _Pickler(pickle.Pickler):
    """Writes a set as the digests of its elements in order.

    Args:
        file: written to.
        fast: write an object again wherever it is found, so that it does not matter where one object stands twice and
            where two equal ones do.
    """

    def __init__(self, file: io.BytesIO, *, fast: bool) -> None:
        super().__init__(file, protocol=5)
        self.fast = fast

    def persistent_id(self, obj: Any) -> Any:
        """Called by pickle with every object; None writes it as usual."""
        if type(obj) in (set, frozenset):
            return type(obj).__name__, sorted(map(digest, obj))
        return None
