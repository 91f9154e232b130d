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

from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line
from torch_table_loader.read.parquet_footer import DAMAGE, ChunkStatistics, FooterWalk, damaged_footer, parse

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
    schema: pa.Schema = parsed.schema.to_arrow_schema()
    if given is None or not (flat := _flat(parsed)):
        return schema
    wanted = [given.field(name).type for name in flat if name in given.names]
    units = {kind.unit if pt.is_timestamp(kind) else "ns" for kind in wanted}
    if not units or "ns" in units:
        return schema
    unit = next(each for each in _UNITS if each in units)
    for name in flat:
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(pa.timestamp(unit)))
    return schema


def unit_of_instants(parsed: pq.FileMetaData, schema: pa.Schema) -> str | None:
    """Return the unit that `with_instants` chose; None for nanoseconds."""
    units = {schema.field(name).type.unit for name in _flat(parsed)}
    return None if units <= {"ns"} else str(units.pop())


def _flat(parsed: pq.FileMetaData) -> list[str]:
    leaves = map(parsed.schema.column, range(parsed.num_columns))
    flat = (leaf for leaf in leaves if leaf.physical_type == "INT96" and leaf.name == leaf.path)
    return [leaf.path for leaf in flat if not leaf.max_repetition_level]


@dataclass(frozen=True, slots=True)
class Instants:
    """The INT96 columns of an open file, by their names: as bytes, and the unit in which pyarrow gives them."""

    file: str
    names: frozenset[str]
    unit: str
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
            columns[place] = self._column(name, columns[place], stored[name])
        return type(decoded).from_arrays(columns, schema=decoded.schema)

    def _column(self, name: str, decoded: Any, stored: Any) -> Any:
        for values, data in _leaves(_one(decoded), _one(stored)):
            if _is_usual(data, self.unit):
                continue
            exact, holds = _exact(data, self.unit)
            valid = data.is_valid().to_numpy(zero_copy_only=False)
            if not np.all(holds | ~valid):
                raise self._beyond(name, nested=pt.is_nested(decoded.type))
            if np.array_equal(exact[valid], values.drop_null().cast(pa.int64()).to_numpy()):
                continue
            if pt.is_nested(decoded.type):
                raise TableError(
                    f"column {name!r} of {self.file} holds times (INT96) inside of lists or structs that pyarrow "
                    "misreads, since their day is 0 or their time of day is no part of a day; leave it out of "
                    "columns=[...]"
                )
            return pa.array(exact, mask=~valid).cast(values.type)
        return decoded

    def _beyond(self, name: str, *, nested: bool) -> TableError:
        held, other = "that microseconds do not hold", "ms"
        if self.unit == "ns":
            held, other = "outside of the years 1677 to 2262, which nanoseconds do not hold", "us"
        remedy = f"pass schema= with pyarrow.timestamp('{other}') for it and all other INT96 columns, or "
        if nested:
            remedy = ""
        return TableError(
            f"column {name!r} of {self.file} holds times (INT96) {held}; {remedy}leave it out of columns=[...]"
        )


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _leaves(decoded: pa.Array, stored: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the timestamps of a column with their bytes, with all that is nested."""
    kind = decoded.type
    if pt.is_timestamp(kind):
        if stored.type == _BYTES:  # others are no INT96
            yield decoded, stored
    elif pt.is_struct(kind):
        for inner, bare in zip(decoded.flatten(), stored.flatten(), strict=True):
            yield from _leaves(inner, bare)
    elif pt.is_map(kind):
        yield from _leaves(decoded.keys, stored.keys)
        yield from _leaves(decoded.items, stored.items)
    elif pt.is_nested(kind):
        yield from _leaves(decoded.flatten(), stored.flatten())


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
        """Change a type, and write its length behind it."""
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
