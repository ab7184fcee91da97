"""What search ranks by, and what an episode is worth."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tsr_lightning.worlds.swe.exam import Test, examine, modules_of
from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.sandbox import Sandbox
from tsr_lightning.worlds.swe.task import Grade, Task

RewardName = Literal["all", "ratio"]
ScoreName = Literal["visible", "imports", "parses", "oracle"]


class Reward(ABC):
    """What a submission is worth."""

    @abstractmethod
    def __call__(self, grade: Grade) -> float:
        """In [0, 1]."""


class AllOrNothing(Reward):
    """1 where every hidden test passes, as SWE-bench counts."""

    def __call__(self, grade: Grade) -> float:
        return float(grade.solved)


class Ratio(Reward):
    """The share of repaired tests, times the share of those that were kept: the Guide's verified reward in parts."""

    def __call__(self, grade: Grade) -> float:
        return grade.repaired * grade.kept


class Score(ABC):
    """The feedback on a folder before it is submitted."""

    @abstractmethod
    def __call__(self, sandbox: Sandbox, task: Task, folder: Folder) -> float:
        """In [0, 1]."""


class VisibleTests(Score):
    """The share of visible tests that pass, as they were at the beginning."""

    def __call__(self, sandbox: Sandbox, task: Task, folder: Folder) -> float:
        return task.grader(sandbox, folder).visible


class Oracle(Score):
    """The share of hidden tests that pass, which no policy could know."""

    def __call__(self, sandbox: Sandbox, task: Task, folder: Folder) -> float:
        return task.grader(sandbox, folder).hidden


@dataclass(frozen=True)
class Asked(Score):
    """The share of the program's files for which some Python runs.

    Args:
        program: of a file, by {path} and {module}.
    """

    program: str

    def __call__(self, sandbox: Sandbox, task: Task, folder: Folder) -> float:
        return _answered(sandbox, self.program, modules_of(folder, task.package))


REWARDS: Mapping[RewardName, Reward] = {"all": AllOrNothing(), "ratio": Ratio()}
SCORES: Mapping[ScoreName, Score] = {
    "visible": VisibleTests(),
    "imports": Asked("import {module}"),
    "parses": Asked("import ast; ast.parse(open({path!r}).read())"),
    "oracle": Oracle(),
}


@lru_cache(maxsize=1 << 12)
def _answered(sandbox: Sandbox, program: str, modules: Folder) -> float:
    paths = sorted(modules.files)
    if not paths:
        return 0.0
    tests = [_asking(program.format(path=path, module=path.removesuffix(".py").replace("/", "."))) for path in paths]
    return sum(examine(sandbox, modules, tests).passed) / len(paths)


def _asking(program: str) -> Test:
    return Test("test_it", f"def test_it():\n    {program}\n    __emit__(True)", ("True",), (program,))
