"""The client of any fsspec file system; those of object stores are in `object_store`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from typing_extensions import override

from torch_table_loader.cancellation import Threads, check_wanted, interruptibly
from torch_table_loader.ranges import STAT_THREADS, Client, Found
from torch_table_loader.records import FileVersion
from torch_table_loader.sizes import sizes
from torch_table_loader.source.address import HTTP_PROTOCOLS, S3_PROTOCOLS, filesystem_class, shown
from torch_table_loader.source.listing_bounds import ListingBounds
from torch_table_loader.source.retrying import patience
from torch_table_loader.translating import translating

_PAGE_BYTES = 1 << 20

_READ_AHEAD = 1 << 20
"""Bytes that fsspec reads beyond a request: s3fs's own 50 MiB would read most of a file for one column."""

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_NAMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modify", "created")
_ETAG_NAMES = ("ETag", "etag", "generation", "Content-MD5")


class FsspecClient(Client):
    """Any fsspec file system."""

    def __init__(self, protocol: str, options: Mapping[str, Any]) -> None:
        """Create a separate instance: fsspec's shared ones may hold stale listings and other logins."""
        self._protocol = protocol
        if protocol in HTTP_PROTOCOLS or protocol in S3_PROTOCOLS:
            # Imported here, since few stores need aiohttp, which takes time to import.
            from torch_table_loader.far.aiohttp_options import http_options, s3fs_options

            make = s3fs_options
            if protocol in HTTP_PROTOCOLS:
                make = http_options
            options = make(options)
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


@translating
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
    if etag is None:
        return None
    return etag.removeprefix("W/").strip('"') or None


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
    if not value.tzinfo:
        value = value.replace(tzinfo=UTC)
    since: timedelta = value - _EPOCH
    return since // timedelta(microseconds=1) * 1000
