"""Reads a task: exactly its live rows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow.arrays import ascending
from torch_table_loader.contracts import has_ranges, is_far
from torch_table_loader.errors import ConfigError, StorageError, TableError, TableLoaderError
from torch_table_loader.format_contracts import ListCountingReader, ListMeasuringReader, says_ranges
from torch_table_loader.predicates.expressions import check_filter, known_true, row_masks
from torch_table_loader.ranges import FIRST_BYTES
from torch_table_loader.read.conform import SharedConformers, batch_of
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.failures import (
    as_reading_error,
    changed_error,
    find_damage,
    is_store_failure,
    naming,
    reading,
)
from torch_table_loader.read.file_plan import FilePlan, beyond_partition, plan_file
from torch_table_loader.read.file_walk import FileWalk, Run, fit_segments, group_at, live_rows, plan_runs, trim_segments
from torch_table_loader.read.footers import LazyFooters
from torch_table_loader.read.formats import is_columnar, reader_of
from torch_table_loader.read.row_stage import Counted, RowBlocks, measured, summed
from torch_table_loader.records import ROW_ID, FileNeeds
from torch_table_loader.translating import translating

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.planning.keys import EpochKey
    from torch_table_loader.read.file_walk import Part
    from torch_table_loader.read.row_stage import RowStage
    from torch_table_loader.records import DataFile, FileMeta, FileNeeds, ReadTask, Segment

_log = logging.getLogger(__name__)

DEFAULT_MAX_ROWS = 65_536


class _ToRead(NamedTuple):
    """What of a file is read: runs of row groups, of whose live rows `skip` are left out and `take` delivered.

    The rows of each run are those of some of `segments`; `owners` has for each of these the place of the task's segment
    that it is of.
    """

    plan: FilePlan
    segments: Sequence[Segment]
    runs: Sequence[Run]
    skip: int
    take: int
    owners: Sequence[int]


class TaskReader:
    """Reads tasks of one table. A value: it pickles, keeps no file open between tasks, and threads may share it.

    Args:
        filters: a pyarrow compute Expression over `table_schema`; rows for which it is false or null do not come.
        row_id_bases: the ordinal of each file's first row among all physical rows; adds ``row_id`` (int64) as the
            last column.
        deletes: reads the files' deletes, once for all readers that share it; says whether checksums are verified.
        stage: makes other rows of those that pass; None delivers them as they are.
        encoded: columns of strings that may come as dictionaries; the filter's never do.
        max_bytes: the most bytes of a single value, where the format knows it before decoding; 0: no limit.

    Raises:
        ConfigError: an unknown column, a filter that does not fit, or a column that `row_id` would hide.
    """

    def __init__(
        self,
        storage: Storage,
        files: Sequence[DataFile],
        metas: Sequence[FileMeta] | LazyFooters,
        table_schema: pa.Schema,
        columns: Sequence[str],
        *,
        filters: Any = None,
        row_id_bases: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]] | None = None,
        max_rows: int = DEFAULT_MAX_ROWS,
        deletes: Deletes | None = None,
        stage: RowStage | None = None,
        encoded: Collection[str] = (),
        max_bytes: int = 0,
    ) -> None:
        if len(files) != len(metas):
            raise ConfigError(f"TaskReader needs a FileMeta for each file, got {len(files)} and {len(metas)}")
        if max_rows < 1:
            raise ConfigError(f"max_rows must be at least 1, got {max_rows}")
        if deletes is None:
            deletes = Deletes(storage)
        self._filter_columns: tuple[str, ...] = ()
        if filters is not None:
            filters = check_filter(filters, table_schema)
            self._filter_columns = _named((filters,), table_schema)
        self._filters = filters
        self.storage = storage
        self.files = files
        """The table's files, which tasks name by number."""
        self._metas = metas
        self._table_schema = table_schema
        self._columns = tuple(columns)
        self._bases = row_id_bases
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._deletes = deletes
        self._stage = stage
        self._conformers = SharedConformers()
        self._shares = False
        self._encoded = frozenset(encoded).difference(self._filter_columns)
        self._apart: Sequence[Any] = ()
        self._apart_columns: tuple[str, ...] = ()
        self._rows_schema = _delivered_schema(table_schema, columns, row_ids=row_id_bases is not None)
        self.schema = self._rows_schema if stage is None else stage.schema(self._rows_schema)
        """That of what `read` yields: the columns asked for, then ``row_id``; or what the stage makes of them."""

    @property
    def counts_by_epoch(self) -> bool:
        """Whether `counted` gives other numbers in each epoch: see `RowStage.counts_by_epoch`."""
        return self._stage is not None and self._stage.counts_by_epoch

    def of_epoch(self, key: EpochKey, *, shuffle: bool) -> TaskReader:
        """Return the same reader with its stage as it is in an epoch: see `RowStage.of_epoch`."""
        if self._stage is None:
            return self
        other = copy.copy(self)
        other._stage = self._stage.of_epoch(key, shuffle=shuffle)
        return other

    def sharing(self) -> TaskReader:
        """Return the same reader, which lets several threads decode a row group where the format can do that."""
        other = copy.copy(self)
        other._shares = True
        return other

    def counting(self, apart: Sequence[Any]) -> TaskReader:
        """Return the same reader, of which `counted` counts each of some filters apart, among the rows that pass."""
        other = copy.copy(self)
        other._apart = tuple(check_filter(each, self._table_schema) for each in apart)
        other._apart_columns = _named(apart, self._table_schema)
        return other

    @property
    def reads(self) -> Sequence[str]:
        """The columns of the table that are read: those that come out, and those of filters."""
        return list(dict.fromkeys((*self._columns, *self._filter_columns)))

    @property
    def max_rows(self) -> int:
        """The most rows that come at once."""
        return self._max_rows

    def read(self, task: ReadTask, storage: Storage | None = None) -> Iterator[pa.RecordBatch]:
        """Yield a task's live rows, in file order, in batches of 1 to `max_rows` rows with `schema`.

        The file is closed after the last row, or when the iterator is closed.

        Args:
            storage: where to read the file instead, such as from fetched bytes; it reads the listed version of the
                file.

        Raises:
            TableError: the file is gone, torn, changed since it was listed, or has other rows than planned.
            StorageError: the store failed.
        """
        wanted = self._to_read(task)
        if wanted is None:
            return
        plan, segments, runs, skip, take, _ = wanted
        counts = _Counts(plan.file, segments, self._stage)
        ends = take >= 0 and self._stage is not None and counts.ends_with(skip + take)
        _log.debug("%s: reads parts of %d row groups", plan.file.name, len(segments))
        with self._walking(plan, segments, task.file_index, storage) as walk:
            parts = walk.parts(runs)
            for part in parts if self._stage is None else _staged(self._stage, parts):
                counts.add(part)
                start = min(skip, part.num_live)
                stop = part.num_live
                skip -= start
                if take >= 0:
                    stop = min(stop, start + take)
                    take -= stop - start
                # What a stage makes of a part comes as one: it is bounded by the rows of the part.
                most = self._max_rows if self._stage is None else max(1, stop - start)
                for first in range(start, stop, most):
                    yield part.rows(first, min(first + most, stop))
                if take == 0 and not ends:  # else whatever a stage makes beyond its count is refused
                    return
                del part  # else its rows stay while the next ones are decoded
            if not self._knows_live(plan):
                counts.check(len(segments))

    def needs(self, task: ReadTask) -> FileNeeds | None:
        """Return which bytes of its file `read` asks for; None if there are none, or the file's format does not say.

        Footer and deletes are read, if they are not yet.
        """
        return self._needs(self._to_read(task))

    def counted(self, task: ReadTask, storage: Storage | None = None) -> list[list[Counted]]:
        """Count the live rows of each segment of a task, whatever its `skip` and `take`; for each filter of `counting`.

        Without such filters, all rows that pass are counted once. Only the columns of the filters are read; without
        filter, stage and equality deletes no data file is. With each count comes what packing makes of the rows, if a
        stage says it.
        """
        decided = self._decided(task.file_index)
        apart = self._counted_apart(decided)
        wanted = self._to_count(task, apart)
        found = wanted if isinstance(wanted, list) else self._read_to_count(task, wanted, apart, storage)
        if decided is None:
            return found
        return [found[0] if passes else summed((), len(task.segments)) for passes in decided]

    def _counted_apart(self, decided: Sequence[bool] | None) -> Sequence[Any]:
        """Return the filters of `counting` whose rows are counted; none if the partition decides them all."""
        if decided is None:
            return self._apart
        return ()

    def needs_of_count(self, task: ReadTask) -> FileNeeds | None:
        """Return which bytes of its file `counted` asks for: see `needs`."""
        wanted = self._to_count(task, self._counted_apart(self._decided(task.file_index)))
        if isinstance(wanted, list):
            return None
        return self._needs(wanted)

    def _decided(self, file_index: int) -> list[bool] | None:
        """Return for each filter of `counting` whether all rows of a file pass, or none; None where its rows decide."""
        if not self._apart:
            return [True]
        file, meta = self.files[file_index], self._metas[file_index]
        with reading(self.storage, file):
            found = [
                beyond_partition(file, meta, self._table_schema, each, self._apart_columns) for each in self._apart
            ]
        if any(left is not None for left, _ in found):
            return None
        return [not empty for _, empty in found]

    def _read_to_count(
        self, task: ReadTask, wanted: _ToRead, apart: Sequence[Any], storage: Storage | None
    ) -> list[list[Counted]]:
        """Read the rows that pass `filters`, and count those that pass each filter of `apart` too."""
        plan, segments, runs, _, _, owners = wanted
        made: list[list[tuple[int, Counted]]] = [[] for _ in apart or (None,)]
        stages = [_Staged(self._stage, counting=True) for _ in made]
        with self._walking(plan, segments, task.file_index, storage, counting=True) as walk:
            for part in walk.parts(runs):
                for counts, stage, rows in zip(made, stages, self._under(apart, part), strict=True):
                    counts += [(owners[each.segment], (each.num_live, each.counts)) for each in stage.push(rows)]
            for counts, stage in zip(made, stages, strict=True):
                counts += [(owners[each.segment], (each.num_live, each.counts)) for each in stage.rest()]
        return [summed(counts, len(task.segments)) for counts in made]

    def _under(self, filters: Sequence[Any], part: Part) -> Sequence[Part]:
        """Return what of a part passes each of some filters; without any, the part."""
        if not filters:
            return [part]
        batch = part.rows(0, part.num_live)
        rows = batch.select([*self._reads_to_count, *([] if self._bases is None else [ROW_ID])])
        masks = [known_true(mask) for mask in row_masks(batch, filters)]
        return [
            part._replace(num_live=int(np.count_nonzero(mask)), rows=partial(live_rows, rows, mask)) for mask in masks
        ]

    def _to_read(self, task: ReadTask) -> _ToRead | None:
        """Return what `read` reads; None for nothing."""
        plan = self._plan(task.file_index, self._columns)
        if plan.empty:
            return None
        if self._knows_live(plan):
            _check_found(plan.file, task.segments, [plan.live_rows(segment) for segment in task.segments])
        planned, owners = self._fitted(plan, task.segments)
        as_stored = not self._masks(plan)
        segments, skip, take = trim_segments(planned, task.skip, task.take, every_row_lives=as_stored)
        if take and (runs := plan_runs(segments, plan.group_starts, merge=as_stored)):
            return _ToRead(plan, segments, runs, skip, take, owners)
        return None

    @property
    def _reads_to_count(self) -> tuple[str, ...]:
        """The columns that `counted` needs beside those of filters."""
        if self._stage is None:
            return ()
        return self._stage.reads

    def _to_count(self, task: ReadTask, apart: Sequence[Any]) -> _ToRead | list[list[Counted]]:
        """Return what `counted` reads, or the counts where they are known."""
        reads, number = self._reads_to_count, len(task.segments)
        if apart:
            reads = tuple(dict.fromkeys((*reads, *self._apart_columns)))
        plan = self._plan(task.file_index, reads)
        if plan.empty:
            return [summed((), number) for _ in apart or (None,)]
        if self._knows_live(plan) and not apart:
            return [[(plan.live_rows(segment), None) for segment in task.segments]]
        segments, owners = self._fitted(plan, task.segments)
        if not apart and (known := self._known_counts(task.file_index, plan, segments)) is not None:
            return [summed(zip(owners, known, strict=True), number)]
        runs = plan_runs(segments, plan.group_starts, merge=False)
        if runs:
            return _ToRead(plan, segments, runs, 0, -1, owners)
        return [summed((), number) for _ in apart or (None,)]

    def _known_counts(self, file_index: int, plan: FilePlan, segments: Sequence[Segment]) -> list[Counted] | None:
        """Return what the stage makes of segments, if the file's metadata tells; else None."""
        stage, reader, starts = self._stage, reader_of(plan.file), plan.group_starts
        if stage is None or stage.measured_by is None or plan.masks:
            return None
        reads = self._plan(file_index, (stage.measured_by,)).conformer.reads
        if not reads or len(plan.conformer.reads) != len(stage.reads):  # a column that the file lacks is null
            return None
        lengths = reader.list_lengths(plan.meta, reads[0]) if isinstance(reader, ListMeasuringReader) else None
        if lengths is not None:
            return [measured(stage, lengths[each.row_start : each.row_stop]) for each in segments]
        whole = all((each.row_start, each.row_stop) == tuple(starts[each.group : each.group + 2]) for each in segments)
        if not isinstance(reader, ListCountingReader) or not whole or stage.known_count(0, 0) is None:
            return None
        with naming(self.storage, plan.file):
            totals = reader.list_values(plan.meta, reads[0])
        if totals is None:
            return None
        values, lists = totals
        return [(stage.known_count(values[each.group], lists[each.group]) or 0, None) for each in segments]

    def _needs(self, wanted: _ToRead | None) -> FileNeeds | None:
        if wanted is None:
            return None
        plan = wanted.plan
        groups = [group for run in wanted.runs for group in run.groups]
        with reading(self.storage, plan.file):
            return needs_of(plan.file, plan.meta, groups, plan.conformer.reads, reader_of(plan.file))

    def _knows_live(self, plan: FilePlan) -> bool:
        """Whether the rows of a segment are known without reading it."""
        return plan.knows_live and self._stage is None

    def _masks(self, plan: FilePlan) -> bool:
        """Whether a segment may have other rows than its file has."""
        return plan.masks or self._stage is not None

    def _fitted(self, plan: FilePlan, segments: Sequence[Segment]) -> tuple[Sequence[Segment], Sequence[int]]:
        """Cut segments to the file's row groups, if the plan only estimated these."""
        if not isinstance(self._metas, LazyFooters):
            return segments, range(len(segments))
        return fit_segments(segments, plan.group_starts, plan.live_rows if self._knows_live(plan) else None)

    def _plan(self, file_index: int, columns: tuple[str, ...]) -> FilePlan:
        filters = (self._filters, self._filter_columns)
        file, meta = self.files[file_index], self._metas[file_index]
        with reading(self.storage, file):
            return plan_file(
                file, meta, self._table_schema, columns, filters, self._deletes, self._conformers, self._encoded
            )

    @translating
    def _walking(
        self,
        plan: FilePlan,
        segments: Sequence[Segment],
        file_index: int,
        given: Storage | None,
        *,
        counting: bool = False,
    ) -> Iterator[FileWalk]:
        """Walk over a file, which is closed at the end; whatever reading it raises becomes an error that names it."""
        storage = self.storage if given is None else given
        check = partial(self._check_version, plan.file, given)
        check()
        walk = FileWalk(
            storage,
            plan,
            self._max_rows,
            self._max_bytes,
            may_thin=self._bases is None,
            live_known=all(segment.live > 0 for segment in segments),
            verify_checksums=self._deletes.verify_checksums,
            shares=self._shares,
            adds=self._adding(plan, file_index, counting=counting),
            check=check if self.storage.is_local else None,
        )
        try:
            yield walk
        except Exception as error:
            raise self._explain(error, plan, walk, given) from error
        finally:
            walk.close()
        check()

    def _adding(
        self, plan: FilePlan, file_index: int, *, counting: bool
    ) -> Callable[[pa.RecordBatch, int], pa.RecordBatch] | None:
        """Return what adds row ids to rows of a file, from the place of the first; None where nobody needs them."""
        if self._bases is None or (counting and not self.counts_by_epoch):
            return None
        base, schema = int(self._bases[file_index]), _delivered_schema(self._table_schema, plan.columns, row_ids=True)
        return lambda batch, row: batch_of([*batch.columns, ascending(base + row, batch.num_rows)], schema)

    def _check_version(self, file: DataFile, given: Storage | None) -> None:
        """Refuse a file that is not what was listed, unless each request has checked that."""
        for each in (file, *file.sidecars):
            if each.version.immutable:
                continue
            if given is not None and has_ranges(self.storage) and self.storage.checks(each.version):
                continue
            now = (self.storage if given is None else given).version(each.path)
            if not each.version.holds(now):
                raise changed_error(each, now)

    def _explain(self, error: Exception, plan: FilePlan, walk: FileWalk, given: Storage | None) -> Exception:
        file, is_local = plan.file, self.storage.is_local
        handle, row = walk.handle, walk.row
        if not isinstance(error, StorageError):
            try:  # even where each request has checked it: not every store heeds that
                self._check_version(file, None if is_far(self.storage) else given)
            except (TableError, OSError) as changed:
                return changed
        if isinstance(error, TableLoaderError):
            if file.name in str(error):
                return error
            return type(error)(f"{file.name}: {error}")
        group, column = None, None
        if handle is not None:
            group = group_at(row, plan.group_starts)
            columnar = is_columnar(file) and not isinstance(error, MemoryError)
            if columnar and not is_store_failure(error, is_local=is_local):
                groups = range(group, group_at(row + self._max_rows, plan.group_starts) + 1)
                group, column = find_damage(handle, groups, plan.conformer.reads, self._max_rows) or (group, None)
        return as_reading_error(error, file, is_local=is_local, group=group, column=column)


