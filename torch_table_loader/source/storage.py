"""A place that holds files, as a picklable value; each process opens its own client."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple, TypeGuard, TypeVar

import pyarrow as pa

from torch_table_loader.arrow.ranged_file import BufferedRanges, open_ranges
from torch_table_loader.cancellation import interruptibly
from torch_table_loader.errors import ConfigError, TableError, TableLoaderError
from torch_table_loader.forks import OfProcess
from torch_table_loader.option_values import DEFAULT_RETRY_SECONDS, RemoteOptions, of_the_store
from torch_table_loader.ranges import ChangedFile, Client, Found, far
from torch_table_loader.records import FileVersion, Traffic
from torch_table_loader.scrubbing import public_options
from torch_table_loader.source.address import HTTP_PROTOCOLS, LOCAL_PROTOCOLS, parse_address, shown
from torch_table_loader.source.local_client import LocalClient, version_here
from torch_table_loader.source.retrying import Attempts, RetryPolicy, TrafficCounter, of_length
from torch_table_loader.source.store_errors import StoreErrors
from torch_table_loader.translating import translating

T = TypeVar("T")

_MEMORY_OF = uuid.uuid4().hex
"""Names this process's memory:// files: a forked child inherits both, a spawned one has neither."""

Login = Callable[[Mapping[str, Any] | None], Mapping[str, Any]]


class _Connection(NamedTuple):
    """A client, and the options that it connected with."""

    options: Mapping[str, Any]
    client: Client


class _Process:
    """What one process has of a storage."""

    def __init__(self) -> None:
        self.connection: _Connection | None = None
        self.connecting = threading.Lock()
        self.counter = TrafficCounter()


