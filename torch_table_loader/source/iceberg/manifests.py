"""Manifest lists and manifests (https://iceberg.apache.org/spec/#manifests), read with fastavro and in parallel."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import fastavro

from torch_table_loader.errors import MissingFileError, TableError
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.clients import STAT_THREADS
from torch_table_loader.source.iceberg.storage import read_whole

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.source.iceberg.metadata import Snapshot

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED = 2

_TORN = (ValueError, KeyError, TypeError, EOFError, IndexError, zlib.error)
"""What fastavro raises of bytes that are no Avro, or are cut short."""

_FILE_PATH_ID = 2147483546
"""The column of a position delete file that names the data file."""

_LOST = "; restore it, or read a snapshot that does not need it"


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A manifest, as its list says.

    Args:
        path: where it is.
        spec_id: the partition spec of its files.
        deletes: whether it lists delete files.
        sequence_number: of the commit that added it.
        partitions: what its partition values lie between, one summary a field of the spec; empty if not said.
        first_row_id: from which rows of its files are counted (v3).
        listed: False where nothing but its path is known (v1).
    """

    path: str
    spec_id: int
    deletes: bool = False
    sequence_number: int = 0
    partitions: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    first_row_id: int | None = None
    listed: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A data or delete file that is part of a snapshot: what planning needs of the manifest's ``data_file``.

    Statistics are not held, but for those of key columns: a table of many files would not fit.

    Args:
        path: as the metadata writes it.
        content: `DATA`, `POSITION_DELETES` or `EQUALITY_DELETES`.
        format: in capitals.
        spec_id: its partition spec.
        partition: its partition values, in the order of the spec's fields.
        sequence_number: the data sequence number.
        first_row_id: of its first row, if rows are counted.
        num_rows: its rows.
        num_bytes: its size in the store.
        split_offsets: where row groups begin, in bytes, if the writer said so.
        deletes: what else is said of a delete file; None of a data file.
        spans: of key columns, where there are deletes by keys.
    """

    path: str
    content: int
    format: str
    spec_id: int
    partition: tuple[Any, ...]
    sequence_number: int
    first_row_id: int | None
    num_rows: int
    num_bytes: int
    split_offsets: tuple[int, ...] = ()
    deletes: DeletesInfo | None = None
    spans: tuple[Span, ...] = ()


class Span(NamedTuple):
    """What a file's statistics say of a column.

    Args:
        field_id: of the column.
        low: no value is lower; None if not known.
        high: no value is higher; None if not known.
        nulls: whether there may be nulls.
        values: whether there may be anything else.
    """

    field_id: int
    low: int | bytes | None
    high: int | bytes | None
    nulls: bool
    values: bool


@dataclass(frozen=True, slots=True)
class DeletesInfo:
    """What a manifest says of a delete file.

    Args:
        key_ids: of an equality delete, the columns of its keys.
        target: the one data file whose rows it deletes, if that is said.
        blob: of a deletion vector offset and length in its file, in bytes, if that is said.
        paths: of a position delete, between which paths of data files lie: lowest and highest, each None if not said.
    """

    key_ids: tuple[int, ...]
    target: str | None
    blob: tuple[int, int] | None
    paths: tuple[bytes | None, bytes | None]


Raw = Mapping[str, Any]
"""A manifest's ``data_file``, as its Avro says it."""


def by_id(raw: Raw, name: str) -> dict[int, Any]:
    """Give one of a file's statistics, such as "lower_bounds", by column id."""
    return {pair["key"]: pair["value"] for pair in raw.get(name) or () if pair is not None}


def partition_key(values: tuple[Any, ...]) -> Hashable:
    """Tell partition values apart that are equal and not the same.

    >>> partition_key((0.0,)) == partition_key((-0.0,)), partition_key((1, "a"))
    (False, (1, 'a'))
    """
    return repr(values) if any(isinstance(value, float) for value in values) else values


def list_manifests(storage: Storage, snapshot: Snapshot) -> list[Manifest]:
    """Read the manifest list of a snapshot.

    Args:
        storage: where it is.
        snapshot: which.

    Raises:
        TableError: it is gone, or does not parse.
    """
    if snapshot.id is None:
        return []
    if snapshot.manifest_list is None:
        return [Manifest(path, spec_id=-1, listed=False) for path in snapshot.manifests]
    rows, _ = _read_avro(storage, snapshot.manifest_list, "manifest list")
    return [
        Manifest(
            path=row["manifest_path"],
            spec_id=row.get("partition_spec_id") or 0,
            deletes=row.get("content") == 1,
            sequence_number=row.get("sequence_number") or 0,
            partitions=tuple(row.get("partitions") or ()),
            first_row_id=row.get("first_row_id"),
        )
        for row in rows
    ]


