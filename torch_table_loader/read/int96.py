"""Instants of Parquet's type INT96, a Julian day and the nanoseconds in it, of which pyarrow makes int64.

As nanoseconds, which all are by default, years before 1677 and after 2262 wrap around without a word. Milliseconds hold
every day. So such columns are decoded twice, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import TableError

WIDE = "ms"
_UNITS = ("us", "ms", "s")
_STEP = 1_000_000
"""Nanoseconds of `WIDE`."""


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
    """The INT96 columns of an open file, by their names, as milliseconds."""

    file: str
    names: frozenset[str]
    handle: pq.ParquetFile

    def check_group(self, table: pa.Table, group: int, columns: Sequence[str]) -> None:
        """Refuse instants of a row group that nanoseconds do not hold."""
        if names := self._among(columns):
            self._compare(table, self.handle.read_row_group(group, columns=names, use_threads=False), names)

    def checked(
        self, batches: Iterator[pa.RecordBatch], groups: list[int], columns: list[str], max_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of some row groups, once their instants are checked."""
        if not (names := self._among(columns)):
            yield from batches
            return
        wide = self.handle.iter_batches(batch_size=max_rows, row_groups=groups, columns=names, use_threads=False)
        for batch, other in zip(batches, wide, strict=True):
            self._compare(batch, other, names)
            yield batch

    def _among(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name in self.names]

    def _compare(self, narrow: pa.Table | pa.RecordBatch, wide: pa.Table | pa.RecordBatch, names: list[str]) -> None:
        for name in names:
            pairs = zip(_leaves(narrow[name]), _leaves(wide[name]), strict=True)
            if any(_differ(values, others) for values, others in pairs):
                raise TableError(
                    f"column {name!r} of {self.file} holds times (INT96) outside of the years 1677 to 2262, which "
                    "nanoseconds do not hold; pass schema= with pyarrow.timestamp('us') for it and all other INT96 "
                    "columns, or leave it out of columns=[...]"
                )


def _leaves(column: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the timestamps of a column, in one piece each, with all that is nested."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pt.is_timestamp(kind):
        yield array
    elif pt.is_struct(kind):
        for inner in array.flatten():
            yield from _leaves(inner)
    elif pt.is_map(kind):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pt.is_nested(kind):
        yield from _leaves(array.flatten())


def _differ(values: pa.Array, others: pa.Array) -> bool:
    if values.type.unit == others.type.unit:
        return False  # no INT96
    if len(values) != len(others):
        return True
    numbers, wide = (pc.fill_null(each.cast(pa.int64()), 0).to_numpy() for each in (values, others))
    return bool(np.any(np.abs(numbers // _STEP - wide) > 1))
