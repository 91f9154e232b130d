"""Manifest lists and manifests (https://iceberg.apache.org/spec/#manifests), read with fastavro and in parallel."""

from __future__ import annotations

import bz2
import datetime as dt
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

import fastavro

from torch_table_loader.errors import MissingExtraError, MissingFileError, TableLoaderError
from torch_table_loader.iceberg.checked import many, mapping, text, torn, unfit, unlike, whole
from torch_table_loader.table_formats import DataFile, Facts, TableStorage, load_json, shown_url, sizes

if TYPE_CHECKING:
    from torch_table_loader.iceberg.metadata import Snapshot

REMEDY = "restore it, or read a snapshot that does not need it"

_SYNC_BYTES = 16
_MOST_BLOCK_BYTES = 64 << 20
"""The most bytes of a block. Writers begin a new one after some 64 KiB."""

_MOST_RATIO = {"deflate": 1032, "null": 1}
"""The most bytes that a codec can expand a byte to; other codecs have no such bound."""

_MOST_VALUES = 1 << 16
"""The most values of a record that its schema may say: types that name each other may say any number."""

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_STATUS_NAMES = ("existing", "added", "deleted")

_REQUESTS = {"near": 16, "far": 32}
"""Manifests that are read in parallel from this machine, and from a remote store."""

# https://iceberg.apache.org/spec/#reserved-field-ids
PATH_FIELD = 2147483546
"""The column of a position delete file that names the data file."""

POSITION_FIELD = 2147483545
"""The column of a position delete file with the deleted row's position in the data file."""

_UNKNOWN_ROWS = -1
"""Names that older versions of Spark's migration use for Avro files."""

_VERSIONS = ("1", "2", "3")
_PARTITION_VALUES = (type(None), bool, int, float, str, bytes, Decimal, UUID, dt.date, dt.time)


def read_records(
    storage: TableStorage, path: str, what: str, num_bytes: int | None = None
) -> tuple[Iterator[dict[str, Any]], Mapping[str, str], int]:
    """Read an Avro file; its records are decoded lazily.

    `what` is the role of the file in the table, for messages. The size is the metadata's, if it gives it.

    Returns:
        The records, the entries of the header, and the size of the file in bytes.
    """
    shown = shown_url(path)
    try:
        data = storage.read_whole(path, num_bytes)
    except MissingFileError as error:
        raise MissingFileError(f"the {what} {shown} is gone; {REMEDY}", shown) from error

    def broken(error: Exception) -> TableLoaderError:
        if "you need to install" in str(error):
            return MissingExtraError(f"the {what} {shown}: {error}")
        return torn(f"the {what} {shown} must be an Avro file of records, but does not parse", error, REMEDY)

    try:
        reader = _reader_of(data)
    except Exception as error:  # fastavro raises many kinds of errors for bytes that are not Avro
        if num_bytes is None or storage.version(path).num_bytes == len(data):
            raise broken(error) from error
        return read_records(storage, path, what)  # a rewrite of the file may have left its old size in the list

    def records() -> Iterator[dict[str, Any]]:
        try:
            yield from cast("Iterator[dict[str, Any]]", reader)
        except Exception as error:
            raise broken(error) from error

    return records(), cast("Mapping[str, str]", reader.metadata), len(data)


def _reader_of(data: bytes) -> Any:
    """Open an Avro file, and check that its schema and blocks can be trusted."""
    source = io.BytesIO(data)
    reader = fastavro.reader(source)
    header = cast("Mapping[str, str]", reader.metadata)
    _check_schema(load_json(header["avro.schema"], "its schema"))
    _check_blocks(data, source.tell(), header.get("avro.codec", "null"))
    return reader


