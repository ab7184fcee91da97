"""Tasks as Harbor's folders (github.com/laude-institute/harbor): `task.toml`, `instruction.md`, `environment/`,
`tests/test.sh`, `solution/solve.sh`. Ours are written as such, for others to play; others' are read where no image has
to be built for them.
"""

import json
import shlex
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.worlds.swe.exam import CHECKER, questions_of
from tsr_lightning.worlds.swe.folder import Entry, Folder, FolderTooLarge, Kind, folder_of, read_directory
from tsr_lightning.worlds.swe.generate import HiddenTests
from tsr_lightning.worlds.swe.library import package
from tsr_lightning.worlds.swe.sandbox import Limits, Sandbox
from tsr_lightning.worlds.swe.task import Grade, Grader, Task, TaskSource

_KEY = "SWEEnv.tasks"
_WORK_FOLDERS = ("/app", "/work")  # which a sandbox has
_IMAGE = "it needs an image; give tasks whose Dockerfile has no more than FROM, WORKDIR {} and COPY"
_TESTS, _LOGS = ".tests", ".logs"  # where a sandbox has /tests and /logs

_TASK = """version = "1.0"

[metadata]
name = {name}
difficulty = {difficulty}
tags = ["python", "repair"]

[verifier]
timeout_sec = 120.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
"""
_DOCKERFILE = "FROM python:3.12-slim\nWORKDIR /app\nCOPY files/ /app/\n"
_TEST = """#!/bin/bash
mkdir -p /logs/verifier
python3 /tests/check.py /app > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class Script(Grader):
    """A task's own `tests/test.sh`, whose reward is 1 for a solution.

    It runs beside the program that it tests, so that a program could write the reward: Harbor's own design.

    Args:
        tests: the folder of it.
        seconds: that it may take.
    """

    tests: Folder
    seconds: float

    def __call__(self, sandbox: Sandbox, folder: Folder) -> Grade:
        reward = _verified(sandbox, self, folder)
        return Grade(repaired=reward, kept=1.0, hidden=reward, visible=0.0)


class TaskFolders(TaskSource):
    """The tasks of a folder; a seed picks one, modulo their number.

    Args:
        path: of a folder of task folders, or of one of them.
    """

    def __init__(self, path: str) -> None:
        root = Path(path)
        require(root.is_dir(), _KEY, path, "there is no such folder; give one of Harbor tasks.")
        found = [root] if (root / "task.toml").is_file() else sorted(file.parent for file in root.glob("*/task.toml"))
        require(bool(found), _KEY, path, "it holds no task; give a folder of folders with a task.toml each.")
        self._tasks: Sequence[Task] = [read_task(folder) for folder in found]

    def task(self, seed: int) -> Task:
        return self._tasks[seed % len(self._tasks)]


def read_task(folder: Path) -> Task:
    """The task of a folder.

    Raises:
        ConfigError: it is none, or it needs an image.
    """
    for name in ("task.toml", "instruction.md", "tests/test.sh"):
        require((folder / name).is_file(), _KEY, str(folder), f"it is no task, since it has no {name}.")
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        seconds = float(settings.get("verifier", {}).get("timeout_sec", 120.0))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{_KEY} is {str(folder)!r}: its task.toml cannot be read ({error}); correct it.") from None
    try:
        begun = _environment(folder / "environment")
        tests = read_directory(folder / "tests")
    except FolderTooLarge as error:
        raise ConfigError(f"{_KEY} is {str(folder)!r}: {error}; take smaller tasks.") from None
    solve = folder / "solution" / "solve.sh"
    return Task(
        folder.name,
        (folder / "instruction.md").read_text(encoding="utf-8").strip(),
        begun,
        Script(tests, seconds),
        {},
        solve=solve.read_text(encoding="utf-8") if solve.is_file() else "",
    )


def write_task(task: Task, folder: Path) -> None:
    """Writes a generated task as a folder, which must not exist.

    Raises:
        ConfigError: it exists.
    """
    require(not folder.exists(), "the folder of a task", str(folder), "it exists; give another, or remove it.")
    if not isinstance(task.grader, HiddenTests):
        raise TypeError("only generated tasks are written")
    whole = package(task.grader.source)
    exam = {"package": whole.name, **questions_of((*whole.visible, *whole.hidden), task.grader.failing)}
    repaired = sorted((path, text.decode()) for path, text in task.solution.items())
    solution = "".join(f"cat > /app/{path} <<'END_OF_FILE'\n{text}END_OF_FILE\n" for path, text in repaired)
    settings = _TASK.format(name=json.dumps(task.name), difficulty=json.dumps(task.name.partition("-")[0]))
    files = {
        "task.toml": settings,
        "instruction.md": f"{task.instruction}\nThe package is in /app; further tests decide whether it is repaired.\n",
        "environment/Dockerfile": _DOCKERFILE,
        "tests/test.sh": _TEST,
        "tests/check.py": CHECKER,
        "tests/exam.json": json.dumps(exam, indent=1),
        "solution/solve.sh": f"#!/bin/bash\n{solution}",
    }
    contents = {path: text.encode() for path, text in files.items()}
    contents |= {f"environment/files/{path}": content for path, content in task.folder.files.items()}
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@lru_cache(maxsize=1 << 12)
def _verified(sandbox: Sandbox, script: Script, folder: Folder) -> float:
    """The reward that a task's script writes, on a copy of the folder."""
    clean = folder.without(lambda path: path in (_TESTS, _LOGS))
    entries = {entry.path: entry for entry in clean.entries}
    entries |= {
        f"{_TESTS}/{entry.path}": replace(entry, path=f"{_TESTS}/{entry.path}") for entry in script.tests.entries
    }
    both = folder_of(entries).with_files({f"{_LOGS}/verifier/.keep": b""})
    result = sandbox.run(both, "bash /tests/test.sh", Limits(seconds=script.seconds, disk=64 << 20))
    written = result.folder.files
    try:
        if (text := written.get(f"{_LOGS}/verifier/reward.txt")) is not None:
            reward = float(text)
        else:
            reward = float(json.loads(written.get(f"{_LOGS}/verifier/reward.json", b"{}")).get("reward", 0.0))
    except (ValueError, TypeError, AttributeError):
        return 0.0
    return reward if 0 <= reward <= 1 else 0.0


