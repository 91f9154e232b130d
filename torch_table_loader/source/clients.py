"""Clients of a store: this machine's files, and any fsspec file system; object stores are in `object_store`.

A client belongs to the process that made it. Its methods raise the errors of the underlying library;
`storage` turns those into this library's errors.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs as arrow_fs
from typing_extensions import override

from torch_table_loader.cancellation import Threads, check_wanted, interruptibly
from torch_table_loader.errors import TableError
from torch_table_loader.local_files import make_folder, new_file, write_whole
from torch_table_loader.records import FileVersion, LocalVersion
from torch_table_loader.sizes import sizes
from torch_table_loader.source.address import HTTP_PROTOCOLS, S3_PROTOCOLS, filesystem_class, shown
from torch_table_loader.source.listing_bounds import ListingBounds
from torch_table_loader.source.retrying import patience

STAT_THREADS = 16
"""Requests in flight if files must be queried one by one: stores answer in tens of milliseconds."""

_COPY_BYTES = 1 << 24
_PAGE_BYTES = 1 << 20

_READ_AHEAD = 1 << 20
"""Bytes that fsspec reads beyond a request: s3fs's own 50 MiB would read most of a file for one column."""

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_UNSTABLE = ("fuse", "cifs", "smb", "vboxsf")
"""File systems, by the beginning of their names, that may give a file another inode each time it is looked up: FUSE
clients of object stores do once they forget it, and Windows servers may have no numbers at all."""

_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_NAMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modify", "created")
_ETAG_NAMES = ("ETag", "etag", "generation", "Content-MD5")


class Found(NamedTuple):
    """A store's answer about one path; anything but a file has no version."""

    path: str
    version: FileVersion | None
    special: str = ""
    """What else it is, if it is neither a file nor a directory: a FIFO, a socket or a device."""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.version is None and not self.special

    def file_version(self) -> FileVersion:
        """Return the version. Raises TableError if this is not a file."""
        if self.version is None:
            found = f"a {self.special}" if self.special else "a directory"
            raise TableError(f"{self.path}: expected a file, found {found}; remove it, or list the table again")
        return self.version


class ChangedFile(Exception):  # noqa: N818 - storage turns it into an error
    """A file no longer has the expected tag. Arguments: that tag and, where the store says it, the one it has now."""


