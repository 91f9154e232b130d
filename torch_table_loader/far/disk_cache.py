"""Byte ranges of a store's files, cached on a local disk for all processes of a machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from torch_table_loader.arrow.buffers import new_array
from torch_table_loader.errors import ConfigError, StorageError
from torch_table_loader.local_files import check_owned, make_folder, new_file, open_regular
from torch_table_loader.records import FileVersion

if sys.platform != "win32":
    import fcntl

_HEAD = struct.Struct("<8s32sQ16s")
"""Magic, key, number of bytes and their checksum; the bytes follow."""
_MAGIC = b"TTLRANG2"
_LOCK = "lock"
_ENTRY = re.compile(r"([0-9a-f]{64})\.([0-9]+)-([0-9]+)\.range")
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.[0-9]+-[0-9]+\.range\.[0-9a-f]{32}\.tmp")
_SHARD = re.compile(r"[0-9a-f]{3}")
_BLOCK = 4096
_TOTAL_DIGITS = 20

KEPT_SHARE = 0.9
"""How full the cache is after eviction, so that not every new range scans the folder."""
PATIENCE_SECONDS = 0.1
"""Seconds to wait for a process that holds the lock, which takes microseconds unless it evicts."""
_POLL_SECONDS = 0.002
UNCOUNTED_SHARE = 1 / 256
"""Share of the cache that a process may write while it cannot count it; anything beyond is not cached."""
STALE_SECONDS = 600.0
"""Seconds after which a file that nobody finished is removed."""

_log = logging.getLogger(__name__)

NewBlock = Callable[[int], memoryview]
"""Allocates a number of bytes with undefined values."""


def _new_block(num_bytes: int) -> memoryview:
    array: Any = new_array((num_bytes,), "uint8")
    return memoryview(array)


class RangeKey(NamedTuple):
    """Identifies a range of bytes of a store's file; for `place` see `RangeStorage.place`."""

    place: str
    path: str
    version: FileVersion
    start: int
    stop: int

    @property
    def file(self) -> str | None:
        """A hash of the file that reveals nothing; None if its version cannot show that it changed."""
        version = self.version
        if version.mtime_ns is None and version.etag is None and not version.immutable:
            return None
        facts = [self.place, self.path, version.num_bytes, version.mtime_ns, version.etag, version.immutable]
        return hashlib.sha256(json.dumps(facts).encode("utf-8")).hexdigest()

    @property
    def entry(self) -> str | None:
        """The name of the cache file for this range; None if it must not be cached."""
        if self.file is None:
            return None
        return f"{self.file}.{self.start}-{self.stop}.range"


class _Found(NamedTuple):
    """A file of the cache, as eviction sees it; sorted by when it was last used."""

    used: int
    num_bytes: int
    path: Path


