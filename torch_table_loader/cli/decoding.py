"""How pyarrow alone decodes a table's files: the reference that ``bench`` compares with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Queue
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from torch_table_loader.errors import ConfigError
from torch_table_loader.read.field_ids import names_in, places

if TYPE_CHECKING:
    from torch_table_loader.engine.table import Table

Decoded: TypeAlias = "pa.Table | pa.RecordBatch"

_FORMATS = {
    "orc": ds.OrcFileFormat,
    "csv": ds.CsvFileFormat,
    "json": ds.JsonFileFormat,
    "jsonl": ds.JsonFileFormat,
    "arrow": ds.IpcFileFormat,
    "ipc": ds.IpcFileFormat,
    "feather": ds.IpcFileFormat,
}


def decode_row_groups(table: Table, columns: Sequence[str], threads: int) -> int:
    """Decode every row group of Parquet files once, and discard it. No footer is read again.

    Args:
        columns: the table's names of the columns; columns that a file lacks are not read from it.

    Returns:
        The number of decoded rows.
    """
    present = [_names_in_file(table, file, columns) for file in range(len(table.files))]

    def open_file(file: int) -> pq.ParquetFile:
        footer = pq.read_metadata(pa.BufferReader(table.metas[file].footer))
        return pq.ParquetFile(table.storage.open(table.files[file].path), metadata=footer)

    def read(opened: pq.ParquetFile, file: int, group: int) -> pa.Table:
        return opened.read_row_group(group, columns=present[file], use_threads=False)

    groups = [(file, group) for file, meta in enumerate(table.metas) for group in range(len(meta.group_rows))]
    return decode_on_threads(groups, open_file, read, threads)


def _names_in_file(table: Table, number: int, columns: Sequence[str]) -> list[str]:
    """Return the names of some columns in a file, without those that it lacks."""
    file, schema = table.files[number], table.metas[number].schema
    if file.columns is None:
        return [name for name in columns if name in schema.names]
    at = places(schema, names_in(schema, file.columns))
    ids = {column.name: column.field_id for column in file.columns.table.current}
    return [schema.field(at[ids[name]]).name for name in columns if ids.get(name) in at]


def decode_on_threads(
    groups: Sequence[tuple[int, int]],
    open_file: Callable[[int], pq.ParquetFile],
    read: Callable[[pq.ParquetFile, int, int], Decoded],
    threads: int,
) -> int:
    """Read row groups on threads, and discard the result.

    Each thread takes the next (file, row group) and reads it, without pyarrow's own threads, into a queue of two
    tables. The caller's thread discards them.

    Args:
        groups: number of the file and of the row group.
        open_file: opens a file for one thread.
        read: reads a row group of an open file: takes the file, its number and the row group's.

    Returns:
        The number of decoded rows.
    """
    work = _Work(groups, open_file, read)
    workers = [threading.Thread(target=work.run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    rows, running, failure = 0, threads, None
    while running:
        item = work.ready.get()
        if item is None:
            running -= 1
        elif isinstance(item, BaseException):
            failure = item
        else:
            rows += item.num_rows
    for worker in workers:
        worker.join()  # a thread that is killed inside pyarrow when Python ends aborts the process
    if failure is not None:
        raise failure
    return rows


def scan(table: Table, columns: Sequence[str]) -> int:
    """Scan files of any format with pyarrow.dataset and its threads, and discard the result.

    Args:
        table: a table in a format that pyarrow.dataset supports.

    Raises:
        ConfigError: pyarrow.dataset does not support these files.
    """
    name = table.files[0].format
    if name not in _FORMATS:
        raise ConfigError(f"bench compares with pyarrow, which does not read the format {name!r}")
    form: ds.FileFormat = _FORMATS[name]()
    apart = {column for file in table.files for column, _ in file.partition}
    schema = pa.schema([field for field in table.schema if field.name not in apart])
    try:
        fragments = [form.make_fragment(table.storage.open(file.path)) for file in table.files]
        dataset = ds.FileSystemDataset(fragments, schema, form)
        return sum(batch.num_rows for batch in dataset.to_batches(columns=list(columns)))
    except pa.ArrowException as error:
        raise ConfigError(f"pyarrow.dataset, with which bench compares, does not read this {name}: {error}") from error


class _Work:
    """The (file, row group) pairs that are left, and the queue of decoded tables."""

    def __init__(
        self,
        groups: Sequence[tuple[int, int]],
        open_file: Callable[[int], pq.ParquetFile],
        read: Callable[[pq.ParquetFile, int, int], Decoded],
    ) -> None:
        self._open = open_file
        self._read = read
        self._left = iter(groups)
        self._taking = threading.Lock()
        self.ready: Queue[Decoded | BaseException | None] = Queue(2)

    def run(self) -> None:
        """Decode until nothing is left; None in the queue marks the end."""
        opened: dict[int, pq.ParquetFile] = {}
        try:
            while (taken := self._take()) is not None:
                file, group = taken
                if file not in opened:
                    opened = {file: self._open(file)}
                self.ready.put(self._read(opened[file], file, group))
        except BaseException as error:  # noqa: BLE001 the caller's thread raises it
            self._left = iter(())
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def _take(self) -> tuple[int, int] | None:
        with self._taking:
            return next(self._left, None)
