"""Jobs of every shape, drawn at random: a table that is written, and the options with which it is read.

What each holds in memory is measured beside the bound that `explain()` states: `tests/torch/test_memory_bound.py` is
the law, and `python -m bench.shapes` prints the table, with JSON as its last line, which `bench.run bounds` keeps.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

from torch_table_loader import Budget, MixedDataset, Pack, StructuredDataset, TableLoader
from torch_table_loader.arrow import buffers
from torch_table_loader.formats.ipc import ipc
from torch_table_loader.source.local_client import LocalClient
from torch_table_loader.source.storage import FileStorage
from torch_table_loader.source.table_storage import TableStorage

COUNT, IN_PROCESSES = 40, 8
"""Jobs in threads, and behind them those of worker processes."""

WIDER = range(100, 140)
"""Jobs that are drawn of more: mixtures, batches by budget, columns of more kinds, and memory that is given."""

IDLE_TIMES, IDLE_BYTES = 3, 64 << 20
"""A bound is idle if it is so many times what is used, and more than so many bytes beyond."""

_SLOW_STEPS, _SLOW_S = 3, 0.1
"""Steps of training that take a while."""

_LOOK_S = 0.0005
"""Seconds between two looks at memory of two kinds."""

_POOLS: list[pa.MemoryPool] = []
"""Buffers must not outlive the pool that they are of."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A job.

    Args:
        format: of its files.
        content: the kind of its columns; see `CONTENTS`.
        files: how many.
        rows: of each file.
        group_rows: rows of a row group.
        far: whether its files are those of a store, which fetches a few bytes ahead.
        options: of the loader.
        sources: of a mixture, each with so many files; 0 if it is none.
    """

    number: int
    format: str
    content: str
    files: int
    rows: int
    group_rows: int
    far: bool
    options: Mapping[str, Any]
    sources: int = 0

    def __str__(self) -> str:
        """Say it in a line."""
        asked = {name: value for name, value in self.options.items() if value is not None}
        pack = asked.pop("pack", None)
        packed = [] if pack is None else [f"pack {pack.strategy}"]
        called = ["collate_fn"] if asked.pop("collate_fn", None) else []
        mixed = [f"{self.sources} sources"] if self.sources else []
        told = [f"{name}={value}" for name, value in asked.items()] + packed + called + mixed + ["far"] * self.far
        groups = f"{self.files} x {self.rows:,} rows in {self.group_rows:,}"
        return f"{self.number:2} {self.format:8}{self.content:9}{groups:30}{', '.join(told)}"


def _numbers(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {f"x{place}": pa.array(rng.random(rows)) for place in range(10)}


def _texts(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    letters = np.frombuffer(rng.bytes(400), np.uint8) % 26 + 97
    text = letters.tobytes().decode()
    lengths, starts = rng.integers(0, 200, rows).tolist(), rng.integers(0, 200, rows).tolist()
    return {"s": pa.array([text[at : at + size] for at, size in zip(starts, lengths, strict=True)])}


def _repeated(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    texts = [f"{number:04}".ljust(2_000, "x") for number in range(4)]
    return {"s": pa.array([texts[number] for number in rng.integers(0, 4, rows).tolist()])}


def _lists(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    ends = np.concatenate(([0], np.cumsum(rng.integers(0, 60, rows)))).astype(np.int32)
    return {"x": pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.random(ends[-1])))}


def _nested(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    ends = np.concatenate(([0], np.cumsum(rng.integers(0, 4, rows)))).astype(np.int32)
    inner = pa.StructArray.from_arrays(
        [_texts(rng, int(ends[-1]))["s"], pa.array(rng.random(ends[-1]))], ["name", "share"]
    )
    return {"n": pa.ListArray.from_arrays(pa.array(ends), inner)}


def _tokens(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    ends = np.concatenate(([0], np.cumsum(rng.integers(20, 500, rows)))).astype(np.int32)
    return {"input_ids": pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 9, ends[-1]), pa.int32()))}


def _flags(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    return {f"b{place}": pa.array(rng.integers(0, 2, rows), pa.int8()) for place in range(40)}


def _long(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    letters = rng.bytes(40_000).hex()
    starts, sizes = rng.integers(0, 40_000, rows).tolist(), rng.integers(0, 40_000, rows).tolist()
    return {"s": pa.array([letters[at : at + size] for at, size in zip(starts, sizes, strict=True)])}


def _prompts(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    texts = [f"{number:04}".ljust(1_000, "x") for number in range(4)]
    ends = np.concatenate(([0], np.cumsum(rng.integers(0, 4, rows)))).astype(np.int32)
    said = pa.array([texts[number] for number in rng.integers(0, 4, int(ends[-1])).tolist()])
    return {"m": pa.ListArray.from_arrays(pa.array(ends), said)}


def _mixed(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    absent = rng.random(rows) < 0.2
    return {
        "share": pa.array(rng.random(rows), mask=absent),
        "day": pa.array(rng.integers(0, 20_000, rows).astype(np.int32)).cast(pa.date32()),
        "at": pa.array(rng.integers(0, 1 << 50, rows)).cast(pa.timestamp("us")),
        "yes": pa.array(rng.random(rows) < 0.5),
        "place": pa.array([f"place {number}" for number in rng.integers(0, 90, rows).tolist()]),
        "text": _texts(rng, rows)["s"],
        "small": pa.array(rng.integers(0, 9, rows), pa.int16()),
    }


CONTENTS: Mapping[str, tuple[Callable[[np.random.Generator, int], dict[str, pa.Array]], int]] = {
    "numbers": (_numbers, 80),
    "texts": (_texts, 104),
    "repeated": (_repeated, 2_004),
    "lists": (_lists, 240),
    "nested": (_nested, 170),
    "tokens": (_tokens, 1_040),
    "flags": (_flags, 40),
    "long": (_long, 20_012),
    "prompts": (_prompts, 1_510),
    "mixed": (_mixed, 150),
}
"""What makes the columns of so many rows, and about how many bytes a row has."""

_FORMATS = {
    "parquet": ("numbers", "texts", "repeated", "lists", "nested", "tokens", "flags"),
    "orc": ("numbers", "texts", "repeated", "lists", "tokens"),
    "ipc": ("numbers", "texts", "lists", "nested", "tokens"),
    "csv": ("numbers", "texts"),
    "json": ("numbers", "texts", "lists"),
    "avro": ("numbers", "texts"),
}
_WIDER_FORMATS = {
    "parquet": tuple(CONTENTS),
    "orc": ("numbers", "texts", "repeated", "lists", "tokens", "long", "prompts", "mixed"),
    "ipc": ("numbers", "texts", "lists", "tokens", "long", "prompts", "mixed"),
    "csv": ("numbers", "texts", "long", "mixed"),
    "json": ("numbers", "texts", "lists", "long", "tokens"),
    "avro": ("numbers", "texts", "long"),
}
_TABLE_MIB = {"parquet": 40, "orc": 40, "ipc": 40, "csv": 10, "json": 10, "avro": 2}
"""MiB of a table, decoded."""


def passed_on(batch: Any) -> Any:
    """Return a batch as it is: a function of the caller's."""
    return batch