class DiskCache:
    """A folder of byte ranges that all processes of a machine share; the least recently used ranges are evicted.

    Each range is a file of its own, which appears atomically and contains its key and a checksum. A damaged or
    unrelated file is removed, never returned. A range that was never put is found if other ranges cover all its bytes.
    The mtime records when a range was last used. A file `lock` holds the approximate number of bytes; a process that
    would exceed the limit scans the folder and evicts first. Other processes wait at most a tenth of a second for that,
    then each may write 1/256 of the cache uncounted. So the folder stays within 1.05 × `most_bytes` for a dozen
    processes. Unfinished files of a killed process count, and are removed after ten minutes.

    A cache costs time at worst. What it cannot read counts as absent. After the first range that it cannot write (the
    disk is full, the folder is gone or read-only) this process writes no more, and this module's logger warns once.
    Threads may share it; it is picklable.
    """

    def __init__(self, root: str | os.PathLike[str], most_bytes: int) -> None:
        """Create the folder, for this user alone, or use the existing one.

        Raises:
            ConfigError: others control the content of the folder, or it is not a folder.
        """
        self._root = Path(root).expanduser().resolve()
        self._most = most_bytes
        self._writes = True
        self._warned: dict[str, object] = {}
        self._uncounted: deque[int] = deque()
        try:
            _make_private(self._root)
            check_owned(self._root, "cache_dir=")
        except StorageError as error:
            raise ConfigError(f"cache_dir cannot be used: {error}") from error
        except OSError as error:
            self._stop_writing(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the folder and its limit."""
        return type(self), (str(self._root), self._most)

    def get(self, key: RangeKey, new: NewBlock = _new_block) -> memoryview | None:
        """Return the bytes of a range, in memory that `new` allocates; None if some are not cached."""
        try:
            found = self._get(key, new)
            if found is None and (parts := covering(self.ranges(key), key.start, key.stop)):
                found = self._joined(key, parts, new)
        except OSError as error:
            self._warn("read", f"the disk cache cannot be read, so its bytes are fetched again: {error}")
            return None
        return found

    def expect(self, key: RangeKey) -> None:
        """Let the system read a cached range ahead, so that a slow disk works while others are decoded."""
        name = key.entry
        if name is None or not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError, StorageError):  # `get` will report what is wrong with it
            file = open_regular(self._shard(name) / name)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)

    def ranges(self, key: RangeKey) -> list[tuple[int, int]]:
        """Return the ranges of a key's file that were put, and may still be cached."""
        if (file := key.file) is None:
            return []
        try:
            names = os.listdir(self._shard(file))  # noqa: PTH208 names, of many
        except OSError:
            return []
        found = (_ENTRY.fullmatch(name) for name in names if name.startswith(str(file)))
        return [(int(entry[2]), int(entry[3])) for entry in found if entry is not None]

    def put(self, key: RangeKey, data: Any) -> None:
        """Cache a buffer of exactly the bytes of a range, if there is room and the version of its file is known."""
        name = key.entry
        view = memoryview(data).cast("B")
        if view.nbytes != key.stop - key.start:
            raise ValueError(f"the range is {key.stop - key.start} bytes long, but {view.nbytes} came")
        cost = _on_disk(_HEAD.size + view.nbytes)
        if name is None or not self._writes or cost > self._most * KEPT_SHARE:
            return
        path = self._shard(name) / name
        try:
            path.parent.mkdir(0o700, exist_ok=True)
            if path.exists():
                return
            if not self._reserve(cost):
                return
            with new_file(path) as (unfinished, file):
                file.write(_HEAD.pack(_MAGIC, _hash(name), view.nbytes, _checksum(view)))
                file.write(view)
                file.close()
                unfinished.replace(path)
        except OSError as error:
            self._stop_writing(error)

    def _shard(self, name: str) -> Path:
        return self._root / name[:3]

    def _get(self, key: RangeKey, new: NewBlock) -> memoryview | None:
        """Return a range that was put; None if it is absent, damaged, or must not be cached."""
        name = key.entry
        if name is None:
            return None
        path = self._shard(name) / name
        try:
            file = open_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            found = _read(file, _hash(name), new, key.stop - key.start)
            with suppress(OSError):  # read-only: then nobody evicts either
                if found is not None:
                    os.utime(file)
                else:
                    path.unlink()
        finally:
            os.close(file)
        if found is None:
            self._warn("torn", f"a range of the disk cache was torn or damaged, and is fetched again: {path}")
        return found

    def _joined(self, key: RangeKey, parts: Iterable[tuple[int, int]], new: NewBlock) -> memoryview | None:
        """Assemble a range from others that cover it; None if one of them is damaged."""
        joined = new(key.stop - key.start)
        for start, stop in parts:
            part = self._get(key._replace(start=start, stop=stop), new)
            if part is None:
                return None
            first, last = max(start, key.start), min(stop, key.stop)
            joined[first - key.start : last - key.start] = part[first - start : last - start]
        return joined

    def _reserve(self, cost: int) -> bool:
        """Count a range that is about to be written, and make room for it; return whether it may be written."""
        self._uncounted.append(cost)
        patience = time.monotonic() + PATIENCE_SECONDS
        while not self._count():
            if time.monotonic() > patience:
                return sum(tuple(self._uncounted)) <= self._most * UNCOUNTED_SHARE
            time.sleep(_POLL_SECONDS)
        return True

    def _count(self) -> bool:
        """Add this process's writes to the total, and evict if that is too much; return False if locked."""
        with self._locked() as lock:
            if lock is None:
                return False
            new = sum(self._uncounted.popleft() for _ in range(len(self._uncounted)))
            total = _read_total(lock)
            if total is None or total + new > self._most:
                total = self._evict(self._most - new)
            os.pwrite(lock, f"{total + new:0{_TOTAL_DIGITS}}".encode(), 0)
            return True

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Hold the lock, which is released when its holder ends; yield None if another process holds it."""
        lock = open_regular(self._root / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                try:
                    yield lock
                finally:  # closing it is not enough where a process was forked meanwhile, which has it open too
                    fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            os.close(lock)

    def _evict(self, room: int) -> int:
        """Remove the least recently used ranges if there is more than `room`; return the bytes that stay."""
        found = sorted(_entries(self._root))
        total = sum(entry.num_bytes for entry in found)
        if total <= room:
            return total
        for entry in found:
            if total <= room * KEPT_SHARE:
                break
            if _ENTRY.fullmatch(entry.path.name):
                entry.path.unlink(missing_ok=True)
                total -= entry.num_bytes
        return total

    def _stop_writing(self, error: OSError) -> None:
        self._writes = False
        self._warn("write", f"the disk cache cannot be written and stays as it is; reading continues: {error}")

    def _warn(self, what: str, message: str) -> None:
        mine = object()
        if self._warned.setdefault(what, mine) is mine:  # of several threads one warns
            _log.warning("%s", message)


def covering(ranges: Iterable[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Return few ranges that together cover all bytes of another; none if some bytes are missing.

    >>> covering([(0, 4), (2, 9), (3, 5), (9, 20)], 1, 12)
    [(0, 4), (2, 9), (9, 20)]
    """
    found, at = [], start
    while at < stop:
        best = max((each for each in ranges if each[0] <= at < each[1]), key=lambda each: each[1], default=None)
        if best is None:
            return []
        found.append(best)
        at = best[1]
    return found


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode("ascii")).digest()