def _check_blocks(data: bytes, start: int, codec: str) -> None:
    """Refuse blocks that extend beyond the file, or decompress to more than memory allows."""
    sync = data[start - _SYNC_BYTES : start]
    at = start
    while at < len(data):
        count, at = _number(data, at)
        size, at = _number(data, at)
        end = at + size
        if count < 0 or size < 0 or data[end : end + _SYNC_BYTES] != sync:
            raise ValueError(f"the block at byte {at} says that it has {count} records in {size} bytes, but does not")
        ratio = _MOST_RATIO.get(codec)
        if (ratio is None or size * ratio > _MOST_BLOCK_BYTES) and _holds(data[at:end], codec) > _MOST_BLOCK_BYTES:
            raise ValueError(f"the block at byte {at} holds more than {_MOST_BLOCK_BYTES >> 20} MiB")
        at = end + _SYNC_BYTES


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number in Avro's encoding (zigzag of a variable length); return it and where it ends."""
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte; return it and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError(f"the number at byte {at} has no end")


def _holds(block: bytes, codec: str) -> int:
    """Return the decompressed bytes of a block; counting stops soon after the allowed number."""
    if codec == "snappy":
        return _unsigned(block, 0)[0]
    decompressors: dict[str, Callable[[], Any]] = {
        "deflate": lambda: zlib.decompressobj(-15),
        "bzip2": bz2.BZ2Decompressor,
        "xz": lzma.LZMADecompressor,
        "zstandard": _zstd,
    }
    make = decompressors.get(codec)
    if make is None:
        return len(block)
    return len(make().decompress(block, _MOST_BLOCK_BYTES + 1))


def _zstd() -> Any:
    """Return the module that fastavro also decompresses with; if it is missing, fastavro names the package."""
    for module in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(module).ZstdDecompressor()
        except ImportError:
            continue
    raise ValueError("zstandard: you need to install backports.zstd")


def _check_schema(schema: Any) -> None:
    """Refuse lists of values that take no bytes: a few bytes may claim any number of them."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("its records must be of a record type")
    waiting: list[Any] = [schema]
    items: list[Any] = []
    empty: set[Any] = {"null"}
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, list):
            waiting += kind
        elif isinstance(kind, dict):
            if kind.get("type") == "array":
                items.append(kind["items"])
            if not _takes_bytes(kind, empty):
                empty.add(kind.get("name"))
            inner = [field["type"] for field in kind.get("fields") or ()]
            waiting += [kind.get("items"), kind.get("values"), kind.get("type"), *inner]
    if not all(_takes_bytes(each, empty) for each in items):
        raise ValueError("it has lists of values that take no bytes")
    levels, values = _extent(schema, {})
    if levels > sizes().type_levels or values > _MOST_VALUES:
        raise ValueError(f"a record has {values} values, which nest {levels} levels deep")


def _extent(kind: Any, known: dict[Any, tuple[int, int] | None]) -> tuple[int, int]:
    """Return how many levels deep a type nests, and how many values it has, where each list has one.

    fastavro calls itself for each level of a value, and types that name each other, or themselves, have any number.
    """
    inner: Any
    if isinstance(kind, list):
        inner = kind
    elif not isinstance(kind, dict):
        found = known.get(kind.rpartition(".")[2] if isinstance(kind, str) else None, (1, 1))
        if found is None:
            raise ValueError(f"its record {kind!r:.40} contains itself")
        return found
    elif kind.get("type") == "record":
        name = str(kind.get("name")).rpartition(".")[2]
        known[name] = None
        inner = [field["type"] for field in kind["fields"]]
    else:
        inner = [kind[key] for key in ("items", "values", "type") if isinstance(kind.get(key), dict | list | str)]
        inner = [each for each in inner if each not in ("array", "map", "enum", "fixed")]
    below = [_extent(each, known) for each in inner]
    extent = 1 + max((levels for levels, _ in below), default=0), sum(values for _, values in below) or 1
    if isinstance(kind, dict) and kind.get("type") == "record":
        known[name] = extent
    return extent


def _takes_bytes(kind: Any, empty: set[Any]) -> bool:
    if not isinstance(kind, dict):
        return isinstance(kind, list) or kind not in empty
    if kind.get("type") == "record":
        return any(_takes_bytes(field["type"], empty) for field in kind["fields"])
    if kind.get("type") == "fixed":
        return bool(kind.get("size"))
    return _takes_bytes(kind.get("type"), empty)


Spans = tuple[tuple[int, Facts], ...]
"""What is known of columns, by id."""


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A manifest, as described in the manifest list.

    Args:
        spec_id: the partition spec of its files.
        sequence_number: that of the commit that added it.
        partitions: the bounds of its partition values, one summary for each field of the spec; empty if unknown.
        first_row_id: the row id at which its files' rows begin (v3).
        counts: files and rows of its entries of each status (existing, added, deleted), as far as the list has them.
        listed: False if only its path is known (v1).
    """

    path: str
    spec_id: int
    deletes: bool = False
    sequence_number: int = 0
    partitions: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    first_row_id: int | None = None
    counts: tuple[tuple[int | None, int | None], ...] = field(default=(), repr=False)
    num_bytes: int | None = None
    listed: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A data or delete file of a snapshot: the parts of the manifest's ``data_file`` that planning needs.

    Of the statistics it has only those of key columns: otherwise a table of many files would not fit in memory.

    Args:
        partition: its partition values, in the order of the spec's fields.
        first_row_id: the id of its first row, if rows have ids.
        num_rows: its rows; None if the manifest does not have them.
        split_offsets: byte offsets of its row groups, if the writer recorded them.
        deletes: more about a delete file; None for a data file.
        spans: what is known of key columns, by id, if there are equality deletes.
    """

    path: str
    content: int
    format: str
    spec_id: int
    partition: tuple[Any, ...]
    sequence_number: int
    first_row_id: int | None
    num_rows: int | None
    num_bytes: int
    split_offsets: tuple[int, ...] = ()
    deletes: DeletesInfo | None = None
    spans: Spans = ()


class DeletesInfo(NamedTuple):
    """What a manifest says about a delete file.

    Args:
        key_ids: for an equality delete, the columns of its keys.
        target: the one data file whose rows it deletes, if known.
        blob: for a deletion vector, the offset and length in its file, in bytes, if known.
        paths: for a position delete, the lowest and highest path of its data files; each None if unknown.
    """

    key_ids: tuple[int, ...]
    target: str | None
    blob: tuple[int, int] | None
    paths: tuple[bytes | None, bytes | None]


Raw = Mapping[str, Any]
"""A manifest's ``data_file``, as read from Avro."""


