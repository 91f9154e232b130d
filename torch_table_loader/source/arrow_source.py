"""Tables and data frames in memory, from any library, as a source.

Worker processes map a file that holds the table.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import nulls_of, offsets_of, plain, relisted
from torch_table_loader.arrow.datatypes import (
    ElementType,
    children_of,
    decoded_type,
    is_list_view,
    is_text,
    opened_type,
    plain_type,
)
from torch_table_loader.errors import ConfigError, ConfigTypeError, StorageError, TableError
from torch_table_loader.forks import OfProcess, this_process
from torch_table_loader.messages import first_line, first_twice
from torch_table_loader.records import DataFile, FileVersion
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.format_contracts import FormatReader

_TAKES = (
    "a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a polars or pandas DataFrame, a datasets.Dataset, a "
    "DuckDB relation, or anything else with __arrow_c_stream__"
)

_Taken = tuple[pa.Table, str]
"""A table, and a description of its origin."""

NAME = "table"
"""The name of the one file of a table in memory."""

_MOST_GROUP_ROWS = 1 << 16

_writing = OfProcess(threading.Lock)

_DOMAIN = b"torch-table-loader rows 1\n"

_ROWS = 1 << 16
"""Rows that are processed together: this bounds temporary memory, such as decoded dictionaries."""


@dataclass(frozen=True, slots=True)
class ArrowSource:
    """A table in memory (implements `contracts.SnapshotSource`): one file, identified by its fingerprint."""

    storage: HeldStorage
    files: tuple[DataFile, ...]
    description: str
    snapshot_id = None
    notes = ()
    partition_schema = pa.schema([])
    pinned = True

    @classmethod
    def of(cls, data: Any, reader: FormatReader) -> ArrowSource:
        """Take rows from memory; rows of a stream that can be read only once are kept."""
        table, description = _taken(data)
        if (twice := first_twice(table.column_names)) is not None:
            raise ConfigError(
                f"a table in memory must have columns of different names, got {twice!r} "
                f"{table.column_names.count(twice)} times; rename one of them"
            )
        table = _settled(table)
        batches = tuple(batch for batch in table.to_batches() if batch.num_rows)
        held = HeldTable(table.schema, batches, content_hash(table.schema, batches))
        storage = HeldStorage(held)
        file = DataFile(NAME, NAME, storage.version(NAME), reader.name, reader=reader)
        return cls(storage, (file,), f"{description}, {held.num_rows} rows")

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self.storage.table.schema

    @property
    def fingerprint(self) -> str:
        """A hash of the schema and the rows."""
        return self.storage.table.fingerprint


def is_arrow(data: Any) -> bool:
    """Return whether `ArrowSource` accepts a value."""
    return any(takes(data) for takes, _ in _FORMS)


def _taken(data: Any) -> _Taken:
    for takes, take in _FORMS:
        if takes(data):
            try:
                return take(data)
            except (pa.ArrowException, TypeError, ValueError) as error:
                if isinstance(error, ConfigError):
                    raise
                raise ConfigError(
                    f"from_arrow needs rows that Arrow can hold, and {_named(data)} does not give them "
                    f"({type(error).__name__}: {str(error).splitlines()[0][:300]}); convert the column"
                ) from error
    raise ConfigTypeError(f"from_arrow takes {_TAKES}; got {_named(data)}{_remedy(data)}")


def _named(data: Any) -> str:
    kind = type(data)
    if kind.__module__ != "builtins":
        return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return kind.__name__


def _remedy(data: Any) -> str:
    """Return advice for values of similar types that are not accepted."""
    if _is_of("polars", "LazyFrame")(data):
        return "; call collect() first"
    if _is_of("datasets", "DatasetDict")(data):
        return f"; name one of its splits, such as data[{next(iter(data), 'train')!r}]"
    if _is_of("datasets", "IterableDataset", "IterableDatasetDict")(data):
        return "; its rows come one after another: load the dataset without streaming=True"
    if isinstance(data, str):
        return "; a path is read by StructuredDataset(path)"
    if isinstance(data, dict | list):
        return "; pass pa.table(...) of it"
    return ""


def _is_of(module: str, *names: str) -> Callable[[Any], bool]:
    """Return a test for classes of a package, without importing the package."""

    def found(data: Any) -> bool:
        package = sys.modules.get(module)
        kinds = tuple(kind for name in names if isinstance(kind := getattr(package, name, None), type))
        return isinstance(data, kinds)

    return found


def _of_pandas(frame: Any) -> _Taken:
    """Take a frame; named levels of its index become columns, an unnamed level is left out."""
    frame = frame.reset_index([name for name in frame.index.names if name is not None])
    return pa.Table.from_pandas(frame, preserve_index=False), "pandas.DataFrame"


def _of_hugging_face(dataset: Any) -> _Taken:
    """Take all columns; with indices (from select, shuffle, filter), the rows they name, in their order."""
    return dataset.with_format("arrow")[:], "datasets.Dataset"


def _of_pyarrow_dataset(dataset: Any) -> _Taken:
    return dataset.to_table(), "pyarrow.dataset.Dataset"


def _of_stream(data: Any) -> _Taken:
    return pa.RecordBatchReader.from_stream(data).read_all(), _named(data)


def _is_pyarrow_dataset(data: Any) -> bool:
    package = sys.modules.get("pyarrow.dataset")
    return package is not None and isinstance(data, package.Dataset | package.Scanner)


_FORMS: tuple[tuple[Callable[[Any], bool], Callable[[Any], _Taken]], ...] = (
    (lambda data: isinstance(data, pa.Table), lambda table: (table, "pyarrow.Table")),
    (lambda data: isinstance(data, pa.RecordBatch), lambda batch: (pa.Table.from_batches([batch]), "RecordBatch")),
    (_is_pyarrow_dataset, _of_pyarrow_dataset),
    (_is_of("pandas", "DataFrame"), _of_pandas),
    (_is_of("polars", "DataFrame"), lambda frame: (frame.to_arrow(), "polars.DataFrame")),
    (_is_of("datasets", "Dataset"), _of_hugging_face),
    (lambda data: not isinstance(data, type) and hasattr(data, "__arrow_c_stream__"), _of_stream),
)
"""Tests for values, each with how to take their rows; the first that matches is used."""


def _settled(table: pa.Table) -> pa.Table:
    """Return a table of settled types, without metadata, and with a single dictionary for each such column."""
    columns = [_as_settled(column) for column in table.columns]
    fields = [
        pa.field(field.name, column.type, nullable=field.nullable)
        for field, column in zip(table.schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).unify_dictionaries()


def _as_settled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = settled_type(column.type)
    if kind.equals(column.type):
        return column
    return pa.chunked_array([_settled_array(chunk, kind) for chunk in column.chunks], kind)


def _settled_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array converted to its settled type.

    pyarrow 26 casts list views to lists with wrong offsets, so anything that contains them is rebuilt.
    """
    if isinstance(array, pa.ExtensionArray) and not isinstance(kind, ElementType):
        return _settled_array(array.storage, kind)
    if kind.equals(array.type) or not _has_list_view(array.type):
        return array.cast(kind)
    return _made_again(array, kind)


