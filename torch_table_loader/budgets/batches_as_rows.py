"""Rows of a table become batches that hold a budget of tokens, each a row of lists."""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import take_rows
from torch_table_loader.budgets.counts import BudgetCounts
from torch_table_loader.engine.row_lengths import check_lengths, lengths_in
from torch_table_loader.errors import TableError
from torch_table_loader.planning.budgets import Limits, filled, widths_of
from torch_table_loader.planning.permutation import permuted_range
from torch_table_loader.planning.rows_of import runs_of_batch
from torch_table_loader.read.lru_cache import LRUCache
from torch_table_loader.read.row_stage import Counted, Made, RowStage
from torch_table_loader.records import ROW_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.planning.keys import Key
    from torch_table_loader.planning.stages import StreamPosition
    from torch_table_loader.samples import FilledSamples

    Ints: TypeAlias = NDArray[np.int64]

_BLOCK_ROWS = 4096
"""Rows that are cut into batches together; part of the order."""

_CUTS = LRUCache(16 * 1024 * 1024)
"""The batches of recent blocks, by what their rows count as."""


class BatchesAsRows(RowStage):
    """Cuts the rows of a block into batches, as `filled` does; a value.

    A batch has rows of one block, so that how many there are depends on no rank and no epoch. Under the key of an epoch
    the batches of a block are shuffled.

    Raises:
        ConfigError: there is no column of lengths, or it has another type.
    """

    makes = "batches"

    def __init__(self, samples: FilledSamples, table: pa.Schema) -> None:
        self.samples = samples
        self.budget = samples.budget
        self._limits = Limits(self.budget.tokens, self.budget.at_most, padded=self.budget.counts == "padded")
        self._lists = check_lengths(table, self.budget.length)
        self._order_key: Key | None = None
        self._row_bytes: int | None = None

    @property
    @override
    def block_rows(self) -> int:
        return self.budget.similar or _BLOCK_ROWS

    @override
    def of_epoch(self, key: Key, *, shuffle: bool) -> BatchesAsRows:
        other = copy.copy(self)
        other._order_key = key if shuffle else None
        return other

    @override
    def of_size(self, row_bytes: int) -> BatchesAsRows:
        other = copy.copy(self)
        other._row_bytes = row_bytes
        return other

    @property
    @override
    def key(self) -> str:
        return f"{self.samples}-{self.block_rows}"

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (self.budget.length,)

    @property
    @override
    def nothing(self) -> BudgetCounts:
        return BudgetCounts(self.budget.tokens)

    @property
    @override
    def row_bytes(self) -> int | None:
        return self._row_bytes

    @property
    @override
    def measured_by(self) -> str | None:
        if self._lists:
            return self.budget.length
        return None

    @override
    def count_of(self, lengths: Ints) -> Counted:
        widths, most = widths_of(lengths, self.samples.pad), self.budget.tokens
        longer = int(np.count_nonzero(widths > most))
        if longer and self.budget.longer == "error":
            raise TableError(
                f"a row has {widths.max()} tokens of {self.budget.length!r}, more than tokens={most} of Budget; pass "
                'more tokens, leave such rows out with filters=, or pass longer="alone"'
            )
        _, sizes = self._cut(widths)
        tokens = int(np.minimum(lengths, most).sum())
        return len(sizes), BudgetCounts(most, len(sizes), len(lengths), tokens, longer)

    @override
    def schema(self, given: pa.Schema) -> pa.Schema:
        return pa.schema([_listed(field) for field in given if field.name in self._delivered(given)])

    def _delivered(self, given: pa.Schema) -> list[str]:
        kept = self.samples.delivers_length
        return [name for name in given.names if kept or name != self.budget.length]

    @override
    def counted(self, batch: pa.RecordBatch) -> Counted:
        return self.count_of(self._lengths(batch))

    @override
    def rows(self, batch: pa.RecordBatch) -> Made:
        order, sizes = self._cut(widths_of(self._lengths(batch), self.samples.pad))
        ends = np.cumsum(sizes)
        if self._order_key is not None and len(sizes):
            mixed = permuted_range(len(sizes), self._order_key)
            begins, sizes = (ends - sizes)[mixed], sizes[mixed]
            ends = np.cumsum(sizes)
            order = order[np.arange(len(order)) + np.repeat(begins - ends + sizes, sizes)]
        return len(sizes), partial(self._batches, batch, order, np.concatenate(([0], ends)).astype(np.int64))

    def _batches(self, batch: pa.RecordBatch, order: Ints, edges: Ints, start: int, stop: int) -> pa.RecordBatch:
        """Return some batches of a block, as lists of the rows that they hold."""
        edges = edges[start : stop + 1]
        rows = take_rows(batch.select(self._delivered(batch.schema)), pa.array(order[edges[0] : edges[-1]]))
        offsets, schema = pa.array(edges - edges[0]), self.schema(batch.schema)
        lists = [
            pa.LargeListArray.from_arrays(offsets, column, type=field.type)
            for column, field in zip(rows.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(lists, schema=schema)

    def _lengths(self, batch: pa.RecordBatch) -> Ints:
        return lengths_in(self.budget.length, batch.column(self.budget.length))

    def _cut(self, widths: Ints) -> tuple[Ints, Ints]:
        """Return rows in the order of their batches, and how many each batch has."""

        # Cached, since a block is counted before it is read, and read in each epoch.
        def make() -> tuple[tuple[Ints, Ints], int]:
            rows = np.arange(len(widths), dtype=np.int64)
            if self.budget.similar is not None:
                rows = np.argsort(widths, kind="stable")
            batches = list(filled([widths[rows]], self._limits))
            order = rows[np.fromiter(chain.from_iterable(batches), np.int64, len(widths))]
            sizes = np.array([len(each) for each in batches], dtype=np.int64)
            return (order, sizes), widths.nbytes + order.nbytes + sizes.nbytes

        found: tuple[Ints, Ints] = _CUTS.get((widths.tobytes(), self._limits, self.budget.similar), make)
        return found


def _listed(field: pa.Field) -> pa.Field:
    values = pa.field("item", field.type, field.nullable)
    return pa.field(field.name, pa.large_list(values), nullable=False, metadata=field.metadata)


def counts_of(job: StreamJob, epoch: int, planned: PlannedStream) -> BudgetCounts:
    """Return how full the batches of a table are."""
    found = cast("BudgetCounts | None", job.planner.made_of(planned.segments, epoch))
    return found or BudgetCounts(cast("BatchesAsRows", job.stage).budget.tokens, None, None, None, None)


def ids_of_step(job: StreamJob, position: StreamPosition, step: int) -> Ints:
    """Return the row id of each row of the batch of a step; this reads the lengths of its block."""
    own, options, planned = cast("BatchesAsRows", job.stage), job.options, job.planned(position)
    key = job.stage_key(position.epoch)
    pieces = runs_of_batch(
        planned.plan, planned.segments, planned.windows, (options.shuffle_seed, position.epoch), step
    )
    tasks = [segments.task(*run) for segments, runs in pieces for run in runs]
    reader = job.table.reader([own.budget.length], row_ids=True, max_rows=job.read_rows, stage=own)
    reader = reader.of_epoch(key, shuffle=bool(options.shuffle))
    found = [batch.column(ROW_ID).flatten().to_numpy() for task in tasks for batch in reader.read(task)]
    return np.concatenate([np.empty(0, np.int64), *found])
