"""Lets an unprivileged user reach paths that only root can, such as a Python below /root, where a run is root's.

They are mounted once, in a mount namespace that a waiting process holds; each command enters it and gives its
privileges up. Elsewhere nothing is done: paths are what they are.
"""

import atexit
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_NOBODY = 65534
_UNPRIVILEGED = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--")
_MOUNT = """
set -e; root=$1; shift; n=0
mount -t tmpfs -o mode=0755 stage "$root"
for path; do
    if [ -d "$path" ]; then mkdir "$root/$n"; else touch "$root/$n"; fi
    mount --bind "$path" "$root/$n"; n=$((n+1))
done
echo; exec cat
"""


@dataclass(frozen=True)
class Stage:
    """Where a command finds folders and files of the host.

    Args:
        entered: what comes before a command line, so that it finds them.
        paths: their places, in the order in which they were asked for.
    """

    entered: tuple[str, ...]
    paths: tuple[str, ...]


def staged(paths: Sequence[str]) -> Stage:
    """A stage with these folders and files, until this process ends."""
    if os.geteuid() != 0:
        return Stage((), tuple(paths))
    root = tempfile.TemporaryDirectory(prefix="tsr-stage-")
    os.chmod(root.name, 0o755)
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh", root.name, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert holder.stdout is not None
    if not holder.stdout.readline():  # this root may not mount: let it try with paths as they are
        holder.communicate()
        root.cleanup()
        return Stage(_UNPRIVILEGED, tuple(paths))
    atexit.register(_end, holder, root)
    enter = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", f"--setuid={_NOBODY}", f"--setgid={_NOBODY}", "--")
    return Stage(enter, tuple(f"{root.name}/{place}" for place in range(len(paths))))


@contextmanager
def commands_owner() -> Iterator[None]:
    """Touches files as the user that commands run as: root itself has no place in their namespace."""
    if os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsgid(_NOBODY)  # both are the calling thread's alone
    library.setfsuid(_NOBODY)
    try:
        yield
    finally:
        library.setfsuid(0)
        library.setfsgid(0)


def _end(holder: "subprocess.Popen[bytes]", root: "tempfile.TemporaryDirectory[str]") -> None:
    holder.communicate()  # closes its input, with which it ends
    root.cleanup()
