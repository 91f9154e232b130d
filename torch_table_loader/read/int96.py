"""Instants of Parquet's type INT96, a Julian day and the nanoseconds in it, of which pyarrow makes int64.

As nanoseconds, which all are by default, years before 1677 and after 2262 wrap around without a word. In every unit
day 0 reads as 1970, and a time of day before its day as one of centuries later. So such columns are decoded as bytes,
too, with a footer that calls them so, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow.datatypes import children_of
from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line
from torch_table_loader.read.parquet_footer import DAMAGE, ChunkStatistics, FooterWalk, damaged_footer, parse
from torch_table_loader.read.wide_parquet import WideParquet

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T", pa.Table, pa.RecordBatch)

_UNITS = ("us", "ms", "s")
_STEPS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds of a unit."""

_DAY = 86_400_000_000_000
_EPOCH = 2_440_588
"""The Julian day of 1970-01-01."""

_MOST_DAYS = 106_751
"""Whole days that nanoseconds hold."""

_UPPER = _DAY >> 32
_BYTES = pa.binary(12)

_SCHEMA, _ROW_GROUPS, _META, _LENGTH = 2, 4, 3, 2
"""Fields of parquet.thrift."""

_INT96 = 3
_FIXED, _TWELVE = b"\x0e", b"\x15\x18"
"""In Thrift's compact protocol: the type FIXED_LEN_BYTE_ARRAY, and the next field with the number 12."""


