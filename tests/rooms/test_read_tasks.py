from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.reading import LocalStorage, as_table, count, data_file, inspect, whole_task, write_parquet
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.errors import ConfigError, ConfigTypeError, StorageError, TableError
from torch_table_loader.predicates.expressions import check_filter, row_mask
from torch_table_loader.predicates.facts import predicate_of
from torch_table_loader.read.conform import resolve_schema
from torch_table_loader.read.parquet import ParquetFile
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import DataFile, FileMeta, FileVersion, ReadTask, Segment

ROWS = 45
TABLE = pa.table(
    {
        "a": pa.array(range(ROWS), pa.int32()),
        "x": pa.array([None if i % 5 == 0 else i / 2 for i in range(ROWS)]),
        "s": [str(i % 3) for i in range(ROWS)],
    }
)


def _file(
    folder: Path, partition: tuple[tuple[str, Any], ...] = (), name: str = "x.parquet"
) -> tuple[DataFile, FileMeta]:
    write_parquet(folder / name, TABLE)
    file = data_file(folder / name, partition=partition)
    return file, inspect(file)


def _reader(
    files: Sequence[tuple[DataFile, FileMeta]],
    columns: Sequence[str] = ("a", "x", "s"),
    storage: LocalStorage | None = None,
    partition: pa.Schema | None = None,
    **options: Any,
) -> TaskReader:
    schema = resolve_schema([(file.name, meta.schema) for file, meta in files], partition=partition)
    return TaskReader(
        storage or LocalStorage(), [file for file, _ in files], [meta for _, meta in files], schema, columns, **options
    )


def _rows(reader: TaskReader, task: ReadTask) -> pa.Table:
    return as_table(reader.read(task), reader.schema)


def test_a_whole_task_is_the_whole_file(tmp_path: Path) -> None:
    file, meta = _file(tmp_path)
    storage = LocalStorage()
    reader = _reader([(file, meta)], storage=storage, max_rows=8)
    batches = list(reader.read(whole_task(meta)))
    assert as_table(batches, reader.schema).equals(TABLE)
    assert max(batch.num_rows for batch in batches) == 8
    assert storage.open_calls == 1
    assert storage.all_closed


FILTERS = [
    None,
    pc.field("x") > 8,
    (pc.field("s") == "1") & ~(pc.field("a") < 12),
    pc.field("x").is_null(),
    pc.field("day") == 3,
    pc.field("day") == 4,
    (pc.field("day") == 3) & (pc.field("a") > 30),
    pc.scalar(True),
    pc.field("a") < 0,
]


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(FILTERS),
    st.lists(st.integers(0, ROWS), max_size=6),
    st.integers(0, 50),
    st.integers(-1, 50),
    st.booleans(),
    st.sampled_from([["a", "x", "s"], ["s"], [], ["day", "a"]]),
    st.integers(1, 20),
    st.booleans(),
)
def test_a_task_is_exactly_its_live_rows(  # noqa: PLR0917
    tmp_path: Path,
    filters: Any,
    cuts: list[int],
    skip: int,
    take: int,
    counted: bool,
    columns: list[str],
    max_rows: int,
    is_local: bool,
) -> None:
    if not (tmp_path / "x.parquet").exists():
        _file(tmp_path)
    file = data_file(tmp_path / "x.parquet", partition=(("day", 3),))
    meta = inspect(file)
    reader = _reader(
        [(file, meta), (file, meta)],
        columns,
        LocalStorage(is_local=is_local),
        pa.schema([("day", pa.int32())]),
        filters=filters,
        row_id_bases=np.array([0, 1000]),
        max_rows=max_rows,
    )
    edges = sorted({*cuts})
    spans = [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False)]
    segments = [
        Segment(group, max(low, 10 * group), min(high, 10 * group + 10), -1)
        for low, high in spans
        for group in range(5)
        if max(low, 10 * group) < min(high, 10 * group + 10)
    ]
    table = TABLE.append_column("day", pa.array([3] * ROWS, pa.int32())).append_column(
        "row_id", pa.array(range(1000, 1000 + ROWS))
    )
    pieces = [table.slice(part.row_start, part.row_stop - part.row_start) for part in segments]
    live = [piece if filters is None else piece.filter(filters) for piece in pieces]
    counts = [piece.num_rows for piece in live]
    task = ReadTask(1, tuple(segments))
    assert count(reader, task) == counts
    if counted:
        segments = [part._replace(live=count) for part, count in zip(segments, counts, strict=True)]
    task = ReadTask(1, tuple(segments), skip, take)
    expected = (pa.concat_tables(live) if live else table.slice(0, 0)).select([*columns, "row_id"])
    expected = expected.slice(skip) if take < 0 else expected.slice(skip, take)
    batches = list(reader.read(task))
    assert all(0 < batch.num_rows <= max_rows for batch in batches)
    assert as_table(batches, reader.schema).to_pydict() == expected.to_pydict()


