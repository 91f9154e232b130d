from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.tables.reading import LocalStorage, all_batches, as_table, data_file, inspect, whole_task
from torch_table_loader.errors import TableError
from torch_table_loader.read.conform import resolve_schema
from torch_table_loader.read.formats import inspect_file
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import DataFile
from torch_table_loader.testing import small_sizes


def _file(folder: Path, rows: list[Any], end: str = "\n") -> DataFile:
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
    return data_file(folder / "x.jsonl", "jsonl")


@small_sizes(json_block_bytes=64)
def test_types_come_from_the_whole_file_and_blocks_follow_them(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": i, "l": [i], "o": {"x": i}} for i in range(50)]
    rows += [{"late": "x"}, {"a": 0.5, "l": [], "o": {"y": "z"}}, {"a": 1, "big": "y" * 1000}]
    file = _file(tmp_path, rows, end="")
    meta = inspect(file)
    assert meta.num_rows == 53
    batches = all_batches(file, meta, meta.schema.names, max_rows=7)
    assert {batch.schema for batch in batches} == {meta.schema}
    got = pa.Table.from_batches(batches).to_pylist()
    assert got[3] == {"a": 3.0, "l": [3], "o": {"x": 3, "y": None}, "late": None, "big": None}
    assert (got[50]["late"], got[51]["o"], got[52]["big"]) == ("x", {"x": None, "y": "z"}, "y" * 1000)


def test_a_given_schema_applies_even_to_types_that_json_lacks(tmp_path: Path) -> None:
    file = _file(tmp_path, [{"day": "2024-01-02", "k": "x", "a": 1, "rest": [1]}, {"a": 2}])
    given = pa.schema(
        [("a", pa.int8()), ("day", pa.date32()), ("k", pa.dictionary(pa.int32(), pa.string())), ("new", pa.float32())]
    )
    meta = inspect(file, given)
    table = resolve_schema([(file.name, meta.schema)], given=given)
    reader = TaskReader(LocalStorage(), [file], [meta], table, given.names)
    got = as_table(reader.read(whole_task(meta)), reader.schema)
    assert got.schema == given
    assert got.to_pylist() == [
        {"a": 1, "day": dt.date(2024, 1, 2), "k": "x", "new": None},
        {"a": 2, "day": None, "k": None, "new": None},
    ]


def test_lines_without_keys_are_rows(tmp_path: Path) -> None:
    file = _file(tmp_path, [{}, {}, {}])
    meta = inspect(file)
    assert (meta.num_rows, meta.schema.names) == (3, [])
    assert sum(batch.num_rows for batch in all_batches(file, meta, ())) == 3


@pytest.mark.parametrize("text", ['{"a": 1}\n{"a":', '{"a": 1}\n[1]\n', "a,b\n1,2\n"])
def test_text_that_is_not_lines_of_objects_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(TableError, match=r"x\.jsonl as jsonl"):
        inspect(data_file(tmp_path / "x.jsonl", "jsonl"))


@small_sizes(inference_bytes=5)
def test_a_large_file_needs_a_schema(tmp_path: Path) -> None:
    file = _file(tmp_path, [{"a": 1}])
    with pytest.raises(TableError, match=r"x\.jsonl must be at most 5 bytes .* pass schema="):
        inspect(file)
    assert inspect(file, pa.schema([("a", pa.int64())])).num_rows == 1


@pytest.mark.parametrize("levels", [300, 1000, 100_000])
@pytest.mark.parametrize("opened", ['{"x":', "[", '[{"\\"":', '{"x":\n'])
@small_sizes(json_block_bytes=1 << 12)
def test_lines_that_nest_too_deep_are_refused_and_do_not_end_the_process(
    tmp_path: Path, opened: str, levels: int
) -> None:
    closed = {"{": "}", "[": "]"}
    ends = "".join(closed[letter] for letter in reversed(opened) if letter in closed)
    path = tmp_path / "x.jsonl"
    for torn in (False, True):
        path.write_text('{"a": 1}\n{"a": ' + opened * levels + ("" if torn else "1" + ends * levels + "}\n"))
        file = data_file(path, "jsonl")
        with pytest.raises(TableError, match=r"x\.jsonl"):
            inspect(file)
        given = inspect(_file(tmp_path, [{"a": 1}, {"b": 2}]), pa.schema([("b", pa.int64())]))
        assert given.num_rows == 2


def test_what_has_no_type_may_nest_any_number_of_levels(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1, "deep": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    meta = inspect(data_file(path, "jsonl"), pa.schema([("a", pa.int64())]))
    assert [batch.to_pylist() for batch in all_batches(data_file(path, "jsonl"), meta, ["a"], max_rows=9)] == [
        [{"a": 1}]
    ]


def test_types_that_nest_too_deep_are_refused_by_column(tmp_path: Path) -> None:
    file = _file(tmp_path, [json.loads('{"x":' * 100 + "1" + "}" * 100)])
    with pytest.raises(
        TableError, match=r"x\.jsonl must have columns whose types nest at most 64 levels deep, got 100 in 'x'"
    ):
        inspect_file(LocalStorage(), file, None)
