from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.tables.reading import all_batches, data_file, inspect
from torch_table_loader import Json, StructuredDataset
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.records import DataFile
from torch_table_loader.sizes import small_sizes


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
    (got,) = StructuredDataset(file.path, schema=given, output_format="arrow", num_workers=0)
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
        StructuredDataset(file.path)


def _values(folder: Path, *texts: str, **options: Any) -> tuple[list[pa.DataType], list[Any]]:
    """Write files, and read them as a table of one column: its type, and its values as Arrow has them."""
    for place, text in enumerate(texts):
        (folder / f"{place}.json").write_text(text)
    dataset = StructuredDataset(folder, output_format="arrow", num_workers=0, **options)
    batches = list(dataset)
    assert all(field.metadata is None for batch in (dataset, *batches) for field in batch.schema)
    return dataset.schema.types, [next(iter(row.values())) for batch in batches for row in batch.to_pylist()]


def test_a_key_with_a_type_may_lack_in_parts_and_be_null(tmp_path: Path) -> None:
    given = Json(types={"a": "int16"})
    for texts, values in (
        (('{"b": 1}\n', '{"a": 2}\n', ""), [(1, None), (None, 2)]),
        (('{"a": null, "b": 1}\n',), [(1, None)]),
    ):
        for place, text in enumerate(texts):
            (tmp_path / f"{place}.json").write_text(text)
        dataset = StructuredDataset(tmp_path, output_format="arrow", num_workers=0, format=given, shuffle=False)
        rows = [row for batch in dataset for row in batch.to_pylist()]
        assert [(row["b"], row["a"]) for row in rows] == values
        assert dataset.schema.field("a").type == pa.int16()
        for path in tmp_path.glob("*.json"):
            path.unlink()


_LARGE = 2**64 - 1
_UTC = dt.UTC
_NAIVE = dt.datetime.fromisoformat("2026-01-01")


@pytest.mark.parametrize(
    ("texts", "kind", "expected"),
    [
        ([str(2**53 + 1), str(_LARGE), str(_LARGE - 1)], pa.uint64(), [2**53 + 1, _LARGE, _LARGE - 1]),
        (["-1", str(_LARGE)], pa.decimal128(38, 0), [Decimal(-1), Decimal(_LARGE)]),
        (["9" * 39, "1"], pa.decimal256(76, 0), [Decimal("9" * 39), Decimal(1)]),
        ([f"[null, {_LARGE}]", "[7]"], pa.list_(pa.uint64()), [[None, _LARGE], [7]]),
        ([f'{{"b": {_LARGE}}}'], pa.struct([("b", pa.uint64())]), [{"b": _LARGE}]),
        (["1e20", str(_LARGE)], pa.float64(), [1e20, float(_LARGE)]),
        (["1e20"], pa.float64(), [1e20]),
        (['"007"', '"8"'], pa.string(), ["007", "8"]),
        (['"2026-01-01T00:00:00+02:00"'], pa.timestamp("s", "UTC"), [dt.datetime(2025, 12, 31, 22, tzinfo=_UTC)]),
        (
            ['"2026-01-01T00:00:00"', '"2026-01-02"'],
            pa.timestamp("s"),
            [_NAIVE, _NAIVE + dt.timedelta(1)],
        ),
        (['["2026-01-01 00Z"]'], pa.list_(pa.timestamp("s", "UTC")), [[dt.datetime(2026, 1, 1, tzinfo=_UTC)]]),
    ],
)
@small_sizes(json_block_bytes=64)
def test_whole_numbers_are_exact_and_times_keep_their_zone(
    tmp_path: Path, texts: list[str], kind: pa.DataType, expected: list[Any]
) -> None:
    lines = [f'{{"a": {text}}}\n' for text in texts]
    for folder, parts in (("one", ["".join(lines)]), ("parts", [*lines, "\n"])):
        (tmp_path / folder).mkdir()
        if folder == "one" or (texts[0] != "1e20" and "[7]" not in texts):
            assert _values(tmp_path / folder, *parts) == ([kind], expected)


def test_texts_of_which_some_name_a_zone_stay_text_in_a_file_and_are_named_in_two(tmp_path: Path) -> None:
    lines = ['{"a": "2026-01-01T00:00:00+02:00"}\n', '{"a": "2026-01-01"}\n']
    assert _values(tmp_path, "".join(lines))[0] == [pa.string()]
    with pytest.raises(TableError, match=r"timestamp\[s, tz=UTC\] in 0\.json and timestamp\[s\] in 1\.json"):
        _values(tmp_path, *lines)


def test_how_numbers_are_written_is_seen_wherever_objects_stand(tmp_path: Path) -> None:
    one, other = '{"a": 7, "b": NaN}', f'{{"a": {_LARGE}, "b": null}}'
    for text in (f"{one}{other}", f"\ufeff\n {one}  {other}\r\n\n", f"[{one}, {other}]\n"):
        assert _values(tmp_path, text) == ([pa.uint64(), pa.float64()], [7, _LARGE])


