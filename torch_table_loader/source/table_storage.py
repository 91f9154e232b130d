"""Where a table's files are: in its own place and in those that the caller named, as one picklable storage."""

from __future__ import annotations

import gzip
import io
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from torch_table_loader.cancellation import Threads
from torch_table_loader.contracts import is_far
from torch_table_loader.errors import ConfigError, ConfigTypeError, StorageError, TableError
from torch_table_loader.forks import OfProcess
from torch_table_loader.option_values import DEFAULT_RETRY_SECONDS, RemoteOptions, of_the_store
from torch_table_loader.ranges import far
from torch_table_loader.records import FileVersion, Traffic
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.address import FAMILIES, HTTP_PROTOCOLS, LOCAL_PROTOCOLS, parse_address
from torch_table_loader.source.storage import FileStorage

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.ranges import Found

T = TypeVar("T")
R = TypeVar("R")

_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(arn:[^/]*/[^/]*|[^/]*)")
_UNSOUND = re.compile(r"[?#\\\s\x00-\x1f\x7f]")
"""Characters that no host contains, and that could make two parsers see different hosts."""

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Place(NamedTuple):
    """A host, bucket or container of one kind of store.

    The family is the protocol, under one name for all its spellings. The authority has no login; this machine's is
    empty.
    """

    family: str
    authority: str

    @property
    def is_local(self) -> bool:
        """Whether it is the local file system."""
        return self.family == "file"

    def __str__(self) -> str:
        """The place as a URL."""
        return f"{self.family}://{self.authority}"


class Area(NamedTuple):
    """A whole place, or one of its folders: without a trailing slash, and empty for the whole place."""

    place: Place
    folder: str = ""

    def has(self, place: Place, inner: str) -> bool:
        """Return whether a path in a place belongs to this area; a path with ".." does not belong to a folder."""
        if place != self.place:
            return False
        if not self.folder:
            return True
        steps = unquote(inner).replace("\\", "/").split("/")
        return inner.startswith(f"{self.folder}/") and ".." not in steps


@lru_cache(maxsize=4096)
def _place(protocol: str, authority: str) -> Place:
    family = FAMILIES.get(protocol.lower(), protocol.lower())
    if family in ("file", "memory"):
        return Place(family, "")
    if _UNSOUND.search(authority):
        return Place(family, authority)
    if family == "abfs":
        container, at, account = authority.partition("@")
        return Place(family, container + at + account.partition(".")[0])
    host = authority.rpartition("@")[2]
    if family in HTTP_PROTOCOLS:
        host = host.lower().removesuffix(_DEFAULT_PORTS[family])
    return Place(family, host)


@lru_cache(maxsize=4096)
def locate(path: str) -> tuple[Place, str]:
    """Return the place of a path or URL, and its path there, as the store's client will interpret them.

    >>> locate("s3a://key:secret@bucket/a/b"), locate("/a"), locate("HTTPS://Host:443/a?b")[0].authority
    ((Place(family='s3', authority='bucket'), '/a/b'), (Place(family='file', authority=''), '/a'), 'host')
    """
    match = _HEAD.match(path)
    if match is None or match[1].lower() in LOCAL_PROTOCOLS:
        return _place("file", ""), _local_path(path)
    return _place(match[1], match[2]), path[match.end() :]


def _local_path(path: str) -> str:
    """Return a path without "file:"; the rest is a path, whatever characters it contains."""
    protocol, colon, rest = path.partition(":")
    if not colon or protocol.lower() not in LOCAL_PROTOCOLS:
        return path
    if rest.startswith("///"):
        return "/" + rest.lstrip("/")
    if rest.startswith("//"):
        return "".join(rest[2:].partition("/")[1:])
    return rest


