"""A table in memory, which reaches worker processes through a file that they map."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.records import FileVersion
from torch_table_loader.sizes import sizes

NAME = "table"
"""The name of the one file of a table in memory."""

_MOST_GROUP_ROWS = 1 << 16

_writing = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HeldTable:
    """Rows in memory, in the record batches in which they came; only requested rows are copied.

    It is picklable: the first pickling writes it to a temporary file on this machine, which every process that
    unpickles it maps, so that all of them share its memory. The file is removed together with the table.

    The schema has no metadata, and no batch is empty. The fingerprint is a hash of the schema and the rows.
    """

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]
    fingerprint: str
    _starts: np.ndarray[tuple[int], np.dtype[np.int64]] = field(init=False, repr=False)
    _written: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Record the row at which each batch begins."""
        starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)], dtype=np.int64)
        object.__setattr__(self, "_starts", starts)

    @property
    def num_rows(self) -> int:
        """All rows."""
        return int(self._starts[-1])

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        return sum(batch.nbytes for batch in self.batches)

    @property
    def group_rows(self) -> tuple[int, ...]:
        """The rows of the pieces that are shuffled and assigned to lanes: a power of two, about 1 MiB."""
        width = max(1, self.num_bytes // max(1, self.num_rows))
        rows = min(_MOST_GROUP_ROWS, 1 << max(0, (sizes().held_group_bytes // width).bit_length() - 1))
        whole, rest = divmod(self.num_rows, rows)
        return (rows,) * whole + ((rest,) if rest else ())

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Copy consecutive rows (at least one) of some columns into new memory, so that the caller may write to it."""
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        parts = []
        for index in range(first, len(self.batches)):
            begin = int(self._starts[index])
            if begin >= stop:
                break
            offset = max(start - begin, 0)
            batch = self.batches[index].select(list(columns))
            parts.append(batch.slice(offset, min(stop - begin, batch.num_rows) - offset))
        # `concat_batches` copies two batches, but not a single one.
        return pa.concat_batches([*parts, parts[0].slice(0, 0)])

    def as_file(self) -> pa.Buffer:
        """Return all rows as an Arrow IPC file, which takes as much memory as the rows."""
        sink = pa.BufferOutputStream()
        _write(self, sink)
        return sink.getvalue()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the path of a file that holds the rows."""
        with _writing:
            if not self._written or not Path(self._written[0]).exists():
                self._written[:] = [_spool(self)]
        return _mapped, (self._written[0], self.fingerprint)


def _write(table: HeldTable, sink: object) -> None:
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.batches:
            writer.write_batch(batch)


def _spool(table: HeldTable) -> str:
    """Write a table to a temporary file that is removed together with the table."""
    folder = tempfile.gettempdir()
    path = None
    try:
        handle, path = tempfile.mkstemp(prefix="torch-table-loader-", suffix=".arrow", dir=folder)
        with os.fdopen(handle, "wb") as file:
            _write(table, file)
    except OSError as error:
        if path is not None:
            _remove(path, os.getpid())
        raise StorageError(
            f"a table in memory ({table.num_bytes} bytes) crosses to worker processes through a temporary file, and "
            f'{folder} does not take it ({error}); pass worker_type="thread", or let TMPDIR name a folder with room'
        ) from error
    weakref.finalize(table, _remove, path, os.getpid())
    return path


def _remove(path: str, process: int) -> None:
    """Remove a file in the process that made it; a forked process may drop its own copy of the table."""
    if os.getpid() == process:
        with suppress(FileNotFoundError):
            Path(path).unlink()


def _mapped(path: str, fingerprint: str) -> HeldTable:
    """Return a table that another process on this machine wrote."""
    try:
        source = pa.memory_map(path)
    except FileNotFoundError as error:
        raise ConfigError(
            "a table in memory crosses to processes of its own machine, while the one that made it lives, and its file "
            f"{path} is not here; call from_arrow in this process, or write the table to files"
        ) from error
    with pa.ipc.open_file(source) as reader:
        batches = tuple(reader.get_batch(index) for index in range(reader.num_record_batches))
        table = HeldTable(reader.schema, batches, fingerprint)
    table._written.append(path)
    return table


@dataclass(frozen=True, slots=True)
class HeldStorage:
    """The storage of a table in memory (implements `contracts.Storage`): it has one file."""

    table: HeldTable
    is_local = True
    fork_safe = True

    @property
    def place(self) -> str:
        """A name that only storages with equal rows share."""
        return f"memory of {self.table.fingerprint}"

    def open(self, path: str) -> pa.NativeFile:
        """Open a copy of the rows as an Arrow IPC file. The format reader for tables in memory does not need it."""
        self.version(path)
        return pa.BufferReader(self.table.as_file())

    def version(self, path: str) -> FileVersion:
        """Return the size of the rows; Arrow does not let them change."""
        if path != NAME:
            raise TableError(f"a table in memory has one file, {NAME!r}, got {path!r}")
        return FileVersion(self.table.num_bytes, etag=self.table.fingerprint, immutable=True)

    def close(self) -> None:
        """Do nothing: the rows stay in memory."""
