"""The three ways to a store: this machine's files, pyarrow's S3 client, and any fsspec file system.

A client belongs to the process that made it. Its methods raise what the library below raises;
`storage` turns that into this library's errors.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyarrow import fs as arrow_fs

from torch_table_loader.errors import TableError
from torch_table_loader.local_files import make_folder, new_file
from torch_table_loader.records import FileVersion
from torch_table_loader.source.address import HTTP_PROTOCOLS, filesystem_class
from torch_table_loader.source.aws import proxy_of, region_through_proxy
from torch_table_loader.source.http import keeping_secrets_home
from torch_table_loader.source.local import local_version
from torch_table_loader.source.s3 import S3Choice

STAT_THREADS = 16
"""Requests in flight where files must be asked one by one: stores answer in tens of milliseconds."""

_READ_AHEAD = 1 << 20
"""Bytes that fsspec reads beyond a request: s3fs's own 50 MiB would read most of a file for one column."""

_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_NAMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modify", "created")
_ETAG_NAMES = ("ETag", "etag", "generation", "Content-MD5")


class Found(NamedTuple):
    """What a store says of one path; what is no file has no version."""

    path: str
    version: FileVersion | None
    special: str = ""
    """What else it is, where it is neither a file nor a directory: a FIFO, a socket or a device."""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.version is None and not self.special

    def file_version(self) -> FileVersion:
        """Return the version. Raises TableError if this is no file."""
        if self.version is None:
            found = f"a {self.special}" if self.special else "a directory"
            raise TableError(f"{self.path}: expected a file, found {found}; remove it, or list the table again")
        return self.version


class Client(Protocol):
    """An open connection to a store."""

    def open(self, path: str) -> pa.NativeFile:
        """Open for random access."""
        ...

    def stat(self, path: str) -> Found:
        """Ask for one path. Raises FileNotFoundError."""
        ...

    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List a directory: all files below it, or, not recursive, its files and directories."""
        ...

    def read(self, path: str) -> bytes:
        """Read a small file whole."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a small file whole: a reader sees all of it or none."""
        ...


class LocalClient:
    """Files of this machine."""

    def __init__(self) -> None:
        """Open nothing."""
        self.native = arrow_fs.LocalFileSystem()

    def open(self, path: str) -> pa.NativeFile:
        """Open with plain reads: a mapping would die with SIGBUS where a file is cut short."""
        self._refuse_special(path)
        return self.native.open_input_file(path)

    def stat(self, path: str) -> Found:
        """Follow links, as `open` does."""
        return _local(path, os.stat(path))  # noqa: PTH116 - hot: 10,000 files

    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """Follow links to directories, but never into a directory that the walk came through."""
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
                yield _local(entry.path, entry.stat())
            elif recursive:
                yield from self._walk(entry.path, recursive=True, through=through | {identity})
            else:
                yield Found(entry.path, None)

    def read(self, path: str) -> bytes:
        """Read a file whole."""
        self._refuse_special(path)
        return Path(path).read_bytes()

    def _refuse_special(self, path: str) -> None:
        """Raise TableError for a FIFO or device, which to open or read could take for ever."""
        if (found := self.stat(path)).special:
            found.file_version()

    def write(self, path: str, data: bytes) -> None:
        """Write beside the file, then rename over it."""
        target = Path(path)
        if not target.parent.is_dir():
            make_folder(target.parent)
        target = target.parent.resolve() / target.name  # the caller's folder may be a link; what is in it may not
        with new_file(target) as (beside, file):
            file.write(data)
            file.close()
            beside.replace(target)


