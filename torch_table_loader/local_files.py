"""Files in local folders that others may write to: links are not followed, and pipes are not waited for."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from torch_table_loader.errors import StorageError

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_HAS_FOLDERS = os.open in os.supports_dir_fd
"""Whether a file can be opened relative to an open folder: not on Windows, where links are looked for beforehand."""


def _flags(*names: str) -> int:
    """Return those flags of `os.open` that this system has."""
    return sum(getattr(os, name, 0) for name in names)


_AS_IT_IS = _flags("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
_FOLDER_ONLY = _flags("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; neither the file nor its folder may be a symbolic link.

    Returns:
        The descriptor, which the caller closes.

    Raises:
        FileNotFoundError: there is no such file or folder.
        StorageError: it is a link, a pipe or something else that is not a regular file. To write: it has a second name.
    """
    with _opened_folder(path.parent) as folder:
        try:
            file = _open_in(folder, path, flags | _AS_IT_IS)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EOPNOTSUPP):
                raise _unsafe(path, _kind(path)) from error
            raise
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and not (flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1):
        return file
    os.close(file)
    raise _unsafe(path, "a file with a second name" if stat.S_ISREG(found.st_mode) else _kind(path))


def read_regular(path: Path) -> bytes:
    """Read a file whole; see `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def stat_regular(path: Path) -> os.stat_result:
    """Return what the system says of a regular file; see `open_regular`."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise _unsafe(path, _kind(path))
    return found


@contextmanager
def new_file(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Make a file under a name that nobody can foresee, beside the path that it will have.

    Args:
        path: that the caller renames it to. What is not renamed is removed.

    Yields:
        Its path and the open file.
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    file = os.fdopen(open_regular(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
    try:
        with file:
            yield unfinished, file
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole, or not at all; one of that name is replaced."""
    with new_file(path) as (unfinished, file):
        file.write(data)
        file.close()
        unfinished.replace(path)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing. What is there already may not be a link.

    A new folder is this user's alone (0700). In a folder that was there, it is as open as that one, so that a team
    which shares one keeps sharing it; a folder such as /tmp, in which each has files of their own, does not count.

    Raises:
        StorageError: a link or a file is in its place.
    """
    with suppress(FileNotFoundError), _opened_folder(folder):
        return
    mode = 0o700
    if folder.parent.is_dir():
        around = folder.parent.stat().st_mode
        mode |= 0 if around & stat.S_ISVTX else around & 0o777
    else:
        make_folder(folder.parent)
    with suppress(FileExistsError):  # another process made it
        folder.mkdir(mode)
    with _opened_folder(folder):
        return


def check_owned(folder: Path, option: str = "row_store= or TORCH_TABLE_LOADER_CACHE") -> None:
    """Refuse a folder, if it is there, that somebody else owns or may write to. Windows says neither.

    Args:
        folder: that this library keeps things in.
        option: with which the caller names another one, for messages.

    Raises:
        StorageError: with the remedy.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise _unsafe(folder, _kind(folder))
    if not hasattr(os, "geteuid"):
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise StorageError(
            f"{str(folder)!r} belongs to user {found.st_uid}, who controls its contents; remove it, or name a folder "
            f"of your own with {option}"
        )
    if found.st_mode & 0o022:
        raise StorageError(
            f"others may write to {str(folder)!r} (mode {found.st_mode & 0o7777:04o}), and so control its contents; "
            f"run `chmod go-w` on it, or name another folder with {option}"
        )


def allocate(file: int, num_bytes: int) -> None:
    """Have the file system set room aside for a file's first bytes; does nothing where it cannot.

    A page that finds no room when it is first touched in a mapping ends the process (SIGBUS). This raises instead.
    `os.posix_fallocate` will not do: where a file system cannot, it writes zeros over what another process just wrote.

    Raises:
        OSError: there is no room.
    """
    fallocate = _fallocate()
    if fallocate is None or num_bytes == 0:
        return
    while fallocate(file, 0, 0, num_bytes):
        code = ctypes.get_errno()
        if code in _NO_FALLOCATE:
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


@cache
def _fallocate() -> Any:
    if sys.platform == "win32":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    found = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)  # glibc, musl; macOS has neither
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int | None]:
    """Open a folder that is no link; yield None where the system opens no folders, once it was looked at."""
    if not _HAS_FOLDERS:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise _unsafe(folder, _kind(folder))
        yield None
        return
    try:
        opened = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER_ONLY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and (folder.is_symlink() or folder.exists()):
            raise _unsafe(folder, _kind(folder)) from error
        raise
    try:
        yield opened
    finally:
        os.close(opened)


def _open_in(folder: int | None, path: Path, flags: int) -> int:
    if folder is not None:
        return os.open(path.name, flags, 0o666, dir_fd=folder)
    if path.is_symlink():
        raise _unsafe(path, _kind(path))
    return os.open(path, flags, 0o666)


def _kind(path: Path) -> str:
    return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "a file")


def _unsafe(path: Path, kind: str) -> StorageError:
    return StorageError(
        f"{str(path)!r} must be what this library made there, got {kind}; it is not touched: find out who made it, "
        "remove it, or name another folder"
    )