@dataclass(frozen=True, slots=True)
class FileStorage:
    """A file system with its options (implements `contracts.Storage`).

    It has no open handle that a fork could share: each process has a client, a lock and counts of its own, and pickles
    have none.

    Args:
        protocol: "file", "s3", "memory", or any that fsspec knows.
        options: storage options, including logins from the URL; never shown.
        retry_seconds: how long to retry a failed request.
        login: where credentials expire, returns the options to connect with now; given those that the store refused,
            others if there are any. It is left out of pickles: who gave it makes this storage anew.
    """

    protocol: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    retry_seconds: float = field(default=DEFAULT_RETRY_SECONDS, repr=False, compare=False)
    login: Login | None = field(default=None, repr=False, compare=False)
    _processes: OfProcess[_Process] = field(
        default_factory=partial(OfProcess, _Process), init=False, repr=False, compare=False, hash=False
    )

    @property
    def is_local(self) -> bool:
        """Whether files are on the local file system."""
        return self.protocol == "file"

    @property
    def fork_safe(self) -> bool:
        """Whether a process that used this storage may still fork: no client started threads."""
        return self.protocol in {"file", "memory"}

    @property
    def client_name(self) -> str:
        """The client that sends requests: "local", "obstore", "s3fs", or the name of the fsspec protocol."""
        if self.is_local:
            return "local"
        return far().client_name(self.protocol, self.options)

    @property
    def place(self) -> str:
        """A name for the store without secrets: equal paths in two places are different files."""
        options = {}
        if not self.is_local:
            options = public_options(self.options)
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
        return f"{self.protocol}:{digest[:16]}"

    def open(self, path: str) -> pa.NativeFile:
        """Open for random access.

        Args:
            path: as returned by `open_storage` or a listing.

        Raises:
            TableError: the file is missing.
            StorageError: the store refuses, or does not answer.
        """
        if not self._is_far:
            return self._ask(path, lambda client: _open(client, path))
        # If a client read parts by itself, nobody could check how many bytes arrived.
        version = self.version(path)
        ranges = BufferedRanges(
            lambda start, stop: self.read_range(path, start, stop, version),
            version.num_bytes,
            self._connection(path).client.read_ahead_bytes,
        )
        return open_ranges(ranges.read, version.num_bytes)

    def version(self, path: str) -> FileVersion:
        """Return the current size, time and tag. Raises as `open` does."""
        if self.protocol == "file" and (here := version_here(path)) is not None:
            return here
        found = self._ask(path, lambda client: client.stat(path))
        return found.version or found._replace(path=self.shown(path)).file_version()

    def stat(self, path: str) -> Found | None:
        """Return what is at a path: a file, a directory, or nothing (None)."""
        return self._ask(path, lambda client: _or_none(client.stat, path))

    def probe(self, path: str) -> Found | None:
        """Return the same with at most one request; `walk` will reveal whether a directory is there."""
        return self._ask(path, lambda client: _or_none(client.probe, path))

    def walk(self, root: str, *, recursive: bool = True) -> list[Found]:
        """List a directory in one go, in the store's order."""
        return self._ask(root, lambda client: list(client.walk(root, recursive=recursive)))

    def read_bytes(self, path: str) -> bytes:
        """Read a small file completely. Raises as `open` does."""
        return self._ask(path, lambda client: client.read(path), len)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a small file atomically: a reader sees all of it or nothing. Raises StorageError."""
        self._ask(path, lambda client: client.write(path, data))

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        """Read bytes of a file with one request; see `contracts.RangeStorage`."""
        etag = None if version is None else version.etag
        return self._ask(path, lambda client: of_length(client.read_range(path, start, stop, etag), start, stop), len)

    def checks(self, version: FileVersion) -> bool:
        """Return whether a request for a range fails if the file no longer has this version."""
        if version.etag is None:
            return False
        if (known := self._process.connection) is None:
            with self._own_errors("", None):
                known = self._connection("")
        return known.client.checks_tags

    def put_file(self, local: str, path: str) -> None:
        """Copy a local file to the store."""
        self._ask(path, lambda client: client.put_file(local, path))

    def close(self) -> None:
        """Drop this process's client; the next call opens a new one."""
        self._process.connection = None

    def traffic(self) -> Traffic:
        """Return this process's requests to the store so far; nothing for a store without a network."""
        return self._process.counter.total()

    @property
    def uri_prefix(self) -> str:
        """The prefix that makes a path a URI: empty for local paths and http URLs."""
        if self.protocol in (*LOCAL_PROTOCOLS, *HTTP_PROTOCOLS):
            return ""
        return f"{self.protocol}://"

    def shown(self, path: str) -> str:
        """Format a path as messages may show it: with its protocol, without login or query."""
        return shown(self.protocol, path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is needed to connect again; memory:// cannot leave its process."""
        if self.protocol != "memory":
            return _restore, (self.protocol, dict(self.options), None, self.retry_seconds)
        if get_spawning_popen() is not None:
            raise ConfigError(_MEMORY_STAYS)
        return _restore, (self.protocol, dict(self.options), _MEMORY_OF, self.retry_seconds)

    @property
    def _errors(self) -> StoreErrors:
        """What is said of the client's errors."""
        known = self._process.connection
        return StoreErrors(self.protocol, self.options, {} if known is None else known.options)

    @property
    def _is_far(self) -> bool:
        """Whether requests go over a network."""
        return self.protocol not in {"file", "memory"}

    @property
    def _process(self) -> _Process:
        return self._processes.own

    def _connection(self, path: str) -> _Connection:
        mine = self._process
        if not self._is_current(known := mine.connection):
            # One thread connects: of two clients one would be lost, and its login would be taken for a new one.
            with mine.connecting:
                if not self._is_current(known := mine.connection):
                    known = mine.connection = self._connect(path)
        return known

    def _is_current(self, known: _Connection | None) -> TypeGuard[_Connection]:
        return known is not None and (self.login is None or self.login(None) == known.options)

    def _connect(self, path: str) -> _Connection:
        options = self.options
        if self.login is not None:
            options = self.login(None)
        try:
            return _Connection(options, connect(self.protocol, options))
        except (TypeError, ValueError, KeyError) as error:
            if isinstance(error, TableLoaderError):
                raise
            raise self._errors.misfit(error, self.client_name) from self._errors.scrubbed(error, path)

    def _renew(self, refused: _Connection) -> bool:
        """Connect anew where that may log in with other credentials; return whether it may."""
        if self._process.connection is not refused:  # another thread has
            return True
        if self.login is not None and self.login(refused.options) != refused.options:
            return True
        if not far().login_may_change(self.protocol, refused.options):
            return False
        self.close()
        return True

    def _ask(self, path: str, ask: Callable[[Client], T], num_bytes: Callable[[T], int] = lambda _: 0) -> T:
        """Return the store's answer to a request that may be repeated; over a network, it is."""
        if not self._is_far:
            try:
                return ask(self._connection(path).client)
            except BaseException:
                with self._own_errors(path, None):
                    raise
        used: _Connection | None = None

        def send() -> T:
            nonlocal used
            used = self._connection(path)
            return ask(used.client)

        attempts = Attempts(
            RetryPolicy(self.retry_seconds),
            self._process.counter,
            self.shown(path),
            lambda error: self._errors.first_line(error, path),
            lambda: used is not None and self._renew(used),
        )
        with self._own_errors(path, attempts):
            return attempts.make(lambda: interruptibly(send), num_bytes)

    @translating
    def _own_errors(self, path: str, attempts: Attempts | None) -> Iterator[None]:
        try:
            yield
        except TableLoaderError:
            raise
        except ChangedFile as changed:
            was, *now = changed.args
            raise TableError(
                f"{self.shown(path)} changed while it was in use: etag was {was!r} and is "
                f"{repr(now[0]) if now else 'another'}; build the loader again on the table as it is now, and let "
                "writers add new files instead of writing over old ones"
            ) from None
        except TypeError as error:  # s3fs passes options on and reports wrong ones at its first request
            raise self._errors.misfit(error, self.client_name) from self._errors.scrubbed(error, path)
        except Exception as error:  # noqa: BLE001 - botocore, aiohttp and others have roots of their own
            tried = ""
            if attempts is not None:
                tried = attempts.note
            raise self._errors.failure(error, path, tried) from self._errors.scrubbed(error, path)
        except BaseException as error:
            # obstore panics at some options; its class is no Exception, and has no public name.
            if type(error).__module__ != "pyo3_runtime":
                raise
            raise self._errors.misfit(error, self.client_name) from None


_MEMORY_STAYS = (
    "memory:// files live in the process that wrote them and cannot be read by a spawned one; "
    'use worker_type="thread" or "fork", or put the table where all processes see it'
)


def _open(client: Client, path: str) -> pa.NativeFile:
    """Open a local file; read one of memory:// completely, since fsspec gives every reader the same position."""
    if isinstance(client, LocalClient):
        return client.open(path)
    return pa.BufferReader(client.read(path))


def _or_none(look: Callable[[str], Found], path: str) -> Found | None:
    try:
        return look(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _restore(protocol: str, options: Mapping[str, Any], memory_of: str | None, retry_seconds: float) -> FileStorage:
    if protocol == "memory" and memory_of != _MEMORY_OF:
        raise ConfigError(_MEMORY_STAYS)
    return FileStorage(protocol, options, retry_seconds)


def open_storage(
    path_or_url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[FileStorage, str]:
    """Return the storage of a path, and the path as the storage names it. Connects to nothing.

    Args:
        path_or_url: a local path or any fsspec URL; may contain glob characters.
        storage_options: for the file system, under any of the names that `store_options` knows; they take precedence
            over a login in the URL. Local paths need no login and take none. `RemoteOptions` are among them.

    Returns:
        The storage, and the path as its methods take it.

    Raises:
        ConfigError: an unknown protocol, or options that contradict each other.
        MissingExtraError: the protocol's package is not installed, or this build has no far stores.

    >>> open_storage("s3://bucket/table", {"key": "K", "secret": "S"})
    (FileStorage(protocol='s3'), 'bucket/table')
    """
    remote = RemoteOptions.of(storage_options)
    address = parse_address(path_or_url)
    if address.protocol == "file":
        return FileStorage("file", {}, remote.retry_seconds), address.path
    stores = far()
    options = stores.store_options(address.protocol, address.login, of_the_store(storage_options))
    stores.check_client(address.protocol, options)
    return FileStorage(address.protocol, options, remote.retry_seconds), address.path


def connect(protocol: str, options: Mapping[str, Any]) -> Client:
    """Open a client in this process."""
    if protocol == "file":
        return LocalClient()
    return far().connect(protocol, options)
