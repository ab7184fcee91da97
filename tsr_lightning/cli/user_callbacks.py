"""Lets a `callbacks.py` of the working folder live beside this project's package of that name.

`callbacks` is always the package, wherever Python would look first. A name or a module that it lacks is looked up in
the working folder's `callbacks.py` or `callbacks/`, so that YAML may name `callbacks.Evaluation` and `callbacks.Mine`.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "callbacks"
_OWN = Path(__file__).resolve().parents[2] / _NAME / "__init__.py"


def keep_callbacks_apart() -> None:
    """Imports this project's callbacks, and lets them know those of the working folder. To be called before anything
    imports `callbacks`."""
    package = sys.modules.get(_NAME)
    if package is None or Path(package.__file__ or "").resolve() != _OWN:
        package = _load(_OWN, keep=True)
    own = list(package.__path__)[:1]
    theirs = Path(_NAME).resolve()
    package.__path__ = own if theirs == _OWN.parent or not theirs.is_dir() else [*own, str(theirs)]
    file = theirs / "__init__.py" if theirs.is_dir() else theirs.with_suffix(".py")
    is_other = file.is_file() and file.resolve() != _OWN
    package.__dict__["__getattr__"] = _Fallback(file if is_other else None)


class _Fallback:
    """Python calls it for a name that the package lacks.

    Args:
        file: the working folder's; None where it has none.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def __call__(self, name: str) -> Any:
        if self._file is not None and not name.startswith("_"):
            theirs = _load_theirs(self._file)
            if name in vars(theirs):
                return vars(theirs)[name]
        where = "" if self._file is None else f", nor has {self._file}"
        raise AttributeError(f"module {_NAME!r} has no attribute {name!r}{where}")


@cache
def _load_theirs(file: Path) -> ModuleType:
    """The working folder's module, whose classes are named as the package's are, so that a configuration that was
    written with them can be read again."""
    return _load(file, keep=False)


def _load(file: Path, *, keep: bool) -> ModuleType:
    folder = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(_NAME, file, submodule_search_locations=folder)
    assert spec is not None  # since the file is one of Python
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if keep:
        sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module
