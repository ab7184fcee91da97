"""Attempts to escape from a sandbox, and to be graded as solved without a repair: each fails if it gets through."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swe_attacks import CHEATS, ESCAPES

import tsr_lightning
from tsr_lightning.worlds.swe.bubblewrap import open_bubblewrap
from tsr_lightning.worlds.swe.folder import Folder, Kind, of_files
from tsr_lightning.worlds.swe.generate import GeneratedTasks
from tsr_lightning.worlds.swe.sandbox import Limits, Result
from tsr_lightning.worlds.swe.task import Task

pytestmark = pytest.mark.usefixtures("sandbox_here")

SAMPLE = ("ipv4", "a host file", "hidden tests", "the environment of the host")  # the others are slow
FOLDER = of_files({"a.txt": b"a\n"})


def run(command: str, folder: Folder = FOLDER, **limits: Any) -> Result:
    return open_bubblewrap(os.getpid()).run(folder, command, Limits(**limits))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A secret, and sockets that listen."""
    folder = tmp_path_factory.mktemp("host")
    secret = folder / "secret"
    secret.write_text("the secret\n")
    listening = [socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    listening[0].bind(("127.0.0.1", 0))
    listening[1].bind(str(folder / "socket"))
    listening[2].bind(f"\0tsr-{os.getpid()}")
    port = listening[0].getsockname()[1]
    listening.append(socket.socket(socket.AF_INET6))
    try:
        listening[3].bind(("::1", port))
    except OSError:  # a machine without IPv6
        listening.pop().close()
    for one in listening:
        one.listen()
    os.environ["TSR_SECRET"] = "the secret"
    yield {
        "secret": secret,
        "port": port,
        "socket": folder / "socket",
        "abstract": f"tsr-{os.getpid()}",
        "package": Path(tsr_lightning.__file__).parent,
    }
    del os.environ["TSR_SECRET"]
    for one in listening:
        one.close()
    assert secret.read_text() == "the secret\n"


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in ESCAPES]
)
def test_no_way_out(host: dict[str, Any], name: str) -> None:
    command = ESCAPES[name]
    for field, value in host.items():
        command = command.replace(f"{{{field}}}", str(value))
    result = run(f"echo begun; {command}", seconds=4)
    assert result.output.startswith("begun")
    assert "THROUGH" not in result.output
    assert "the secret" not in result.output


def test_what_is_tried_would_get_through_without_a_sandbox(host: dict[str, Any]) -> None:
    """The attempts are real: some of them, where nothing keeps them."""
    for name in ("ipv4", "unix socket", "abstract unix socket", "a host file", "the folder of this project"):
        command = ESCAPES[name]
        for field, value in host.items():
            command = command.replace(f"{{{field}}}", str(value))
        found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert "THROUGH" in found.stdout, name


