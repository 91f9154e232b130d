"""What bare pyarrow does with a table's bytes: the reference that ``bench`` compares with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Queue
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from torch_table_loader.engine.survey import Table

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
    """Decode every row group of Parquet files once, and drop it.

    Each thread takes the next (file, row group) and reads it without pyarrow's own threads into a queue of two
    tables, and the caller's thread drops what comes. No footer is read again.

    Args:
        table: of Parquet files.
        columns: names; those that a file lacks are not read there.
        threads: how many decode.

    Returns:
        The rows that came out.
    """
    work = _Work(table, columns)
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
        worker.join()
    if failure is not None:
        raise failure
    return rows


def scan(table: Table, columns: Sequence[str]) -> int:
    """Scan files of any format with pyarrow.dataset and its threads, and drop what comes.

    Args:
        table: whose format pyarrow.dataset knows.
        columns: names.

    Raises:
        ConfigError: pyarrow.dataset does not read these files.
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
    """The (file, row group) pairs that are left, and the queue of what was decoded."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = [[name for name in columns if name in meta.schema.names] for meta in table.metas]
        self._left = iter(
            [(file, group) for file, meta in enumerate(table.metas) for group in range(len(meta.group_rows))]
        )
        self._taking = threading.Lock()
        self.ready: Queue[pa.Table | BaseException | None] = Queue(2)

    def run(self) -> None:
        """Decode until nothing is left; None in the queue ends it."""
        opened: dict[int, pq.ParquetFile] = {}
        try:
            while (taken := self._take()) is not None:
                file, group = taken
                if file not in opened:
                    opened = {file: self._open(file)}
                columns = self._columns[file]
                self.ready.put(opened[file].read_row_group(group, columns=columns, use_threads=False))
        except BaseException as error:  # noqa: BLE001 the caller's thread raises it
            self._left = iter(())
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def _open(self, file: int) -> pq.ParquetFile:
        footer = pq.read_metadata(pa.BufferReader(self._table.metas[file].footer))
        return pq.ParquetFile(self._table.storage.open(self._table.files[file].path), metadata=footer)

    def _take(self) -> tuple[int, int] | None:
        with self._taking:
            return next(self._left, None)
