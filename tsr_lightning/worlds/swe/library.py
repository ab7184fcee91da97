"""The packages that faults are put into: each is one readable text in `packages/`, of files after lines `==> path <==`.

They are data and no code of this project, so no linter, type checker, test collector or import finds them, and a
package is one file to read, to review and to add. Tests of the folder `tests` are shown to the policy, those of
`hidden` are not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from tsr_lightning.errors import ConfigError
from tsr_lightning.worlds.swe.exam import RUN_TESTS, Test, UnfitTest, read_tests
from tsr_lightning.worlds.swe.folder import Folder, of_files

_KEY = "SWEEnv.packages"
_PACKAGES = Path(__file__).parent / "packages"
_RUNNER = Path(__file__).parent / "runner.txt"
_MARK = re.compile(r"^==> (\S+) <==\n", re.MULTILINE)

HELD_OUT = ("caches", "calc", "crontab", "layout", "polynomials", "records", "spans")  # of the split "test"


@dataclass(frozen=True)
class Package:
    """A package without a fault.

    Args:
        source: the name or the path by which it is found.
        name: of the folder of its modules.
        files: its texts by path.
    """

    source: str
    name: str
    files: Mapping[str, str]

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """The source of the modules that faults are put into, by path."""
        own = {path: text for path, text in self.files.items() if path.startswith(f"{self.name}/")}
        return {path: text for path, text in own.items() if not path.endswith("__init__.py")}

    @cached_property
    def visible(self) -> Sequence[Test]:
        """The tests that the policy sees."""
        return self._tests("tests/")

    @cached_property
    def hidden(self) -> Sequence[Test]:
        """The tests that decide."""
        return self._tests("hidden/")

    def folder(self, changed: Mapping[str, str]) -> Folder:
        """The folder that a task begins with: all but the hidden tests, with some files changed."""
        shown = {path: text for path, text in self.files.items() if not path.startswith("hidden/")}
        texts = {**shown, **changed, f"{RUN_TESTS}.py": _RUNNER.read_text(encoding="utf-8")}
        return of_files({path: text.encode() for path, text in texts.items()})

    def _tests(self, folder: str) -> Sequence[Test]:
        found = list[Test]()
        for path, text in self.files.items():
            if path.startswith(folder):
                found += read_tests(path, text)
        return tuple(found)


@cache
def package(name: str) -> Package:
    """The package of a name, or of a text like those in `packages/`, by its path.

    Raises:
        ConfigError: there is none, or the text is of another form.
    """
    path = Path(name) if name.endswith(".txt") else _PACKAGES / f"{name}.txt"
    if not path.is_file():
        known = f"take some of {', '.join(package_names())}, or paths of texts (.txt)"
        raise ConfigError(f"{_KEY} has {name!r}, and there is no such package: {known}.")
    _, *parts = _MARK.split(path.read_text(encoding="utf-8"))
    found = Package(name, path.stem, dict(zip(parts[::2], parts[1::2], strict=True)))
    try:
        complete = found.modules and found.visible and found.hidden
    except (UnfitTest, SyntaxError) as error:
        raise ConfigError(f"{_KEY} has {name!r}, whose tests cannot be asked: {error}.") from None
    if not complete:
        parts_needed = f"files of {found.name}/, tests/ and hidden/ after lines `==> path <==`"
        raise ConfigError(f"{_KEY} has {name!r}, which is no package: give {parts_needed}.")
    return found


@cache
def package_names(split: str = "all") -> tuple[str, ...]:
    """The packages of a split, sorted."""
    every = sorted(path.stem for path in _PACKAGES.glob("*.txt"))
    members = {"all": every, "test": HELD_OUT, "train": [name for name in every if name not in HELD_OUT]}
    return tuple(members[split])
