"""The bytes that a task needs: all that reading requests, no more than the file has; remote reads equal local ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv, orc

from tests.effort import examples
from tests.servers.remote_files import FarStore, View
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.reading import LocalStorage, count, data_file, inspect, whole_task
from torch_table_loader.engine.survey import survey
from torch_table_loader.engine.table import Table
from torch_table_loader.extend import reader_for
from torch_table_loader.iceberg.catalog import TableAddress
from torch_table_loader.iceberg.source import IcebergRequest
from torch_table_loader.read.parquet_footer import chunk_ranges
from torch_table_loader.read.tasks import TaskReader, needs_of
from torch_table_loader.records import DataFile, FileMeta, FileNeeds, ReadTask

ROWS = 3000
PLAIN = pa.table(
    {
        "a": pa.array(range(ROWS), pa.int32()),
        "x": pa.array([None if i % 5 == 0 else i / 2 for i in range(ROWS)]),
        "s": [f"text {i % 7}" for i in range(ROWS)],
        "n": pa.array([i * 7 % 1000 for i in range(ROWS)], pa.int64()),
    }
)
NESTED = PLAIN.append_column("p", pa.array([{"a": i, "q": [i] * (i % 3)} for i in range(ROWS)])).append_column(
    "d", PLAIN["s"].dictionary_encode()
)
FILTERS = {"none": None, "some": pc.field("x") > 700, "few": pc.field("n") == 7}


def _write_parquet(path: Path) -> None:
    pq.write_table(NESTED, path, row_group_size=500, compression="zstd")


def _write_large_pages(path: Path) -> None:
    pq.write_table(NESTED, path, row_group_size=ROWS, use_dictionary=False, compression="none")


def _write_orc(path: Path) -> None:
    orc.write_table(PLAIN, path, stripe_size=1024, compression="zstd")


def _write_csv(path: Path) -> None:
    csv.write_csv(PLAIN, path)


def _write_json(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in PLAIN.to_pylist()))


def _write_arrow(path: Path) -> None:
    table = NESTED.set_column(5, "d", NESTED["d"].unify_dictionaries())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


def _write_compressed(path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, PLAIN.schema, options=options) as writer:
        writer.write_table(PLAIN, max_chunksize=700)


def _write_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, PLAIN.schema) as writer:
        writer.write_table(PLAIN, max_chunksize=700)


def _write_avro(path: Path) -> None:
    kinds = {"a": "int", "x": "double", "s": "string", "n": "long"}
    fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
    schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
    with path.open("wb") as target:
        fastavro.writer(target, schema, PLAIN.to_pylist(), codec="deflate")


WRITERS = {
    "parquet": ("parquet", _write_parquet),
    "one row group": ("parquet", _write_large_pages),
    "orc": ("orc", _write_orc),
    "csv": ("csv", _write_csv),
    "json": ("jsonl", _write_json),
    "arrow": ("arrow", _write_arrow),
    "compressed arrow": ("arrow", _write_compressed),
    "stream": ("arrow", _write_stream),
    "avro": ("avro", _write_avro),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[DataFile, FileMeta]]:
    folder, files = tmp_path_factory.mktemp("needs"), {}
    for name, (form, write) in WRITERS.items():
        path = folder / f"{name}.{form}"
        write(path)
        file = data_file(path, form)
        files[name] = file, inspect(file)
    return files


def reader_of(file: DataFile, meta: FileMeta, columns: Sequence[str], storage: Any = None, **how: Any) -> TaskReader:
    return TaskReader(storage or LocalStorage(), [file], [meta], meta.schema, columns, **how)


def outside(needs: FileNeeds | None, asked: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the requested bytes that were not declared."""
    said: set[int] = set()
    for group in () if needs is None else needs.groups:
        for start, stop in group:
            said.update(range(start, stop))
    return [(start, stop) for start, stop in asked if not said.issuperset(range(start, stop))]


def check(reader: TaskReader, task: ReadTask, columns: Sequence[str]) -> FileNeeds | None:
    """Compare the requests of reading with the declared needs, and the rows with those of local files."""
    needs, view = reader.needs(task), View()
    far, near = list(reader.read(task, view)), list(reader.read(task))
    assert [batch.to_pydict() for batch in far] == [batch.to_pydict() for batch in near]
    assert [batch.num_rows for batch in far] == [batch.num_rows for batch in near]
    assert all(one.equals(other, check_metadata=True) for one, other in zip(far, near, strict=True)) or columns == []
    assert outside(needs, view.asked) == []
    if needs is not None:
        size = needs.file.version.num_bytes
        assert all(0 <= start < stop <= size for group in needs.groups for start, stop in group)
    return needs


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_reading_requests_only_declared_bytes(
    written: dict[str, tuple[DataFile, FileMeta]], name: str, data: st.DataObject
) -> None:
    file, meta = written[name]
    columns = data.draw(st.lists(st.sampled_from(meta.schema.names), unique=True))
    how = {
        "filters": FILTERS[data.draw(st.sampled_from(sorted(FILTERS)))],
        "max_rows": data.draw(st.integers(90, 4000)),
    }
    reader = reader_of(file, meta, columns, row_id_bases=[0] if data.draw(st.booleans()) else None, **how)
    task = whole_task(meta)
    first = data.draw(st.integers(0, len(task.segments) - 1))
    segments = task.segments[first : data.draw(st.integers(first + 1, len(task.segments)))]
    if data.draw(st.booleans()):
        segments = segments[::2]
    skip, take = data.draw(st.integers(0, ROWS)), data.draw(st.integers(-1, ROWS))
    check(reader, ReadTask(0, tuple(segments), skip, take), columns)
    needs, view = reader.needs_of_count(ReadTask(0, tuple(segments))), View()
    assert count(reader, ReadTask(0, tuple(segments)), view) == count(reader, ReadTask(0, tuple(segments)))
    assert outside(needs, view.asked) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_task_of_some_columns_needs_less_than_the_whole_file(
    written: dict[str, tuple[DataFile, FileMeta]], name: str
) -> None:
    file, meta = written[name]
    needs = reader_of(file, meta, ["a"]).needs(whole_task(meta))
    assert needs is not None
    num_bytes = sum(stop - start for group in needs.groups for start, stop in group)
    size = file.version.num_bytes
    assert num_bytes <= size / 3 if file.format == "parquet" else num_bytes <= size + 16 * 1024


