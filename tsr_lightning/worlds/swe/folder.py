"""A folder as a value: the state of a task, which costs nothing to keep, to compare and to go back to.

It is read and written through an open directory, never through a path, and no link is followed: what a command left
there may be hostile. Not kept are times, owners, permissions but for execution, hard links (they become copies), pipes,
sockets, and the bytecode in `__pycache__`, which restored times would make stale.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path

MOST_ENTRIES = 2000
MOST_BYTES = 4 << 20
_PAGE, _MOST_PAGES = 4096, (7 << 20) // 4096  # of a disk in memory of 8 MB, which holds whole pages of each file
_DEEPEST = 32
_TIME = 1577836800  # 2020-01-01: `ls -l` shows the same of equal folders

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Kind(Enum):
    FILE = "file"
    PROGRAM = "program"  # a file that may be executed
    LINK = "link"  # a symbolic one; its content is the target
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a folder."""

    path: str  # relative, with "/"
    kind: Kind
    content: bytes = b""


class FolderTooLarge(Exception):
    """A folder has more entries, depth or bytes than are kept."""


@dataclass(frozen=True)
class Folder:
    """The content of a folder, sorted by path, every directory before what is in it."""

    entries: tuple[Entry, ...]

    @cached_property
    def digest(self) -> str:
        """A hash of all of it, the same in every process."""
        found = hashlib.blake2b(digest_size=16)
        for entry in self.entries:
            name = os.fsencode(entry.path)
            found.update(b"%d %s %d " % (len(name), entry.kind.value.encode(), len(entry.content)))
            found.update(name + entry.content)
        return found.hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The content of every file by path."""
        return {entry.path: entry.content for entry in self.entries if entry.kind in (Kind.FILE, Kind.PROGRAM)}

    def with_files(self, files: Mapping[str, bytes]) -> "Folder":
        """Replaces or adds files; a program stays one."""
        before = {entry.path: entry for entry in self.entries}
        programs = {path for path, entry in before.items() if entry.kind is Kind.PROGRAM}
        after = {
            path: replace(entry, kind=Kind.PROGRAM) if path in programs else entry
            for path, entry in _files(files).items()
        }
        return folder_of(before | after)

    def without(self, unwanted: Callable[[str], bool]) -> "Folder":
        """Leaves out entries by their paths, and what is below them."""
        kept = list[Entry]()
        gone = list[str]()
        for entry in self.entries:
            if unwanted(entry.path) or entry.path.startswith(tuple(gone)):
                gone.append(f"{entry.path}/")
            else:
                kept.append(entry)
        return Folder(tuple(kept))


def folder_of(entries: Mapping[str, Entry]) -> Folder:
    """A folder of these entries, and the directories that they are in."""
    whole = dict(entries)
    for path in entries:
        for parent in list(Path(path).parents)[:-1]:
            whole.setdefault(parent.as_posix(), Entry(parent.as_posix(), Kind.DIRECTORY))
    return Folder(tuple(sorted(whole.values(), key=_order)))


def of_files(files: Mapping[str, bytes]) -> Folder:
    """A folder of plain files."""
    return folder_of(_files(files))


def read_folder(directory: int, before: Folder = Folder(())) -> Folder:
    """The folder that an open directory has.

    Args:
        directory: a file descriptor.
        before: an earlier folder, with which it shares contents that are the same.

    Raises:
        FolderTooLarge: it has too much in it.
    """
    known = {entry.path: entry for entry in before.entries}
    entries = list[Entry]()
    size = pages = 0
    for entry in _walk(directory, "", 0):
        size += len(entry.content)
        pages += -(-len(entry.content) // _PAGE)
        if len(entries) == MOST_ENTRIES or size > MOST_BYTES or pages > _MOST_PAGES:
            raise FolderTooLarge(f"the folder has more than {MOST_ENTRIES} entries or {MOST_BYTES >> 20} MB")
        entries.append(same if (same := known.get(entry.path)) == entry else entry)
    folder = Folder(tuple(sorted(entries, key=_order)))
    return before if folder == before else folder


def write_folder(folder: Folder, directory: int) -> None:
    """Writes a folder into an open directory that is empty."""
    opened = {"": directory}
    try:
        for entry in folder.entries:
            parent, _, name = entry.path.rpartition("/")
            _write(entry, name, opened, opened[parent])
        for entry in reversed(folder.entries):  # the contents of a directory before itself
            parent, _, name = entry.path.rpartition("/")
            os.utime(name, (_TIME, _TIME), dir_fd=opened[parent], follow_symlinks=False)
    finally:
        for path, descriptor in opened.items():
            if path:
                os.close(descriptor)


def read_directory(path: Path) -> Folder:
    """The folder at a path."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_folder(directory)
    finally:
        os.close(directory)


def _files(files: Mapping[str, bytes]) -> dict[str, Entry]:
    return {path: Entry(path, Kind.FILE, content) for path, content in files.items()}


def _order(entry: Entry) -> list[str]:
    return entry.path.split("/")


def _write(entry: Entry, name: str, opened: dict[str, int], parent: int) -> None:
    match entry.kind:
        case Kind.DIRECTORY:
            os.mkdir(name, 0o755, dir_fd=parent)
            opened[entry.path] = os.open(name, _DIRECTORY, dir_fd=parent)
        case Kind.LINK:
            os.symlink(os.fsdecode(entry.content), name, dir_fd=parent)
        case Kind.FILE | Kind.PROGRAM:
            descriptor = os.open(name, _WRITE, 0o755 if entry.kind is Kind.PROGRAM else 0o644, dir_fd=parent)
            with open(descriptor, "wb") as file:
                file.write(entry.content)


def _walk(directory: int, prefix: str, depth: int) -> Iterator[Entry]:
    if depth > _DEEPEST:
        raise FolderTooLarge(f"the folder is deeper than {_DEEPEST}")
    for name in _names(directory):
        path = f"{prefix}{name}"
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            yield Entry(path, Kind.LINK, os.fsencode(os.readlink(name, dir_fd=directory)))
        elif stat.S_ISDIR(found.st_mode):
            if name == "__pycache__":
                continue
            yield Entry(path, Kind.DIRECTORY)
            descriptor = _readable(name, directory, found.st_mode, _DIRECTORY)
            try:
                yield from _walk(descriptor, f"{path}/", depth + 1)
            finally:
                os.close(descriptor)
        elif stat.S_ISREG(found.st_mode):
            if found.st_size > MOST_BYTES:
                raise FolderTooLarge(f"{path} has more than {MOST_BYTES >> 20} MB")
            with open(_readable(name, directory, found.st_mode, _READ), "rb") as file:
                yield Entry(path, Kind.PROGRAM if found.st_mode & stat.S_IXUSR else Kind.FILE, file.read())


def _names(directory: int) -> Iterable[str]:
    names = list[str]()
    with os.scandir(directory) as found:
        for entry in found:
            names.append(entry.name)
            if len(names) > MOST_ENTRIES:
                raise FolderTooLarge(f"the folder has more than {MOST_ENTRIES} entries")
    return sorted(names)


def _readable(name: str, directory: int, mode: int, flags: int) -> int:
    """Opens what a command may have made unreadable."""
    needed = 0o500 if flags == _DIRECTORY else 0o400
    if mode & needed != needed:
        os.chmod(name, needed | stat.S_IMODE(mode), dir_fd=directory)
    return os.open(name, flags, dir_fd=directory)
