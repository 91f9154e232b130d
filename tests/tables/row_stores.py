"""Small stores: a table in memory, cut into chunks, for a builder to read."""

from __future__ import annotations

import decimal
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_table_loader import RowStore
from torch_table_loader.arrow.arrays import encoded, plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.records import ROW_ID
from torch_table_loader.store.builder import build_memory
from torch_table_loader.store.far_rows import FarRows
from torch_table_loader.store.gather import StoredRows
from torch_table_loader.store.record_layout import StoreSpec


def stored(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a loader in which `memory`, if there is one, belongs to the row store that they name."""
    if "memory" not in options:
        return options
    others = {name: value for name, value in options.items() if name not in ("memory", "row_store")}
    return {**others, "row_store": RowStore(options.get("row_store"), options["memory"])}


@contextmanager
def folder_in_memory() -> Iterator[str]:
    """Give a folder of fsspec's memory that nobody else has, and remove it at the end."""
    folder = f"/{uuid.uuid4().hex}"
    yield folder
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(folder, recursive=True)


class MemoryTable:
    """A table whose rows a builder reads chunk by chunk."""

    def __init__(self, batch: pa.RecordBatch, bounds: list[int], ids: Any = None, read_rows: int = 64) -> None:
        """Cut it.

        Args:
            batch: the live rows.
            bounds: where chunks begin and end, from 0 to the number of rows.
            ids: their row ids, where a filter was applied.
            read_rows: rows of the batches that are read.
        """
        self.batch = batch
        self.bounds = bounds
        self.ids = None if ids is None else np.asarray(ids, dtype=np.int64)
        self.read_rows = read_rows

    @property
    def spec(self) -> StoreSpec:
        sizes = tuple(stop - start for start, stop in pairwise(self.bounds))
        return StoreSpec("a table", None, self.batch.schema, sizes, keeps_ids=self.ids is not None)

    def read(self, chunk: int) -> Iterator[pa.RecordBatch]:
        """Yield a chunk in batches, as a reader does."""
        start, stop = self.bounds[chunk], self.bounds[chunk + 1]
        for at in range(start, stop, self.read_rows):
            part = self.batch.slice(at, min(self.read_rows, stop - at))
            if self.ids is not None:
                column = pa.array(self.ids[at : at + part.num_rows])
                part = part.append_column(pa.field(ROW_ID, pa.int64(), nullable=False), column)
            yield part

    def check(self, rows: StoredRows | FarRows, places: Any) -> None:
        """Compare the rows gathered from a store with the table."""
        places = np.asarray(places, dtype=np.int64)
        found = rows.gather(places)
        for entry, gathered in zip(self.batch.schema, found, strict=True):
            gathered.validate(full=True)
            assert plain(gathered).type == plain_type(entry.type)
            array = encoded(plain(gathered), entry.type)
            array.validate(full=True)
            assert array.type == entry.type
            column = self.batch.column(entry.name).to_pylist()
            assert array.to_pylist() == [column[place] for place in places.tolist()], entry.name
        assert rows.ids(places).tolist() == (places if self.ids is None else self.ids[places]).tolist()


def in_memory(table: MemoryTable, threads: int = 2) -> StoredRows:
    return build_memory(table.spec, table.read, threads)


def numbers(rows: int) -> pa.RecordBatch:
    """Make a table of fixed width, without nulls."""
    x = np.arange(rows)
    return pa.record_batch({"x": x, "f": (x / 3).astype("f4"), "b": x % 3 == 0, "s": (x % 100).astype("i2")})


def everything(rows: int) -> pa.RecordBatch:
    """Make a table with a column of every kind, most of them with nulls."""
    rng = np.random.default_rng(0)

    def some(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.1 else value for value in values]

    r = range(rows)
    columns = {
        "i8": pa.array(some([i % 100 for i in r]), pa.int8()),
        "f": pa.array(rng.random(rows)),
        "b": pa.array(some([i % 2 == 0 for i in r])),
        "decimal": pa.array(some([decimal.Decimal(i) for i in r]), pa.decimal128(12, 2)),
        "wide_decimal": pa.array(some([decimal.Decimal(i) for i in r]), pa.decimal256(40, 2)),
        "grid": pa.array(some([[i, None if i % 7 == 0 else 2] for i in r]), pa.list_(pa.float32(), 2)),
        "grids": pa.array(
            some([[[i, 2], None if i % 5 == 0 else [1, None if i % 3 == 0 else 4]] for i in r]),
            pa.list_(pa.list_(pa.int16(), 2), 2),
        ),
        "bools": pa.array([[True, i % 2 == 0, False] for i in r], pa.list_(pa.bool_(), 3)),
        "text": pa.array(some([f"s{i}" for i in r])),
        "text_view": pa.array(some([f"a longer string {i}" for i in r]), pa.string_view()),
        "list": pa.array(some([[1] * (i % 4) for i in r]), pa.list_(pa.int64())),
        "texts": pa.array(some([["x"] * (i % 4) for i in r]), pa.list_(pa.string())),
        "struct": pa.array(
            some([{"a": i, "b": str(i)} for i in r]), pa.struct([("a", pa.int32()), ("b", pa.string())])
        ),
        "dictionary": pa.array(some([str(i % 5) for i in r])).dictionary_encode(),
        "word": pa.array(some([f"word {i % 9}" for i in r])),
        "blob": pa.array([bytes(i % 3) for i in r], pa.large_binary()),
        "bytes": pa.array(some([b"abc"] * rows), pa.binary(3)),
        "time": pa.array(some(list(r)), pa.timestamp("us", "UTC")),
        "null": pa.nulls(rows),
        "list_view": pa.array(some([[1] * (i % 4) for i in r]), pa.list_view(pa.int32())),
        "map": pa.array([[("k", i)] for i in r], pa.map_(pa.string(), pa.int32())),
        "runs": pc.run_end_encode(pa.array([i // 100 for i in r], pa.int64())),
        "interval": pa.array([pa.MonthDayNano([1, 2, i]) for i in r]),
    }
    return pa.record_batch(columns)


def flip(path: Path, at: int | None = None) -> None:
    """Change a bit of a file, in its middle unless said otherwise; its time of modification becomes a later one."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))  # a file's clock may stand still for a while


class Counting:
    """Counts which chunks were read."""

    def __init__(self, made: MemoryTable, pause: float = 0.0) -> None:
        self.chunks: Counter[int] = Counter()
        self._made, self._pause = made, pause

    def __call__(self, chunk: int) -> Iterator[pa.RecordBatch]:
        self.chunks[chunk] += 1
        time.sleep(self._pause)
        return self._made.read(chunk)
