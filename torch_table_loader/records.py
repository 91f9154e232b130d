"""Small frozen values that all rooms share: files, row groups, splits and what is to be read of them.

Beside them are the hashes that identify files, and the columns that this library adds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


ROW_ID = "row_id"
"""The column with the physical row number in the snapshot."""

PADDING_COLUMN = "padding"
"""The column that marks rows of a batch that repeat others, so that all ranks take the same number of steps."""

SOURCE_COLUMN = "source"
"""The column that says from which source of a mixture a row, or document, came."""

FIELD_ID_KEY = "PARQUET:field_id"
"""The key of the field id in the metadata of an Arrow field."""

_DOMAIN = b"torch-table-loader fingerprint 1\n"


@dataclass(frozen=True, slots=True)
class RowRange:
    """A run of rows of one file.

    Args:
        offset: the first row, counted from the start of the file.
        length: how many rows.

    >>> RowRange(100, 50).row_stop
    150
    """

    offset: int
    length: int

    def __post_init__(self) -> None:
        """Refuse a negative offset or length."""
        if self.offset < 0 or self.length < 0:
            raise ConfigError(
                f"RowRange needs offset >= 0 and length >= 0, got offset={self.offset} length={self.length}; "
                "count rows from the start of the file"
            )

    @property
    def row_stop(self) -> int:
        """The row after the last one."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class RowGroupInfo:
    """A row group (Parquet), stripe (ORC) or record batch (Arrow IPC) of a file.

    Args:
        num_rows: its rows, before deletes and filters.
        num_bytes: Parquet: encoded and uncompressed, as its footer says; elsewhere as stored.
        kept: False where statistics prove that the filter passes none of its rows.
    """

    num_rows: int
    num_bytes: int
    kept: bool = True


@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """What a split strategy knows of a data file.

    Args:
        path: its path relative to the table's root: the same on every rank and machine.
        file_size: bytes in the store, compressed.
        record_count: its rows, before deletes and filters.
        partition: hive or Iceberg partition values by column.
        row_groups: its row groups in file order; one for a format that has none.
        uri: its URL (a path for files on this machine), without login and query. Another mount or copy of the table has
            other URLs, so an order must not depend on it.
        snapshot_id: the snapshot of the table that is read; None of a table without snapshots.
    """

    path: str
    file_size: int | None = None
    record_count: int | None = None
    partition: Mapping[str, object] = field(default_factory=dict)
    row_groups: Sequence[RowGroupInfo] = ()
    uri: str | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A unit of work: a file, or a run of its rows.

    Args:
        file: the data file.
        row_range: the rows; None means the whole file.
    """

    file: DataFileInfo
    row_range: RowRange | None = None


@dataclass(slots=True)
class Shard:
    """One worker's splits, read in this order (a generator strategy returns one for each worker).

    Unlike the other values here, it is not frozen: strategies fill it as they go.

    Args:
        id: the worker, from 0.
        splits: what it reads.
        row_count: number of rows; None if the strategy does not say.
        size_bytes: number of bytes; None if the strategy does not say.
    """

    id: int
    splits: list[Split] = field(default_factory=list)
    row_count: int | None = None
    size_bytes: int | None = None


class LocalVersion(NamedTuple):
    """What a local file system knows of a file beyond size and time.

    Only versions of one machine compare: a copy of the table on another machine has other numbers, and is as good.
    """

    machine: str
    inode: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What distinguishes versions of a stored file.

    Args:
        num_bytes: its size in the store.
        mtime_ns: modification time in nanoseconds since the epoch, where the store has one.
        etag: the store's own tag, where it has one.
        immutable: the table's format promises that no path is written twice, so that nothing is compared.
        local: on a local file system, inode and time of the last change; not part of equality.
    """

    num_bytes: int
    mtime_ns: int | None = None
    etag: str | None = None
    immutable: bool = False
    local: LocalVersion | None = field(default=None, compare=False)

    def holds(self, now: FileVersion) -> bool:
        """Return whether the file is still this one, by what the store says of it now."""
        return self is now or self.immutable or (self == now and same_local(self.local, now.local))


