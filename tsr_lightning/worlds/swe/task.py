"""A software task: a folder, what is said of it, and how the folder that comes back is graded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.sandbox import Sandbox


@dataclass(frozen=True)
class Grade:
    """What hidden tests say of a folder, each a share in [0, 1].

    Args:
        repaired: passing tests of FAIL_TO_PASS, those that the fault breaks.
        kept: passing tests of PASS_TO_PASS, all the others.
        hidden: passing tests among those that the policy does not see.
        visible: passing tests among those that the policy sees, as they were at the beginning.
    """

    repaired: float
    kept: float
    hidden: float
    visible: float

    @property
    def solved(self) -> bool:
        return self.repaired == self.kept == 1


class Grader(ABC):
    """Grades a folder on a copy."""

    @abstractmethod
    def __call__(self, sandbox: Sandbox, folder: Folder) -> Grade:
        """The same for the same folder."""


@dataclass(frozen=True)
class Place:
    """Lines of a file that have a fault in them."""

    path: str
    first: int  # from 1
    last: int
    name: str  # of the function or class
    operator: str  # that made the fault


@dataclass(frozen=True)
class Task:
    """A task as a value.

    Args:
        name: of the task, unique in its source.
        instruction: what is wrong, for the policy.
        folder: that an episode begins with.
        grader: of folders.
        solution: the files of a solution by path; none where it is not known.
        places: of the faults, where they are known.
        solve: a command that solves it, where that is all that is known.
        package: the package that is repaired; "" where a task is not about one.
    """

    name: str
    instruction: str
    folder: Folder
    grader: Grader
    solution: Mapping[str, bytes]
    places: Sequence[Place] = ()
    solve: str = ""
    package: str = ""


class TaskSource(ABC):
    """Tasks by seed."""

    @abstractmethod
    def task(self, seed: int) -> Task:
        """The task that a seed names, the same in every process."""
