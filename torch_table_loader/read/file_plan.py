"""How one file is read: which columns, and which rows live, that is, are not deleted and pass the filter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.predicates.expressions import known_true, row_mask
from torch_table_loader.read.by_id import lineage_of, places_of, plan_by_id
from torch_table_loader.read.conform import Conformer, conform_plan
from torch_table_loader.read.deletes import inside, key_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.read.conform import SharedConformers
    from torch_table_loader.read.deletes import Deletes, EqualityKeys
    from torch_table_loader.records import Column, DataFile, FileColumns, FileMeta, Segment

    _KeyColumn = tuple[str, tuple[Column, ...]]


class FilePlan(NamedTuple):
    """How a file is read; made by `plan_file`.

    Args:
        columns: those to deliver; `conformer` makes them, and after them those that rows are chosen by.
        group_starts: the first row of each row group, then the rows of the file.
        filters: None where every row passes.
        keys: those whose rows are deleted, with the column of a batch and the way to a field inside of it for each key
            column.
        empty: whether partition values let no row pass.
        positions: deleted rows of the file, ascending; where `keeps_deleted`, those that are not.
        chooser: makes the table's columns that rows are chosen by, those of the filter and of `keys`; None where there
            is neither.
        encoded: columns of the file that may come as dictionaries.
        keeps_deleted: whether only the rows at `positions` live: see `DataFile.keeps_deleted`.
    """

    file: DataFile
    meta: FileMeta
    columns: tuple[str, ...]
    group_starts: list[int]
    conformer: Conformer
    filters: Any
    empty: bool
    positions: NDArray[np.int64]
    keys: Sequence[tuple[Sequence[_KeyColumn], EqualityKeys]]
    chooser: Conformer | None
    encoded: frozenset[str]
    keeps_deleted: bool

    @property
    def masks(self) -> bool:
        """Whether rows are left out."""
        return self.filters is not None or self._by_position or bool(self.keys)

    @property
    def _by_position(self) -> bool:
        return bool(len(self.positions)) or self.keeps_deleted

    @property
    def knows_live(self) -> bool:
        """Whether the live rows of a segment are known without reading it."""
        return self.filters is None and not self.keys

    def live_rows(self, segment: Segment) -> int:
        """Count a segment's rows that position deletes leave."""
        return segment.row_stop - segment.row_start - self.positions_in(segment.row_start, segment.row_stop)

    @property
    def thins(self) -> bool:
        """Whether rows may be left out while the file is read, since their places or a few columns tell which.

        Nothing else may depend on those rows, and other columns must be read beside the few.
        """
        reads = self.conformer.reads
        if self.conformer.counts_rows or not reads:
            return False
        if self.chooser is None:
            return self._by_position
        return 0 < len(self.chooser.reads) < len(reads)

    def live_bits(self, start: int, stop: int) -> pa.BooleanArray:
        """Return which of the rows `start` to `stop` of the file no position deletes."""
        live = self._not_at_positions(start, stop)
        if live is None:
            live = np.ones(stop - start, dtype=np.bool_)
        return as_bits(live)

    def positions_in(self, start: int, stop: int) -> int:
        """Count the rows `start` to `stop` of the file that a position deletes."""
        if not (len(self.positions) or self.keeps_deleted):
            return 0
        low, high = np.searchsorted(self.positions, (start, stop))
        named = int(high - low)
        if self.keeps_deleted:
            return stop - start - named
        return named

    def mask(self, batch: pa.RecordBatch, row: int) -> NDArray[np.bool_] | None:
        """Return which rows of a batch, whose first is the file's `row`, live: bool [rows], or None for all."""
        live = self._not_at_positions(row, row + batch.num_rows)
        for columns, deleted in self.keys:
            missed = deleted.keys.lacks([inside(batch.column(name), path) for name, path in columns], deleted.after)
            live = missed if live is None else live & missed
        if self.filters is None:
            return live
        mask = known_true(row_mask(batch, self.filters))
        if live is None:
            return mask
        return mask & live

    def _not_at_positions(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        low, high = np.searchsorted(self.positions, (start, stop))
        others_live = not self.keeps_deleted
        if low == high and others_live:
            return None
        live = np.full(stop - start, others_live)
        live[self.positions[low:high] - start] = not others_live
        return live


def plan_file(
    file: DataFile,
    meta: FileMeta,
    table_schema: pa.Schema,
    columns: Sequence[str],
    filters: tuple[Any, Sequence[str]],
    deletes: Deletes,
    shared: SharedConformers,
    encoded: Collection[str] = (),
) -> FilePlan:
    """Plan how a file is read.

    Args:
        columns: names to deliver, in this order.
        filters: the row filter, or None, and the columns that it refers to.
        shared: conformers of other files of the table.
        encoded: columns of strings that may come as dictionaries; none of the filter's.
    """
    row_filter, empty = beyond_partition(file, meta, table_schema, *filters)
    chosen_by: list[str] = []
    if row_filter is not None:
        chosen_by = list(filters[1])
    positions = np.empty(0, dtype=np.int64)
    keys: list[tuple[Sequence[_KeyColumn], EqualityKeys]] = []
    by_name: dict[str, Column] = {}
    if file.deletes and not empty:
        positions = deletes.positions(file)
    if file.columns is not None:
        by_name = {column.name: column for column in file.columns.table.current}
        if file.deletes and not empty:
            equality = deletes.equality(file)
            keys = [(_key_columns(found.ids, file.columns, by_name, file.name), found) for found in equality]
            chosen_by = list(dict.fromkeys([*chosen_by, *(name for columns, _ in keys for name, _ in columns)]))
    conform = partial(_conformer, file, meta.schema, table_schema, by_name, shared)
    conformer = conform([*columns, *(name for name in chosen_by if name not in columns)])
    sources, chooser = {conformer.source_of(name) for name in encoded if name in columns}, None
    if chosen_by:
        chooser = conform(chosen_by)
        sources.difference_update(chooser.reads)
    return FilePlan(
        file=file,
        meta=meta,
        columns=tuple(columns),
        group_starts=[0, *accumulate(meta.group_rows)],
        conformer=conformer,
        filters=row_filter,
        empty=empty,
        positions=positions,
        keys=keys,
        chooser=chooser,
        encoded=frozenset(filter(None, sources)),
        keeps_deleted=file.keeps_deleted,
    )


def as_bits(mask: NDArray[np.bool_]) -> pa.BooleanArray:
    """Return a mask as Arrow has it, a bit a row.

    >>> as_bits(np.array([True, False])).to_pylist()
    [True, False]
    """
    packed = np.packbits(mask, bitorder="little")
    return pa.BooleanArray.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(packed)])