def _made_again(array: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = nulls_of(array)
    if pt.is_dictionary(kind):
        values = _settled_array(array.dictionary, kind.value_type)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)
    if pt.is_struct(kind):
        children = [_settled_array(array.field(place), child.type) for place, child in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pt.is_map(kind):
        keys, items = _settled_array(array.keys, kind.key_type), _settled_array(array.items, kind.item_type)
        offsets = pa.array(array.offsets.to_numpy())  # a mask cannot be combined with a slice
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    if pt.is_fixed_size_list(kind):
        size = kind.list_size
        values = _settled_array(array.values.slice(array.offset * size, len(array) * size), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    return relisted(array, _settled_array(array.flatten(), kind.value_type)).cast(kind)


def _has_list_view(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_list_view(kind.storage_type)
    kind = decoded_type(kind)
    return is_list_view(kind) or any(_has_list_view(child.type) for child in children_of(kind))


def settled_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with plain types in place of views and extensions, including those nested inside.

    Numbers that Arrow lacks keep their type.

    >>> settled_type(pa.list_(pa.string_view())), settled_type(pa.dictionary(pa.int8(), pa.string_view()))
    (ListType(list<item: large_string>), DictionaryType(dictionary<values=large_string, indices=int8, ordered=0>))
    """
    if isinstance(kind, ElementType):
        return kind
    if isinstance(kind, pa.BaseExtensionType) or pt.is_string_view(kind) or pt.is_binary_view(kind):
        return settled_type(plain_type(kind))
    return next((make(kind) for test, make in _AROUND if test(kind)), kind)


def _settled_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, settled_type(field.type), nullable=field.nullable)


_AROUND: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], pa.DataType]], ...] = (
    (pt.is_dictionary, lambda kind: pa.dictionary(kind.index_type, settled_type(kind.value_type), kind.ordered)),
    (
        lambda kind: is_list_view(kind) or pt.is_large_list(kind),
        lambda kind: pa.large_list(_settled_field(kind.value_field)),
    ),
    (pt.is_fixed_size_list, lambda kind: pa.list_(_settled_field(kind.value_field), kind.list_size)),
    (pt.is_map, lambda kind: pa.map_(_settled_field(kind.key_field), _settled_field(kind.item_field))),
    (pt.is_list, lambda kind: pa.list_(_settled_field(kind.value_field))),
    (pt.is_struct, lambda kind: pa.struct(list(map(_settled_field, kind)))),
)
"""Tests for types that contain others, each with how to rebuild them around settled types."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HeldTable:
    """Rows in memory, in the record batches in which they came; only requested rows are copied.

    It is picklable: the first pickling writes it to a temporary file on this machine, which every process that
    unpickles it maps, so that all of them share its memory. The file is removed together with the table. Only this user
    can read it, and nobody is let write to it.

    The schema has no metadata, and no batch is empty. The fingerprint is a hash of the schema and the rows.
    """

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]
    fingerprint: str
    _starts: np.ndarray[tuple[int], np.dtype[np.int64]] = field(init=False, repr=False)
    _written: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Record the row at which each batch begins."""
        starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)], dtype=np.int64)
        object.__setattr__(self, "_starts", starts)

    @property
    def num_rows(self) -> int:
        """All rows."""
        return int(self._starts[-1])

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        return sum(batch.nbytes for batch in self.batches)

    @property
    def group_rows(self) -> tuple[int, ...]:
        """The rows of the pieces that are shuffled and assigned to lanes: a power of two, about 1 MiB."""
        width = max(1, self.num_bytes // max(1, self.num_rows))
        rows = min(_MOST_GROUP_ROWS, 1 << max(0, (sizes().held_group_bytes // width).bit_length() - 1))
        whole, rest = divmod(self.num_rows, rows)
        return (rows,) * whole + ((rest,) if rest else ())

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Copy consecutive rows (at least one) of some columns into new memory, so that the caller may write to it."""
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        parts = []
        for index in range(first, len(self.batches)):
            begin = int(self._starts[index])
            if begin >= stop:
                break
            offset = max(start - begin, 0)
            batch = self.batches[index].select(list(columns))
            parts.append(batch.slice(offset, min(stop - begin, batch.num_rows) - offset))
        # `concat_batches` copies two batches, but not a single one.
        return pa.concat_batches([*parts, parts[0].slice(0, 0)])

    def as_file(self) -> pa.Buffer:
        """Return all rows as an Arrow IPC file, which takes as much memory as the rows."""
        sink = pa.BufferOutputStream()
        _write(self, sink)
        return sink.getvalue()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the path of a file that holds the rows."""
        with _writing.own:
            if not self._written or not Path(self._written[0]).exists():
                self._written[:] = [_spool(self)]
        return _mapped, (self._written[0], self.fingerprint)


def _write(table: HeldTable, sink: object) -> None:
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.batches:
            writer.write_batch(batch)


def _spool(table: HeldTable) -> str:
    """Write a table to a temporary file that is removed together with the table."""
    folder = tempfile.gettempdir()
    path = None
    try:
        handle, path = tempfile.mkstemp(prefix="torch-table-loader-", suffix=".arrow", dir=folder)
        with os.fdopen(handle, "wb") as file:
            _write(table, file)
            if hasattr(os, "fchmod"):  # it is mapped from now on: nobody is to write to it by accident
                os.fchmod(handle, stat.S_IRUSR)
    except OSError as error:
        if path is not None:
            _remove(path, this_process())
        raise StorageError(
            f"a table in memory ({table.num_bytes} bytes) crosses to worker processes through a temporary file, and "
            f'{folder} does not take it ({error}); pass worker_type="thread", or let TMPDIR name a folder with room'
        ) from error
    weakref.finalize(table, _remove, path, this_process())
    return path


def _remove(path: str, process: int) -> None:
    """Remove a file in the process that made it; a forked process may drop its own copy of the table."""
    if this_process() == process:
        with suppress(FileNotFoundError):
            Path(path).unlink()


def _mapped(path: str, fingerprint: str) -> HeldTable:
    """Return a table that another process on this machine wrote."""
    try:
        with pa.ipc.open_file(pa.memory_map(path)) as reader:
            batches = tuple(reader.get_batch(index) for index in range(reader.num_record_batches))
            table = HeldTable(reader.schema, batches, fingerprint)
    except FileNotFoundError as error:
        raise ConfigError(
            "a table in memory crosses to processes of its own machine, while the one that made it lives, and its file "
            f"{path} is not here; call from_arrow in this process, or write the table to files"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise StorageError(
            f"a table in memory crosses to processes through a file, {path}, and this is not what was written "
            f"({first_line(error)}): somebody cut it or wrote to it; let TMPDIR name a folder that is yours alone"
        ) from error
    table._written.append(path)
    return table


@dataclass(frozen=True, slots=True)
class HeldStorage:
    """The storage of a table in memory (implements `contracts.Storage`): it has one file."""

    table: HeldTable
    is_local = True
    fork_safe = True

    @property
    def place(self) -> str:
        """A name that only storages with equal rows share."""
        return f"memory of {self.table.fingerprint}"

    def open(self, path: str) -> pa.NativeFile:
        """Open a copy of the rows as an Arrow IPC file. The format reader for tables in memory does not need it."""
        self.version(path)
        return pa.BufferReader(self.table.as_file())

    def version(self, path: str) -> FileVersion:
        """Return the size of the rows; Arrow does not let them change."""
        if path != NAME:
            raise TableError(f"a table in memory has one file, {NAME!r}, got {path!r}")
        return FileVersion(self.table.num_bytes, etag=self.table.fingerprint, immutable=True)

    def close(self) -> None:
        """Do nothing: the rows stay in memory."""


def content_hash(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
    """Hash names, types and values; every value is read once, and few are copied.

    A dictionary counts as its values, and values under a null do not count.

    Returns:
        64 hexadecimal digits.

    >>> rows = pa.record_batch({"a": ["x", None, "y"]})
    >>> content_hash(rows.schema, [rows]) == content_hash(rows.schema, [rows.slice(0, 1), rows.slice(1)])
    True
    """
    hashes: dict[str, _Stream] = {}
    num_rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            for place, column in enumerate(batch.slice(start, _ROWS).columns):
                _feed(column, str(place), hashes)
        num_rows += batch.num_rows
    digest = hashlib.sha256(_DOMAIN)
    digest.update(repr((num_rows, [(field.name, str(opened_type(field.type))) for field in schema])).encode())
    for name in sorted(hashes):
        digest.update(name.encode() + hashes[name].digest())
    return digest.hexdigest()


class _Stream:
    """The values of one column, or of one nested inside it, in sequence."""

    def __init__(self) -> None:
        self.values, self.lengths, self.nulls = xxhash.xxh3_128(), xxhash.xxh3_128(), xxhash.xxh3_128()
        self.count = 0

    def digest(self) -> bytes:
        """Return the hash of everything that was fed."""
        parts = (each.digest() for each in (self.values, self.lengths, self.nulls))
        return self.count.to_bytes(8, "little") + b"".join(parts)


def _feed(array: pa.Array, name: str, hashes: dict[str, _Stream]) -> None:
    """Add values to the hashes of their column and of the columns nested inside."""
    stream = hashes.setdefault(name, _Stream())
    array = plain(array)
    if array.null_count:
        nulls = np.flatnonzero(np.asarray(array.is_null()))
        stream.nulls.update((nulls + stream.count).astype(np.int64).data)
    stream.count += len(array)
    if pt.is_null(array.type):
        return
    if array.null_count:
        array = array.drop_null()
    for place, inner in enumerate(_inside(array, stream.lengths.update)):
        _feed(inner, f"{name}.{place}", hashes)
    if not pt.is_nested(array.type):
        _feed_values(array, stream)


def _inside(array: pa.Array, feed_lengths: Callable[[Any], None]) -> list[pa.Array]:
    """Return the arrays nested inside an array without nulls."""
    kind = array.type
    if pt.is_struct(kind):
        return list(array.flatten())
    if pt.is_fixed_size_list(kind):
        return [array.flatten()]
    if pt.is_map(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
        feed_lengths(np.diff(offsets.astype(np.int64)).data)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        return [array.keys.slice(first, count), array.items.slice(first, count)] if len(array) else []
    if pt.is_union(kind):
        buffers = array.buffers()  # `array.type_codes` forgets where a slice begins
        codes, places = np.frombuffer(buffers[1], np.int8, len(array), array.offset), np.arange(len(array))
        if kind.mode == "dense":
            places = np.frombuffer(buffers[2], np.int32, len(array), 4 * array.offset)
        feed_lengths(codes.data)
        return [array.field(child).take(pa.array(places[codes == code])) for child, code in enumerate(kind.type_codes)]
    if pt.is_list(kind) or pt.is_large_list(kind):
        feed_lengths(np.diff(offsets_of(array).astype(np.int64)).data)
        return [array.flatten()]
    return []


def _feed_values(array: pa.Array, stream: _Stream) -> None:
    """Add values that have no nulls and contain no other values."""
    kind, count = array.type, len(array)
    if not count:
        return
    if is_text(kind) and not pt.is_fixed_size_binary(kind):
        offsets = offsets_of(array)
        stream.lengths.update(np.diff(offsets.astype(np.int64)).data)
        data = array.buffers()[2]
        if data is not None:
            stream.values.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        return
    if pt.is_boolean(kind):
        stream.values.update(np.asarray(pc.cast(array, pa.uint8())).data)
        return
    width = kind.bit_width // 8
    start = array.offset * width
    stream.values.update(memoryview(array.buffers()[1])[start : start + count * width])
