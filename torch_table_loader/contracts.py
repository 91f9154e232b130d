"""The sockets: what a source, a store, a format reader and a split strategy must do; and plug-ins by their names.

`torch_table_loader.testing` has a check for each, which a plug-in's author runs in a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from torch_table_loader.errors import ConfigError, MissingExtraError
from torch_table_loader.messages import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.records import DataFile, FileVersion, Traffic


class Storage(Protocol):
    """A place that holds files, as a value: it pickles, and each process opens its own client on first use.

    Two attributes are optional: `place`, as in `RangeStorage`, which a plan cache needs; and `fork_safe`, which says
    whether a process that used the storage may still fork (without it, it may not).
    """

    @property
    def is_local(self) -> bool:
        """Whether files are on this machine's file system (small reads are then cheap)."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Open for random access. Raises TableError if it is gone, StorageError if the store refuses."""
        ...

    def version(self, path: str) -> FileVersion:
        """Size, time and tag as they are now. Raises as `open` does."""
        ...

    def close(self) -> None:
        """Drop this process's client; the next call opens a new one."""
        ...


@runtime_checkable
class ReleasingStorage(Storage, Protocol):
    """A storage that holds a file's bytes until they are decoded."""

    def release(self, group: int) -> None:
        """Release what only the row groups before one need: all their columns are decoded."""
        ...


def releases(storage: Storage) -> TypeGuard[ReleasingStorage]:
    """Return whether a storage holds bytes until it is told; asked for each file, where `isinstance` takes 0.1 ms."""
    return hasattr(storage, "release")


class RangeStorage(Storage, Protocol):
    """A storage that answers requests for byte ranges, many at once: its files are fetched ahead of decoding.

    A storage that has `read_range` must have all of this.
    """

    @property
    def place(self) -> str:
        """A name of the store, without secrets, that no other store has: equal paths in two places are two files."""
        ...

    def traffic(self) -> Traffic:
        """Return what this process has asked of the store so far; 0 for what a storage does not count."""
        ...

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        """Read bytes of a file with one request; threads may share the storage.

        Args:
            path: which file.
            start: the first byte.
            stop: the byte after the last; not beyond the file's end, and more than `start`.
            version: what the file must still be, which the request itself checks where the store can; None: whatever
                is there.

        Returns:
            A buffer of exactly ``stop - start`` bytes.

        Raises:
            TableError: the file is gone, or no longer that version.
            StorageError: the store refuses, does not answer, or answers with other bytes.
        """
        ...

    def checks(self, version: FileVersion) -> bool:
        """Return whether a request for a range refuses a file that is no longer this version."""
        ...


def has_ranges(storage: Storage) -> TypeGuard[RangeStorage]:
    """Return whether a storage answers requests for byte ranges; a caller's storage was checked before."""
    return hasattr(storage, "read_range")


def is_far(storage: Storage) -> TypeGuard[RangeStorage]:
    """Return whether files are on another machine, and come in ranges."""
    return not storage.is_local and has_ranges(storage)


class PartStorage(RangeStorage, Protocol):
    """A storage that a row store can be kept on."""

    def read_bytes(self, path: str) -> bytes:
        """Read a small file whole. Raises as `open` does."""
        ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a small file atomically: a reader sees all of it or nothing. Raises StorageError."""
        ...

    def put_file(self, local: str, path: str) -> None:
        """Copy a file of this machine there. Raises StorageError."""
        ...

    def shown(self, path: str) -> str:
        """Write a path as messages may show it, without login or query."""
        ...


class Source(Protocol):
    """A table as the lake has it: its files in canonical order, and where to open them."""

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        ...

    @property
    def files(self) -> Sequence[DataFile]:
        """The data files, in an order that is the same on every rank."""
        ...

    @property
    def partition_schema(self) -> pa.Schema:
        """The columns that come from paths or manifests, not from the files."""
        ...


@runtime_checkable
class SnapshotSource(Source, Protocol):
    """A source that has a schema of its own, and identifies the state of the table that it reads."""

    @property
    def schema(self) -> pa.Schema:
        """The schema to read the table as, partition columns included."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of table and snapshot: 64 hexadecimal digits."""
        ...

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot's id; None for a table without one."""
        ...

    @property
    def description(self) -> str:
        """Table and snapshot, in words."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks of planning on filters and files."""
        ...


@runtime_checkable
class TimeTravelSource(SnapshotSource, Protocol):
    """A snapshot source that can open its table at another snapshot.

    A state names its snapshot, and a loader that resumes from it opens that one, unless the caller chose another.
    """

    @property
    def pinned(self) -> bool:
        """Whether the caller chose the snapshot; a state of another one is then refused."""
        ...

    def at_snapshot(self, snapshot_id: int) -> TimeTravelSource:
        """Return the same table at another snapshot.

        Raises:
            ConfigError: the table has no such snapshot, or no longer has it.
        """
        ...


@runtime_checkable
class HistorySource(TimeTravelSource, Protocol):
    """A source that can tell what the commits of its table did.

    One that reads only what was appended after another snapshot says so by ``start_snapshot_id``; and by ``changelog``,
    where it reads what went as well.
    """

    def changes_since(self, snapshot_id: int) -> Sequence[str]:
        """Return what the commits after another snapshot did beyond appending files, for messages.

        Args:
            snapshot_id: an older one; the result also says if it is not an ancestor.
        """
        ...


class SplitStrategy(Protocol):
    """How a table is split, in one of two forms. A class may inherit from this, but need not. Both forms are pure.

    A cutter is called with the files, a sequence of `DataFileInfo`, and returns a sequence of `Split` in the order of
    an unshuffled epoch; the library shuffles, slices by rank and assigns to workers. A generator owns order and
    assignment: its ``generate(files, num_workers, epoch[, num_ranks, rank])`` returns a list of `Shard`.

    The signature tells the form, and whether the object takes ranks. The attribute `coverage` is optional: "once", or
    "any" if the splits of an epoch may leave rows out, or hold them several times.
    """


def installed_names(group: str) -> list[str]:
    """Return the names that are installed in a group of entry points, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def origins(group: str) -> dict[str, str]:
    """Return by name which distribution installed what in a group of entry points, and its version."""
    found: dict[str, set[str]] = {}
    for point in entry_points(group=group):
        where = point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"
        found.setdefault(point.name, set()).add(where)
    return {name: " and ".join(sorted(places)) for name, places in sorted(found.items())}


def load_installed(group: str, name: str, what: str) -> Any:
    """Load a plug-in.

    Args:
        what: the kind of plug-in, for messages.

    Raises:
        ConfigError: there is none of that name (the nearest are named), there are two, or it cannot be loaded.
        MissingExtraError: a package that it needs is not installed, or this build lacks it.
    """
    found: dict[str, set[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, set()).add(point)
    if name not in found:
        hint = did_you_mean(name, sorted(found), spare=len(found))
        raise ConfigError(f"no {what} is installed under the name {name!r}{hint}")
    places = sorted({point.value for point in found[name]})
    if len(places) > 1:
        raise ConfigError(
            f"the name {name!r} must mean one {what}, but {' and '.join(places)} are installed under it; "
            "uninstall one, or pass the object itself"
        )
    try:
        return found[name].pop().load()
    except MissingExtraError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the {what} {name!r} is installed as {places[0]} but cannot be loaded ({error}); reinstall its package"
        ) from error
