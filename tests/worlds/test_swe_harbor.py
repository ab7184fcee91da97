"""Tasks as Harbor's folders, written and read."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from commands import ROOT

from tsr_lightning.errors import ConfigError
from tsr_lightning.worlds.swe.bubblewrap import open_bubblewrap
from tsr_lightning.worlds.swe.env import SWEEnv
from tsr_lightning.worlds.swe.generate import GeneratedTasks
from tsr_lightning.worlds.swe.harbor import TaskFolders, read_task, write_task
from tsr_lightning.worlds.swe.sandbox import Limits
from tsr_lightning.worlds.swe.task import Task

pytestmark = pytest.mark.usefixtures("sandbox_here")

# As others write them: an instruction, a Dockerfile, a script that writes a reward
OTHERS = {
    "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 60.0\n',
    "instruction.md": "Write hello to greeting.txt.\n",
    "environment/Dockerfile": "# a note\nFROM ubuntu:24.04\nWORKDIR /app\nCOPY notes.txt ./\nCOPY data /app/data\n",
    "environment/notes.txt": "a note\n",
    "environment/data/x.csv": "1,2\n",
    "tests/test.sh": (
        '#!/bin/bash\ncd /app\nif [ "$(cat greeting.txt)" = hello ] && grep -q note notes.txt && [ -f data/x.csv ]\n'
        "then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
    ),
    "solution/solve.sh": "#!/bin/bash\necho hello > /app/greeting.txt\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def generated(seed: int = 0) -> Task:
    return GeneratedTasks(open_bubblewrap(os.getpid()), ("calc", "stats"), "medium").task(seed)


def test_a_task_of_others_is_played(tmp_path: Path) -> None:
    env = SWEEnv(tasks=str(write(tmp_path / "hello", OTHERS)), call_format="fenced", score="oracle")
    [asked], _ = env.reset(seed=3)
    assert asked.content == "Write hello to greeting.txt."
    assert env.score() == 0
    [shown], *_ = env.step("```bash\nls; pwd\n```")
    assert shown.content == "data\nnotes.txt\n/work\n[exit code 0]"
    env.step(env.oracle())
    assert env.score() == 0.9
    _, reward, terminated, _, info = env.step(env.oracle())
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_program_that_a_dockerfile_copies_stays_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "hello", {**OTHERS, "environment/data/run.sh": "#!/bin/sh\necho ran\n"})
    (folder / "environment" / "data" / "run.sh").chmod(0o755)
    (folder / "environment" / "notes.txt").chmod(0o755)
    env = SWEEnv(tasks=str(folder), call_format="fenced")
    env.reset(seed=0)
    [shown], *_ = env.step("```bash\n./data/run.sh; [ -x notes.txt ] && [ ! -x data/x.csv ]\n```")
    assert shown.content == "ran\n[exit code 0]"


def test_a_task_of_others_is_not_solved_by_its_own_script(tmp_path: Path) -> None:
    """What a policy puts where tests and logs are is not there when the tests run."""
    env = SWEEnv(tasks=str(write(tmp_path / "hello", OTHERS)), call_format="fenced")
    env.reset(seed=0)
    planted = "echo 1 > .logs/verifier/reward.txt; echo 'exit 0' > .tests/test.sh"
    env.step(f"```bash\nmkdir -p .logs/verifier .tests; {planted}\n```")
    _, reward, *_ = env.step("```submit\n```")
    assert reward == 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_ours_are_written_and_read(tmp_path: Path, seed: int) -> None:
    task = generated(seed)
    write_task(task, tmp_path / "task")
    read = read_task(tmp_path / "task")
    assert read.folder.files == task.folder.files
    assert read.instruction.startswith(task.instruction)
    sandbox = open_bubblewrap(os.getpid())
    assert not read.grader(sandbox, read.folder).solved
    solved = sandbox.run(read.folder, read.solve, Limits()).folder
    assert solved.files == task.folder.with_files(task.solution).files
    assert read.grader(sandbox, solved).solved
    with pytest.raises(ConfigError, match="it exists"):
        write_task(task, tmp_path / "task")


def test_the_script_of_ours_runs_elsewhere(tmp_path: Path) -> None:
    """By plain Python, as in another harness, where /app and /tests are folders of its own."""
    task = generated()
    write_task(task, tmp_path / "task")
    tests, app = tmp_path / "task/tests", tmp_path / "task/environment/files"
    command = ["python3", str(tests / "check.py"), str(app)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0.0\n"
    for path, content in task.solution.items():
        (app / path).write_bytes(content)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1.0\n"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"task.toml": "version = "}, "its task.toml cannot be read"),
        ({"task.toml": "[verifier]\ntimeout_sec = 'long'\n"}, "its task.toml cannot be read"),
        (
            {"environment/Dockerfile": "FROM x\nRUN apt-get install vim\n"},
            "its Dockerfile has 'RUN apt-get install vim'",
        ),
        ({"environment/Dockerfile": "FROM x\nWORKDIR /srv\n"}, "its Dockerfile has 'WORKDIR /srv'"),
        ({"environment/Dockerfile": "FROM x\nCOPY ../../secret /app/\n"}, "its Dockerfile has 'COPY"),
        ({"environment/Dockerfile": "FROM x\nCOPY a /etc/\n"}, "its Dockerfile has 'COPY"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_played_is_refused(tmp_path: Path, changed: dict[str, str], sentence: str) -> None:
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ConfigError) as refused:
        read_task(write(tmp_path / "hello", {**OTHERS, **changed}))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_no_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it holds no task"):
        TaskFolders(str(tmp_path))
    with pytest.raises(ConfigError, match=r"it is no task, since it has no tests/test\.sh"):
        read_task(write(tmp_path, {name: OTHERS[name] for name in ("task.toml", "instruction.md")}))


@pytest.mark.slow
def test_the_example_of_the_docs_writes_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "swe.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(source.replace("range(10)", "range(1)"), "docs/swe.md", "exec"), {})
    [folder] = (tmp_path / "tasks").iterdir()
    assert read_task(folder).name == folder.name
