"""A directory that caches footers and counts, so that ranks that share it read each file once."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.cancellation import Threads
from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.nesting import load_json
from torch_table_loader.option_values import RemoteOptions
from torch_table_loader.ranges import STAT_THREADS
from torch_table_loader.records import DataFile, FileMeta, FileVersion, LocalVersion, same_local
from torch_table_loader.source.storage import FileStorage, open_storage

_MAGIC = b"TTLPLAN5"

_MOST_RETRY_SECONDS = 15.0
"""Reading the footers again takes less time than a long wait, and always works."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What is known about one data file without opening it.

    `counts` has the live rows of each row group, by the caller's digest of what was counted (the filter). Digests are
    stored unchanged, and must contain nothing secret.
    """

    meta: FileMeta
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse counts that do not fit the row groups."""
        for key, counts in self.counts.items():
            if len(counts) != len(self.meta.group_rows):
                raise ConfigError(
                    f"CacheEntry needs one count a row group, got {len(counts)} under {key!r} "
                    f"for {len(self.meta.group_rows)} row groups"
                )


class Plans(ABC):
    """What is known about data files, wherever it is kept."""

    fork_safe: bool | property = True
    """Whether a forked process can use it."""

    @abstractmethod
    def get(self, file: DataFile) -> CacheEntry | None:
        """Return what is known about a file; None if nothing is."""

    def get_many(self, files: Sequence[DataFile]) -> list[CacheEntry | None]:
        """Return what is known about each file."""
        return list(map(self.get, files))

    @abstractmethod
    def put(self, file: DataFile, entry: CacheEntry) -> None:
        """Add what is known about a file."""

    @abstractmethod
    def get_note(self, key: str) -> bytes | None:
        """Return what `put_note` stored; None if there is nothing."""

    @abstractmethod
    def put_note(self, key: str, data: bytes) -> None:
        """Store bytes under a key."""

    @abstractmethod
    def versions(self, files: Sequence[DataFile]) -> str | None:
        """Hash what distinguishes these files from any others; None if a version is unknown."""

    def close(self) -> None:  # noqa: B027 most have no clients
        """Close this process's clients."""


class HeldPlans(Plans):
    """What datasets of one open table know of its files, in memory. It pickles empty.

    Footers are those of a table, which `know` hands over: they are held once, with the schemas that files share.
    """

    def __init__(self) -> None:
        self._metas: dict[tuple[str, FileVersion], FileMeta] = {}
        self._counts: dict[tuple[str, FileVersion], dict[str, tuple[int, ...]]] = {}
        self._notes: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle empty."""
        return HeldPlans, ()

    def know(self, files: Sequence[DataFile], metas: Sequence[FileMeta]) -> None:
        """Take the footers of a table's files."""
        self._metas.update(((file.path, file.version), meta) for file, meta in zip(files, metas, strict=True))

    @override
    def get(self, file: DataFile) -> CacheEntry | None:
        key = file.path, file.version
        meta = self._metas.get(key)
        if meta is None:
            return None
        return CacheEntry(meta, dict(self._counts.get(key, ())))

    @override
    def put(self, file: DataFile, entry: CacheEntry) -> None:
        """Keep the counts of a file."""
        if entry.counts:
            self._counts.setdefault((file.path, file.version), {}).update(entry.counts)

    @override
    def get_note(self, key: str) -> bytes | None:
        return self._notes.get(key)

    @override
    def put_note(self, key: str, data: bytes) -> None:
        self._notes[key] = data

    @override
    def versions(self, files: Sequence[DataFile]) -> str:
        facts = [[file.path, file.version.num_bytes, file.version.mtime_ns, file.version.etag] for file in files]
        return hashlib.sha256(json.dumps(facts).encode("utf-8")).hexdigest()