def shape_of(number: int) -> Shape:
    """Draw a shape; each number has its own, the same on every machine. From `COUNT` on, processes read it."""
    if number in WIDER:
        return _wider_shape_of(number)
    rng = np.random.default_rng([49, number])

    def some(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    kind = some("parquet", "parquet", *_FORMATS)
    content = some(*_FORMATS[kind])
    files = some(1, 3, 8)
    rows = (_TABLE_MIB[kind] << 20) // CONTENTS[content][1] // files
    options: dict[str, Any] = {"batch_size": some(64, 256, 1024), "num_workers": some(0, 1, 2, 4)}
    if number >= COUNT:
        options |= {"num_workers": some(1, 2, 4), "worker_type": "process"}
    options["prefetch_batches"] = some(None, None, 1, 8)
    options["collate_fn"] = some(None, None, passed_on)
    if content == "tokens" and some(True, True, False):
        options["pack"] = Pack(seq_len=some(128, 512), strategy=some("concat", "best_fit", "pad"))
        options["batch_size"] = some(4, 16)
    else:
        options["output_format"] = some("torch", "torch", "numpy", "arrow", "dict")
        options["unsupported"] = "list" if content == "nested" else None
    options["shuffle"] = some(False, True, "splits", "rows")
    if options["shuffle"] == "rows":
        options["row_store"] = some("memory", "files")
    elif options["shuffle"] != True and some(True, False, False):  # noqa: E712 - one of several values
        options["shuffle_buffer_size"] = 5_000
    far = kind != "csv" and some(True, False, False)
    if far:
        options["storage_options"] = {"read_ahead_bytes": "4MiB"}
    return Shape(number, kind, content, files, rows, some(rows // 16 + 1, rows), far, options)


def _wider_shape_of(number: int) -> Shape:
    rng = np.random.default_rng([490, number])

    def some(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    job = some("rows", "rows", "sequences", "sequences", "budget", "budget")
    kind = some("parquet", "parquet", "parquet", *_WIDER_FORMATS)
    contents = _WIDER_FORMATS[kind]
    if job != "rows":
        kind, contents = some("parquet", "parquet", "orc", "ipc", "json"), ("tokens",)
    content, files, sources = some(*contents), some(1, 2, 6, 20), 0
    options: dict[str, Any] = {
        "batch_size": some(32, 256, 2048),
        "num_workers": some(0, 1, 2, 4),
        "prefetch_batches": some(None, None, 1, 4, 16),
        "collate_fn": some(None, None, None, passed_on),
        "shuffle": some(False, True, True, "mixed", "splits", "rows"),
    }
    if options["num_workers"] and some(True, False, False):
        options["worker_type"] = "process"
    options |= _wider_form_of(job, content, some)
    if job != "budget" and options["shuffle"] in (True, False, "rows") and some(True, False):
        sources = some(2, 3)
    if options["shuffle"] == "rows":
        options["row_store"] = some("memory", "files")
    elif not sources:
        options["shuffle_buffer_size"] = some(None, None, None, 5_000, "512MiB")
    far = kind != "csv" and some(True, False, False)
    if far:
        options["storage_options"] = {"read_ahead_bytes": some("1MiB", "16MiB")}
    rows = (_TABLE_MIB[kind] << 20) // CONTENTS[content][1] // files // max(1, sources)
    group_rows = some(rows // 50 + 1, rows // 8 + 1, rows)
    return Shape(number, kind, content, files, rows, group_rows, far, options, sources)


def _wider_form_of(job: str, content: str, some: Callable[..., Any]) -> dict[str, Any]:
    """Draw what batches hold, and the form of their columns."""
    if job == "budget":
        some(1, 2, 3)  # so that the numbers of these shapes stay theirs
        budget = Budget(tokens=some(2_000, 40_000), length="input_ids", counts=some("padded", "rows"))
        return {"ragged": "pad", "batch_size": budget}
    if job == "sequences":
        pack = Pack(seq_len=some(128, 1024), strategy=some("concat", "best_fit", "pad"))
        return {"pack": pack, "batch_size": some(2, 16)}
    if content == "nested":
        return {"output_format": some("arrow", "numpy", "dict"), "unsupported": "list"}
    if content in {"lists", "tokens"}:
        return {"ragged": some("nested", "offsets", "pad")}
    found = {"output_format": some("torch", "torch", "numpy", "arrow", "dict")}
    if content == "mixed":
        found |= {"nulls": "mask", "strings": some("list", "codes")}
    return found


def write(shape: Shape, folder: Path) -> None:
    """Write the files of a shape."""
    rng = np.random.default_rng([50, shape.number])
    for source in _sources_of(shape, folder):
        source.mkdir(exist_ok=True)
        for number in range(shape.files):
            table = pa.table(CONTENTS[shape.content][0](rng, shape.rows))
            path = source / f"{number:03}.{shape.format}"
            _WRITERS[shape.format](table, path, shape.group_rows)


def _sources_of(shape: Shape, folder: Path) -> list[Path]:
    """Return the folders of the tables: one, or those of a mixture."""
    return [folder / f"source{number}" for number in range(shape.sources)] or [folder]


def _write_parquet(table: pa.Table, path: Path, group_rows: int) -> None:
    pq.write_table(table, path, row_group_size=group_rows)


def _write_orc(table: pa.Table, path: Path, group_rows: int) -> None:
    pyarrow.orc.write_table(
        table, path, stripe_size=table.nbytes * group_rows // table.num_rows, dictionary_key_size_threshold=0.8
    )


def _write_ipc(table: pa.Table, path: Path, group_rows: int) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=group_rows)


def _write_csv(table: pa.Table, path: Path, group_rows: int) -> None:  # noqa: ARG001 it has no row groups
    pa.csv.write_csv(table, path)


def _write_json(table: pa.Table, path: Path, group_rows: int) -> None:  # noqa: ARG001 it has no row groups
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


_AVRO_TYPES = {pa.float64(): "double", pa.string(): "string"}


def _write_avro(table: pa.Table, path: Path, group_rows: int) -> None:  # noqa: ARG001 it has no row groups
    import fastavro

    fields = [
        {"name": each.name, "type": "double" if pa.types.is_floating(each.type) else "string"} for each in table.schema
    ]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, table.to_pylist())


_WRITERS = {
    "parquet": _write_parquet,
    "orc": _write_orc,
    "ipc": _write_ipc,
    "csv": _write_csv,
    "json": _write_json,
    "avro": _write_avro,
}


@contextmanager
def own_pool() -> Iterator[pa.MemoryPool]:
    """Let Arrow allocate in a pool that knows how much was allocated at once, and arrays of any size with it."""
    before = pa.default_memory_pool()
    _POOLS.append(pa.proxy_memory_pool(before))
    pa.set_memory_pool(_POOLS[-1])
    try:
        with patch.object(buffers, "_POOLED_BYTES", 1), patch.object(ipc, "_owned", _copied):
            yield _POOLS[-1]
    finally:
        pa.set_memory_pool(before)


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch as `_owned` does, which allocates in Arrow's own pool whatever the default is."""
    found = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    if all(buffer.is_mutable for buffer in found):
        return batch
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([each, each.slice(0, 0)]) for each in batch.columns], schema=batch.schema
    )


@contextmanager
def as_a_store() -> Iterator[None]:
    """Make files of this machine those of a store, whose answers lie in Arrow's pool."""

    def answered(client: LocalClient, path: str, start: int, stop: int, etag: str | None) -> Any:  # noqa: ARG001
        answer = pa.allocate_buffer(stop - start)
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            file.seek(start)
            file.readinto(np.frombuffer(answer, np.uint8).data)
        return answer

    far = property(lambda _: False)
    with (
        patch.object(FileStorage, "is_local", far),
        patch.object(TableStorage, "is_local", far),
        patch.object(LocalClient, "read_range", answered),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a job may hold by its own word, and the most that it held: Arrow's, tensors, and what was fetched."""

    bound: int
    used: int

    @property
    def holds(self) -> bool:
        """Whether the bound is one."""
        return self.used <= self.bound

    @property
    def idle(self) -> bool:
        """Whether the bound says little."""
        return self.bound > max(IDLE_TIMES * self.used, self.used + IDLE_BYTES)


def held(path: Path, *, far: bool = False, **options: Any) -> Held:
    """Read an epoch of a table, and measure it; what planning takes is not counted."""
    in_memory = options.get("row_store") == "memory"  # which is numpy's
    with as_a_store() if far else nullcontext():
        return held_of(lambda: StructuredDataset.create_dataloader(str(path), **options), in_memory=in_memory)


_OF_SOURCES = ("shuffle", "row_store", "storage_options", "pack")


def _opened(shape: Shape, table: Path) -> tuple[TableLoader, Any]:
    options = _options(shape, table.parent / f"{table.name} kept")
    if not shape.sources:
        return StructuredDataset.create_dataloader(str(table), **options)
    own = {name: options.pop(name) for name in _OF_SOURCES if name in options}
    sources = {each.name: partial(StructuredDataset, str(each), **own) for each in _sources_of(shape, table)}
    return MixedDataset.create_dataloader(sources, "rows", **options)


def held_of(make: Callable[[], tuple[TableLoader, Any]], *, in_memory: bool = False) -> Held:
    """Read an epoch of what a function makes, and measure it; see `held`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader, dataset = make()
        bound: int = dataset.explain().memory_bound
        with own_pool() as pool, _traced(in_memory, pool) as traced:
            read(loader)
            used = max(pool.max_memory() or 0, traced())
    return Held(bound, used)


def read(loader: TableLoader) -> None:
    """Read an epoch, as training that takes a while reads its first batches.

    Raises:
        RuntimeError: another number of steps came than was planned.
    """
    steps = 0
    for steps, _ in enumerate(loader, 1):
        if steps <= _SLOW_STEPS:
            time.sleep(_SLOW_S)  # what may wait for the trainer does
    if steps != len(loader):
        raise RuntimeError(f"{steps} of {len(loader)} steps came")


@contextmanager
def _traced(wanted: bool, pool: pa.MemoryPool) -> Iterator[Callable[[], int]]:
    """Let Python count what it allocates, and numpy; give the most of it so far, together with what a pool had then.

    The two are most at different times, so a thread looks at both as often as it can.
    """
    if not wanted:
        yield lambda: 0
        return
    over, most = threading.Event(), [0]

    def look() -> None:
        while not over.wait(_LOOK_S):
            most[0] = max(most[0], tracemalloc.get_traced_memory()[0] + pool.bytes_allocated())

    tracemalloc.start()
    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield lambda: max(most[0], tracemalloc.get_traced_memory()[1])
    finally:
        over.set()
        looking.join()
        tracemalloc.stop()


def held_by(shape: Shape, folder: Path) -> Held:
    """Write the table of a shape into an empty folder, and read it."""
    table = folder / "table"
    table.mkdir(parents=True)
    write(shape, table)
    with as_a_store() if shape.far else nullcontext():
        return held_of(lambda: _opened(shape, table), in_memory=shape.options.get("row_store") == "memory")


def _options(shape: Shape, folder: Path) -> dict[str, Any]:
    options = dict(shape.options)
    if options.get("row_store") == "files":
        options["row_store"] = str(folder / "rows")
    return options


def epoch_of(shape: Shape, table: Path) -> int:
    """Read an epoch of the table of a shape; return its bound."""
    with as_a_store() if shape.far else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader, dataset = _opened(shape, table)
        bound: int = dataset.explain().memory_bound
        read(loader)
    return bound


def main() -> None:
    """Measure all shapes, or those whose numbers are given."""
    found = []
    for number in list(map(int, sys.argv[1:])) or range(COUNT):
        shape = shape_of(number)
        with tempfile.TemporaryDirectory() as folder:
            own = held_by(shape, Path(folder))
        found.append({"bound": own.bound, "used": own.used, "holds": own.holds, "idle": own.idle})
        told = f"{own.bound / 2**20:8.1f} MiB{own.used / 2**20:8.1f} MiB {own.used / own.bound:6.2f}"
        sys.stdout.write(f"{told}  {shape}\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