def _checksum(data: memoryview) -> bytes:
    """Return the XXH3 hash of bytes, which costs a tenth of a CRC-32 and detects damage as well."""
    return xxhash.xxh3_128_digest(data)


def _make_private(root: Path) -> None:
    make_folder(root.parent)
    with suppress(FileExistsError):
        root.mkdir(0o700)


def _on_disk(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK


def _read_total(lock: int) -> int | None:
    """Read the total number of bytes; None if it was not counted yet."""
    text = os.pread(lock, _TOTAL_DIGITS, 0)
    if len(text) == _TOTAL_DIGITS and text.isdigit():
        return int(text)
    return None


def _read(file: int, digest: bytes, new: NewBlock, num_bytes: int) -> memoryview | None:
    """Read a range; None if the file is anything else. Mapping a file that is cut short would kill the process."""
    if os.fstat(file).st_size != _HEAD.size + num_bytes:
        return None
    head, data = bytearray(_HEAD.size), new(num_bytes)
    got = os.preadv(file, [head, data], 0)
    while 0 < got < _HEAD.size + num_bytes:
        more = os.preadv(file, [data[got - _HEAD.size :]], got) if got >= _HEAD.size else 0
        if more == 0:
            return None
        got += more
    if bytes(head) == _HEAD.pack(_MAGIC, digest, num_bytes, _checksum(data)):
        return data
    return None


def _entries(root: Path) -> Iterator[_Found]:
    """Yield the cache's files, including unfinished ones; remove those that nobody will finish."""
    with os.scandir(root) as shards:
        folders = [shard.path for shard in shards if _SHARD.fullmatch(shard.name)]
    for folder in folders:
        with os.scandir(folder) as files:
            for file in files:
                unfinished = _UNFINISHED.fullmatch(file.name) is not None
                if not (unfinished or _ENTRY.fullmatch(file.name)):
                    continue
                with suppress(FileNotFoundError):
                    found = file.stat(follow_symlinks=False)
                    if unfinished and time.time() - found.st_mtime > STALE_SECONDS:
                        Path(file).unlink()
                        continue
                    yield _Found(found.st_mtime_ns, _on_disk(found.st_size), Path(file))
