"""If it is not known whether a row passes, the columns of the filter are read before the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.reading import LocalStorage, as_table, count, data_file, inspect, whole_task, write_parquet
from torch_table_loader.errors import TableError
from torch_table_loader.read.file_walk import Beside
from torch_table_loader.read.parquet import ParquetFile
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import ReadTask

ROWS = 60
TABLE = pa.table(
    {
        "a": pa.array(range(ROWS), pa.int32()),
        "x": pa.array([None if i % 7 == 0 else float("inf") if i % 7 == 1 else i / 2 for i in range(ROWS)]),
        "s": [None if i % 5 == 0 else f"s{i % 3}" for i in range(ROWS)],
        "n": [None if i % 6 == 0 else {"k": i // 8, "v": [i]} for i in range(ROWS)],
        "l": [[i] * (i % 4) for i in range(ROWS)],
    }
)
BEYOND = pa.schema([("day", pa.int32()), ("late", pa.int64())])
"""A column that the partition says, and one that the file is too old to have."""

EXPECTED = TABLE.append_column("day", pa.array([3] * ROWS, pa.int32())).append_column(
    "late", pa.nulls(ROWS, pa.int64())
)
FILTERS = [
    pc.field("a") >= 40,
    pc.field("a") == 33,
    pc.field("a") < 0,
    ~(pc.field("x") > 8),
    pc.field("s").is_null() | (pc.field("s") == "s1"),
    pc.field("n", "k") == 3,
    (pc.field("day") == 3) & (pc.field("a") > 50),
    pc.field("late").is_null() & (pc.field("x") > 20),
    pc.field("late") > 1,
    pc.list_value_length(pc.field("l")) == 3,
]
COLUMNS = [["a", "x", "s", "n", "l"], ["l", "a"], ["s"], ["n", "day", "x"], ["late", "s"], []]


def _reader(path: Path, columns: Sequence[str], filters: Any, max_rows: int, **options: Any) -> TaskReader:
    file = data_file(path, partition=(("day", 3),))
    meta = inspect(file)
    schema = pa.schema([*meta.schema, *BEYOND])
    return TaskReader(LocalStorage(), [file], [meta], schema, columns, filters=filters, max_rows=max_rows, **options)


def _whole(path: Path, live: Sequence[int] | None = None) -> ReadTask:
    return whole_task(inspect(data_file(path)), live=live)


def _rows(reader: TaskReader, task: ReadTask) -> pa.Table:
    return as_table(reader.read(task), reader.schema)


class _Asked:
    """Records which columns of which row groups a Parquet file decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns: list[tuple[int, str]] = []
        thinned, batches = ParquetFile.thinned, ParquetFile.batches

        def noting_group(handle: ParquetFile, group: int, columns: Sequence[str], *rest: Any) -> pa.RecordBatch:
            self.columns += [(group, name) for name in columns]
            return thinned(handle, group, columns, *rest)

        def noting_stream(
            handle: ParquetFile, groups: range, columns: Sequence[str], rows: int
        ) -> Iterator[pa.RecordBatch]:
            self.columns += [(group, name) for group in groups for name in columns]
            return batches(handle, groups, columns, rows)

        monkeypatch.setattr(ParquetFile, "thinned", noting_group)
        monkeypatch.setattr(ParquetFile, "batches", noting_stream)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    filters=st.sampled_from(FILTERS),
    columns=st.sampled_from(COLUMNS),
    group=st.sampled_from([7, 20, 60]),
    max_rows=st.integers(1, 70),
    skip=st.integers(0, 12),
    take=st.integers(-1, 30),
)
def test_only_passing_rows_come_whether_or_not_they_are_counted(
    tmp_path: Path, filters: Any, columns: list[str], group: int, max_rows: int, skip: int, take: int
) -> None:
    path = tmp_path / f"{group}.parquet"
    if not path.exists():
        write_parquet(path, TABLE, group)
    reader = _reader(path, columns, filters, max_rows)
    passing = EXPECTED.filter(filters)
    stop = passing.num_rows if take < 0 else skip + take
    whole = _whole(path)
    live = count(reader, whole)
    assert sum(live) == passing.num_rows
    for known in (None, live):
        task = _whole(path, known)
        batches = list(reader.read(ReadTask(0, task.segments, skip, take)))
        assert all(0 < batch.num_rows <= max_rows for batch in batches)
        found = as_table(batches, reader.schema)
        assert found.num_rows == passing.slice(skip, max(0, stop - skip)).num_rows
        if columns:
            assert found.equals(passing.select(columns).slice(skip, max(0, stop - skip)))
    with_ids = _reader(path, columns, filters, max_rows, row_id_bases=[0])
    assert _rows(with_ids, whole)["row_id"].to_pylist() == passing["a"].to_pylist()