def test_whole_numbers_in_lists_that_begin_with_null_are_not_lost(tmp_path: Path) -> None:
    """A torn list is what pyarrow guesses of them, which must not be looked into."""
    text = '{"a": {"d": [null, 1, 2.5, null], "t": null}}\n{"a": {"d": null, "t": "2026-01-01"}}\n'
    _, values = _values(tmp_path, text)
    assert values[0] == {"d": [None, 1, 2.5, None], "t": None}


def test_a_number_of_more_digits_than_any_type_has_is_refused(tmp_path: Path) -> None:
    text = '{"a": {"b": [' + "9" * 90 + "]}}\n"
    with pytest.raises(TableError, match=r"at most 76 digits, got a longer one as 'a\.b'; .*Json\(types="):
        _values(tmp_path, text)
    given = Json(types={"a": pa.struct([("b", pa.list_(pa.float64()))])})
    assert _values(tmp_path, text, format=given)[1] == [{"b": [1e90]}]


@pytest.mark.parametrize("end", ["", "\n", " \r\n"])
@small_sizes(json_block_bytes=64)
@daily(1)
def test_objects_of_an_array_or_over_several_lines_are_rows(tmp_path: Path, end: str) -> None:
    rows = [{"a": i, "s": f'}}],[{{\n"é{i}' * (i % 50), "l": [{"x": i}], "none": None} for i in range(300)]
    texts = [json.dumps(rows), json.dumps(rows, indent=1), "\n".join(json.dumps(row, indent=2) for row in rows)]
    texts += [json.dumps(rows[:100]) + json.dumps(rows[100:], ensure_ascii=False)]
    for text in texts:
        (tmp_path / "x.json").write_text(text + end)
        for given in (None, pa.schema([("s", pa.string()), ("a", pa.int64())])):
            dataset = StructuredDataset(tmp_path, schema=given, output_format="arrow", num_workers=0)
            got = [row for batch in dataset for row in batch.to_pylist()]
            assert [(row["a"], row["s"]) for row in got] == [(row["a"], row["s"]) for row in rows]


def test_an_empty_array_is_no_rows(tmp_path: Path) -> None:
    assert _values(tmp_path, "[]\n", '[{"a": 1}]') == ([pa.int64()], [1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "got '1'"),
        ('[{"a": 1}', "got the end of the file"),
        ('[{"a": 1}, ', "got the end of the file"),
        ('[{"a": 1}, {"a"', "an object that does not parse"),
        ('[{"a": 1} {"a": 2}]', "got '{' after an object"),
        ('[{"a": 1}, ]', "got '\\]' after a comma"),
        ('[[{"a": 1}]]', r"got '\['"),
        ('{\n"a": 1}\n,', "got ','"),
    ],
)
def test_an_array_that_is_cut_off_or_holds_other_things_is_refused(tmp_path: Path, text: str, said: str) -> None:
    for given in (None, pa.schema([("a", pa.int64())])):
        with pytest.raises(TableError, match=rf"0\.json must be JSON objects, .*{said}"):
            _values(tmp_path, text, schema=given)


@small_sizes(json_block_bytes=64, json_line_bytes=1 << 20)
def test_an_object_of_an_array_is_held_up_to_a_limit(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="an object is longer than 1048576 bytes"):
        _values(tmp_path, '[{"a": "' + "x" * (8 << 20) + '"}]')


def test_values_of_two_types_under_one_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"0\.json must hold values of one type as 'a', .* from number to string"):
        _values(tmp_path, '{"a": 1}\n{"a": "x"}\n')
    with pytest.raises(TableError, match=r"int64 in 0\.json and string in 1\.json"):
        _values(tmp_path, '{"a": 1}\n', '{"a": "x"}\n')


def test_types_of_keys_are_taken_and_kept(tmp_path: Path) -> None:
    text = '{"a": "2026-01-01"}\n'
    for kind, value in (("string", "2026-01-01"), ("date32", dt.date(2026, 1, 1))):
        assert _values(tmp_path, text, format=Json(types={"a": kind}))[1] == [value]
    with pytest.raises(TableError, match=r"column 'a' must be read as time32\[s\], as Json\(types=\) says"):
        _values(tmp_path, text, format=Json(types={"a": "time32[s]"}))
    for name in ("b", "A"):
        with pytest.raises(ConfigError, match=f"types= names a column {name!r} that no file has.*correct it"):
            _values(tmp_path, text, format=Json(types={name: "int64"}))
    with pytest.raises(ConfigError, match="strin"):
        Json(types={"a": "strin"})
    with pytest.raises(ConfigTypeError, match="types="):
        Json(types="a")  # type: ignore[arg-type]
