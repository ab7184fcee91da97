"""A player that knows the solution, and plays it as a programmer would: look for the fault, repair it, test, submit."""

import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache

from tsr_lightning.worlds.swe.faults import ONE_LINE, inject, sites
from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.sed import changes, sed
from tsr_lightning.worlds.swe.task import Place, Task

RUN = "python run_tests.py"
_TESTED = f" && {RUN} | tail -n 1"  # after an edit
_AROUND = 2  # lines shown before and after an edit whose function is not known


def next_move(task: Task, folder: Folder, commands: Sequence[str]) -> str | None:
    """The next command; None to submit.

    Args:
        commands: those of the episode.
    """
    if task.solve:
        return task.solve if task.solve not in commands else None
    wrong = [path for path, content in sorted(task.solution.items()) if folder.files.get(path) != content]
    last = commands[-1] if commands else ""
    if not wrong:
        return RUN if RUN not in last else None
    if not last and not any(is_told(task, place) for place in task.places):
        return RUN
    path, wanted = wrong[0], task.solution[wrong[0]].decode()
    if path not in folder.files:
        return f"printf %s {shlex.quote(wanted)} > {path}"
    return _look_or_edit(task, path, folder.files[path].decode(errors="replace"), wanted, commands)


def _look_or_edit(task: Task, path: str, now: str, wanted: str, commands: Sequence[str]) -> str:
    """A look at the first place that differs from what is wanted, or, once it was seen, the edit there."""
    found = changes(now, wanted)
    first, last = _seen_lines(task, path, found[0].first, found[0].last)
    look = f"grep -n '' {path} | sed -n {first},{last}p"
    here = [change for change in found if first <= change.first and change.last <= last]
    return sed(here, path) + _TESTED if look in commands else look


def _seen_lines(task: Task, path: str, first: int, last: int) -> tuple[int, int]:
    for place in task.places:
        if place.path == path and place.first <= first <= last <= place.last:
            return place.first, place.last
    return max(1, first - _AROUND), last + _AROUND


def guesses(task: Task, folder: Folder) -> list[str]:
    """Commands that take back what was tried and change one operator or number, where the task tells its function."""
    told = [place for place in task.places if is_told(task, place)]
    return [command for place in told for command in _guesses_at(task, place, folder)]


def is_told(task: Task, place: Place) -> bool:
    """Whether the instruction names the file."""
    return place.path in task.instruction


def _guesses_at(task: Task, place: Place, folder: Folder) -> Iterator[str]:
    now = folder.files.get(place.path, b"").decode(errors="replace")
    for wanted in _variants(place, task.folder.files[place.path].decode()):
        if now and wanted != now:
            yield sed(changes(now, wanted), place.path) + _TESTED


@lru_cache(maxsize=1 << 10)
def _variants(place: Place, text: str) -> tuple[str, ...]:
    """A module with one of the operators of a function turned into another, in the way that made its fault."""
    operators = (place.operator,) if place.operator in ONE_LINE else ONE_LINE
    return tuple(inject(text, [site]) for site in sites(place.path, text, operators) if site.name == place.name)