def read_areas(allow_locations: Sequence[str] | None) -> tuple[Area, ...]:
    """Check ``allow_locations``.

    >>> read_areas(["s3://bucket", "/mnt/lake/"])[1]
    Area(place=Place(family='file', authority=''), folder='/mnt/lake')
    """
    if allow_locations is None:
        return ()
    if isinstance(allow_locations, str) or not isinstance(allow_locations, Sequence):
        raise ConfigTypeError(
            f'allow_locations must be a list of URLs such as ["s3://bucket"], got {type(allow_locations).__name__}'
        )
    return tuple(_area(entry) for entry in allow_locations)


def _area(entry: str) -> Area:
    if not isinstance(entry, str):
        raise ConfigTypeError(f"allow_locations must hold strings, got {type(entry).__name__}")
    place, inner = locate(entry)
    sound = inner.startswith("/") if place.is_local else bool(place.authority) or place.family == "memory"
    if not sound or shown_url(entry) != entry or _UNSOUND.search(place.authority) or ".." in inner.split("/"):
        raise ConfigError(
            "allow_locations must hold URLs with a host or bucket and at most a folder, such as s3://bucket or "
            f"https://host/lake, or absolute local paths, without login or query; got {shown_url(entry)!r}"
        )
    return Area(place, inner.rstrip("/"))


EXPIRY = "s3.session-token-expires-at-ms"
"""When credentials expire, in milliseconds since the epoch, according to catalogs that vend them."""

RENEW_BEFORE_S = 300.0
"""Credentials are renewed this many seconds before they expire: a file that was just opened is read meanwhile."""

_renewing = OfProcess(threading.Lock)

Provider = Callable[[], Mapping[str, Any]]
"""Returns fresh properties, as pyiceberg names them, with `EXPIRY` if they expire; must be picklable for workers."""


