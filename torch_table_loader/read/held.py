"""The format reader of a table in memory: its row groups are runs of rows, copied when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.sound import sound
from torch_table_loader.format_contracts import OpenFile, Traits
from torch_table_loader.read.failures import reading
from torch_table_loader.read.reader_base import WithoutStatistics, bounded, rows_without_columns
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile


@dataclass(frozen=True, slots=True)
class HeldReader(WithoutStatistics):
    """Reads the one file of a table in memory, whose storage has the table."""

    name: str = "a table in memory"
    suffixes = ()
    traits = Traits(cut="runs of rows", pruned="partitions", counted="the table")
    columnar = True

    @override
    def inspect(self, storage: Any, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file):
            storage.version(file.path)
            rows, table = storage.table.group_rows, storage.table
            total = max(1, table.num_rows)
            return FileMeta(table.schema, rows, tuple(table.num_bytes * count // total for count in rows))

    @override
    def open(self, storage: Any, file: DataFile, meta: FileMeta) -> HeldFile:
        storage.version(file.path)
        return HeldFile(storage.table, meta)


class HeldFile(OpenFile):
    """The rows of a table in memory; each batch gets memory of its own."""

    def __init__(self, table: Any, meta: FileMeta) -> None:
        self._table = table
        self._starts = np.cumsum([0, *meta.group_rows], dtype=np.int64)

    @override
    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        if not groups:
            return
        start, stop = int(self._starts[groups.start]), int(self._starts[groups.stop])
        if not columns:
            yield from bounded(rows_without_columns(stop - start), max_rows)
            return
        for first in range(start, stop, max_rows):
            yield sound(self._table.rows(first, min(first + max_rows, stop), columns))

    @override
    def close(self) -> None:
        pass