def by_id(raw: Raw, name: str) -> dict[int, Any]:
    """Return one of a file's statistics, such as "lower_bounds", by column id."""
    return {pair["key"]: pair["value"] for pair in raw.get(name) or () if pair is not None}


def partition_key(values: tuple[Any, ...]) -> Hashable:
    """Return a key that distinguishes partition values that compare equal but are not the same.

    >>> partition_key((0.0,)) == partition_key((-0.0,)), partition_key((1, "a"))
    (False, (1, 'a'))
    """
    if any(isinstance(value, float) for value in values):
        return repr(values)
    return values


def list_manifests(storage: TableStorage, snapshot: Snapshot) -> list[Manifest]:
    """Read the manifest list of a snapshot."""
    if snapshot.id is None:
        return []
    if snapshot.manifest_list is None:
        return [Manifest(path, spec_id=-1, listed=False) for path in snapshot.manifests]
    path = snapshot.manifest_list
    rows, _, _ = read_records(storage, path, "manifest list")
    try:
        manifests = [_manifest(row) for row in rows]
        _check_list(manifests, snapshot)
    except TableLoaderError:
        raise
    except Exception as error:
        what = f"the manifest list {shown_url(path)} must describe each manifest as the format demands, but does not"
        raise torn(what, error, REMEDY) from error
    return manifests


def _check_list(manifests: Sequence[Manifest], snapshot: Snapshot) -> None:
    """Refuse a manifest that is listed twice, and a list that ends before its first manifest.

    Writers miscount the files of snapshots, so the count cannot be checked further.
    """
    unlike((manifest.path for manifest in manifests), "manifest_path", shown_url)
    if not manifests and snapshot.num_files:
        raise ValueError(f"it lists no manifest, and the snapshot has total-data-files {snapshot.num_files}")