def _conformer(
    file: DataFile,
    schema: pa.Schema,
    table_schema: pa.Schema,
    by_name: Mapping[str, Column],
    shared: SharedConformers,
    names: Sequence[str],
) -> Conformer:
    """Return how the named columns come from a file of a schema; files that are alike share it."""
    asked: tuple[Any, ...] = tuple(names), repr(file.partition)  # text, since 0.0 equals -0.0
    make = partial(conform_plan, schema, table_schema, file.partition, names, name=file.name)
    if (columns := file.columns) is not None:
        wanted = [(name, by_name[name]) for name in names]
        asked = tuple(names), columns.table, repr(columns.constants), lineage_of(columns, wanted)
        make = partial(plan_by_id, schema, columns, wanted, name=file.name)
    return shared.of(schema, asked, file.name, make)


def _key_columns(
    ids: Sequence[int], columns: FileColumns, by_name: dict[str, Column], name: str
) -> Sequence[_KeyColumn]:
    """Return where the key columns are among a table's columns by name, to which dropped ones are added."""
    places: list[_KeyColumn] = []
    for field_id in ids:
        path = key_path(columns.table, field_id, name)
        called = path[0].name
        if path[0].field_id in columns.table.former:  # the name may be another column's by now
            called = f"\0{path[0].field_id}"
        by_name.setdefault(called, path[0])
        places.append((called, path))
    return places


def beyond_partition(
    file: DataFile, meta: FileMeta, schema: pa.Schema, filters: Any, filter_columns: Sequence[str]
) -> tuple[Any, bool]:
    """Decide a filter over partition columns alone: return what remains of it, and whether no row passes."""
    if filters is None or not filter_columns or not set(filter_columns) <= dict(file.partition).keys():
        return filters, False
    if file.columns is not None:
        found = places_of(meta.schema, file.columns, file.name)
        if any(column.field_id in found for column in file.columns.table.current if column.name in filter_columns):
            return filters, False  # an Iceberg file may hold the column as well, which then counts
    constants = conform_plan(pa.schema([]), schema, file.partition, filter_columns, name=file.name)
    one_row = pa.record_batch([pa.nulls(1)], names=["none"])
    return None, not row_mask(constants.apply(one_row), filters)[0].as_py()