def read_manifests(
    storage: Storage,
    manifests: Sequence[Manifest],
    keep: Callable[[Entry, Raw], bool] | None = None,
    seen: list[int] | None = None,
    spans: Callable[[Raw], tuple[Span, ...]] = lambda _: (),
) -> list[list[Entry]]:
    """Read manifests, several at once; of each only its compressed bytes and what is kept are in memory.

    Args:
        storage: where they are.
        manifests: which.
        keep: what is not kept is not held; None keeps all.
        seen: where to note how many files each manifest lists; or None.
        spans: reads those of key columns.

    Returns:
        For each manifest the files that are live in it.

    Raises:
        TableError: one is gone, or does not parse.
    """

    def read(number: int) -> list[Entry]:
        listed, kept = 0, []
        for entry, raw in _entries(storage, manifests[number], spans):
            listed += 1
            if keep is None or keep(entry, raw):
                kept.append(entry)
        if seen is not None:
            seen[number] = listed
        return kept

    if len(manifests) <= 1:
        return [read(number) for number in range(len(manifests))]
    with ThreadPoolExecutor(min(len(manifests), STAT_THREADS), "table-loader-manifests") as pool:
        return list(pool.map(read, range(len(manifests))))


def _entries(
    storage: Storage, manifest: Manifest, spans: Callable[[Raw], tuple[Span, ...]]
) -> Iterator[tuple[Entry, Raw]]:
    rows, metadata = _read_avro(storage, manifest.path, "manifest")
    spec_id = manifest.spec_id if manifest.listed else int(metadata.get("partition-spec-id") or 0)
    next_row_id = manifest.first_row_id
    partitions: dict[Hashable, tuple[Any, ...]] = {}
    for row in rows:
        if row["status"] == _DELETED:
            continue
        raw = row["data_file"]
        sequence_number = row.get("sequence_number")
        first_row_id = raw.get("first_row_id")
        if first_row_id is None and next_row_id is not None and not manifest.deletes:
            first_row_id = next_row_id
            next_row_id += raw["record_count"]
        content = int(raw.get("content") or DATA)
        values = tuple((raw.get("partition") or {}).values())
        entry = Entry(
            path=str(raw["file_path"]),
            content=content,
            format=str(raw["file_format"]).upper(),
            spec_id=spec_id,
            partition=partitions.setdefault(partition_key(values), values),
            sequence_number=manifest.sequence_number if sequence_number is None else sequence_number,
            first_row_id=first_row_id,
            num_rows=int(raw["record_count"]),
            num_bytes=int(raw["file_size_in_bytes"]),
            split_offsets=tuple(raw.get("split_offsets") or ()),
            deletes=None if content == DATA else _deletes_info(raw),
            spans=spans(raw),
        )
        yield entry, raw


def _deletes_info(raw: Raw) -> DeletesInfo:
    offset, length, target = (
        raw.get(name) for name in ("content_offset", "content_size_in_bytes", "referenced_data_file")
    )
    low, high = (by_id(raw, name).get(_FILE_PATH_ID) for name in ("lower_bounds", "upper_bounds"))
    return DeletesInfo(
        key_ids=tuple(raw.get("equality_ids") or ()),
        target=None if not target else str(target),
        blob=None if offset is None or length is None else (offset, length),
        paths=(low, high),
    )


def _read_avro(storage: Storage, path: str, what: str) -> tuple[Iterator[dict[str, Any]], Mapping[str, Any]]:
    try:
        data = read_whole(storage, path)
    except MissingFileError as error:
        raise MissingFileError(f"the {what} {shown_url(path)} is gone{_LOST}", shown_url(path)) from error
    try:
        reader = fastavro.reader(io.BytesIO(data))
    except _TORN as error:
        raise _torn(path, what, error) from error

    def rows() -> Iterator[dict[str, Any]]:
        try:
            yield from cast("Iterator[dict[str, Any]]", reader)
        except _TORN as error:
            raise _torn(path, what, error) from error

    return rows(), reader.metadata


def _torn(path: str, what: str, error: Exception) -> TableError:
    return TableError(f"the {what} {shown_url(path)} must be an Avro file, and does not parse ({error}){_LOST}")


__all__ = [
    "DATA",
    "EQUALITY_DELETES",
    "POSITION_DELETES",
    "DeletesInfo",
    "Entry",
    "Manifest",
    "Raw",
    "Span",
    "by_id",
    "list_manifests",
    "partition_key",
    "read_manifests",
]