def test_files_that_are_not_read_need_no_bytes(written: dict[str, tuple[DataFile, FileMeta]]) -> None:
    file, meta = written["parquet"]
    assert reader_of(file, meta, ["a"]).needs(whole_task(meta, take=0)) is None
    assert reader_of(file, meta, ["a"]).needs_of_count(whole_task(meta)) is None  # the footer knows
    assert reader_of(file, meta, []).needs(whole_task(meta)) is None


def test_a_large_stream_is_needed_in_parts(written: dict[str, tuple[DataFile, FileMeta]]) -> None:
    file, meta = written["csv"]
    large = DataFile(file.path, file.name, type(file.version)(2_500_000), file.format)
    found = needs_of(large, meta, [0], ["a"], reader_for("csv"))
    assert found == FileNeeds(large, (((0, 1 << 20),), ((1 << 20, 2 << 20),), ((2 << 20, 2_500_000),)))


def test_a_format_that_does_not_declare_needs_is_not_read_ahead(written: dict[str, tuple[DataFile, FileMeta]]) -> None:
    class Silent:
        name = "silent"

    file, meta = written["parquet"]
    assert needs_of(file, meta, [0, 1], ["a"], Silent()) is None  # type: ignore[arg-type]


def test_metadata_of_an_older_plan_cache_is_not_read_ahead(written: dict[str, tuple[DataFile, FileMeta]]) -> None:
    for name in ("orc", "arrow"):
        file, meta = written[name]
        old = FileMeta(meta.schema, meta.group_rows, meta.group_bytes)
        reader = reader_of(file, old, ["a"])
        assert reader.needs(whole_task(old)) is None
        assert list(reader.read(whole_task(old)))


def test_chunks_of_old_writers_extend_beyond_their_footers_claims(tmp_path: Path) -> None:
    pq.write_table(PLAIN, tmp_path / "x.parquet", compression="none")
    meta = pq.read_metadata(tmp_path / "x.parquet")
    size = (tmp_path / "x.parquet").stat().st_size

    class Old:
        """A footer as parquet-mr 1.2.8 wrote it."""

        created_by = "parquet-mr version 1.2.8 (build 0)"

        def __getattr__(self, name: str) -> Any:
            return getattr(meta, name)

    (now,), (old,) = chunk_ranges(meta, size, [0], ["a"]), chunk_ranges(Old(), size, [0], ["a"])
    assert [(start, stop + 100) for start, stop in now] == old


def iceberg(folder: Path) -> tuple[IcebergWriter, Table]:
    """A table with deletes of every kind, over files of every format."""
    table = IcebergWriter(folder, version=3)
    paths = [
        table.append(some(200 * at, 200 * at + 200), form, group=60)
        for at, form in enumerate(["parquet", "orc", "avro"])
    ]
    paths += [table.append(some(600, 800), group=90), table.append(some(800, 900))]
    table.commit()
    table.delete_rows({paths[0]: [0, 5, 61, 199], paths[1]: range(0, 200, 3), paths[2]: [7]})
    table.delete_vector(paths[3], [0, 1, 2, 95, 180])
    table.commit()
    table.delete_keys([2], [{"k": 3}])
    table.commit()
    source = IcebergRequest(TableAddress(metadata_location=table.metadata)).open({})
    return table, survey(source, None, None, None)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_tables_with_deletes_declare_what_they_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    table = _iceberg_of(tmp_path_factory)[1]
    columns = data.draw(st.lists(st.sampled_from(["x", "k", "s"]), unique=True, min_size=1))
    table = replace(table, filters=data.draw(st.sampled_from([None, pc.field("x") > 130])))
    reader = table.reader(columns, row_ids=data.draw(st.booleans()), max_rows=data.draw(st.integers(30, 400)))
    for number, _file in enumerate(table.files):
        task = whole_task(
            table.metas[number], number, skip=data.draw(st.integers(0, 90)), take=data.draw(st.integers(-1, 90))
        )
        needs = check(reader, task, columns)
        assert needs is None or needs.file == table.files[number]


_TABLES: list[tuple[IcebergWriter, Table]] = []


def _iceberg_of(factory: pytest.TempPathFactory) -> tuple[IcebergWriter, Table]:
    if not _TABLES:
        _TABLES.append(iceberg(factory.mktemp("iceberg")))
    return _TABLES[0]


def test_versions_checked_by_requests_are_not_queried_again(tmp_path: Path) -> None:
    _write_parquet(tmp_path / "x.parquet")
    for tags in (True, False):
        store, view = FarStore(tags=tags), View()
        path = str(tmp_path / "x.parquet")
        file = DataFile(path, "x.parquet", store.version_of(path), "parquet")
        list(reader_of(file, inspect(file), ["a"], store).read(whole_task(inspect(file)), view))
        assert store.requests == []
        assert view.versions == (0 if tags else 2)
        assert view.opened == 1