class Client(ABC):
    """An open connection to a store."""

    @abstractmethod
    def stat(self, path: str) -> Found:
        """Return what is at one path; one that ends with a slash names no file. Raises FileNotFoundError."""

    def probe(self, path: str) -> Found:
        """Return what `stat` does, or a directory if nothing is there: without real directories, any path names one."""
        return self.stat(path)

    @abstractmethod
    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List a directory: all files below it or, if not recursive, its files and directories."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Read a small file completely."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a small file atomically: a reader sees all of it or nothing."""

    @abstractmethod
    def put_file(self, local: str, path: str) -> None:
        """Copy a local file to the store."""

    read_ahead_bytes = 0
    """Bytes of one read of a file that is read in small parts."""

    checks_tags = False
    """Whether `read_range` refuses a file whose tag is no longer the one it was given (If-Match)."""

    @abstractmethod
    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> Any:
        """Read bytes of a file with one request; the caller checks how many arrived.

        If the client `checks_tags`, the file must still have the tag `etag`; None allows any.

        Raises:
            ChangedFile: the file has another tag.
        """


class LocalClient(Client):
    """Files on this machine."""

    def __init__(self) -> None:
        """Open nothing."""
        self.native = arrow_fs.LocalFileSystem()

    def open(self, path: str) -> pa.NativeFile:
        """Open with plain reads: a mapping would die with SIGBUS if a file is cut short."""
        self._refuse_special(path)
        return self.native.open_input_file(path)

    @override
    def stat(self, path: str) -> Found:
        """Return what is at a path; follow links, as `open` does."""
        return found_here(path, os.stat(path))  # noqa: PTH116 - hot: 10,000 files

    @override
    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List a directory; follow links to directories, but never into a directory on the path walked so far."""
        return self._walk(root, recursive=recursive, through=frozenset())

    def _walk(self, root: str, *, recursive: bool, through: frozenset[tuple[int, int]]) -> Iterator[Found]:
        here = os.stat(root)  # noqa: PTH116
        identity = (here.st_dev, here.st_ino)
        if identity in through:
            return
        with os.scandir(root) as entries:
            listed = list(entries)
        for entry in listed:
            if not entry.is_dir():
                yield found_here(entry.path, entry.stat())
            elif recursive:
                yield from self._walk(entry.path, recursive=True, through=through | {identity})
            else:
                yield Found(entry.path, None)

    @override
    def read(self, path: str) -> bytes:
        self._refuse_special(path)
        return Path(path).read_bytes()

    @override
    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> Any:
        with self.open(path) as file:
            return file.read_at(stop - start, start)

    def _refuse_special(self, path: str) -> None:
        """Raise TableError for a FIFO or device: opening or reading it could block forever."""
        if (found := self.stat(path)).special:
            found.file_version()

    @override
    def write(self, path: str, data: bytes) -> None:
        """Write a temporary file beside the file, then rename it."""
        target = Path(path)
        if not target.parent.is_dir():
            make_folder(target.parent)
        write_whole(target.parent.resolve() / target.name, data)  # the folder may be a link; the file in it may not

    @override
    def put_file(self, local: str, path: str) -> None:
        """Copy a file to a temporary name beside its place, then rename it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target = target.parent.resolve() / target.name
        with new_file(target) as (unfinished, copy), Path(local).open("rb") as file:
            shutil.copyfileobj(file, copy, _COPY_BYTES)
            copy.close()
            unfinished.replace(target)


class FsspecClient(Client):
    """Any fsspec file system."""

    def __init__(self, protocol: str, options: Mapping[str, Any]) -> None:
        """Create a separate instance: fsspec's shared ones may hold stale listings and other logins."""
        self._protocol = protocol
        if protocol in HTTP_PROTOCOLS or protocol in S3_PROTOCOLS:
            # Imported here, since few stores need aiohttp, which takes time to import.
            from torch_table_loader.source.aiohttp_options import http_options, s3fs_options

            options = (http_options if protocol in HTTP_PROTOCOLS else s3fs_options)(options)
        self.native = filesystem_class(protocol)(**options, skip_instance_cache=True)
        if protocol in S3_PROTOCOLS:
            self.native.retries = 1  # otherwise five times five tries, each of which waits for its timeout
        self.read_ahead_bytes = options.get("block_size") or options.get("default_block_size") or _READ_AHEAD

    @override
    def stat(self, path: str) -> Found:
        """Return what is at one path, bypassing the cache of listings."""
        if self._protocol in HTTP_PROTOCOLS and path.endswith("/"):
            return Found(path, None)
        with _with_http_failures(self._protocol):
            return _of_fsspec(path, self._asked(lambda: self.native.info(path.rstrip("/") or path)))

    @override
    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List with one call, and query what a listing left out (for http: sizes)."""
        if not recursive:
            infos = self._listed(root)
        elif self._protocol in HTTP_PROTOCOLS:
            infos = self._below(root)
        else:
            infos = self.native.find(root, detail=True)
            ListingBounds(root).count(len(infos))
        self.native.invalidate_cache()
        infos.pop(root, None)  # object stores list a directory's own marker
        unknown = [path for path, info in infos.items() if _is_file(info) and info.get("size") is None]
        with Threads(STAT_THREADS, "table-loader-ask") as pool:
            asked = dict(zip(unknown, pool.map(self.stat, unknown), strict=True))
        for path, info in infos.items():
            yield asked.get(path) or _of_fsspec(path, info)

    def _listed(self, folder: str) -> dict[str, Any]:
        """Return what is in a folder."""
        return {info["name"]: info for info in self._asked(lambda: self.native.ls(folder, detail=True))}

    def _below(self, root: str) -> dict[str, Any]:
        """Return the files below a page of the web, one folder after another; links to missing pages are left out."""
        bounds = ListingBounds(shown(self._protocol, root))
        found: dict[str, Any] = {}
        folders = {root.rstrip("/"): root}
        for _, folder in _while_growing(folders):
            check_wanted()
            try:
                with _with_http_failures(self._protocol):
                    infos = self._listed(folder)
            except FileNotFoundError:
                infos = {}
            files = {name: info for name, info in infos.items() if _is_file(info) and name not in found}
            found |= files
            folders |= {name.rstrip("/"): name for name in infos.keys() - files.keys() if name.endswith("/")}
            bounds.count(len(files))
        return found

    @override
    def read(self, path: str) -> bytes:
        return bytes(self._asked(lambda: self.native.cat_file(path), sizes().whole_file_bytes))

    @override
    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> Any:
        """Read bytes of a file without opening it, which would cost a request for its size."""
        with _with_http_failures(self._protocol):
            return self._asked(lambda: self.native.cat_file(path, start=start, end=stop), stop - start)

    def _asked(self, ask: Callable[[], Any], num_bytes: int = _PAGE_BYTES) -> Any:
        """Return an answer of at most so many bytes, which comes at the least rate."""
        if self._protocol == "memory":
            return ask()
        return interruptibly(ask, patience(num_bytes))

    @override
    def write(self, path: str, data: bytes) -> None:
        """Write a file; create directories if the store has them."""
        self._put(path, lambda: self.native.pipe_file(path, data))

    @override
    def put_file(self, local: str, path: str) -> None:
        self._put(path, lambda: self.native.put_file(local, path))

    def _put(self, path: str, put: Callable[[], object]) -> None:
        try:
            put()
        except FileNotFoundError:
            self.native.makedirs(path.rpartition("/")[0], exist_ok=True)
            put()


def found_here(path: str, status: os.stat_result) -> Found:
    """Return what is at a path of this machine, by what the system says of it."""
    if not stat.S_ISREG(status.st_mode):
        return Found(path, None, _SPECIAL.get(stat.S_IFMT(status.st_mode), ""))
    return Found(path, FileVersion(status.st_size, status.st_mtime_ns, local=_local_version(status)))


@contextmanager
def _with_http_failures(protocol: str) -> Iterator[None]:
    """Reverse fsspec's mapping of every http failure to "not found"; the original failure is the cause."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        if protocol not in HTTP_PROTOCOLS or cause is None or getattr(cause, "status", None) in {404, 410}:
            raise
        raise OSError(str(cause)) from cause