def same_local(was: LocalVersion | None, now: LocalVersion | None) -> bool:
    """Return whether two local versions may be the same; those of two machines cannot be compared, so they may."""
    return was is None or now is None or was.machine != now.machine or was == now


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table whose files find columns by id, not by name.

    Args:
        field_id: the same in every file, whatever the column is called there.
        required: whether the table promises a value in every row.
        default: what files hold that were written before the column was added; None is null.
        children: fields of a struct, the element of a list, key and value of a map.
        lineage: of a column that is counted where a row has no value: "row" from the file's `first_row_id` on, "commit"
            as its `sequence_number`, if the file has the former; None of all others.
    """

    field_id: int
    name: str
    type: pa.DataType
    required: bool = False
    default: Any = None
    children: tuple[Column, ...] = ()
    lineage: Literal["row", "commit"] | None = None


@dataclass(frozen=True, slots=True)
class NamedIds:
    """Ids for a file that was written without any, by the names of its columns.

    Args:
        ids: the id behind a name, or None where the table does not have it; and the names inside it.
    """

    ids: Mapping[str, tuple[int | None, NamedIds]]


@dataclass(frozen=True, slots=True, eq=False)
class TableColumns:
    """The columns of a table by id; all its files share one.

    Args:
        current: those that the table has now, in order.
        former: the others that it ever had, by id: a delete may still name them.
        names: ids for files without; None if the table gives none.
        by_name: whether `names` count in files with ids of their own, too (Delta Lake, except for mapping by id).
    """

    current: tuple[Column, ...]
    former: Mapping[int, Column] = field(default_factory=dict)
    names: NamedIds | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FileColumns:
    """How the columns of one file are found.

    Args:
        constants: values by column id that hold for all rows of the file, where the file lacks the column.
        first_row_id: the table-wide id of the file's first row, where the table counts them.
        sequence_number: of the commit that added the file.
    """

    table: TableColumns
    constants: Mapping[int, Any] = field(default_factory=dict)
    first_row_id: int | None = None
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that says which rows of data files are deleted.

    Args:
        file: as a reader opens it; of a vector a file of "puffin" or of "deletion vectors" (Delta Lake's), or, where
            the table's log holds it, the data file.
        kind: "position": pairs of path and row; "vector": a bitmap of rows of one file; "equality": keys; "part": the
            rows of other parts than one (`planning.row_parts`), of which `inline` says which it is.
        num_rows: its rows; of a vector, the rows that it deletes; of a part, those of the data file.
        key_ids: of an equality delete, the ids of the key's columns; of positions, those of the columns with paths and
            with positions, if files may have ids and not the names "file_path" and "pos".
        blob: of a vector, its offset and length in the file, in bytes.
        everywhere: of an equality delete, whether it applies to all partitions.
        inline: of a vector that the table's log holds, its magic number and bitmap; of a part, its text.
        keeps: whether of the data file only those rows are read that this and others that keep delete, as a changelog
            reads them; never of equality deletes.
    """

    file: DataFile
    kind: str
    num_rows: int
    key_ids: tuple[int, ...] = ()
    blob: tuple[int, int] | None = None
    everywhere: bool = False
    inline: bytes = field(default=b"", repr=False)
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as a source lists it and a reader opens it.

    Args:
        path: as the storage opens it. May be absolute; is never put into a state.
        name: the path relative to the table's root: what messages, states and strategies say.
        version: size, time and tag when it was listed.
        format: the name of its format reader.
        reader: the format reader itself, where `format` names neither one of this library nor an installed one.
        partition: ``(column, value)`` pairs that hold for all its rows.
        columns: how its columns are found by id; None: by name.
        deletes: the files that delete rows of it.
        num_rows: before deletes, as the table's metadata says; None if it does not.
        split_offsets: the bytes at which row groups begin, as the table's metadata says.
        sidecars: files beside it that its reader needs, such as an index; see `format_contracts.SidecarReader`.
        tail_bytes: what to ask a store for first, where the file's end says what is in it; None where nothing tells.
    """

    path: str = field(repr=False)  # a presigned URL is a credential
    name: str
    version: FileVersion
    format: str
    partition: tuple[tuple[str, Any], ...] = ()
    columns: FileColumns | None = field(default=None, repr=False, compare=False)
    deletes: tuple[DeleteFile, ...] = field(default=(), repr=False)
    num_rows: int | None = field(default=None, repr=False)
    split_offsets: tuple[int, ...] = field(default=(), repr=False)
    reader: Any = field(default=None, repr=False, compare=False)
    sidecars: tuple[DataFile, ...] = field(default=(), repr=False)
    tail_bytes: int | None = field(default=None, repr=False, compare=False)

    MOST: ClassVar[int] = 1 << 46
    """No data file has more rows or bytes."""

    @property
    def keeps_deleted(self) -> bool:
        """Whether only rows are read that some of its deletes name: see `DeleteFile.keeps`."""
        return any(delete.keeps for delete in self.deletes)


class LeftOut(NamedTuple):
    """A damaged part of a table, which ``on_error="skip"`` leaves out.

    Args:
        what: which part of it, in words.
    """

    file: str
    what: str
    start: int
    stop: int
    reason: str

    def __str__(self) -> str:
        """Say what it is, where, and what is wrong with it."""
        return f"{self.what} of {self.file}, bytes {self.start} to {self.stop} ({self.reason})"


@dataclass(frozen=True, slots=True)
class FileMeta:
    """What a file's footer (or one parse of it) says.

    Args:
        schema: the file's own Arrow schema, without partition columns.
        group_rows: rows of each row group, in file order.
        group_bytes: bytes of each row group; see `RowGroupInfo`.
        footer: the raw footer, with which the file is opened again without reading it; None if it has none.
        group_ranges: where each row group lies, as first byte and byte after the last; None where the footer says
            that, or nothing does.
        opening: the ranges that are read to open the file again.
        column_bytes: what each column of the schema decodes to in all rows; None where nothing says it.
        at_once: what the largest part takes that is decoded as one (a stripe, a record batch, a block, a line): in each
            column of the schema, or one number if it is decoded whole; () where `HoldingReader.held_bytes` says all.
    """

    schema: pa.Schema
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    footer: bytes | None = None
    group_ranges: tuple[tuple[int, int], ...] | None = None
    opening: tuple[tuple[int, int], ...] = ()
    column_bytes: tuple[int, ...] | None = None
    at_once: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse lists of different lengths."""
        if self.group_ranges is not None and len(self.group_ranges) != len(self.group_rows):
            raise ConfigError(
                f"FileMeta needs one range for each row group, got {len(self.group_rows)} row counts "
                f"and {len(self.group_ranges)} ranges"
            )
        if len(self.group_rows) != len(self.group_bytes):
            raise ConfigError(
                f"FileMeta needs one size for each row group, got {len(self.group_rows)} row counts "
                f"and {len(self.group_bytes)} sizes"
            )

    @property
    def num_rows(self) -> int:
        """All rows of the file, before deletes and filters."""
        return sum(self.group_rows)

    def decoded_bytes(self, columns: Sequence[str]) -> int | None:
        """What some columns of the schema decode to in all rows; None where nothing says it."""
        if self.column_bytes is None:
            return None
        return self._of_columns(self.column_bytes, columns)

    def part_bytes(self, columns: Sequence[str]) -> int:
        """What the largest part takes of some columns while it is decoded as one; 0 if it is not known."""
        if len(self.at_once) <= 1:
            return sum(self.at_once)
        return self._of_columns(self.at_once, columns)

    def _of_columns(self, numbers: Sequence[int], columns: Sequence[str]) -> int:
        sizes: dict[str, int] = dict(zip(self.schema.names, numbers, strict=False))  # columns may have been added
        return sum(sizes.get(name, 0) for name in columns)


