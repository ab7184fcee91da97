"""Software tasks as an environment that search can branch: a package with a fault, a shell, hidden tests.

The loop is mini-swe-agent's (github.com/SWE-agent/mini-swe-agent): every command is a process of its own in the folder,
and an episode ends with what is submitted. Ours is that a state is a value, so that going back costs nothing: see
`sandbox.py`.
"""

import os
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, get_args

from tsr_lightning.envs.tool_env import ToolEnv
from tsr_lightning.envs.validate import fraction, noise_has_key, one_of, whole
from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CallFormatName
from tsr_lightning.worlds.swe.bubblewrap import open_bubblewrap
from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.generate import DIFFICULTIES, DifficultyName, GeneratedTasks, check_packages
from tsr_lightning.worlds.swe.harbor import TaskFolders
from tsr_lightning.worlds.swe.library import package_names
from tsr_lightning.worlds.swe.oracle import RUN, guesses, next_move
from tsr_lightning.worlds.swe.sandbox import Limits, Result, Sandbox
from tsr_lightning.worlds.swe.scores import REWARDS, SCORES, RewardName, ScoreName
from tsr_lightning.worlds.swe.task import Grade, Task, TaskSource
from tsr_lightning.worlds.swe.unsafe import Unsafe

SplitName = Literal["all", "train", "test"]

_LONGEST_COMMAND = 100_000  # bytes; Linux takes 131,072 as one argument
_UNFINISHED = 0.9  # the most that a folder scores before it is submitted
_INSTRUCTIONS = (
    "You repair programs. Your working directory holds one with a fault, its README and some of its tests. Look at it "
    "with bash, find the fault, repair the program (not its tests) and submit. Every command runs by itself: only "
    "files are kept. Further tests, which you do not see, decide."
)


class Work(NamedTuple):
    """The state of an episode."""

    seed: int  # of the task
    folder: Folder
    grade: Grade | None = None  # of what was submitted
    commands: tuple[str, ...] = ()  # of bash, for the oracle


