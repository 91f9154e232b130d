"""Properties of every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather, orc

from tests.tables.reading import LocalStorage, all_batches, as_table, count, data_file, inspect, whole_task
from tests.tables.token_files import LAYOUTS
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import TableError
from torch_table_loader.extend import FORMATS, reader_for
from torch_table_loader.read.conform import resolve_schema
from torch_table_loader.read.formats import infers_types
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import DataFile

ROWS = 1000
TABLE = pa.table(
    {
        "a": pa.array(range(ROWS)),
        "f": pa.array([None if i % 7 == 0 else i / 4 for i in range(ROWS)]),
        "s": [f"row {i}" for i in range(ROWS)],
        "a.b": pa.array([bool(i % 2) for i in range(ROWS)]),
    }
)


def _write_json(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def _write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=300)


def _write_ipc(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=300)


WRITERS: dict[str, tuple[str, Callable[[pa.Table, Path], None]]] = {
    "parquet": ("parquet", lambda table, path: pq.write_table(table, path, row_group_size=300)),
    "orc": ("orc", lambda table, path: orc.write_table(table, str(path), stripe_size=4096, batch_size=100)),
    "csv": ("csv", csv.write_csv),
    "json": ("json", _write_json),
    "jsonl": ("jsonl", _write_json),
    "arrow file": ("arrow", _write_ipc),
    "arrow stream": ("arrow", _write_stream),
    "ipc file": ("ipc", _write_ipc),
    "feather": ("feather", lambda table, path: feather.write_feather(table, str(path), chunksize=300)),
}

KINDS = pytest.mark.parametrize("kind", sorted(WRITERS))


def _write(kind: str, folder: Path, table: pa.Table = TABLE) -> DataFile:
    form, write = WRITERS[kind]
    path = folder / f"x.{form}"
    write(table, path)
    return data_file(path, form)


def test_every_format_is_tested_here() -> None:
    # Names of Avro hold no dot, and token files hold no other columns: test_read_avro, test_read_token_files.
    assert {form for form, _ in WRITERS.values()} == set(FORMATS) - {"avro"} - set(LAYOUTS)


@KINDS
def test_written_rows_are_read_back(tmp_path: Path, kind: str) -> None:
    file = _write(kind, tmp_path)
    storage = LocalStorage(counting=True)
    meta = reader_for(file.format).inspect(storage, file, None)
    assert storage.all_closed
    assert meta.schema.equals(TABLE.schema)
    assert meta.num_rows == ROWS
    assert all(size > 0 for size in meta.group_bytes)
    for columns in (["a", "f", "s", "a.b"], ["a.b"], ["s", "a"], ["a"]):
        batches = all_batches(file, meta, columns, max_rows=130, storage=storage)
        assert all(0 < batch.num_rows <= 130 for batch in batches)
        assert all(batch.schema.names == columns for batch in batches)
        assert pa.Table.from_batches(batches).equals(TABLE.select(columns))
    batches = all_batches(file, meta, (), max_rows=130, storage=storage)
    assert sum(batch.num_rows for batch in batches) == ROWS
    assert {batch.num_columns for batch in batches} == {0}
    assert storage.all_closed


@KINDS
def test_each_row_group_agrees_with_the_metadata(tmp_path: Path, kind: str) -> None:
    file = _write(kind, tmp_path)
    meta = inspect(file)
    assert (len(meta.group_rows) > 1) == (kind not in {"csv", "json", "jsonl", "arrow stream"})
    start = 0
    for group, rows in enumerate(meta.group_rows):
        got = pa.Table.from_batches(all_batches(file, meta, ["a"], range(group, group + 1)))
        assert got["a"].to_pylist() == list(range(start, start + rows))
        start += rows


@KINDS
def test_returned_memory_is_owned_and_writable(tmp_path: Path, kind: str) -> None:
    file = _write(kind, tmp_path)
    meta = inspect(file)
    original = (tmp_path / f"x.{file.format}").read_bytes()
    batches = all_batches(file, meta, ["a", "f"], range(1), max_rows=10_000)
    for batch in batches:
        for column in batch.columns:
            buffer = column.buffers()[1]
            assert buffer.is_mutable
            memoryview(buffer).cast("B")[:] = bytes(buffer.size)
    assert (tmp_path / f"x.{file.format}").read_bytes() == original
    again = all_batches(file, meta, ["a", "f"], range(1), max_rows=10_000)
    assert pa.Table.from_batches(again).equals(TABLE.select(["a", "f"]).slice(0, meta.group_rows[0]))


@KINDS
def test_tasks_with_filter_partition_and_row_id_are_the_same_for_every_format(tmp_path: Path, kind: str) -> None:
    plain = _write(kind, tmp_path)
    file = data_file(Path(plain.path), plain.format, (("day", 3),))
    meta = inspect(file)
    schema = resolve_schema(
        [(file.name, meta.schema)], partition=pa.schema([("day", pa.int32())]), inferred=infers_types(file)
    )
    filters = (pc.field("f") > 20) & (pc.field("day") == 3)
    reader = TaskReader(
        LocalStorage(), [file], [meta], schema, ["s", "day"], filters=filters, row_id_bases=[50], max_rows=64
    )
    got = as_table(reader.read(whole_task(meta, skip=5, take=300)), reader.schema)
    ids = [i for i in range(ROWS) if i % 7 and i / 4 > 20][5:305]
    assert got.to_pydict() == {
        "s": [f"row {i}" for i in ids],
        "day": [3] * len(ids),
        "row_id": [i + 50 for i in ids],
    }
    assert sum(count(reader, whole_task(meta))) == len([i for i in range(ROWS) if i % 7 and i / 4 > 20])
    form = reader_for(file.format)
    assert list(form.prune(file, meta, pc.field("day") == 4, schema)) == [False] * len(meta.group_rows)
    assert list(form.prune(file, meta, pc.field("day") == 3, schema)) == [True] * len(meta.group_rows)
    assert form.null_columns(meta, ["f"], [True] * len(meta.group_rows)) <= {"f"}


@KINDS
def test_a_file_without_rows_has_a_schema_and_no_rows(tmp_path: Path, kind: str) -> None:
    if kind in {"json", "jsonl"}:
        (tmp_path / "x.json").write_text("\n\n")
        file = data_file(tmp_path / "x.json", kind)
        meta = inspect(file, TABLE.schema)
    else:
        file = _write(kind, tmp_path, TABLE.slice(0, 0))
        meta = inspect(file)
    assert meta.num_rows == 0
    assert meta.schema.names == TABLE.schema.names
    given: dict[str, Any] = {"columns": ["a", "s"], "schema": TABLE.schema, "num_workers": 0}
    assert list(StructuredDataset(file.path, file.format, **given)) == []


@KINDS
def test_a_file_that_is_damaged_or_of_another_format_is_named(tmp_path: Path, kind: str) -> None:
    form, write = WRITERS[kind]
    path = tmp_path / "bad.file"
    write(TABLE, path)
    raw = path.read_bytes()
    # Of a CSV file hardly anything is no CSV file: a row with too few values is.
    wrongs = [b"a,b\n1,2\n3\n"] if form == "csv" else [raw[: len(raw) * 3 // 4 - 1], b"\x00\xff" * 5000, b"PAR1\n{\n"]
    for wrong in wrongs:
        path.write_bytes(wrong)
        with pytest.raises(TableError, match=r"bad\.file"):
            inspect(data_file(path, form))


@KINDS
def test_two_columns_of_one_name_are_refused_in_every_format(tmp_path: Path, kind: str) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    if kind in {"json", "jsonl"}:
        (tmp_path / "x.json").write_text('{"a": 1, "a": 2}\n')
        file = data_file(tmp_path / "x.json", kind)
    else:
        file = _write(kind, tmp_path, table)
    with pytest.raises(TableError, match=r"x\..* twice|x\..*2 times"):
        inspect(file)