class Segment(NamedTuple):
    """The part of one row group that belongs to a split.

    Rows count from the start of the *file*; `live` is how many of them deletes
    and filters leave, −1 if unknown.
    """

    group: int
    row_start: int
    row_stop: int
    live: int


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A run of live rows of one file, to be read in file order.

    Args:
        file_index: the file's place in the table's canonical order.
        segments: the row groups' parts to read, in file order.
        skip: live rows of the segments to leave out at the start.
        take: live rows to deliver after those; −1 for all that remain.
    """

    file_index: int
    segments: tuple[Segment, ...]
    skip: int = 0
    take: int = -1


class FileNeeds(NamedTuple):
    """The bytes that a task reads of its file.

    Args:
        groups: in the order of reading, for each row group or part of the file the first byte of each range, and the
            byte after its last.
        numbers: the row groups, ascending; None for parts of a file that are read one after the other.
    """

    file: DataFile
    groups: tuple[tuple[tuple[int, int], ...], ...]
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a process asked of a store so far.

    Args:
        requests: operations that were asked of the store's client, repeated ones included.
        retries: operations that were repeated, since the store had not served them.
        seconds_waiting: seconds between two tries, of all threads together.

    >>> Traffic(requests=2, retries=1) + Traffic(requests=1, num_bytes=5)
    Traffic(requests=3, num_bytes=5, retries=1, seconds_waiting=0.0)
    """

    requests: int = 0
    num_bytes: int = 0
    retries: int = 0
    seconds_waiting: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        """Return what both are together."""
        return Traffic(
            self.requests + other.requests,
            self.num_bytes + other.num_bytes,
            self.retries + other.retries,
            self.seconds_waiting + other.seconds_waiting,
        )


