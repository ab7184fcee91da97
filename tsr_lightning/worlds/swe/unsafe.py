"""Commands without a sandbox, where a user says so: as the user of the run, with its files, network and processes."""

import os
import subprocess
import sys
import tempfile

from tsr_lightning.worlds.swe.folder import Folder, FolderTooLarge, read_folder, write_folder
from tsr_lightning.worlds.swe.sandbox import Limits, Result, Sandbox
from tsr_lightning.worlds.swe.supervise import kill_group, supervise


class Unsafe(Sandbox):
    """Runs each command in a temporary folder, within the limits of a process and nothing more."""

    def run(self, folder: Folder, command: str, limits: Limits) -> Result:
        with tempfile.TemporaryDirectory(prefix="tsr-swe-") as path:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                write_folder(folder, directory)
                bounds = (f"--as={limits.memory}", f"--fsize={limits.disk}", f"--cpu={int(limits.seconds) + 1}")
                with subprocess.Popen(
                    ["prlimit", *bounds, "--core=0", "--", "bash", "--norc", "--noprofile", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    cwd=path,
                    env={
                        "PATH": f"{os.path.dirname(sys.executable)}:{os.defpath}",
                        "HOME": path,
                        "LANG": "C.UTF-8",
                        "PYTHONHASHSEED": "0",
                        "PYTHONDONTWRITEBYTECODE": "1",
                    },
                    start_new_session=True,
                ) as process:
                    ended = os.pidfd_open(process.pid)
                    try:
                        assert process.stdout is not None
                        kept, problem = supervise(process.stdout, ended, lambda: kill_group(process.pid), limits)
                    finally:
                        kill_group(process.pid)
                        os.close(ended)
                    exit_code = process.wait()
                try:
                    after = read_folder(directory, folder)
                except FolderTooLarge as error:
                    after, problem = folder, f"undone: {error}"
            finally:
                os.close(directory)
        return Result(kept.text(), exit_code, after, problem)
