"""The contracts of sources, a table's files and the storage to open them in, and of storages: places with files."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.contracts import HistorySource, SnapshotSource, TimeTravelSource, has_ranges
from torch_table_loader.errors import TableError
from torch_table_loader.read.formats import reader_of
from torch_table_loader.records import DataFile, FileVersion, Traffic
from torch_table_loader.testing.rules import GONE, ContractError, contract_errors, expecting_missing, pickled, require

if TYPE_CHECKING:
    from torch_table_loader.contracts import RangeStorage, Source, Storage

_THREADS = 4


def check_source(source: Source, *, opened: int = 16) -> None:
    """Check a source.

    It must be picklable; list files in a stable order, under unique relative names, with the version that its storage
    reports; and give each file exactly the partition columns of its schema, with their types. A source of snapshots,
    whose partitioning may have changed since a file was written, may give only some of them. Its formats must be known.
    A source that can open other snapshots must open its own alike. A source with a history must report no changes since
    its own snapshot, and some change since one that is not an ancestor.

    Args:
        source: of a table that does not change meanwhile.
        opened: number of files to look up in the storage.

    Raises:
        ContractError: a rule is broken; the message names the rule and the file.
    """
    who = type(source).__name__
    with contract_errors(who, "must list its files, but raised"):
        files = list(source.files)
        require(files == list(source.files), f"{who} must list the same files in the same order each time")
    for file in files:
        require(isinstance(file, DataFile), f"{who} must list DataFiles, got {type(file).__name__}")
    _check_names(who, files)
    for file in {file.format: file for file in files}.values():
        with contract_errors(who, f"lists {file.name!r} in a format that cannot be read"):
            reader_of(file)
    _check_partitions(who, files, source.partition_schema, changes=isinstance(source, SnapshotSource))
    require(
        list(pickled(source, who).files) == files, f"{who} must list the same files in the same order after pickling"
    )
    if isinstance(source, SnapshotSource):
        _check_snapshot(who, source, files)
    for file in files[:opened]:
        with contract_errors(who, f"lists {file.name!r}, which its storage must open, but that raised"):
            version = source.storage.version(file.path)
            source.storage.open(file.path).close()
        require(
            file.version.holds(version),
            f"{who} lists {file.name!r} with {file.version}, but its storage says {version}; take both from one place",
        )


def _check_snapshot(who: str, source: SnapshotSource, files: list[DataFile]) -> None:
    """Check the identity of a snapshot, and that a source that can open others opens its own alike."""
    require(
        re.fullmatch("[0-9a-f]{64}", str(source.fingerprint)),
        f"{who} must have a fingerprint of 64 hexadecimal digits, got {source.fingerprint!r}",
    )
    if not isinstance(source, TimeTravelSource) or source.snapshot_id is None:
        return
    with contract_errors(who, f"must open its own snapshot {source.snapshot_id}, but at_snapshot raised"):
        again = source.at_snapshot(source.snapshot_id)
        same = again.snapshot_id == source.snapshot_id and again.fingerprint == source.fingerprint
        require(same and list(again.files) == files, f"{who} must be the same at its own snapshot {source.snapshot_id}")
    if isinstance(source, HistorySource):
        _check_history(who, source, source.snapshot_id)


def _check_history(who: str, source: HistorySource, own: int) -> None:
    """Check the reported commits since a snapshot: since its own, and since one that does not exist."""
    start = getattr(source, "start_snapshot_id", None)
    require(
        start is None or (isinstance(start, int) and start != own),
        f"{who} must have a start_snapshot_id that is None or an older snapshot than its own, {own}, got {start!r}",
    )
    stranger = -abs(own) - 1
    for since, happened in ((own, False), (stranger, True)):
        with contract_errors(who, f"must say what commits did since snapshot {since}, but changes_since raised"):
            changes = source.changes_since(since)
            words = not isinstance(changes, str) and all(isinstance(each, str) and each for each in changes)
        require(words, f"{who}: changes_since({since}) must give a list of texts, got {changes!r}")
        expected = "be empty, since that is its own snapshot"
        if happened:
            expected = "say that it is not an ancestor"
        require(bool(changes) == happened, f"{who}: changes_since({since}) must {expected}, got {list(changes)}")


def _check_names(who: str, files: list[DataFile]) -> None:
    for kind in ("name", "path"):
        seen: set[str] = set()
        for file in files:
            value = getattr(file, kind)
            require(value not in seen, f"{who} must list each file once, but the {kind} {value!r} comes twice")
            seen.add(value)
    for file in files:
        require(
            file.name and not file.name.startswith("/") and "://" not in file.name,
            f"{who} must name files relative to the table's root, got {file.name!r}: names go into states and messages",
        )
        require(file.format, f"{who} must say each file's format, but {file.name!r} has none")


def _check_partitions(who: str, files: list[DataFile], schema: Any, *, changes: bool) -> None:
    require(isinstance(schema, pa.Schema), f"{who} must give a pyarrow.Schema, got {type(schema).__name__}")
    for file in files:
        names = [name for name, _ in file.partition]
        require(
            set(names) <= set(schema.names) if changes else sorted(names) == sorted(schema.names),
            f"{who}: {file.name!r} must have the partition columns {schema.names}, got {names}; null is a value too",
        )
        for name, value in file.partition:
            doing = f"{file.name!r} must have a {schema.field(name).type} in partition column {name!r}, got {value!r}"
            with contract_errors(who, doing):
                pa.scalar(value, type=schema.field(name).type)


def check_storage(storage: Storage, path: str) -> None:
    """Check a storage with one of its files.

    It must be picklable, open files for random access (several at once, from several threads), report a stable size and
    version, raise TableError for a missing file, and open again after `close`. One with `read_range` is a
    `RangeStorage`: it must give exactly the bytes that are asked for, to several threads, and refuse another version of
    the file where it says that it checks versions.

    Args:
        path: a file of at least two bytes, which does not change meanwhile.

    Raises:
        ContractError: a rule is broken; the message names the rule and the path.
    """
    who = f"{type(storage).__name__} at {path!r}"
    require(isinstance(storage.is_local, bool), f"{who} must say is_local as a bool, got {storage.is_local!r}")
    content = _content(storage, path, who)
    require(len(content) >= 2, f"{who} must be checked by a file of at least two bytes, got {len(content)}")
    _check_random_access(storage, path, who, content)
    _check_version(storage, path, who, len(content))
    missing = f"{path}.{GONE}"
    for name in ("open", "version"):
        with expecting_missing(who, f"{name} of a file that is not there"):
            getattr(storage, name)(missing)
    with contract_errors(who, "must serve several threads at once, but raised"), ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(lambda _: _content(storage, path, who), range(2 * _THREADS)))
    require(read == [content] * len(read), f"{who} must give each of several threads the file, but bytes differ")
    require(
        _content(pickled(storage, who), path, who) == content, f"{who} must open the same file after it was pickled"
    )
    for turn in ("close", "a second close"):
        with contract_errors(who, f"must open again after {turn}, but raised"):
            storage.close()
    require(_content(storage, path, who) == content, f"{who} must open the same file after close")
    if has_ranges(storage):
        _check_ranges(storage, path, who, content)


def _check_ranges(storage: RangeStorage, path: str, who: str, content: bytes) -> None:
    """Check what a storage has beside `Storage` whose files are read by range."""
    for name in ("place", "traffic", "checks"):
        require(hasattr(storage, name), f"{who} must have {name}, since it has read_range")
    require(isinstance(storage.place, str) and storage.place, f"{who} must have a place, a text, got {storage.place!r}")
    with contract_errors(who, "must say its traffic, but raised"):
        traffic = storage.traffic()
    require(isinstance(traffic, Traffic), f"{who} must say a Traffic, got {type(traffic).__name__}")
    version, half = storage.version(path), len(content) // 2
    spans = [(0, len(content)), (0, 1), (0, half), (half, len(content)), (len(content) - 1, len(content))]

    def check(span: tuple[int, int]) -> None:
        with contract_errors(who, f"must read bytes {span[0]} to {span[1]}, but raised"):
            found = [bytes(storage.read_range(path, *span, own)) for own in (None, version)]
        wanted = content[slice(*span)]
        require(found == [wanted] * 2, f"{who}: read_range must give bytes {span[0]} to {span[1]}, and no others")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(check, spans * 2))
    with expecting_missing(who, "read_range of a file that is not there"):
        storage.read_range(f"{path}.{GONE}", 0, 1)
    if not storage.checks(version):
        return
    other = replace(version, etag=f"not {version.etag}", mtime_ns=0, local=None)
    with contract_errors(who, "must raise TableError for another version, since it checks them, but raised"):
        try:
            storage.read_range(path, 0, 1, other)
        except TableError:
            return
    raise ContractError(f"{who}: read_range must refuse another version, since checks() is true, but gave bytes")


def _content(storage: Storage, path: str, who: str) -> bytes:
    with contract_errors(who, "must open and read the file, but raised"), storage.open(path) as handle:
        require(
            isinstance(handle, pa.NativeFile),
            f"{who} must open a pyarrow.NativeFile, got {type(handle).__name__}; wrap it: pa.PythonFile(it, mode='r')",
        )
        return bytes(handle.read())


def _check_random_access(storage: Storage, path: str, who: str, content: bytes) -> None:
    half = len(content) // 2
    with (
        contract_errors(who, "must open for random access, but raised"),
        storage.open(path) as one,
        storage.open(path) as other,
    ):
        require(one.size() == len(content), f"{who}: size() says {one.size()}, but it has {len(content)} bytes")
        tail = bytes(one.read_at(len(content), half))
        require(tail == content[half:], f"{who}: read_at(…, {half}) must give the bytes from {half} to the end")
        one.seek(half)
        first, second = bytes(other.read(1)), bytes(one.read(1))
        require(
            (first, second) == (content[:1], content[half : half + 1]),
            f"{who}: two open handles must each have a position of their own",
        )


def _check_version(storage: Storage, path: str, who: str, size: int) -> None:
    with contract_errors(who, "must say the file's version, but raised"):
        version, again = storage.version(path), storage.version(path)
    require(isinstance(version, FileVersion), f"{who} must say a FileVersion, got {type(version).__name__}")
    require(version.num_bytes == size, f"{who}: version says {version.num_bytes} bytes, but it has {size}")
    require(version == again, f"{who}: the version must stay while the file does, got {version}, then {again}")