def _manifest(row: Mapping[str, Any]) -> Manifest:
    counts = tuple((_count(row, f"{name}_files_count"), _count(row, f"{name}_rows_count")) for name in _STATUS_NAMES)
    return Manifest(
        path=text(row.get("manifest_path"), "manifest_path"),
        spec_id=whole(row.get("partition_spec_id"), "partition_spec_id", 0),
        deletes=whole(row.get("content") or 0, "content", 0, 1) == 1,
        sequence_number=whole(row.get("sequence_number") or 0, "sequence_number", 0),
        partitions=tuple(mapping(each, "partitions") for each in row.get("partitions") or ()),
        first_row_id=_maybe(row, "first_row_id"),
        counts=counts,
        num_bytes=_maybe(row, "manifest_length"),
    )


def _count(row: Mapping[str, Any], name: str) -> int | None:
    """Read a count, which some writers name differently."""
    if name not in row:
        name = name.replace("_files_", "_data_files_")
    if row.get(name) is None:
        return None
    return whole(row[name], name)


def _maybe(row: Mapping[str, Any], name: str) -> int | None:
    if row.get(name) is None:
        return None
    return whole(row[name], name, 0)


def read_manifests(
    storage: TableStorage,
    manifests: Sequence[Manifest],
    keep: Callable[[Entry, Raw], bool] | None = None,
    spans: Callable[[Raw], Spans] = lambda _: (),
) -> list[tuple[list[Entry], int]]:
    """Read manifests in parallel; memory holds compressed bytes and what is kept.

    `keep` says whether an entry stays there; None keeps all. `spans` reads the statistics of key columns.

    Returns:
        For each manifest, the live files that are kept, and the number of all live ones.
    """

    def read(manifest: Manifest) -> tuple[list[Entry], int]:
        listed, kept = 0, []
        for entry, raw in _entries(storage, manifest, spans):
            listed += 1
            if keep is None or keep(entry, raw):
                kept.append(entry)
        return kept, listed

    return storage.each(read, manifests, **_REQUESTS)


def _entries(storage: TableStorage, manifest: Manifest, spans: Callable[[Raw], Spans]) -> Iterator[tuple[Entry, Raw]]:
    rows, header, num_bytes = read_records(storage, manifest.path, "manifest", manifest.num_bytes)
    what = f"the manifest {shown_url(manifest.path)} must match its list and the format, but does not"
    reader = _ManifestReader(manifest, spans)
    try:
        reader.open(header)
        for row in rows:
            live = reader.entry(row)
            if live is not None:
                yield live
        reader.close(num_bytes)
    except TableLoaderError:
        raise
    except Exception as error:
        raise torn(what, error, REMEDY) from error