def _environment(folder: Path) -> Folder:
    """The working folder that a Dockerfile makes, if that takes no image."""
    file = folder / "Dockerfile"
    if not file.is_file():
        require(folder.is_dir(), _KEY, str(folder.parent), "it has no environment/, so it needs an image of its own.")
        return read_directory(folder)
    copied = dict[str, Entry]()
    lines = file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    for line in (line.strip() for line in lines):
        name, _, rest = line.partition(" ")
        match name.upper():
            case "" | "#" | "FROM" | "LABEL" | "CMD":
                continue
            case "WORKDIR" if rest.strip().rstrip("/") in _WORK_FOLDERS:
                continue
            case "COPY" if (found := _copied(folder, shlex.split(rest))) is not None:
                copied |= found
            case _ if name.startswith("#"):
                continue
            case _:
                remedy = _IMAGE.format(" or ".join(_WORK_FOLDERS))
                raise ConfigError(f"{_KEY} is {str(folder.parent)!r}: its Dockerfile has {line[:60]!r}, so {remedy}.")
    return folder_of(copied)


def _copied(folder: Path, words: Sequence[str]) -> dict[str, Entry] | None:
    """The files of a COPY into the working folder, by their paths there; None for another one."""
    if len(words) < 2 or any(word.startswith("--") for word in words):
        return None
    *sources, target = words
    target = target.removesuffix("/") or "/"
    for root in _WORK_FOLDERS:
        if target == root or target.startswith(f"{root}/"):
            target = target.removeprefix(root).strip("/")
            break
    else:
        if target.startswith("/"):
            return None
        target = "" if target == "." else target.removeprefix("./")
    found = dict[str, Entry]()
    for source in sources:
        path = (folder / source).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.exists():
            return None
        if path.is_dir():
            for entry in read_directory(path).entries:
                if entry.path != "Dockerfile" and entry.kind in (Kind.FILE, Kind.PROGRAM):
                    name = f"{target}/{entry.path}".lstrip("/")
                    found[name] = replace(entry, path=name)
        else:
            renamed = (
                target if target and not words[-1].endswith("/") and len(sources) == 1 else f"{target}/{path.name}"
            )
            name = renamed.lstrip("/")
            kind = Kind.PROGRAM if path.stat().st_mode & stat.S_IXUSR else Kind.FILE
            found[name] = Entry(name, kind, path.read_bytes())
    return found