class _Calls:
    """Records which row groups and columns are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[range, tuple[str, ...]]] = []
        real = ParquetFile.batches

        def batches(handle: ParquetFile, groups: range, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
            self.calls.append((groups, tuple(columns)))
            return real(handle, groups, columns, rows)

        monkeypatch.setattr(ParquetFile, "batches", batches)


def test_only_the_row_groups_and_columns_that_are_needed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, meta = _file(tmp_path, (("day", 3),))
    calls = _Calls(monkeypatch)
    day = pa.schema([("day", pa.int32())])
    reader = _reader([(file, meta)], ["s", "day"], partition=day, filters=(pc.field("x") > 8) & (pc.field("day") == 3))
    whole = whole_task(meta)
    list(reader.read(whole))
    count(reader, whole)
    assert calls.calls == [(range(5), ("s", "x")), (range(5), ("x",))]
    calls.calls.clear()
    # Segments whose live rows are known and skipped, and those after the last row to take, are not read.
    known = whole_task(meta, live=count(reader, whole))
    calls.calls.clear()
    live = [segment.live for segment in known.segments]
    assert live == [0, 3, 8, 8, 4]
    got = _rows(reader, ReadTask(0, known.segments, 3, 9))
    assert got.num_rows == 9
    assert calls.calls == [(range(2, 4), ("s", "x"))]
    calls.calls.clear()
    partition_only = _reader([(file, meta)], ["s"], partition=day, filters=pc.field("day") == 4)
    assert _rows(partition_only, whole).num_rows == 0
    assert count(partition_only, whole) == [0] * 5
    assert calls.calls == []


def test_separate_segments_are_read_separately_and_adjacent_ones_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, meta = _file(tmp_path)
    calls = _Calls(monkeypatch)
    segments = (Segment(0, 7, 10, 3), Segment(1, 10, 20, 10), Segment(3, 30, 33, 3), Segment(3, 35, 40, 5))
    got = _rows(_reader([(file, meta)], ["a"]), ReadTask(0, segments))
    assert got["a"].to_pylist() == [*range(7, 20), *range(30, 33), *range(35, 40)]
    assert [groups for groups, _ in calls.calls] == [range(2), range(3, 4)]


def loader_of(folder: Path, **options: Any) -> TableLoader:
    """Return a loader of the files of a folder, which reads in this thread when it is asked for a batch."""
    given: dict[str, Any] = {"num_workers": 0, "output_format": "arrow", "batch_size": 5, **options}
    return StructuredDataset.create_dataloader(str(folder), **given)[0]


def test_files_of_different_schemas_are_read_with_one_schema(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one.parquet", pa.table({"a": pa.array([1, 2], pa.int32()), "only": ["x", "y"]}))
    write_parquet(tmp_path / "two.parquet", pa.table({"a": pa.array([2**40]), "f": [0.5]}))
    loader = loader_of(tmp_path, columns=["f", "a", "only"], filters=pc.field("a") > 1)
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert rows == [{"f": None, "a": 2, "only": "y"}, {"f": 0.5, "a": 2**40, "only": None}]


def test_leaving_early_closes_the_file(tmp_path: Path) -> None:
    file, meta = _file(tmp_path)
    storage = LocalStorage()
    stream = iter(_reader([(file, meta)], storage=storage, max_rows=5).read(whole_task(meta)))
    next(stream)
    assert not storage.all_closed
    stream.close()  # type: ignore[attr-defined]
    assert storage.opened
    assert storage.all_closed


LONG = pa.table({"a": range(2000)})
"""More rows than are read before the first batch."""


def _touch(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def test_a_file_that_changed_is_named_with_what_changed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", LONG, 400)
    loader = loader_of(tmp_path)
    stream = iter(loader)
    next(stream)
    _touch(tmp_path / "x.parquet")
    with pytest.raises(TableError, match=r"x.parquet changed while it was in use: mtime in ns was \d+ and is \d+"):
        list(stream)
    with pytest.raises(TableError, match=r"x.parquet changed while it was in use"):
        list(loader)


def test_a_change_is_reported_after_the_last_row(tmp_path: Path) -> None:
    file, meta = _file(tmp_path)
    stream = _reader([(file, meta)], filters=pc.field("a") >= 0, max_rows=5).read(whole_task(meta, take=7))
    assert next(stream).num_rows == 5
    assert next(stream).num_rows == 2
    _touch(tmp_path / "x.parquet")
    with pytest.raises(TableError, match=r"x.parquet changed while it was in use"):
        next(stream)


def test_a_change_explains_a_failure_better_than_the_failure(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", LONG, 400)
    stream = iter(loader_of(tmp_path))
    next(stream)
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(TableError, match=r"x.parquet changed while it was in use: size in bytes"):
        list(stream)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    _file(tmp_path)
    loader = loader_of(tmp_path)
    (tmp_path / "x.parquet").unlink()
    with pytest.raises(TableError, match=r"x.parquet: expected a file, found none; restore it"):
        list(loader)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_damaged_page_names_file_row_group_and_column(tmp_path: Path, is_local: bool) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({name: np.random.default_rng(0).random(4000) for name in ("a", "b", "c")})
    write_parquet(path, table, 1000, compression="zstd")
    chunk = pq.read_metadata(path).row_group(2).column(1)
    raw = bytearray(path.read_bytes())
    start = chunk.data_page_offset
    raw[start + 40 : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size - 40)
    path.write_bytes(raw)
    storage = LocalStorage(is_local=is_local)
    loader = loader_of(tmp_path, files=["x.parquet"], storage=storage, batch_size=1500)
    with pytest.raises(TableError, match=r"x.parquet, row group 2, column 'b' as parquet") as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, OSError | pa.ArrowException)
    assert storage.all_closed


class _FailingStorage(LocalStorage):
    error: BaseException | None = None

    def open(self, path: str) -> pa.NativeFile:
        if self.error is None:
            return super().open(path)
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "is_local"),
    [
        (OSError(5, "Input/output error"), StorageError, True),
        (ConnectionResetError("reset"), StorageError, False),
        (OSError("AWS Error ACCESS_DENIED during GetObject"), StorageError, False),
        (OSError("Couldn't deserialize thrift"), TableError, False),
        (pa.ArrowInvalid("page"), TableError, True),
        (MemoryError(), StorageError, True),
        (KeyboardInterrupt(), KeyboardInterrupt, True),
    ],
)
def test_the_error_type_shows_the_cause(
    tmp_path: Path, error: BaseException, kind: type[BaseException], is_local: bool
) -> None:
    _file(tmp_path)
    storage = _FailingStorage(is_local=is_local)
    loader = loader_of(tmp_path, files=["x.parquet"], storage=storage)
    storage.error = error
    with pytest.raises(kind) as caught:
        list(loader)
    if kind in {StorageError, TableError}:
        assert "x.parquet" in str(caught.value)
        assert caught.value.__cause__ is error


def test_live_rows_that_differ_from_the_count_are_an_error(tmp_path: Path) -> None:
    file, meta = _file(tmp_path)
    task = whole_task(meta, live=[10, 10, 9, 10, 5])
    with pytest.raises(TableError, match=r"x.parquet, row group 2: rows 20 to 30 must hold 9 .* got 10"):
        list(_reader([(file, meta)]).read(task))
    with pytest.raises(TableError, match=r"x.parquet, row group 2: rows 20 to 30 must hold 9 .* got 10"):
        list(_reader([(file, meta)], filters=pc.field("a") >= 0).read(task))


@pytest.mark.parametrize("groups", [(10, 10, 10, 10, 6), (10, 10, 10, 10, 4), (10, 10, 10, 10)])
def test_physical_rows_that_differ_from_the_metadata_are_an_error(tmp_path: Path, groups: tuple[int, ...]) -> None:
    file, meta = _file(tmp_path)
    wrong = FileMeta(meta.schema, groups, (1,) * len(groups), meta.footer)
    if len(groups) == 4:
        assert _rows(_reader([(file, wrong)]), whole_task(wrong)).num_rows == 40
        return
    with pytest.raises(TableError, match=r"x.parquet: row groups 0 to 4 must end at row 4[46] of the file, got .*1 "):
        list(_reader([(file, wrong)]).read(whole_task(wrong)))


@pytest.mark.parametrize("max_rows", [1, 3, 6, 100])
@pytest.mark.parametrize("start", [0, 4, 5])
@pytest.mark.parametrize("filters", [None, pc.field("a") >= 0], ids=["all rows", "filter"])
def test_a_row_group_of_more_rows_than_were_counted_is_an_error(
    tmp_path: Path, max_rows: int, start: int, filters: Any
) -> None:
    """The metadata counts too few rows of the first row group: 6 of 10."""
    file, meta = _file(tmp_path)
    wrong = FileMeta(meta.schema, (6, *meta.group_rows[1:]), meta.group_bytes, meta.footer)
    task = ReadTask(0, (Segment(0, start, 6, -1),))
    streamed, whole = "row groups 0 to 0 must end at row 6 of the file, got at least", "row group 0 must have 6 rows"
    with pytest.raises(TableError, match=rf"x.parquet: ({streamed}|{whole})"):
        list(_reader([(file, wrong)], filters=filters, max_rows=max_rows).read(task))


def test_a_segment_outside_its_row_group_is_refused(tmp_path: Path) -> None:
    file, meta = _file(tmp_path)
    for segment in (Segment(0, 5, 15, 10), Segment(7, 70, 71, 1), Segment(1, 5, 8, 3)):
        with pytest.raises(TableError, match=r"a segment must lie inside its row group"):
            list(_reader([(file, meta)]).read(ReadTask(0, (segment,))))


def test_a_dataset_pickles_and_row_ids_may_be_written(tmp_path: Path) -> None:
    _file(tmp_path)
    options: dict[str, Any] = {"columns": ["a"], "row_id": True, "num_workers": 0}
    dataset = StructuredDataset(str(tmp_path), filters=pc.field("a") > 40, **options)
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - what this test is about
    assert [row for batch in again for row in batch["row_id"].tolist()] == [41, 42, 43, 44]
    batch = next(iter(StructuredDataset(str(tmp_path), **options)))
    batch["row_id"][:] = -1
    assert batch["row_id"].tolist() == [-1] * ROWS
    assert batch["a"].tolist() == list(range(ROWS))


def test_columns_that_the_table_lacks_or_that_would_come_twice_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", pa.table({"row_id": [1]}))
    with pytest.raises(ConfigError, match=r"'nope'"):
        loader_of(tmp_path, columns=["nope"])
    with pytest.raises(ConfigError, match=r"'row_id'"):
        loader_of(tmp_path, columns=["row_id"], row_id=True)


SCHEMA = pa.schema(
    [(f"c{i}", pa.int64()) for i in range(30)]
    + [("price", pa.float64()), ("s", pa.struct([("x", pa.int32())])), ("t", pa.timestamp("us")), ("a.b", pa.string())]
)


@pytest.mark.parametrize(
    ("filters", "columns"),
    [
        (pc.field("c3") > 1, {"c3"}),
        (
            (pc.field("c3") > 1) | (pc.field("c29") + pc.field("c0") == 4) & pc.field("a.b").is_null(),
            {"c3", "c29", "c0", "a.b"},
        ),
        (pc.field("s", "x") == 3, {"s"}),
        (pc.starts_with(pc.field("a.b"), "c1"), {"a.b"}),
        (pc.year(pc.field("t")) == 2024, {"t"}),
        (pc.scalar(True), set()),
    ],
)
def test_the_columns_of_a_filter_are_found_without_reading_its_text(filters: Any, columns: set[str]) -> None:
    check_filter(filters, SCHEMA)
    assert predicate_of(filters, SCHEMA).columns == columns


@pytest.mark.parametrize(
    ("filters", "kind", "words"),
    [
        (3, ConfigTypeError, "filters must be .* got int 3|filters must be .* got 3"),
        (pc.field("prize") > 3, ConfigError, "'prize', which the table does not have; the nearest are 'price'"),
        (pc.field("a.c") == "x", ConfigError, "'a.c', which"),
        (pc.field("price") > "x", ConfigError, "must fit the table's types"),
        (pc.field("s", "y") > 3, ConfigError, "must fit the table's types"),
        (pc.field("price") + 1, ConfigError, "gives double"),
        (pc.field(0) > 1, ConfigError, "by name"),
    ],
)
def test_a_filter_that_does_not_fit_says_why(filters: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        StructuredDataset.from_arrow(SCHEMA.empty_table(), filters=filters)


def test_a_mask_is_in_row_order_and_as_long_as_the_batch() -> None:
    batch = pa.record_batch({"a": np.arange(200_000)})
    assert row_mask(batch, pc.field("a") >= 150_000).true_count == 50_000
    assert row_mask(batch, pc.field("a") >= 150_000)[149_999].as_py() is False
    assert row_mask(batch.select([]), pc.scalar(True)).true_count == 200_000
    assert len(row_mask(batch.slice(0, 0), pc.field("a") > 1)) == 0


def test_versions_differ_by_etag_too(tmp_path: Path) -> None:
    _file(tmp_path)

    class Tagged(LocalStorage):
        tag: str | None = None

        def version(self, path: str) -> FileVersion:
            plain = super().version(path)
            return FileVersion(plain.num_bytes, plain.mtime_ns, self.tag)

    storage = Tagged()
    loader = loader_of(tmp_path, files=["x.parquet"], storage=storage)
    storage.tag = "new"
    with pytest.raises(TableError, match=r"etag was None and is 'new'"):
        list(loader)


READ = """
import sys
from torch_table_loader import StructuredDataset
loader, _ = StructuredDataset.create_dataloader({folder!r}, batch_size=7, shuffle="splits", num_workers=2)
assert sum(len(batch["id"]) for batch in loader) == 100
assert "pandas" not in sys.modules
"""


@pytest.mark.slow
def test_numbers_are_read_without_pandas_whose_import_takes_longer_than_the_first_batch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(100), "x": np.arange(100.0)}), tmp_path / "x.parquet", row_group_size=9)
    subprocess.run([sys.executable, "-c", READ.format(folder=str(tmp_path))], check=True)