def _while_growing(things: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the entries of a dict to which more are added meanwhile."""
    done = 0
    while done < len(things):
        news = list(things.items())[done:]
        yield from news
        done += len(news)


def _is_file(info: Mapping[str, Any]) -> bool:
    return bool(info["type"] != "directory")


def _of_fsspec(path: str, info: Mapping[str, Any]) -> Found:
    if not _is_file(info):
        return Found(path, None)
    if info.get("size") is None:
        raise OSError("the store does not report the size of this file, which reading parts of it needs")
    etag = next((bare_tag(str(info[name])) for name in _ETAG_NAMES if info.get(name)), None)
    mtime = next((_nanoseconds(info[name]) for name in _TIME_NAMES if info.get(name) is not None), None)
    if etag is not None and mtime is not None:
        mtime = mtime // _SECOND * _SECOND  # as above; the etag tells versions within a second apart
    return Found(path, FileVersion(int(info["size"]), mtime, etag))


def bare_tag(etag: str | None) -> str | None:
    """Return a tag as all answers have it: a listing may quote it or call it weak where a GET does not.

    >>> bare_tag('W/"abc"')
    'abc'
    """
    return None if etag is None else etag.removeprefix("W/").strip('"') or None


def _nanoseconds(value: Any) -> int | None:
    """Convert any time that file systems return to nanoseconds since the epoch.

    >>> _nanoseconds("Thu, 01 Jan 1970 00:00:02 GMT"), _nanoseconds(2.5)
    (2000000000, 2500000000)
    """
    if isinstance(value, int | float):  # a double can hold microseconds of current times, but not nanoseconds
        return round(value * 1_000_000) * 1000
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            try:
                value = parsedate_to_datetime(value)
            except ValueError:
                return None
    if not isinstance(value, datetime):
        return None
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def _local_version(status: os.stat_result) -> LocalVersion | None:
    """Return inode and change time; None if the file system's inode numbers are not stable."""
    if status.st_dev in _unstable_devices():
        return None
    return LocalVersion(_machine(), status.st_ino, status.st_ctime_ns)


def unstable_devices(mountinfo: str) -> frozenset[int]:
    """Return the devices with unstable inode numbers in /proc/self/mountinfo; see proc_pid_mountinfo(5).

    >>> line = "36 35 0:52 / /mnt/bucket rw shared:1 - fuse.gcsfuse bucket rw"
    >>> unstable_devices(line) == {os.makedev(0, 52)}
    True
    """
    found = set()
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.startswith(_UNSTABLE):
            major, minor = mount.split()[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


@cache
def _unstable_devices() -> frozenset[int]:
    try:
        return unstable_devices(_MOUNTS.read_text(errors="surrogateescape"))
    except OSError:  # not Linux
        return frozenset()


@cache
def _machine() -> str:
    """Return a name of this machine or container that stays the same until it restarts."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