@dataclass(frozen=True, slots=True)
class PlanCache(Plans):
    """Entries of data files in a directory on any file system, each written atomically.

    An entry is stored under a hash of the file's location, name, format, size, mtime and etag (size alone, if the
    table's format promises that the file is never rewritten), and has a checksum. A damaged or unrelated entry is not
    used, and is replaced when the file has been read again. So is an entry that this machine wrote for a local file
    with a different inode or ctime. A cache that does not answer costs time and is never an error; this module's logger
    warns of it once. The directory also holds notes: bytes under a key of the caller's.

    `scope` is what else an entry depends on: the table's `FileStorage.place` and, for formats without types of their
    own, the caller's schema.
    """

    storage: FileStorage
    root: str
    scope: str = ""
    _warned: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False, hash=False)

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any] | None = None, scope: str = "") -> PlanCache:
        """Return the cache in a directory, which need not exist. Connects to nothing. Raises as `open_storage`."""
        retry_seconds = min(RemoteOptions.of(storage_options).retry_seconds, _MOST_RETRY_SECONDS)
        storage, root = open_storage(url, {**(storage_options or {}), "retry_seconds": retry_seconds})
        return cls(storage, root.rstrip("/"), scope)

    @property
    def fork_safe(self) -> bool:  # type: ignore[override]
        """Whether a forked process can use it."""
        return getattr(self.storage, "fork_safe", False)

    @override
    def close(self) -> None:
        self.storage.close()

    @override
    def get(self, file: DataFile) -> CacheEntry | None:
        if (key := self._key(file)) is None:
            return None
        if (data := self._read(key, file.name)) is None:
            return None
        entry, locals_then = _decode(data)
        if all(map(same_local, locals_then, _locals(file))):
            return entry
        return None

    @override
    def get_many(self, files: Sequence[DataFile]) -> list[CacheEntry | None]:
        with Threads(STAT_THREADS, "table-loader-ask") as pool:
            return list(pool.map(self.get, files))

    @override
    def put(self, file: DataFile, entry: CacheEntry) -> None:
        """Store an entry, merged with the counts that are already stored for the same version of the file."""
        key = self._key(file)
        if key is None:
            return
        known = self.get(file)
        if known is not None and known.meta == entry.meta:
            if entry.counts.items() <= known.counts.items():
                return
            entry = CacheEntry(entry.meta, {**known.counts, **entry.counts})
        self._write(key, _encode(entry, _locals(file)))

    @override
    def get_note(self, key: str) -> bytes | None:
        """Return what `put_note` stored: the key has everything that it depends on, except the table's location."""
        return self._read(self._note_key(key), "a note")

    @override
    def put_note(self, key: str, data: bytes) -> None:
        """Store bytes under a key; they must contain nothing secret."""
        self._write(self._note_key(key), data)

    @override
    def versions(self, files: Sequence[DataFile]) -> str | None:
        keys = [self._key(file) for file in files]
        known = [key.hex() for key in keys if key is not None]
        if len(known) < len(keys):
            return None
        return hashlib.sha256(json.dumps([known, [_locals(file) for file in files]]).encode("utf-8")).hexdigest()

    def _note_key(self, key: str) -> bytes:
        return hashlib.sha256(json.dumps(["note", self.scope, key]).encode("utf-8")).digest()

    def _read(self, key: bytes, what: str) -> bytes | None:
        """Return what `_write` wrote; None if there is nothing, or anything else."""
        if self._given_up("read"):
            return None
        try:
            sealed = self.storage.read_bytes(self._path(key))
        except TableError:  # no such file
            return None
        except StorageError as error:
            self._warn("read", f"the plan cache cannot be read and is not used: {error}")
            return None
        data = sealed[len(_seal(key, b"")) :]
        if not sealed.startswith(_seal(key, data)):
            self._warn(
                "torn", f"an entry of the plan cache is damaged or of another table, and is written again: {what}"
            )
            return None
        return data

    def _write(self, key: bytes, data: bytes) -> None:
        if self._given_up("write"):
            return
        try:
            self.storage.write_bytes(self._path(key), _seal(key, data) + data)
        except (StorageError, TableError) as error:
            self._warn("write", f"the plan cache cannot be written and stays as it is: {error}")

    def _given_up(self, what: str) -> bool:
        """Return whether the store failed to answer before: each entry would wait for it again."""
        return what in self._warned and not self.storage.is_local

    def _key(self, file: DataFile) -> bytes | None:
        """Hash what distinguishes this file from any other; None if the store gives neither time nor tag."""
        version = file.version
        for each in (version, *(sidecar.version for sidecar in file.sidecars)):
            if each.mtime_ns is None and each.etag is None and not each.immutable:
                return None
        # The full path (hashed) separates two tables whose files have equal names, sizes and seconds.
        identity = [self.scope, file.path.partition("?")[0], file.name, file.format]
        if file.reader is not None:  # its settings affect what it says about a file
            identity.append(hashlib.sha256(pickle.dumps(file.reader)).hexdigest())
        facts: list[Any] = [version.num_bytes, version.mtime_ns, version.etag]
        for beside in file.sidecars:
            facts += [beside.name, beside.version.num_bytes, beside.version.mtime_ns, beside.version.etag]
        return hashlib.sha256(json.dumps([*identity, *facts]).encode("utf-8")).digest()

    def _path(self, key: bytes) -> str:
        return f"{self.root}/_{key.hex()}.plan"  # hidden, should the cache lie inside a table

    def _warn(self, what: str, message: str) -> None:
        mine = object()
        if self._warned.setdefault(what, mine) is mine:  # of several threads one warns
            _log.warning("%s", message)


def _locals(file: DataFile) -> list[LocalVersion | None]:
    """Return the local versions of a file and of its sidecars."""
    return [file.version.local, *(sidecar.version.local for sidecar in file.sidecars)]


def _seal(key: bytes, data: bytes) -> bytes:
    """Return what precedes the data under a key: magic and checksum."""
    return _MAGIC + hashlib.sha256(key + data).digest()


def _encode(entry: CacheEntry, local: Sequence[LocalVersion | None]) -> bytes:
    """Encode as a JSON head, a NUL, schema, footer."""
    schema, meta = entry.meta.schema.serialize().to_pybytes(), entry.meta
    head = {
        "rows": meta.group_rows,
        "bytes": meta.group_bytes,
        "counts": dict(entry.counts),
        "schema": len(schema),
        "footer": meta.footer is not None,
        "local": local,
        "ranges": meta.group_ranges,
        "opening": meta.opening,
        "decoded": meta.column_bytes,
        "at_once": meta.at_once,
    }
    return b"".join((json.dumps(head).encode("ascii"), b"\0", schema, meta.footer or b""))


def _decode(data: bytes) -> tuple[CacheEntry, list[LocalVersion | None]]:
    """Read what `_encode` wrote."""
    text, _, rest = data.partition(b"\0")
    fields = load_json(text, "the plan cache")
    schema = pa.ipc.read_schema(pa.py_buffer(rest[: fields["schema"]]))
    footer = ranges = decoded = None
    if fields["footer"]:
        footer = rest[fields["schema"] :]
    if fields["ranges"] is not None:
        ranges = tuple(map(tuple, fields["ranges"]))
    if fields["decoded"] is not None:
        decoded = tuple(fields["decoded"])
    opening = tuple(map(tuple, fields["opening"]))
    sizes = tuple(fields["rows"]), tuple(fields["bytes"])
    meta = FileMeta(schema, *sizes, footer, ranges, opening, decoded, tuple(fields["at_once"]))
    entry = CacheEntry(meta, {name: tuple(counts) for name, counts in fields["counts"].items()})
    return entry, [None if each is None else LocalVersion(*each) for each in fields["local"]]