@dataclass(frozen=True, slots=True)
class TableStorage:
    """The stores of one table (implements `contracts.Storage`); paths are as its metadata writes them.

    Only the table's own place, which is that of its metadata file, and the areas that the caller named are opened:
    others than the caller may have written the metadata, which must neither receive credentials nor read this machine.

    Args:
        properties: properties of the catalog and table, as pyiceberg names them; never shown.
        options: the caller's ``storage_options``, which take precedence; never shown.
        overrides: prefixes of paths in the metadata, and their replacements.
        retry_seconds: how long to retry a failed request to a store.
    """

    location: str = field(repr=False)
    properties: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    overrides: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    provider: Provider | None = field(default=None, repr=False, compare=False)
    allowed: tuple[Area, ...] = ()
    retry_seconds: float = field(default=DEFAULT_RETRY_SECONDS, repr=False, compare=False)
    _fresh: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False, hash=False)
    _stores: dict[Place, FileStorage] = field(default_factory=dict, init=False, repr=False, compare=False, hash=False)
    _root: Place = field(init=False, repr=False, compare=False)
    _overridden: tuple[Area, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Locate the table, and the areas that ``location_override`` maps to."""
        located = [locate(new) for _, new in self.overrides]
        areas = tuple(Area(place, inner.rpartition("/")[0]) for place, inner in located)
        object.__setattr__(self, "_overridden", areas)
        object.__setattr__(self, "_root", locate(self.moved(self.location))[0])

    @classmethod
    def at(
        cls,
        location: str,
        options: Mapping[str, Any] | None,
        storage_options: Mapping[str, Any] | None,
        allow_locations: Sequence[str] | None,
        *,
        location_override: Mapping[str, str] | None = None,
    ) -> TableStorage:
        """Return the storage of a table, from what the caller gave; `dataclasses.replace` adds what a catalog says.

        Args:
            location: the table's folder, or a file of its metadata; "" where a catalog will say it.
            options: those of the store, under this library's names; None for what `storage_options` say of it.
            storage_options: the caller's, which also say how long to retry.
            allow_locations: as the caller gave them.
            location_override: likewise.

        Raises:
            ConfigError: one of them is wrong.
        """
        overrides, allowed = read_overrides(location_override), read_areas(allow_locations)
        if options is None:
            options = of_the_store(storage_options)
        retry_seconds = RemoteOptions.of(storage_options).retry_seconds
        return cls(location, {}, options, overrides, None, allowed, retry_seconds)

    @staticmethod
    def place_of(path: str) -> tuple[Place, str]:
        """Return the place of a path or URL, and its path there; see `locate`."""
        return locate(path)

    @property
    def is_local(self) -> bool:
        """Whether all files are on the local file system."""
        return self._root.is_local and all(area.place.is_local for area in self._areas)

    @property
    def fork_safe(self) -> bool:
        """Whether a process that used this storage may still fork."""
        return all(store.fork_safe for store in (self._at(self.location)[0], *self._stores.values()))

    @property
    def place(self) -> str:
        """A name for the store without secrets."""
        return self._at(self.location)[0].place

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random access."""
        store, inner = self._at(path)
        return store.open(inner)

    def version(self, path: str) -> FileVersion:
        """Return the current size, time and tag of a file."""
        store, inner = self._at(path)
        return store.version(inner)

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        """Read bytes of a file with one request (`contracts.RangeStorage`)."""
        store, inner = self._at(path)
        return store.read_range(inner, start, stop, version)

    def checks(self, version: FileVersion) -> bool:
        """Return whether a request for a range fails if the file no longer has this version."""
        return version.immutable

    def close(self) -> None:
        """Close this process's clients."""
        for store in self._stores.values():
            store.close()

    def walk(self, path: str) -> list[Found]:
        """List the files and folders in a folder, by their paths in the store."""
        store, inner = self._at(path)
        return store.walk(inner, recursive=False)

    def traffic(self) -> Traffic:
        """Return this process's requests to all stores so far."""
        return sum((store.traffic() for store in list(self._stores.values())), start=Traffic())

    def read_whole(self, path: str, num_bytes: int | None = None) -> bytes:
        """Read a file of the table's metadata.

        If the metadata gives its size, one request is enough for a remote file. A wrong size costs more requests.
        """
        size = num_bytes or 0
        if is_far(self) and 0 < size <= MOST_BYTES:
            try:
                return bytes(self.read_range(path, 0, size, FileVersion(size, immutable=True)))
            except StorageError:
                if self.version(path).num_bytes == size:
                    raise
        with self.open(path) as source:
            if (found := source.size()) > MOST_BYTES:
                raise _too_large(path, f"{found >> 20} MiB")
            return bytes(source.read())

    @staticmethod
    def unzipped(data: bytes, path: str) -> bytes:
        """Return the bytes of a file of the metadata, which may be compressed with gzip."""
        if data[:2] != b"\x1f\x8b":
            return data
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as source:
            data = source.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise _too_large(path, "more, once decompressed")
        return data

    def each(self, do: Callable[[T], R], things: Sequence[T], *, near: int, far: int) -> list[R]:
        """Call a function for each of some things, several at once, and return what it returns.

        Args:
            near: how many at once where all files are on this machine.
            far: how many at once elsewhere.
        """
        threads = min(len(things), near if self.is_local else far)
        if threads < 2:
            return list(map(do, things))
        with Threads(threads, "table-loader-metadata") as pool:
            return list(pool.map(do, things))

    def moved(self, path: str) -> str:
        """Return the current location of a path in the metadata."""
        for old, new in self.overrides:
            if path.startswith(old):
                return new + path[len(old) :]
        return path

    def require(self, paths: Iterable[str]) -> None:
        """Refuse paths in the metadata that are neither in the table's place nor allowed by the caller.

        Raises:
            TableError: a path has a NUL, or is refused; the message names it, and what would allow it.
        """
        for path in paths:
            self._located(path)

    def _located(self, path: str) -> tuple[str, Place, str]:
        """Return the current location of a path in the metadata, its place, and its path there; see `require`."""
        moved = self.moved(path)
        if "\0" in moved:  # no store has such a file, and clients take it as a fault of their own
            raise TableError(
                f"the metadata of a table at {self._root} must name files by paths without NUL, got "
                f"{shown_url(path)!r}; fix the table's metadata"
            )
        place, inner = locate(moved)
        if place != self._root and not any(area.has(place, inner) for area in self._areas):
            allow = f"file://{inner.rpartition('/')[0] or '/'}" if place.is_local else shown_url(str(place))
            raise TableError(
                f"the metadata of a table at {self._root} names {shown_url(moved)!r}, which lies elsewhere and is not "
                f"opened; if the table is meant to have files there, pass allow_locations=[{allow!r}]"
            )
        return moved, place, inner

    @property
    def _areas(self) -> tuple[Area, ...]:
        return (*self._overridden, *self.allowed)

    def known(self) -> dict[str, Any]:
        """Return the current properties: credentials may have been renewed."""
        return {**self.properties, **self._fresh}

    def _login(
        self, provider: Provider, place: Place, of_url: Mapping[str, Any], refused: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the options to connect with now; renew the credentials if they expire soon, or were refused."""
        known = self.known()
        end = known.get(EXPIRY)
        expire = end is not None and float(end) / 1000 - RENEW_BEFORE_S < time.time()
        if expire or refused == self._options_of(place, of_url):
            with _renewing.own:
                if self.known() == known:  # no other thread has renewed them
                    self._fresh.update(provider())
        return self._options_of(place, of_url)

    def _at(self, path: str) -> tuple[FileStorage, str]:
        moved, place, inner = self._located(path)
        if place.is_local:
            return self._stores.setdefault(place, FileStorage("file")), inner
        address = parse_address(moved)
        if (store := self._stores.get(place)) is None:
            login = None
            if self.provider:
                login = partial(self._login, self.provider, place, address.login)
            options = self._options_of(place, address.login)
            store = FileStorage(address.protocol, options, self.retry_seconds, login)
            store = self._stores.setdefault(place, store)
        return store, address.path

    def _options_of(self, place: Place, of_url: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options for a place's client: S3 properties for S3 only, the caller's for the table's place.

        Another bucket in the table's kind of store, if the caller allowed it, gets the same options; another HTTP host
        gets none. For a table on this machine, which takes no options, they can only be meant for other places.
        """
        stores = far()
        layers, root = [of_url], self._root
        if place.family == "s3":
            layers += stores.s3_properties(self.known())
        own = place in (root, *(area.place for area in self._overridden))
        alike = place.family not in HTTP_PROTOCOLS and (root.is_local or place.family == root.family)
        if own or alike:
            layers.append(self.options)
        return stores.store_options(place.family, *layers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is needed to connect again."""
        return TableStorage, (
            self.location,
            self.known(),
            dict(self.options),
            self.overrides,
            self.provider,
            self.allowed,
            self.retry_seconds,
        )


MOST_BYTES = 256 << 20
"""The most bytes of a metadata file, which is read completely."""


def _too_large(path: str, got: str) -> TableError:
    """Build the error for a metadata file that would take too much memory."""
    return TableError(
        f"{shown_url(path)} must be a file of the table's metadata, of at most {MOST_BYTES >> 20} MiB, got {got}; "
        "where it is sound, let the table's snapshots expire, or rewrite its manifests into smaller ones"
    )


def read_overrides(overrides: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Check a ``location_override``, and sort it by prefix, longest first.

    >>> read_overrides({"s3://a/": "file:///b/", "s3://a/c/": "file:///c/"})
    (('s3://a/c/', 'file:///c/'), ('s3://a/', 'file:///b/'))
    """
    if overrides is None:
        return ()
    if not isinstance(overrides, Mapping):
        raise ConfigTypeError(f"location_override must be {{old prefix: new prefix}}, got {type(overrides).__name__}")
    for old, new in overrides.items():
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            raise ConfigTypeError("location_override must be {old prefix: new prefix}, both of them strings")
        if old.endswith("/") != new.endswith("/"):
            raise ConfigError(
                f"location_override {shown_url(old)!r}: {shown_url(new)!r}: end both with a slash, or neither"
            )
    return tuple(sorted(overrides.items(), key=lambda pair: (-len(pair[0]), pair[0])))
