"""A format reader: NumPy's .npy files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

A structured array is a table, and each of its fields a column. Any other array is one column, `value`, of which a row
is what one index gives.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader import TableError
from torch_table_loader.extend import DataFile, FileMeta, Traits

if TYPE_CHECKING:
    from torch_table_loader.extend import Storage

_HEADER_BYTES = 1 << 16
_ONE_AT_A_TIME = threading.Lock()
"""Held while numpy reads a header. numpy calls `ast.literal_eval`, which Python 3.11 cannot run in two threads at once:
it raises SystemError (https://github.com/python/cpython/issues/106905)."""
_KINDS = "biuf"
"""Bools, ints and floats; what else an array may hold is refused."""


@dataclass(frozen=True, slots=True)
class NpyReader:
    """Reads .npy files of fixed-width values in C order.

    Rows have one width, so that the file may be cut anywhere: it counts as row groups of equal length.

    Args:
        name: of the format.
        group_rows: rows of a row group, the least that a split can be.
    """

    name: str = "npy"
    group_rows: int = 1 << 16
    suffixes = (".npy",)
    traits = Traits(cut="runs of rows", counted="the header")

    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:  # noqa: ARG002
        """Read the header: see `FormatReader.inspect`. The types are the file's own, so `schema` is not used."""
        with storage.open(file.path) as source:
            size, head = source.size(), source.read(_HEADER_BYTES)
        try:
            header = _parse(head)
            columns = [pa.field(name, _arrow_type(kind)) for name, kind in _fields(header.row)]
        except ValueError as error:
            raise TableError(f"{file.name} must be a .npy file of bools, ints or floats ({error})") from error
        if size != header.start + header.num_rows * header.row.itemsize:
            raise TableError(f"{file.name} must have {header.num_rows} rows, and has {size} bytes; write it again")
        edges = [*range(0, header.num_rows, self.group_rows), header.num_rows]
        rows = tuple(stop - start for start, stop in pairwise(edges))
        sizes = tuple(count * header.row.itemsize for count in rows)
        return FileMeta(pa.schema(columns), rows, sizes, footer=head[: header.start])

    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:  # noqa: ARG002
        """Keep everything: the format has no statistics."""
        return [True] * len(meta.group_rows)

    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:  # noqa: ARG002
        """Return none: the format has no nulls."""
        return frozenset()

    def null_free(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:  # noqa: ARG002
        """Return all (see `NullProvingReader`): batches are then not looked through for nulls."""
        return frozenset(columns)

    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> NpyFile:
        """Open with the header that `inspect` read, which `meta` keeps as the footer."""
        return NpyFile(storage.open(file.path), file, meta)


class NpyFile:
    """An open .npy file."""

    def __init__(self, source: pa.NativeFile, file: DataFile, meta: FileMeta) -> None:
        """Keep an open file and what its header says."""
        self._source = source
        self._file = file
        self._group_rows = meta.group_rows
        self._header = _parse(meta.footer or b"")

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups: see `OpenFile.batches`."""
        row, stop = sum(self._group_rows[: groups.start]), sum(self._group_rows[: groups.stop])
        while row < stop:
            rows = self._read(row, min(max_rows, stop - row))
            row += len(rows)
            # Arrow makes a batch without columns from one that has some.
            named = {name: _arrow(rows[name]) for name in columns} or {"": pa.nulls(len(rows))}
            yield pa.record_batch(named).select(list(columns))

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    def _read(self, row: int, count: int) -> np.ndarray[Any, Any]:
        """Read rows as a structured array."""
        width = self._header.row.itemsize
        self._source.seek(self._header.start + row * width)
        data = self._source.read(count * width)
        if len(data) != count * width:
            raise TableError(f"{self._file.name} ends before row {row + count}; write it again")
        kind = self._header.row
        return np.frombuffer(data, kind if kind.names is not None else np.dtype([("value", kind)]))


@dataclass(frozen=True, slots=True)
class _Header:
    row: np.dtype[Any]
    num_rows: int
    start: int


def _parse(head: bytes) -> _Header:
    """Read a header. Raises ValueError, as numpy does."""
    source = io.BytesIO(head)
    version = np.lib.format.read_magic(source)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _ONE_AT_A_TIME:
        shape, in_fortran_order, kind = read(source)
    if in_fortran_order or not shape or (kind.names is not None and len(shape) > 1):
        raise ValueError(f"an array of the shape {shape} in {'Fortran' if in_fortran_order else 'C'} order has no rows")
    return _Header(np.dtype((kind, shape[1:])) if len(shape) > 1 else kind, shape[0], source.tell())


def _fields(row: np.dtype[Any]) -> list[tuple[str, np.dtype[Any]]]:
    """Return the columns of a row."""
    if row.names is None or row.fields is None:
        return [("value", row)]
    return [(name, row.fields[name][0]) for name in row.names]


def _arrow_type(kind: np.dtype[Any]) -> pa.DataType:
    """Return the Arrow type of a field; a field that is an array itself is a list of fixed size, of lists."""
    if kind.base.kind not in _KINDS or kind.base.names is not None or 0 in kind.shape:
        raise ValueError(f"a column of the type {kind} is not read")
    arrow = pa.from_numpy_dtype(kind.base.newbyteorder("="))
    for length in reversed(kind.shape):
        arrow = pa.list_(arrow, length)
    return arrow


def _arrow(values: np.ndarray[Any, Any]) -> pa.Array:
    """Make an Arrow array of one column, in memory of its own and the machine's byte order."""
    shape = values.shape[1:]
    array = pa.array(values.astype(values.dtype.newbyteorder("="), order="C").reshape(-1))
    for length in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, length)
    return array