@pytest.mark.parametrize("max_rows", [20, 8])  # row groups that are read in one go, and those that are streamed
def test_a_row_group_without_a_passing_row_decodes_only_filter_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    write_parquet(tmp_path / "f.parquet", TABLE, 20)
    asked = _Asked(monkeypatch)
    reader = _reader(tmp_path / "f.parquet", ["l", "s"], pc.field("a").isin([21, 37]), max_rows)
    assert _rows(reader, _whole(tmp_path / "f.parquet")).equals(EXPECTED.select(["l", "s"]).take([21, 37]))
    assert sorted(asked.columns) == [(0, "a"), (1, "a"), (1, "l"), (1, "s"), (2, "a")]


@pytest.mark.parametrize(("most_of_filter", "most_of_others"), [(8, 3), (3, 8), (5, 4)])
def test_columns_in_other_batches_than_the_filter_columns_are_aligned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_of_filter: int, most_of_others: int
) -> None:
    write_parquet(tmp_path / "f.parquet", TABLE, 20)
    real = ParquetFile.batches

    def cut(handle: ParquetFile, groups: range, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        assert rows == 8
        return real(handle, groups, columns, most_of_filter if columns == ("a",) else most_of_others)

    monkeypatch.setattr(ParquetFile, "batches", cut)
    wanted = [4, 6, 7, 21, 30, 31, 32, 33, 34, 35, 36, 37, 38, 59]
    reader = _reader(tmp_path / "f.parquet", ["l", "a"], pc.field("a").isin(wanted), 8)
    batches = list(reader.read(_whole(tmp_path / "f.parquet")))
    assert all(batch.num_rows for batch in batches)
    assert as_table(batches, reader.schema).equals(EXPECTED.select(["l", "a"]).take(wanted))


def test_a_row_group_known_to_have_no_live_row_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "f.parquet", TABLE, 20)
    reader = _reader(tmp_path / "f.parquet", ["s"], pc.field("a").isin([2, 57]), 20)
    known = _whole(tmp_path / "f.parquet", [1, 0, 1])
    asked = _Asked(monkeypatch)
    assert _rows(reader, known).equals(EXPECTED.select(["s"]).take([2, 57]))
    assert {group for group, _ in asked.columns} == {0, 2}


class _Streams:
    """An open file whose batches have the lengths that a test gives."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.opened, self.closed = lengths, 0, 0

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        self.opened += 1
        start = 10
        try:
            for length in self.lengths:
                yield pa.record_batch({"row": range(start, start + length)})
                start += length
        finally:
            self.closed += 1

    def close(self) -> None:
        return


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 72), max_size=8),
)
def test_columns_stay_aligned_however_their_batches_are_cut(lengths: list[int], cuts: list[int]) -> None:
    end = 10 + sum(lengths)
    edges = sorted({min(10 + cut, end) for cut in cuts})
    file = _Streams(lengths)
    with closing(Beside(file, range(1), ["row"], 9, 10)) as beside:
        for start, stop in zip(edges[::2], edges[1::2], strict=False):
            found = [(row, batch["row"].to_pylist()) for row, batch in beside.rows(start, stop)]
            assert all(values[0] == row for row, values in found)
            assert [value for _, values in found for value in values] == list(range(start, stop))
    assert file.opened == file.closed == (len(edges) > 1)  # nothing is opened before rows are asked for


def test_columns_of_different_lengths_are_an_error() -> None:
    with (
        closing(Beside(_Streams([4, 3]), range(2, 3), ["row"], 9, 10)) as beside,
        pytest.raises(TableError, match="row groups 2 to 2 must end at row 20 of the file, got 3 fewer"),
    ):
        list(beside.rows(12, 20))