class ArrowS3Client:
    """S3 through pyarrow: no Python and no GIL on the way of the bytes."""

    def __init__(self, options: Mapping[str, Any], bucket: str) -> None:
        """Connect, through the environment's proxy; where nothing names a region, the bucket is asked for its own."""
        options = dict(options)
        host = options.get("endpoint_override") or f"{bucket}.s3.amazonaws.com"
        proxy = options.get("proxy_options") or proxy_of(f"{options.get('scheme', 'https')}://{host}")
        if "region" not in options and "endpoint_override" not in options and not _region_in_environment():
            options["region"] = region_through_proxy(bucket) if proxy else _region_of(bucket)
        if proxy:
            options["proxy_options"] = proxy
        self.native = arrow_fs.S3FileSystem(**options)

    def open(self, path: str) -> pa.NativeFile:
        """Open an object; its bytes come with range requests."""
        return self.native.open_input_file(path)

    def stat(self, path: str) -> Found:
        """Ask with one HEAD request (and a listing where that finds nothing)."""
        info = self.native.get_file_info(path)
        if info.type == arrow_fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return _of_arrow(info)

    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List with one request for every thousand objects."""
        selector = arrow_fs.FileSelector(root, recursive=recursive)
        for info in self.native.get_file_info(selector):
            if not recursive or info.type == arrow_fs.FileType.File:
                yield _of_arrow(info)

    def read(self, path: str) -> bytes:
        """Read an object whole."""
        with self.native.open_input_file(path) as file:
            return bytes(file.readall())

    def write(self, path: str, data: bytes) -> None:
        """Put an object; it appears when the stream closes."""
        with self.native.open_output_stream(path) as stream:
            stream.write(data)


class FsspecClient:
    """Any fsspec file system."""

    def __init__(self, protocol: str, options: Mapping[str, Any]) -> None:
        """Make an instance of our own: fsspec's shared ones may hold stale listings and other logins."""
        self._protocol = protocol
        if protocol in HTTP_PROTOCOLS:
            options = keeping_secrets_home(options)
        self.native = filesystem_class(protocol)(**options, skip_instance_cache=True)
        tuned = {"block_size", "default_block_size"} & set(options)
        self._open_options = {} if tuned else {"block_size": _READ_AHEAD}

    def open(self, path: str) -> pa.NativeFile:
        """Open a file; of memory:// a copy, since fsspec hands every reader the same object and position."""
        if self._protocol == "memory":
            return pa.PythonFile(io.BytesIO(self.native.cat_file(path)), mode="r")
        with _honest(self._protocol):
            return pa.PythonFile(self.native.open(path, "rb", **self._open_options), mode="r")

    def stat(self, path: str) -> Found:
        """Ask for one path, past the cache of listings."""
        if self._protocol in HTTP_PROTOCOLS and path.endswith("/"):
            return Found(path, None)
        with _honest(self._protocol):
            return _of_fsspec(path, self.native.info(path))

    def walk(self, root: str, *, recursive: bool) -> Iterator[Found]:
        """List with one call, and ask for what a listing left out (http has no sizes in it)."""
        if recursive:
            infos = self.native.find(root, detail=True)
        else:
            infos = {info["name"]: info for info in self.native.ls(root, detail=True)}
        self.native.invalidate_cache()
        infos.pop(root, None)  # object stores list a directory's own marker
        unknown = [path for path, info in infos.items() if _is_file(info) and info.get("size") is None]
        with ThreadPoolExecutor(STAT_THREADS) as pool:
            asked = dict(zip(unknown, pool.map(self.stat, unknown), strict=True))
        for path, info in infos.items():
            yield asked.get(path) or _of_fsspec(path, info)

    def read(self, path: str) -> bytes:
        """Read a file whole."""
        return bytes(self.native.cat_file(path))

    def write(self, path: str, data: bytes) -> None:
        """Put a file; directories are made where the store has such a thing."""
        try:
            self.native.pipe_file(path, data)
        except FileNotFoundError:
            self.native.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.native.pipe_file(path, data)


def connect(protocol: str, options: Mapping[str, Any], s3: S3Choice | None, path: str) -> Client:
    """Open a client in this process.

    Args:
        protocol: of the store.
        options: for fsspec.
        s3: for S3, which client and its options.
        path: the first path that is asked for.
    """
    if s3 is not None:
        if s3.client == "pyarrow":
            return ArrowS3Client(s3.options, path.partition("/")[0])
        return FsspecClient("s3", s3.options)
    return LocalClient() if protocol == "file" else FsspecClient(protocol, options)


def _local(path: str, status: os.stat_result) -> Found:
    if not stat.S_ISREG(status.st_mode):
        return Found(path, None, _SPECIAL.get(stat.S_IFMT(status.st_mode), ""))
    return Found(path, FileVersion(status.st_size, status.st_mtime_ns, local=local_version(status)))


def _of_arrow(info: Any) -> Found:
    if info.type != arrow_fs.FileType.File:
        return Found(info.path, None)
    # Listings carry milliseconds and HEAD answers carry seconds: both must name the same version.
    mtime = None if info.mtime_ns is None else info.mtime_ns // _SECOND * _SECOND
    return Found(info.path, FileVersion(info.size, mtime))


@contextmanager
def _honest(protocol: str) -> Iterator[None]:
    """Undo fsspec's turning of every http failure into "not found"; it keeps the failure as the cause."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        if protocol not in HTTP_PROTOCOLS or cause is None or getattr(cause, "status", None) in {404, 410}:
            raise
        raise OSError(str(cause)) from cause


def _is_file(info: Mapping[str, Any]) -> bool:
    return bool(info["type"] != "directory")


def _of_fsspec(path: str, info: Mapping[str, Any]) -> Found:
    if not _is_file(info):
        return Found(path, None)
    if info.get("size") is None:
        raise OSError("the store does not tell the size of this file, which reading it by parts needs")
    etag = next((str(info[name]).removeprefix("W/").strip('"') for name in _ETAG_NAMES if info.get(name)), None)
    mtime = next((_nanoseconds(info[name]) for name in _TIME_NAMES if info.get(name) is not None), None)
    if etag is not None and mtime is not None:
        mtime = mtime // _SECOND * _SECOND  # as above; the etag tells versions within a second apart
    return Found(path, FileVersion(int(info["size"]), mtime, etag))


def _nanoseconds(value: Any) -> int | None:
    """Turn any of the times that file systems give into nanoseconds since the epoch.

    >>> _nanoseconds("Thu, 01 Jan 1970 00:00:02 GMT"), _nanoseconds(2.5)
    (2000000000, 2500000000)
    """
    if isinstance(value, int | float):  # a double holds microseconds of our time, and no nanoseconds
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


def _region_in_environment() -> bool:
    return any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))


def _region_of(bucket: str) -> str | None:
    try:
        region: str = arrow_fs.resolve_s3_region(bucket)
    except OSError:  # no such bucket, or no way to ask: the request itself will say so
        return None
    return region