class _ManifestReader:
    """Turns the records of one manifest into entries, and checks them."""

    def __init__(self, manifest: Manifest, spans: Callable[[Raw], Spans]) -> None:
        self._manifest = manifest
        self._spans = spans
        self._spec_id = manifest.spec_id
        self._next_row_id = manifest.first_row_id
        self._partitions: dict[Hashable, tuple[Any, ...]] = {}
        self._files = [0, 0, 0]
        self._rows = [0, 0, 0]

    def open(self, header: Mapping[str, str]) -> None:
        """Compare the header of the file with the manifest list."""
        version, content, spec_id = (header.get(name) for name in ("format-version", "content", "partition-spec-id"))
        if version is not None and version not in _VERSIONS:
            raise unfit("format-version", "one of 1, 2 and 3", version)
        own = "deletes" if self._manifest.deletes else "data"
        if content is not None and content != own:
            raise ValueError(f"its header says that it lists {content}, and its manifest list says {own}")
        if not self._manifest.listed:
            self._spec_id = int(spec_id or 0)
        elif spec_id is not None and int(spec_id) != self._spec_id:
            raise unfit("partition-spec-id", f"{self._spec_id}, as its manifest list says", spec_id)

    def entry(self, row: Mapping[str, Any]) -> tuple[Entry, Raw] | None:
        """Read a record; None if its file is deleted."""
        status = whole(row.get("status"), "status", _EXISTING, _DELETED)
        raw = mapping(row.get("data_file"), "data_file")
        num_rows = whole(raw.get("record_count"), "record_count", _UNKNOWN_ROWS, DataFile.MOST)
        self._files[status] += 1
        self._rows[status] += num_rows
        if status == _DELETED:
            return None
        content = whole(raw.get("content") or DATA, "content", DATA, EQUALITY_DELETES)
        if (content != DATA) != self._manifest.deletes:
            raise unfit("content", "1 or 2, of deletes" if self._manifest.deletes else "0, of data", content)
        form = text(raw.get("file_format"), "file_format").upper()
        if form == "PUFFIN" and content != POSITION_DELETES:
            raise unfit("file_format", "a format of rows", form)
        if num_rows == _UNKNOWN_ROWS and content != DATA:
            raise unfit("record_count", "the number of the deletes", num_rows)
        entry = Entry(
            path=text(raw.get("file_path"), "file_path"),
            content=content,
            format=form,
            spec_id=self._spec_id,
            partition=self._partition(raw),
            sequence_number=self._sequence_number(row, status),
            first_row_id=self._first_row_id(raw, num_rows),
            num_rows=None if num_rows == _UNKNOWN_ROWS else num_rows,
            num_bytes=whole(raw.get("file_size_in_bytes"), "file_size_in_bytes", 0, DataFile.MOST),
            split_offsets=_wholes(raw, "split_offsets"),
            deletes=None if content == DATA else _deletes_info(raw),
            spans=self._spans(raw),
        )
        return entry, raw

    def close(self, num_bytes: int) -> None:
        """Refuse a manifest that ends too early.

        There are tables whose lists count too few entries, so a larger count is not an error.
        """
        counts = self._manifest.counts
        for status, (files, rows) in enumerate(counts):
            name = _STATUS_NAMES[status]
            if files is not None and self._files[status] < files:
                raise ValueError(f"its list counts {files} {name} files, and it has {self._files[status]} {name} ones")
            if rows is not None and self._rows[status] < rows:
                raise ValueError(f"its list has {name}_rows_count {rows}, and its files have {self._rows[status]} rows")
        length = self._manifest.num_bytes
        if all(files is None for files, _ in counts) and length is not None and num_bytes < length:
            raise ValueError(f"its list says that it has {length} bytes, and it has {num_bytes}")

    def _partition(self, raw: Raw) -> tuple[Any, ...]:
        values = tuple(mapping(raw.get("partition") or {}, "partition").values())
        for value in values:
            if not isinstance(value, _PARTITION_VALUES):
                raise unfit("partition", "of plain values", value)
        return self._partitions.setdefault(partition_key(values), values)

    def _sequence_number(self, row: Mapping[str, Any], status: int) -> int:
        most, own = self._manifest.sequence_number, row.get("sequence_number")
        if own is None and status == _EXISTING and most:
            raise ValueError("sequence_number must be there of a file that an earlier commit added, and is missing")
        if own is None:
            return most
        return whole(own, "sequence_number", 0, most if self._manifest.listed else DataFile.MOST)

    def _first_row_id(self, raw: Raw, num_rows: int) -> int | None:
        own, following = _maybe(raw, "first_row_id"), self._next_row_id
        if own is not None or following is None or self._manifest.deletes:
            return own
        if num_rows == _UNKNOWN_ROWS:
            raise unfit("record_count", "known, since rows are counted by it", num_rows)
        self._next_row_id = following + num_rows
        return following


def _wholes(raw: Raw, name: str) -> tuple[int, ...]:
    return tuple(whole(each, name) for each in many(raw.get(name) or [], name))


def _deletes_info(raw: Raw) -> DeletesInfo:
    offset, length = (_maybe(raw, name) for name in ("content_offset", "content_size_in_bytes"))
    target = raw.get("referenced_data_file")
    if raw.get("content") == EQUALITY_DELETES and not raw.get("equality_ids"):
        raise unfit("equality_ids", "the ids of its key columns", raw.get("equality_ids"))
    low, high = (by_id(raw, name).get(PATH_FIELD) for name in ("lower_bounds", "upper_bounds"))
    return DeletesInfo(
        key_ids=_wholes(raw, "equality_ids"),
        target=None if not target else text(target, "referenced_data_file"),
        blob=None if offset is None or length is None else (offset, length),
        paths=(_bytes(low), _bytes(high)),
    )


def _bytes(value: Any) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise unfit("a bound", "bytes", value)
    return value
