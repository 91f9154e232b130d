"""Helpers of the tests of the reading room: a storage over local files, and files of a table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.errors import TableError
from torch_table_loader.extend import reader_for
from torch_table_loader.records import DataFile, FileMeta, FileVersion, ReadTask, Segment

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage


class CountingFile:
    """A local file that records its reads and whether it was closed."""

    def __init__(self, path: str, log: list[tuple[int, int]], opened: list[CountingFile]) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 - closed by close
        self._log = log
        opened.append(self)

    def read(self, length: int = -1) -> bytes:
        start = self._file.tell()
        data = self._file.read(length)
        if data:
            self._log.append((start, len(data)))
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        return


@dataclass
class LocalStorage:
    """Local files; if `counting`, `log` holds (offset, length) of every read."""

    is_local: bool = True
    counting: bool = False
    log: list[tuple[int, int]] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    open_calls: int = 0

    def open(self, path: str) -> pa.NativeFile:
        self.open_calls += 1
        if not Path(path).exists():
            raise TableError(f"{path} is gone")
        if self.counting:
            return pa.PythonFile(CountingFile(path, self.log, self.opened), mode="r")
        source = pa.OSFile(path, "rb")
        self.opened.append(source)
        return source

    def version(self, path: str) -> FileVersion:
        if not Path(path).exists():
            raise TableError(f"{path} is gone")
        stat = os.stat(path)  # noqa: PTH116
        return FileVersion(stat.st_size, stat.st_mtime_ns)

    def close(self) -> None:
        return

    @property
    def all_closed(self) -> bool:
        return all(source.closed for source in self.opened)


def data_file(path: Path, form: str = "parquet", partition: tuple[tuple[str, Any], ...] = ()) -> DataFile:
    return DataFile(str(path), path.name, LocalStorage().version(str(path)), form, partition)


def write_parquet(path: Path, table: pa.Table, rows: int = 10, **options: Any) -> DataFile:
    pq.write_table(table, path, row_group_size=rows, **options)
    return data_file(path)


def inspect(file: DataFile, schema: pa.Schema | None = None) -> FileMeta:
    return reader_for(file.format).inspect(LocalStorage(), file, schema)


def count(reader: Any, task: ReadTask, storage: Storage | None = None) -> list[int]:
    """Return the live rows of each segment of a task, as a `TaskReader` counts them."""
    [counts] = reader.counted(task, storage)
    return [live for live, _ in counts]


def all_batches(
    file: DataFile,
    meta: FileMeta,
    columns: Sequence[str],
    groups: range | None = None,
    max_rows: int = 7,
    storage: LocalStorage | None = None,
) -> list[pa.RecordBatch]:
    storage = storage or LocalStorage()
    handle = reader_for(file.format).open(storage, file, meta)
    try:
        return list(handle.batches(groups or range(len(meta.group_rows)), columns, max_rows))
    finally:
        handle.close()


@cache
def open_parquet() -> Any:
    """Return the class of what the reader of Parquet opens, whose methods tests watch."""
    with tempfile.TemporaryDirectory() as folder:
        file = write_parquet(Path(folder) / "x.parquet", pa.table({"x": [1]}))
        handle = reader_for("parquet").open(LocalStorage(), file, inspect(file))
        handle.close()
    return type(handle)


def whole_task(meta: FileMeta, file_index: int = 0, live: Sequence[int] | None = None, **bounds: int) -> ReadTask:
    starts = [0, *accumulate(meta.group_rows)]
    segments = tuple(
        Segment(group, starts[group], starts[group + 1], -1 if live is None else live[group])
        for group in range(len(meta.group_rows))
    )
    return ReadTask(file_index, segments, **bounds)


def as_table(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema)