def columns_of_instants(parsed: pq.FileMetaData) -> frozenset[str]:
    """Return the columns at the top that hold INT96, or have it nested inside."""
    leaves = map(parsed.schema.column, range(parsed.num_columns))
    return frozenset(leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96")


def with_instants(parsed: pq.FileMetaData, given: pa.Schema | None) -> pa.Schema:
    """Return a file's schema, with its INT96 in the unit that the caller's schema has for all of those it names."""
    names = columns_of_instants(parsed)
    units = set[str]()
    if given is not None:
        units = {unit for name in names.intersection(given.names) for unit in _units_of(given.field(name).type)}
    coarse = [unit for unit in _UNITS if unit in units and "ns" not in units]
    if coarse:
        return _schema_in(parsed, coarse[0])
    return parsed.schema.to_arrow_schema()


def unit_of_instants(parsed: pq.FileMetaData, schema: pa.Schema) -> str | None:
    """Return the unit that `with_instants` chose; None for nanoseconds."""
    names = columns_of_instants(parsed)
    if not names:
        return None
    for unit in _UNITS:
        other = _schema_in(parsed, unit)
        if all(schema.field(name).type.equals(other.field(name).type) for name in names):
            return unit
    return None


def _schema_in(parsed: pq.FileMetaData, unit: str) -> pa.Schema:
    """Return the schema of a file with its INT96 in a unit; the file itself is not needed."""
    return WideParquet(pa.BufferReader(b""), metadata=parsed, coerce_int96_timestamp_unit=unit).schema_arrow


def _units_of(kind: pa.DataType) -> Iterator[str]:
    """Yield the units of all timestamps in a type."""
    if pt.is_timestamp(kind):
        yield kind.unit
    for child in children_of(kind):
        yield from _units_of(child.type)


@dataclass(frozen=True, slots=True)
class Instants:
    """The INT96 columns of an open file, by their names: as bytes, and the unit in which pyarrow gives them.

    `by_schema` says whether the caller's `schema=` can choose another unit.
    """

    file: str
    names: frozenset[str]
    unit: str
    by_schema: bool
    handle: pq.ParquetFile

    def of_group(self, table: pa.Table, group: int, columns: Sequence[str]) -> pa.Table:
        """Return a row group with the instants that it has; refuse those that the unit does not hold."""
        if not (names := self._among(columns)):
            return table
        return self._settled(table, self.handle.read_row_group(group, columns=names, use_threads=False))

    def of_batches(
        self, batches: Iterator[pa.RecordBatch], groups: list[int], columns: list[str], max_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of some row groups with the instants that these have."""
        if not (names := self._among(columns)):
            yield from batches
            return
        stored = self.handle.iter_batches(batch_size=max_rows, row_groups=groups, columns=names, use_threads=False)
        for batch, other in zip(batches, stored, strict=True):
            yield self._settled(batch, other)

    def _among(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name in self.names]

    def _settled(self, decoded: T, stored: pa.Table | pa.RecordBatch) -> T:
        columns = list(decoded.columns)
        for name in stored.schema.names:
            place = decoded.schema.get_field_index(name)
            columns[place] = self._column(name, _one(columns[place]), _one(stored[name]))
        return type(decoded).from_arrays(columns, schema=decoded.schema)

    def _column(self, name: str, decoded: Any, stored: Any) -> Any:
        """Return a column with the instants that its bytes say; it is the same object where pyarrow gave these."""
        kind = decoded.type
        if pt.is_timestamp(kind):
            return self._leaf(name, decoded, stored)
        if not pt.is_nested(kind):
            return decoded
        before, bare = _parts(decoded), _parts(stored)
        after = [self._column(name, *each) for each in zip(before, bare, strict=True)]
        if all(one is other for one, other in zip(before, after, strict=True)):
            return decoded
        return _of_parts(decoded, after)

    def _leaf(self, name: str, decoded: pa.Array, stored: pa.Array) -> pa.Array:
        if stored.type != _BYTES or _is_usual(stored, self.unit):  # others are no INT96
            return decoded
        exact, holds = _exact(stored, self.unit)
        valid = stored.is_valid().to_numpy(zero_copy_only=False)
        if not np.all(holds | ~valid):
            raise self._beyond(name)
        if np.array_equal(exact[valid], decoded.drop_null().cast(pa.int64()).to_numpy()):
            return decoded
        return pa.array(exact, mask=~valid).cast(decoded.type)

    def _beyond(self, name: str) -> TableError:
        held, other = "that microseconds do not hold", "ms"
        if self.unit == "ns":
            held, other = "outside of the years 1677 to 2262, which nanoseconds do not hold", "us"
        remedy = f"pass schema= with pyarrow.timestamp('{other}') for it and all other INT96 columns, or "
        if not self.by_schema:
            remedy = ""
        return TableError(
            f"column {name!r} of {self.file} holds times (INT96) {held}; {remedy}leave it out of columns=[...]"
        )


def _one(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return column


def _parts(array: pa.Array) -> list[pa.Array]:
    """Return the arrays inside a nested one: the fields of a struct, keys and items of a map, values of a list."""
    if pt.is_struct(array.type):
        return [array.field(place) for place in range(array.type.num_fields)]
    if pt.is_map(array.type):
        return [array.keys, array.items]
    return [array.values]


def _of_parts(array: pa.Array, parts: list[pa.Array]) -> pa.Array:
    """Return a nested array that has other values in it, of the same types and lengths."""
    kind = array.type
    if pt.is_struct(kind):
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pt.is_map(kind):
        parts = [pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])]
    buffers = array.buffers()[: 1 if pt.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=parts)


def _fields(data: pa.Array) -> NDArray[np.int32]:
    """Return the bytes as rows of three integers: the nanoseconds' lower and upper half, and the day."""
    return np.frombuffer(data.buffers()[1], np.int32, 3 * len(data), 12 * data.offset).reshape(-1, 3)


def _is_usual(data: pa.Array, unit: str) -> bool:
    """Return whether all values are times of a day, and of days that the unit holds and pyarrow knows."""
    if not len(data):
        return True
    rows, most = _fields(data), _MOST_DAYS if unit == "ns" else _EPOCH - 1
    upper, day = rows[:, 1], rows[:, 2]
    return bool(upper.min() >= 0 and upper.max() < _UPPER and day.min() > _EPOCH - most and day.max() < _EPOCH + most)


def _exact(data: pa.Array, unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the instants since 1970, and which of them 64 bits hold."""
    rows, step = _fields(data), _STEPS[unit]
    days = rows[:, 2].astype(np.int64) - _EPOCH
    nanos = rows[:, :2].copy().view(np.int64)[:, 0]
    days, nanos = days + nanos // _DAY, nanos % _DAY
    exact = days * (_DAY // step) + nanos // step
    about = days.astype(np.float64) * (_DAY // step) + nanos // step
    return exact, np.abs(about - exact) < 2.0**62  # what wraps around differs by 2^64


def parse_as_bytes(name: str, footer: bytes) -> pq.FileMetaData:
    """Parse a footer that `read_footer` returned, with INT96 as fixed 12 bytes, which they are in all encodings."""
    try:
        return parse(_with_bytes(footer))
    except (*DAMAGE, IndexError) as error:
        expected = f"INT96 that nothing else is said of, got others ({first_line(error)})"
        raise damaged_footer(name, expected) from error


@lru_cache(maxsize=4)
def _with_bytes(footer: bytes) -> bytes:
    return _BytesFooter(footer).written()


class _BytesFooter(FooterWalk):
    """A walk that changes types: parquet.thrift has them in each element of the schema, and in each column chunk."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._edits: list[tuple[int, int, bytes]] = []

    def written(self) -> bytes:
        for field, kind in self._fields():
            if field == _SCHEMA:
                for _ in range(self._list_head(kind)):
                    self._element()
            elif field == _ROW_GROUPS:
                for _ in range(self._list_head(kind)):
                    self._row_group()
            else:
                self._skip(kind)
        parts, start = [], 0
        for begin, end, new in self._edits:
            parts += [self._data[start:begin], new]
            start = end
        changed = b"".join([*parts, self._data[start:-8]])
        return changed + (len(changed) - 4).to_bytes(4, "little") + self._data[-4:]

    def _element(self) -> None:
        """Change a type, and write its length after it."""
        awaits_length = False
        for field, kind in self._fields():
            begin = self._place
            if field == 1:
                awaits_length = self._type()
                continue
            self._skip(kind)
            if awaits_length and field == _LENGTH:
                self._edits.append((begin, self._place, _TWELVE[1:]))
            elif awaits_length and (header := self._data[begin - 1]) > 31:  # it counts from the field before it
                self._edits.append((begin - 1, begin, _TWELVE + bytes([header - 16])))
            elif awaits_length:
                raise ValueError("a schema whose fields do not ascend")
            awaits_length = False
        if awaits_length:
            self._edits.append((self._place - 1, self._place - 1, _TWELVE))

    @override
    def _chunk(self) -> ChunkStatistics:
        for field, kind in self._fields():
            if field != _META:
                self._skip(kind)
                continue
            for inner, inner_kind in self._fields():
                if inner == 1:
                    self._type()
                else:
                    self._skip(inner_kind)
        return ChunkStatistics(-1, None, None)

    @override
    def _quick_chunk(self) -> ChunkStatistics | None:
        start = self._place
        found = super()._quick_chunk()
        if found is None or found.kind != _INT96:
            return found
        self._place = start
        return None

    def _type(self) -> bool:
        begin = self._place
        if self._int() != _INT96:
            return False
        self._edits.append((begin, self._place, _FIXED))
        return True
