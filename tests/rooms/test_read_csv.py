from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from tests.tables.reading import LocalStorage, all_batches, as_table, data_file, inspect, whole_task
from torch_table_loader.errors import TableError
from torch_table_loader.read.conform import resolve_schema
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import DataFile
from torch_table_loader.sizes import small_sizes


def _file(folder: Path, text: str) -> DataFile:
    (folder / "x.csv").write_text(text)
    return data_file(folder / "x.csv", "csv")


def test_types_come_from_the_whole_file_not_from_its_first_block(tmp_path: Path) -> None:
    lines = [f"{i},{i}" for i in range(700_000)]
    file = _file(tmp_path, "a,b\n" + "\n".join(lines) + "\n0.5,x\n")
    assert file.version.num_bytes > 8 << 20
    meta = inspect(file)
    assert meta.schema == pa.schema([("a", pa.float64()), ("b", pa.string())])
    batches = all_batches(file, meta, ["b", "a"], max_rows=50_000)
    assert {batch.schema for batch in batches} == {pa.schema([("b", pa.string()), ("a", pa.float64())])}
    assert sum(batch.num_rows for batch in batches) == meta.num_rows == 700_001
    assert batches[-1].to_pylist()[-1] == {"b": "x", "a": 0.5}


def test_a_given_schema_applies_and_other_columns_are_not_parsed(tmp_path: Path) -> None:
    file = _file(tmp_path, "a,rest,day\n1,x,2024-01-01\n2,y,\n")
    given = pa.schema([("day", pa.date32()), ("a", pa.int8()), ("new", pa.string())])
    meta = inspect(file, given)
    assert meta.schema == pa.schema([("day", pa.date32()), ("a", pa.int8())])
    table = resolve_schema([(file.name, meta.schema)], given=given)
    reader = TaskReader(LocalStorage(), [file], [meta], table, given.names)
    assert as_table(reader.read(whole_task(meta)), reader.schema).to_pylist() == [
        {"day": dt.date(2024, 1, 1), "a": 1, "new": None},
        {"day": None, "a": 2, "new": None},
    ]


def test_a_given_schema_without_any_column_of_the_file_still_counts_rows(tmp_path: Path) -> None:
    file = _file(tmp_path, "a,b\n1,x\n2,y\n")
    given = pa.schema([("new", pa.string())])
    meta = inspect(file, given)
    assert (meta.schema.names, meta.num_rows) == (["a"], 2)
    reader = TaskReader(LocalStorage(), [file], [meta], given, ["new"])
    assert as_table(reader.read(whole_task(meta)), given)["new"].to_pylist() == [None, None]


@small_sizes(csv_block_bytes=4096)
def test_quoted_line_breaks_may_be_at_any_block_boundary(tmp_path: Path) -> None:
    file = _file(tmp_path, "a,b\n" + "".join(f'{i},"x\n\ny,{i}"\n' for i in range(3000)))
    meta = inspect(file)
    got = pa.Table.from_batches(all_batches(file, meta, ["a", "b"], max_rows=100))
    assert got.to_pydict() == {"a": list(range(3000)), "b": [f"x\n\ny,{i}" for i in range(3000)]}


def test_a_value_of_the_wrong_type_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, "a\n1\nzz\n")
    with pytest.raises(TableError, match=r"x\.csv as csv .*'zz'"):
        inspect(file, pa.schema([("a", pa.int64())]))
    with pytest.raises(TableError, match=r"x\.csv as csv .*Expected 2 columns, got 1"):
        inspect(_file(tmp_path, "a,b\n1,2\n3\n"))


def test_a_row_longer_than_a_block_is_refused_when_the_file_is_inspected(tmp_path: Path) -> None:
    file = _file(tmp_path, "a\n" + "x\n" * 10 + "y" * (3 << 20) + "\n" + "x\n" * 10)
    for schema in (None, pa.schema([("a", pa.string())])):
        with pytest.raises(TableError, match=r"x\.csv must have rows of at most 1048576 bytes"):
            inspect(file, schema)


@small_sizes(inference_bytes=5)
def test_a_large_file_needs_a_schema(tmp_path: Path) -> None:
    file = _file(tmp_path, "a\n1\n2\n")
    with pytest.raises(TableError, match=r"x\.csv must be at most 5 bytes .* pass schema="):
        inspect(file)
    assert inspect(file, pa.schema([("a", pa.int64())])).num_rows == 2


def test_files_whose_guessed_types_differ_come_as_double(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a\n1\n")
    (tmp_path / "two.csv").write_text("a\n0.5\n")
    files = [data_file(tmp_path / name, "csv") for name in ("one.csv", "two.csv")]
    metas = [inspect(file) for file in files]
    named = [(file.name, meta.schema) for file, meta in zip(files, metas, strict=True)]
    reader = TaskReader(LocalStorage(), files, metas, resolve_schema(named, inferred=True), ["a"])
    got = [
        as_table(reader.read(whole_task(meta, place)), reader.schema)["a"].to_pylist()
        for place, meta in enumerate(metas)
    ]
    assert got == [[1.0], [0.5]]


def test_a_file_that_grew_since_it_was_counted_is_reported(tmp_path: Path) -> None:
    file = _file(tmp_path, "a\n1\n2\n")
    meta = inspect(file)
    longer = _file(tmp_path, "a\n1\n2\n3\n")
    reader = TaskReader(LocalStorage(), [longer], [meta], meta.schema, ["a"])
    with pytest.raises(TableError, match=r"x\.csv: row groups 0 to 0 must end at row 2 .* got at least 1 more"):
        list(reader.read(whole_task(meta)))


def test_a_header_without_a_line_break_is_a_file_of_no_rows(tmp_path: Path) -> None:
    for given in (None, pa.schema([("a", pa.int64()), ("b", pa.string())])):
        meta = inspect(_file(tmp_path, "a,b"), given)
        assert (meta.schema.names, meta.num_rows) == (["a", "b"], 0)


def test_an_empty_field_is_null_and_empty_text_in_quotes_and_words_are_null_outside_of_text(tmp_path: Path) -> None:
    file = _file(tmp_path, 'a,b\n1,x\n,\nNA,NA\n"",""\n')
    expected = {"a": [1, None, None, None], "b": ["x", None, "NA", ""]}
    for given in (None, pa.schema([("a", pa.int64()), ("b", pa.string())])):
        meta = inspect(file, given)
        assert pa.Table.from_batches(all_batches(file, meta, ["a", "b"], max_rows=9)).to_pydict() == expected
