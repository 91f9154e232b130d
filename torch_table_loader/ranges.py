"""Bytes of files by range, planned ahead, with retries, time-outs and a login: what the guest of far stores serves.

Files of this machine need none of it: they are opened where they lie. For all others the core asks `far()`, the door of
that guest, which gives clients of stores (`Client`), what fetches the bytes of planned reads before lanes want them
(`Fetcher`), and what requests parts of the files of a row store (`PartsReader`). For all clients alike,
`source/retrying.py` decides how often a request is repeated, and `source/address.py` what an address means.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from torch_table_loader.contracts import RangeStorage, has_ranges, is_far
from torch_table_loader.errors import TableError
from torch_table_loader.installed import load

if TYPE_CHECKING:
    from typing import TypeGuard

    import pyarrow as pa

    from torch_table_loader.contracts import ReleasingStorage, Storage
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.records import DataFile, FileNeeds, FileVersion

Range: TypeAlias = tuple[int, int]
"""The first byte, and the byte after the last."""

FIRST_BYTES = 1024 * 1024
"""Bytes that are fetched first of a file, beyond one row group: decoding begins when they have arrived."""

LEAST_TAIL_BYTES = 64 * 1024
"""Bytes to read of a file's end if the size of its footer is not known; most footers are smaller."""

STAT_THREADS = 16
"""Requests in flight if files must be queried one by one: stores answer in tens of milliseconds."""


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
    """An open connection to a store.

    It belongs to the process that made it. Its methods raise the errors of the underlying library; `source/storage.py`
    turns those into this library's errors.
    """

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


@dataclass(slots=True)
class FetchStats:
    """What was fetched ahead of decoding for an epoch; all 0 if nothing was.

    Args:
        num_bytes: compressed bytes that came from the store.
        requests: requests that the store answered, including hedges.
        retries: requests that were sent again because they failed.
        hedges: requests that were sent a second time because they were late.
        unplanned: requests for bytes that were not fetched ahead.
        cached_bytes: compressed bytes that came from the disk cache.
        seconds_waiting: time that decoding waited for bytes, summed over workers.
    """

    num_bytes: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    unplanned: int = 0
    cached_bytes: int = 0
    seconds_waiting: float = 0.0

    @classmethod
    def sum_of(cls, parts: Iterable[FetchStats]) -> FetchStats:
        """Return the sum of several statistics."""
        total = cls()
        total.become_sum(parts)
        return total

    def become_sum(self, parts: Iterable[FetchStats]) -> None:
        """Set this object to the sum of several statistics."""
        parts = list(parts)
        for count in fields(self):
            setattr(self, count.name, sum(getattr(part, count.name) for part in parts))


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How files are fetched: how many compressed bytes ahead of decoding (0: none), and through which cache.

    Files on this machine are fetched only where `near` is set. `cache` is what `Far.open_cache` gave. Nothing is asked
    for of the files of `kept`, which are here whole.
    """

    ahead_bytes: int
    cache: Any = None
    near: bool = False
    kept: Mapping[tuple[str, FileVersion], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: LoaderOptions) -> FetchSettings:
        """Build from the caller's options. Raises ConfigError if the cache's folder cannot be used."""
        remote = options.remote
        cache = None if remote.cache_dir is None else far().open_cache(remote.cache_dir, remote.cache_bytes)
        return cls(options.ahead_bytes, cache, near=remote.read_ahead_bytes is not None and cache is None)

    def shared_by(self, threads: int) -> FetchSettings:
        """Return the settings of one of several threads that fetch side by side."""
        return replace(self, ahead_bytes=self.ahead_bytes // threads)

    def applies_to(self, storage: Storage) -> TypeGuard[RangeStorage]:
        """Return whether files of a storage are fetched ahead of decoding."""
        return self.ahead_bytes > 0 and has_ranges(storage) and (self.near or not storage.is_local)


class PlannedRead(NamedTuple):
    """A read that a lane will do.

    Args:
        rows_before: rows that the lane delivers before it.
        find: returns which bytes it needs, None if it needs none; may read footers and delete files.
        storage: the storage of the file; None for the storage of most reads.
        file: returns which file it reads; None where only `find` says that.
    """

    rows_before: int
    lane: int
    rows: int
    find: Callable[[], FileNeeds | None]
    storage: RangeStorage | None = None
    file: Callable[[], DataFile] | None = None


def in_order(plans: Iterable[Iterator[PlannedRead]]) -> Iterator[PlannedRead]:
    """Merge the reads of lanes in the order in which their rows are delivered, since lanes take turns.

    Nothing is asked of the lanes before the first read is.
    """
    yield from heapq.merge(*plans, key=lambda read: (read.rows_before, read.lane))


class Fetcher(Protocol):
    """Fetches what planned reads need, in order, within a budget of bytes; the lanes of a process share it."""

    stats: FetchStats
    """What it has fetched so far."""

    def next_read(self, lane: int) -> ReleasingStorage:
        """Return the storage for a lane's next read; release what the read before it held."""
        ...

    def close(self) -> None:
        """Drop fetched bytes, and end its threads."""
        ...


class FileParts(Protocol):
    """Parts of a file that were requested, and are taken in order."""

    def read(self, start: int, stop: int) -> Any:
        """Wait for bytes of the parts, and return them. Raises TableError or StorageError."""
        ...

    def close(self) -> None:
        """Release them, and cancel pending requests; `read` raises from now on."""
        ...


class PartsReader(Protocol):
    """Requests parts of the files of a store; threads share it."""

    def expect(self, needs: FileNeeds, rows_before: int) -> FileParts:
        """Request parts of a file; each group of `needs` has one range, which is one request.

        `rows_before` is how many rows are delivered before them: earlier rows are fetched earlier.
        """
        ...