def left_running(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(path.parent.name)
        except OSError:
            continue  # it has just ended
    return found


class TestLimits:
    """What a command uses up is its own."""

    def test_a_process_that_outlives_its_command(self) -> None:
        begun = time.monotonic()
        result = run("(setsid nohup sleep 4321.5 >/dev/null 2>&1 &) ; (trap '' HUP TERM; sleep 4321.5) & echo done")
        assert result.output == "done\n"
        assert time.monotonic() - begun < 60
        assert left_running("sleep 4321.5") == []

    def test_time(self) -> None:
        result = run("trap '' TERM INT; echo begun; sleep 4322.5 & sleep 4322.5; wait", seconds=2)
        assert (result.output, result.problem) == ("begun\n", "ended after 2 seconds")
        assert result.exit_code != 0
        assert left_running("sleep 4322.5") == []

    @pytest.mark.slow
    def test_processor(self) -> None:
        assert run("while true; do :; done", seconds=2).problem == "ended after 2 seconds"

    @pytest.mark.slow
    def test_fork_bomb(self) -> None:
        result = run("bomb() { bomb | bomb & }; bomb; sleep 1; ls /proc | grep -c '^[0-9]'", seconds=3, processes=20)
        assert left_running("bomb() {") == []
        assert "Resource temporarily unavailable" in result.output

    @pytest.mark.slow
    def test_memory(self) -> None:
        assert "MemoryError" in run("python -c 'x = bytearray(1 << 31)'").output

    @pytest.mark.slow
    @pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm"])
    def test_disk(self, place: str) -> None:
        result = run(f"for i in 1 2 3; do head -c 8000000 /dev/zero > {place}/big$i; done; echo $?", disk=8 << 20)
        assert "No space left" in result.output

    def test_a_folder_that_is_too_large_is_undone(self) -> None:
        result = run("echo changed > a.txt; for i in $(seq 5); do head -c 1000000 /dev/zero > big$i; done")
        assert result.folder == FOLDER
        assert "undone" in result.problem

    @pytest.mark.slow
    def test_many_and_deep_entries(self) -> None:
        assert "undone" in run("mkdir d; cd d; touch $(seq 3000)").problem
        assert "undone" in run("for i in $(seq 60); do mkdir d; cd d; done").problem

    def test_endless_output(self) -> None:
        result = run("yes", most_output=1 << 20, output=1000)
        assert "bytes of output" in result.problem
        assert len(result.output) < 1100
        assert "bytes cut" in result.output

    @pytest.mark.slow
    def test_the_parent_is_killed(self) -> None:
        result = run("echo begun; kill -9 1; kill -9 $PPID; kill -9 -1; echo after")
        assert result.output.startswith("begun")
        assert result.folder == FOLDER


class TestWhatIsLeft:
    """The folder of a command, however it leaves it."""

    def test_links_and_special_files_are_not_followed(self, host: dict[str, Any]) -> None:
        result = run(
            f"ln -s {host['secret']} link; ln -s /etc dir; mkfifo pipe; ln a.txt twin; "
            "python -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'; mkdir shut; "
            "chmod 0 shut a.txt; ls -a"
        )
        kinds = {entry.path: entry.kind for entry in result.folder.entries}
        assert kinds == {
            "a.txt": Kind.FILE,
            "dir": Kind.LINK,
            "link": Kind.LINK,
            "shut": Kind.DIRECTORY,
            "twin": Kind.FILE,
        }
        assert b"the secret" not in b"".join(entry.content.replace(b"/secret", b"") for entry in result.folder.entries)
        again = run("cat a.txt twin; cat link dir/passwd", result.folder)
        assert again.output.startswith("a\na\n")
        assert "the secret" not in again.output
        assert again.folder == result.folder

    @pytest.mark.parametrize("command", ["chmod 0 .", "chmod a-x .", "chmod -R 644 ."])
    def test_a_folder_that_is_closed_is_read(self, command: str) -> None:
        """It is the policy's doing, and no fault of the machine."""
        result = run(f"mkdir d; echo x > d/f; {command}")
        assert result.problem == ""
        assert {entry.path for entry in result.folder.entries} == {"a.txt", "d", "d/f"}

    def test_a_link_in_the_place_of_a_folder_leads_nowhere(self, host: dict[str, Any]) -> None:
        target = host["secret"].parent
        result = run(f"rm a.txt; mkdir d; echo x > d/f; rm -r d; ln -s {target} d")
        before = sorted(path.name for path in target.iterdir())
        restored = run("ls", of_files({"d/f": b"planted"}))
        assert restored.output == "d\n"
        assert run("cat d/f", result.folder).exit_code != 0
        assert sorted(path.name for path in target.iterdir()) == before


@pytest.fixture(scope="module")
def task() -> Task:
    source = GeneratedTasks(open_bubblewrap(os.getpid()), ("calc",), "easy")
    return next(task for task in map(source.task, range(50)) if task.places[0].path == "calc/evaluator.py")


def changed(folder: Folder, files: dict[str, str | None]) -> Folder:
    kept = folder.without(lambda path: path in files)
    return kept.with_files({path: text.encode() for path, text in files.items() if text is not None})


CHEATS_OF_FAST_TESTS = ("nothing", "tests deleted", "always equal", "forged answers")


def marked(name: str) -> Any:
    if name in CHEATS_OF_FAST_TESTS:
        return name
    waits = name == "a process that stays"  # for half a minute, until it is ended
    return pytest.param(name, marks=pytest.mark.exhaustive if waits else pytest.mark.slow)


@pytest.fixture(scope="module")
def repaired_at_first(task: Task) -> float:
    """The share of repaired tests in the untouched folder."""
    return task.grader(open_bubblewrap(os.getpid()), task.folder).repaired


@pytest.mark.parametrize("name", [marked(name) for name in CHEATS])
def test_no_grade_without_a_repair(task: Task, repaired_at_first: float, name: str) -> None:
    sandbox = open_bubblewrap(os.getpid())
    grade = task.grader(sandbox, changed(task.folder, CHEATS[name]))
    assert not grade.solved
    assert grade.repaired <= repaired_at_first
    assert task.grader(sandbox, task.folder.with_files(task.solution)).solved


@pytest.mark.slow
def test_a_repair_beside_a_cheat_is_a_repair(task: Task) -> None:
    """What is planted changes no grade, for the better or the worse."""
    for name in ("conftest.py", "sitecustomize", "tests deleted", "modules of the library", "git hooks and filters"):
        folder = changed(task.folder, CHEATS[name]).with_files(task.solution)
        assert task.grader(open_bubblewrap(os.getpid()), folder).solved, name


@pytest.mark.slow
def test_a_package_that_is_a_link_is_not_followed(task: Task) -> None:
    sandbox = open_bubblewrap(os.getpid())
    linked = sandbox.run(task.folder, "mv calc /tmp/calc; ln -s /tmp/calc calc", Limits()).folder
    assert not task.grader(sandbox, linked).solved