def fingerprint(files: Sequence[DataFile], rows: Sequence[int], settings: str = "") -> str:
    """Hash the table's files, in canonical order: relative names, sizes and physical rows (−1 if unknown).

    Root, mtime and etag are left out, so that a table that was moved or copied counts as the same table. `settings` is
    what else says which rows files have; see `FormatReader`. So do parts of files.

    Returns:
        64 hexadecimal digits.

    >>> fingerprint([], [])[:16]
    '31f91978c82f9d64'
    """
    if len(files) != len(rows):
        raise ConfigError(f"fingerprint needs one row count a file, got {len(files)} files and {len(rows)} counts")
    digest = hashlib.sha256(_DOMAIN)
    for file, count in zip(files, rows, strict=True):
        name = file.name.encode("utf-8")
        digest.update(struct.pack("<qqq", len(name), file.version.num_bytes, count))
        digest.update(name)
        for delete in file.deletes:
            digest.update(delete.inline)
    digest.update(settings.encode())
    return digest.hexdigest()


def fingerprint_without(table: str, left_out: Sequence[LeftOut]) -> str:
    """Hash a table with parts left out: which parts they are, but not what is wrong with them.

    Returns:
        64 hexadecimal digits; `table` itself if nothing is left out.
    """
    if not left_out:
        return table
    digest = hashlib.sha256(f"torch-table-loader left out 1\n{table}\n".encode())
    for part in left_out:
        digest.update(f"{part.file!r} {part.start} {part.stop}\n".encode())
    return digest.hexdigest()


def content_key(table: str, files: Sequence[DataFile]) -> str:
    """Hash what distinguishes a table's current files from all others, including later files with the same names.

    A fingerprint cannot: it stays the same if a file is rewritten with the same number of bytes and rows, and another
    table may have files of the same names and sizes. Data derived from a table and kept on disk uses this key.

    Returns:
        64 hexadecimal digits; `table` itself if the table's format promises that files never change.
    """
    if all(file.version.immutable for file in files):
        return table
    digest = hashlib.sha256(f"torch-table-loader content 1\n{table}\n".encode())
    for version in (each.version for file in files for each in (file, *file.sidecars)):
        digest.update(f"{version.mtime_ns} {version.etag!r}\n".encode())
    return digest.hexdigest()