class KeepingStorage(RangeStorage, Protocol):
    """A storage that keeps bytes from planning for the epoch that follows."""

    @property
    def brought_bytes(self) -> int:
        """Bytes that are kept."""
        ...

    def let_go(self) -> None:
        """Keep nothing any more."""
        ...


OpenReader: TypeAlias = Callable[[], AbstractContextManager[PartsReader]]
"""Opens a reader of parts of a store's files, until the block ends."""


class Far(Protocol):
    """What the core asks of the guest of far stores: the names of its door, `torch_table_loader.far`."""

    def option_names(self) -> frozenset[str]:
        """Return all names that an option of some store has."""
        ...

    def store_options(self, protocol: str, *layers: Mapping[str, Any]) -> dict[str, Any]:
        """Return options under this library's names; of `layers`, later ones take precedence.

        Raises:
            ConfigError: the options contradict each other.
            MissingExtraError: the packages of the store are not installed.
        """
        ...

    def s3_properties(self, properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the S3 options among a catalog's properties: those for all services of AWS, then those for S3."""
        ...

    def client_name(self, protocol: str, options: Mapping[str, Any]) -> str:
        """Return who reads a store: "obstore", or the name of a protocol or package of fsspec."""
        ...

    def check_client(self, protocol: str, options: Mapping[str, Any]) -> None:
        """Refuse options whose client is not installed. Raises MissingExtraError."""
        ...

    def proxy_options(self, protocol: str, options: Mapping[str, Any]) -> dict[str, str]:
        """Return proxies, as the Rust crate object_store takes them, for another client that is built on it.

        Where an endpoint is named, the client reaches its host alone: it would take logins along to any other.
        """
        ...

    def s3_login(self, options: Mapping[str, Any], shown: str) -> dict[str, str] | None:
        """Return the credentials that S3 takes now, by this library's names of them; None for anonymous access.

        Args:
            shown: what is to be opened, for messages.

        Raises:
            AccessRefusedError: there are none.
            ConfigError: the login is incomplete, or the profile does not exist.
        """
        ...

    def login_may_change(self, protocol: str, options: Mapping[str, Any]) -> bool:
        """Return whether another client may log in with other credentials: those of a file, a role or a machine."""
        ...

    def connect(self, protocol: str, options: Mapping[str, Any]) -> Client:
        """Open a client in this process."""
        ...

    def open_cache(self, folder: str, most_bytes: int) -> Any:
        """Open a cache of ranges on a local disk. Raises ConfigError if the folder cannot be used."""
        ...

    def cost_of(self, needs: FileNeeds) -> tuple[int, int]:
        """Return how many requests fetch what is needed of a file, and their bytes."""
        ...

    def begin_fetching(self, storage: RangeStorage, plan: Iterator[PlannedRead], settings: FetchSettings) -> Fetcher:
        """Begin to fetch what reads need, in the order of the plan."""
        ...

    def parts_ahead(self, fetcher: Fetcher, storage: RangeStorage) -> PartsReader:
        """Return what requests parts of a store's files of an epoch's fetcher, which may serve other stores too."""
        ...

    def reading_parts(self, storage: RangeStorage, settings: FetchSettings) -> AbstractContextManager[PartsReader]:
        """Open a reader of parts of a store's files, until the block ends."""
        ...

    def with_small_files(self, storage: RangeStorage, folder: str, most_bytes: int) -> KeepingStorage:
        """Return a storage for planning and reading by one process, whose small files come whole with their ends.

        It keeps so many bytes of them at most, for the next epoch that is fetched: as a part of what that holds ahead.
        All files of the folder are listed then, and what changed is asked for again.
        """
        ...

    def open_at_end(self, storage: RangeStorage, file: DataFile, least: int) -> AbstractContextManager[pa.NativeFile]:
        """Open a file whose end is read first; one request brings that."""
        ...

    def open_at_start(self, storage: RangeStorage, file: DataFile) -> pa.NativeFile:
        """Open a file that is read from its start, some MiB at a time."""
        ...

    def fetched(self, storage: RangeStorage, file: DataFile) -> Storage:
        """Return a storage for reading a whole file; a small one is fetched with one request."""
        ...


def far() -> Far:
    """Return the guest of far stores.

    Raises:
        MissingExtraError: this build does not have it.
    """
    return cast("Far", load("far"))


def fetch_ahead(storage: Storage, plan: Iterator[PlannedRead], settings: FetchSettings) -> Fetcher | None:
    """Start to fetch what reads need; None if that was not asked for, or the files' storage does not serve ranges."""
    if settings.applies_to(storage):
        return far().begin_fetching(storage, plan, settings)
    return None


def with_small_files(storage: Storage, folder: str | None, most_bytes: int) -> Storage:
    """Return a storage that keeps small files of a folder for the next epoch, up to so many bytes, if they are far."""
    if most_bytes and folder is not None and is_far(storage):
        return far().with_small_files(storage, folder, most_bytes)
    return storage


class TasksAhead:
    """Fetches what many tasks need ahead of the threads that run them, in the order of their numbers."""

    def __init__(
        self, storage: Storage, needs: Iterable[Callable[[], FileNeeds | None]], settings: FetchSettings
    ) -> None:
        plan = (PlannedRead(number, number, 1, find) for number, find in enumerate(needs))
        self._ahead = fetch_ahead(storage, plan, settings)

    @contextmanager
    def storage_of(self, number: int) -> Iterator[ReleasingStorage | None]:
        """Yield the storage for a task, and release it at the end; None for the files' own storage."""
        if self._ahead is None:
            yield None
            return
        with closing(self._ahead.next_read(number)) as storage:
            yield storage

    def close(self) -> None:
        """Stop fetching."""
        if self._ahead is not None:
            self._ahead.close()