def _named(filters: Sequence[Any], schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that some filters name."""
    from torch_table_loader.predicates.facts import predicate_of

    return tuple(sorted(frozenset[str]().union(*(predicate_of(each, schema).columns for each in filters))))


class _Counts:
    """Counts the rows that come of segments while they are read, and holds them against what was planned."""

    def __init__(self, file: DataFile, segments: Sequence[Segment], stage: RowStage | None) -> None:
        self._file, self._segments, self._stage = file, segments, stage
        self._found = [0] * len(segments)
        self._checked = 0

    def ends_with(self, rows: int) -> bool:
        """Return whether so many rows are all that is planned."""
        planned = [segment.live for segment in self._segments]
        return min(planned) >= 0 and rows == sum(planned)

    def add(self, part: Part) -> None:
        """Add the next part; refuse what a stage makes beyond its count, before any of it is delivered."""
        self._found[part.segment] += part.num_live
        if self._stage is not None:
            self.check(part.segment)
            segment, found = self._segments[part.segment], self._found[part.segment]
            if 0 <= segment.live < found:
                raise _miscounted(self._file, segment, found, self._stage)

    def check(self, stop: int) -> None:
        """Refuse segments before one of which other rows have come than was planned.

        Raises:
            ConfigError: a function of the caller's decides how many there are.
            TableError: none does.
        """
        some = slice(self._checked, stop)
        _check_found(self._file, self._segments[some], self._found[some], self._stage)
        self._checked = stop


class _Staged:
    """What a stage makes of live rows, block by block; when counting, only how many rows that is.

    Without a stage, rows stay as they are.
    """

    def __init__(self, stage: RowStage | None, *, counting: bool) -> None:
        self._stage = stage
        self._counting = counting
        self._blocks = RowBlocks(None if stage is None else stage.block_rows)
        self._last: Part | None = None

    def push(self, part: Part) -> Iterator[Part]:
        """Add the next rows; yield what is made of the blocks that are full."""
        if self._stage is None:
            yield part
            return
        if self._last is not None and part.segment != self._last.segment:
            yield from self.rest()
        self._last = part
        yield from self._made(self._blocks.push(part.rows(0, part.num_live)))

    def rest(self) -> Iterator[Part]:
        """Yield what is made of the rows that wait."""
        yield from self._made(self._blocks.rest())

    def _made(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Part]:
        if self._stage is None or self._last is None:
            return
        for batch in batches:
            if self._counting:
                num_rows, counts = self._stage.counted(batch)
                yield self._last._replace(num_live=num_rows, counts=counts)
            else:
                num_rows, rows = self._stage.rows(batch)
                yield self._last._replace(num_live=num_rows, rows=rows)


def _staged(stage: RowStage, parts: Iterator[Part]) -> Iterator[Part]:
    """Yield what a stage makes of the live rows."""
    staged = _Staged(stage, counting=False)
    for part in parts:
        yield from staged.push(part)
    yield from staged.rest()


def _delivered_schema(table_schema: pa.Schema, columns: Sequence[str], *, row_ids: bool) -> pa.Schema:
    known = frozenset(table_schema.names)
    if unknown := [name for name in columns if name not in known]:
        raise ConfigError(f"columns must be in the table's schema {table_schema.names}, got {unknown[0]!r}")
    if row_ids and ROW_ID in columns:
        raise ConfigError(
            f"row_id=True adds a column {ROW_ID!r}, but the table has one of that name; leave one of them out"
        )
    fields = [table_schema.field(name) for name in columns]
    if row_ids:
        fields.append(pa.field(ROW_ID, pa.int64(), nullable=False))
    return pa.schema(fields)


def _check_found(
    file: DataFile, segments: Sequence[Segment], found: Sequence[int], stage: RowStage | None = None
) -> None:
    for segment, live in zip(segments, found, strict=True):
        if segment.live not in (-1, live):
            raise _miscounted(file, segment, live, stage)


def _miscounted(file: DataFile, segment: Segment, found: int, stage: RowStage | None) -> TableLoaderError:
    """Return the error of whoever decides how many rows come of a segment: a function of the caller's, or the file."""
    rows = f"rows {segment.row_start} to {segment.row_stop}"
    if stage is not None and stage.made_by is not None:
        return ConfigError(
            f"{stage.made_by} made {segment.live} {stage.makes} of {rows} of {file.name}, row group {segment.group}, "
            f"when they were counted, and {found} now; {stage.must}"
        )
    return TableError(
        f"{file.name}, row group {segment.group}: {rows} must hold {segment.live} rows that pass, as was counted, got "
        f"{found}; the file or the filter has changed since it was counted: build the loader again"
    )


def needs_of(
    file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str], reader: FormatReader
) -> FileNeeds | None:
    """Return which bytes it takes to open a file and to decode some of its row groups, in the order of decoding.

    A file that is needed whole is read from its start, in parts. None if the bytes are not known, or none is needed.
    """
    size = file.version.num_bytes
    if says_ranges(reader):
        found = tuple(tuple(each) for each in reader.ranges(file, meta, groups, columns)) if groups else ()
    elif len(meta.group_rows) == 1 and groups:
        found = (((0, size),),)
    else:
        return None
    if found == (((0, size),),):
        parts = tuple(((start, min(start + FIRST_BYTES, size)),) for start in range(0, size, FIRST_BYTES))
        if parts:
            return FileNeeds(file, parts)
        return None
    if any(found):
        return FileNeeds(file, found, tuple(groups))
    return None
