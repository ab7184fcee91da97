"""A player that knows the solution, and plays it as a programmer would: look for the fault, repair it, test, submit."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.task import Task

RUN = "python run_tests.py"
_AROUND = 2  # lines shown before and after an edit whose function is not known


def next_move(task: Task, folder: Folder, last: str) -> str | None:
    """The next command; None to submit.

    Args:
        last: the command before; "" for none.
    """
    if task.solve:
        return task.solve if last != task.solve else None
    wrong = [path for path, content in sorted(task.solution.items()) if folder.files.get(path) != content]
    if not wrong:
        return RUN if last != RUN else None
    if not last and not any(place.path in task.instruction for place in task.places):
        return RUN
    path = wrong[0]
    if path not in folder.files:
        return f"printf %s {quoted(task.solution[path].decode())} > {path}"
    edit, first, end = _edit(path, folder.files[path].decode(errors="replace"), task.solution[path].decode())
    look = _look(task, path, first, end)
    return edit if last == look else look


def quoted(text: str) -> str:
    """A text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _look(task: Task, path: str, first: int, end: int) -> str:
    for place in task.places:
        if place.path == path and place.first <= first <= place.last:
            return f"sed -n {place.first},{place.last}p {path}"
    return f"sed -n {max(1, first - _AROUND)},{end + _AROUND}p {path}"


def _edit(path: str, now: str, wanted: str) -> tuple[str, int, int]:
    """A command that makes the first difference good, and the lines that it changes."""
    old, new = now.split("\n"), wanted.split("\n")
    for tag, first, end, begin, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        lines = f"{first + 1}" if end == first + 1 else f"{first + 1},{end}"
        if tag == "replace":
            return _sed(f"{lines}c", new[begin:stop], path), first + 1, end
        if tag == "delete":
            return f"sed -i {lines}d {path}", first + 1, end
        if tag == "insert":
            return _sed(f"{first}a" if first else "1i", new[begin:stop], path), first + 1, first + 1
    raise ValueError(f"{path} needs no edit")


def _sed(command: str, lines: Sequence[str], path: str) -> str:
    """A command of sed that takes lines as they are."""
    text = "\\\n".join([command, *(line.replace("\\", "\\\\") for line in lines)])
    return f"sed -i {quoted(text)} {path}"