class SWEEnv(ToolEnv[Work]):
    """A program to repair, by calls of `bash`, `replace` and `submit`.

    Args:
        difficulty: "easiest" (an operator turned into its opposite, in a function of at most ten lines, which is told),
            "easy" (a fault in one operator or number, whose function is told), "medium" (one fault of any kind) or
            "hard" (two or three).
        split: packages with faults: "all", "train" or "test", those that "train" leaves out.
        packages: names of packages instead of a split, or paths of texts of the same form.
        task_count: different tasks; a seed picks one, modulo this. None: every seed has a task of its own.
        tasks: a folder of Harbor tasks to play instead of generated ones; a seed picks one, modulo their number.
        reward: of what is submitted: "all" (1 for all hidden tests, or 0) or "ratio" (in parts).
        score: what search ranks by: the share of "visible" tests that pass, of files that can be imported ("imports")
            or read ("parses"), or of hidden tests, which is an "oracle".
        output: characters of a command's output that are shown, cut in the middle.
        seconds: that a command may take.
        unsafe: runs commands without a sandbox, where there is none: with this user's files and network.
        max_turns: of one or several calls.
        call_format: see `ToolEnv`; "fenced" is mini-swe-agent's, one block a turn.
        format_penalty: reward of a turn whose calls cannot be read.
    """

    instructions = _INSTRUCTIONS

    def __init__(
        self,
        difficulty: DifficultyName = "easy",
        split: SplitName = "all",
        packages: Sequence[str] | None = None,
        task_count: int | None = None,
        tasks: str | None = None,
        reward: RewardName = "all",
        score: ScoreName = "visible",
        output: int = 4000,
        seconds: float = 10.0,
        unsafe: bool = False,
        max_turns: int = 12,
        call_format: CallFormatName | None = None,
        format_penalty: float = -0.1,
    ) -> None:
        super().__init__(max_turns=max_turns, call_format=call_format, format_penalty=format_penalty)
        one_of("SWEEnv.difficulty", difficulty, tuple(DIFFICULTIES))
        one_of("SWEEnv.split", split, get_args(SplitName))
        one_of("SWEEnv.reward", reward, tuple(REWARDS))
        one_of("SWEEnv.score", score, tuple(SCORES))
        if task_count is not None:
            whole("SWEEnv.task_count", task_count)
        whole("SWEEnv.output", output, at_least=100)
        valid = isinstance(seconds, int | float) and seconds > 0
        require(valid, "SWEEnv.seconds", seconds, "give a number above 0, such as 10.")
        self._reward, self._score = REWARDS[reward], SCORES[score]
        self._limits = Limits(seconds=seconds, output=output)
        self._sandbox: Sandbox = Unsafe() if unsafe else open_bubblewrap(os.getpid())
        self._source: TaskSource
        if tasks is None:
            names = tuple(packages) if packages else package_names(split)
            check_packages(self._sandbox, names if packages else ())  # ours are checked by a test
            self._source = GeneratedTasks(self._sandbox, names, difficulty, task_count)
        else:
            self._source = TaskFolders(tasks)

    # The tools

    def bash(self, command: str) -> str:
        """Runs a command of bash in the working directory.

        Args:
            command: such as `sed -n 1,40p README.md`
        """
        if "\0" in command:
            return "bash: a command takes no NUL character."
        if len(command.encode()) > _LONGEST_COMMAND:
            return f"bash: the command is longer than {_LONGEST_COMMAND:,} bytes."
        result = self._sandbox.run(self.state.folder, command, self._limits)
        self.state = self.state._replace(folder=result.folder, commands=(*self.state.commands, command))
        return _shown(result)

    def replace(self, path: str, old: str, new: str) -> str:
        """Replaces a text of a file, which has to be in it exactly once.

        Args:
            path: of the file
            old: the text
            new: what takes its place
        """
        content = self.state.folder.files.get(path)
        if content is None:
            return f"There is no file {path}."
        count = content.count(old.encode()) if old else 0
        if count != 1:
            return f"The text is in {path} {count} times."
        changed = content.replace(old.encode(), new.encode())
        self.state = self.state._replace(folder=self.state.folder.with_files({path: changed}))
        return "Replaced."

    def submit(self) -> str:
        """Ends the work: the program is tested as it is."""
        self.state = self.state._replace(grade=self.task.grader(self._sandbox, self.state.folder))
        return "Submitted."

    tool_functions = (bash, replace, submit)

    # The task

    @property
    def task(self) -> Task:
        """The task of the episode."""
        return self._source.task(self.state.seed)

    def initial_state(self, seed: int) -> Work:
        return Work(seed, self._source.task(seed).folder)

    def ask(self) -> str:
        return self.task.instruction

    def success(self) -> bool:
        return self.state.grade is not None and self.state.grade.solved

    def ended(self) -> bool:
        return self.state.grade is not None

    def reward(self, before: Work) -> float:
        return 0.0 if self.state.grade is None else self._reward(self.state.grade)

    def score(self) -> float:
        """0 or 1 of what was submitted; before that the share that the argument names, below 1."""
        if self.state.grade is not None:
            return float(self.state.grade.solved)
        return _UNFINISHED * self._score(self._sandbox, self.task, self.state.folder)

    def state_key(self) -> Hashable:
        """The task as it is told, so that seeds of one fault are one task, the folder, and whether it was submitted."""
        return self.task.instruction, self.state.folder.digest, self.state.grade is not None

    # Players

    def legal_actions(self) -> list[str]:
        """Some of all that can be said: looks, a test run, guesses or damage, and the end."""
        if self.episode.over or not self.remaining():
            return []
        tried = guesses(self.task, self.state.folder)
        paths = [] if tried else sorted(self.state.folder.files)
        commands = [
            "ls -R",
            RUN,
            *(f"cat {path}" for path in paths),
            *(f"sed -i '$d' {path}" for path in paths),
            *tried,
        ]
        return [*(self.written(SWEEnv.bash, command=command) for command in commands), self.written(SWEEnv.submit)]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """The next move of a repair: run the visible tests, look, repair and test, submit."""
        fraction("noise", noise)
        noise_has_key(noise, key)
        if key is not None and key.uniform(0) < noise:
            legal = self.legal_actions()[:-1]  # without the end
            return legal[int(key.uniform(1) * len(legal))]
        command = next_move(self.task, self.state.folder, self.state.commands)
        return self.written(SWEEnv.submit) if command is None else self.written(SWEEnv.bash, command=command)


def _shown(result: Result) -> str:
    ended = f" ({result.problem})" if result.problem else ""
    return f"{result.output.rstrip()}\n[exit code {result.exit_code}{ended}]".lstrip("\n")
