from __future__ import annotations

import datetime as dt
import gzip
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import examples
from tests.tables.reading import LocalStorage, all_batches, data_file, inspect, whole_task
from torch_table_loader import Csv, StructuredDataset
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import DataFile
from torch_table_loader.sizes import small_sizes


def _file(folder: Path, text: str) -> DataFile:
    (folder / "x.csv").write_text(text)
    return data_file(folder / "x.csv", "csv")


def _table(path: Path | str, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table in its order."""
    batches = StructuredDataset(path, "csv", schema=schema, output_format="arrow", num_workers=0)
    return [row for batch in batches for row in batch.to_pylist()]


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
    assert inspect(file, given).schema == pa.schema([("day", pa.date32()), ("a", pa.int8())])
    assert _table(file.path, given) == [
        {"day": dt.date(2024, 1, 1), "a": 1, "new": None},
        {"day": None, "a": 2, "new": None},
    ]


def test_a_given_schema_without_any_column_of_the_file_still_counts_rows(tmp_path: Path) -> None:
    file = _file(tmp_path, "a,b\n1,x\n2,y\n")
    given = pa.schema([("new", pa.string())])
    meta = inspect(file, given)
    assert (meta.schema.names, meta.num_rows) == (["a"], 2)
    assert _table(file.path, given) == [{"new": None}, {"new": None}]


@small_sizes(csv_block_bytes=4096)
def test_quoted_line_breaks_may_be_at_any_block_boundary(tmp_path: Path) -> None:
    file = _file(tmp_path, "a,b\n" + "".join(f'{i},"x\n\ny,{i}"\n' for i in range(3000)))
    meta = inspect(file)
    got = pa.Table.from_batches(all_batches(file, meta, ["a", "b"], max_rows=100))
    assert got.to_pydict() == {"a": list(range(3000)), "b": [f"x\n\ny,{i}" for i in range(3000)]}


def test_a_value_of_the_wrong_type_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, "a\n1\nzz\n")
    with pytest.raises(TableError, match=r"x\.csv must hold values of the types .*'zz'.* pass a type"):
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
    rows = _table(tmp_path)
    assert rows == [{"a": 1.0}, {"a": 0.5}]
    assert [type(row["a"]) for row in rows] == [float, float]


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


def _rows(folder: Path, format: Any = None, **texts: str | bytes) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:  # noqa: A002
    """Write files, and read them as a table: its types, and its rows as Arrow has them."""
    for name, text in texts.items():
        (folder / f"{name}.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    dataset = StructuredDataset(folder, format, output_format="arrow", num_workers=0)
    batches = list(dataset)
    assert all(field.metadata is None for batch in (dataset, *batches) for field in batch.schema)
    return dataset.schema.types, [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


_LARGE = 2**64 - 1


@pytest.mark.parametrize(
    ("texts", "kind", "expected"),
    [
        ([str(2**53 + 1), str(_LARGE), str(_LARGE - 1)], pa.uint64(), [2**53 + 1, _LARGE, _LARGE - 1]),
        (["-1", str(_LARGE)], pa.decimal128(38, 0), [Decimal(-1), Decimal(_LARGE)]),
        (["-9223372036854775809"], pa.decimal128(38, 0), [Decimal(-(2**63) - 1)]),
        (["9" * 38], pa.decimal128(38, 0), [Decimal("9" * 38)]),
        (["+18446744073709551615"], pa.decimal128(38, 0), [Decimal(_LARGE)]),
        (["9" * 39, "1"], pa.string(), ["9" * 39, "1"]),
        (["9" * 90], pa.string(), ["9" * 90]),
        (["+7"], pa.float64(), [7.0]),
        (["1e20", str(_LARGE)], pa.float64(), [1e20, float(_LARGE)]),
        (["0.5", str(_LARGE)], pa.float64(), [0.5, float(_LARGE)]),
        (["007", "8"], pa.string(), ["007", "8"]),
        (['"007"', '"8"'], pa.string(), ["007", "8"]),
        (["0x10"], pa.string(), ["0x10"]),
        (["-07", "NA"], pa.string(), ["-07", "NA"]),
        (["0", "-0", " 7 "], pa.int64(), [0, 0, 7]),
        (["NA", '""', "18446744073709551615"], pa.uint64(), [None, None, _LARGE]),
        (["2026-01-01T00:00:00+02:00"], pa.timestamp("s", "UTC"), None),
    ],
)
def test_whole_numbers_are_exact_codes_stay_text_and_a_table_in_parts_is_as_one_file(
    tmp_path: Path, texts: list[str], kind: pa.DataType, expected: list[Any] | None
) -> None:
    (tmp_path / "one").mkdir()
    types, rows = _rows(tmp_path / "one", a="a\n" + "\n".join(texts) + "\n")
    assert types == [kind]
    assert expected is None or rows == [(value,) for value in expected]
    if expected is not None and not pa.types.is_floating(kind):
        parts = {f"part{place}": f"a\n{text}\n" for place, text in enumerate(texts)}
        (tmp_path / "parts").mkdir()
        assert _rows(tmp_path / "parts", **parts, none="a\n") == (types, rows)


@small_sizes(csv_block_bytes=64)
def test_a_number_with_a_zero_in_front_is_found_wherever_it_stands(tmp_path: Path) -> None:
    """Most files are not parsed twice to find one: only where a byte may begin one."""
    draws = random.Random(7)
    for delimiter in ",;\t|- :.":
        for draw in range(examples(40)):
            quote = draws.choice(["", '"'])
            fields = [f"{quote}{draws.choice(['', ' ', '-'])}{draws.choice([0, 7, 10, 100])}{quote}" for _ in range(30)]
            if delimiter in "- .":
                fields = [field.replace(delimiter, "") for field in fields]
            codes = draw % 2 == 1
            if codes:
                fields[draws.randrange(30)] = f"{quote}{draws.choice(['', '-' if delimiter != '-' else ''])}07{quote}"
            lines = [f"{field}{delimiter}2026" for field in fields]
            turned = [f"2026{delimiter}{field}" for field in fields]
            for text, place in ((lines, 0), (turned, 1)):
                end = draws.choice(["", "\n"])
                (tmp_path / "x.csv").write_text(f"a{delimiter}b\n" + draws.choice(["\n", "\r\n"]).join(text) + end)
                dataset = StructuredDataset(tmp_path / "x.csv", Csv(delimiter=delimiter), output_format="arrow")
                kind = dataset.schema.types[place]
                assert (kind == pa.string()) == codes, (text, kind)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("1", "0.5", pa.float64()),
        ("2026-01-01", "2026-01-01 10:00:00", pa.timestamp("s")),
        ("2026-01-01 10:00:00", "2026-01-01 10:00:00.5", pa.timestamp("ns")),
        ("NA", "7", pa.int64()),
        ("NA", "x", pa.string()),
        ("1", "x", "int64 in a.csv and string in b.csv"),
        ("true", "7", "bool in a.csv and int64 in b.csv"),
        ("2026-01-01 10:00:00", "2026-01-01 10:00:00Z", r"timestamp.s. in a.csv and timestamp.s, tz=UTC. in b.csv"),
        (str(_LARGE), "x", "uint64 in a.csv and string in b.csv"),
        ("1" * 30, "0.5", r"decimal128.38, 0. in a.csv and double in b.csv"),
    ],
)
def test_files_of_different_guesses_unify_or_are_named(
    tmp_path: Path, one: str, other: str, kind: pa.DataType | str
) -> None:
    if isinstance(kind, str):
        with pytest.raises(TableError, match=kind):
            _rows(tmp_path, a=f"a\n{one}\n", b=f"a\n{other}\n")
    else:
        assert _rows(tmp_path, a=f"a\n{one}\n", b=f"a\n{other}\n")[0] == [kind]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (Csv(delimiter=";"), "a;b\n1;x,y\n", {"a": 1, "b": "x,y"}),
        (Csv(delimiter=";", encoding="latin-1"), "a;é\n1;é\n".encode("latin-1"), {"a": 1, "é": "é"}),
        (Csv(encoding="UTF-16"), "a,é\n1,é".encode("utf-16"), {"a": 1, "é": "é"}),
        (Csv(quote="'"), "a,b\n1,'x,y'\n", {"a": 1, "b": "x,y"}),
        (Csv(quote=None), 'a,b\n1,"x\n', {"a": 1, "b": '"x'}),
        (Csv(header=False), "1,x\n", {"f0": 1, "f1": "x"}),
        (Csv(header=["n", "s"]), "1,x\n", {"n": 1, "s": "x"}),
        (Csv(null_values=["-"]), 'a,b,c,d\n-,-,NA,"-"\n', {"a": None, "b": None, "c": "NA", "d": "-"}),
        (Csv(types={"a": "string", "b": pa.float32()}), "a,b\n1,1\n", {"a": "1", "b": 1.0}),
    ],
)
def test_options_say_how_files_are_written(tmp_path: Path, form: Csv, text: str | bytes, expected: Any) -> None:
    packed = gzip.compress(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "more").mkdir()
    (tmp_path / "more/a.csv.gz").write_bytes(packed)
    for path in (tmp_path / "more", tmp_path):
        kinds, rows = _rows(path, form, **({"a": text} if path == tmp_path else {}))
        assert rows == [tuple(expected.values())] * len(rows)
        assert (rows != [], len(kinds)) == (True, len(expected))
    schema = StructuredDataset(tmp_path, form, output_format="arrow").schema
    assert schema.names == list(expected)
    pinned: dict[str, Any] = {"schema": schema, "output_format": "arrow"}
    if form.types:
        with pytest.raises(ConfigError, match="leave one of them out"):
            StructuredDataset(tmp_path, form, **pinned)
    else:
        assert StructuredDataset(tmp_path, form, **pinned).explain().rows == 2


def test_tabs_stand_between_fields_of_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n1\tx,y\n")
    (tmp_path / "b.TSV.gz").write_bytes(gzip.compress(b"a\tb\n2\tz\n"))
    assert _rows(tmp_path) == ([pa.int64(), pa.string()], [(1, "x,y"), (2, "z")])


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_file_that_is_read_as_one_column_is_warned_of(tmp_path: Path, delimiter: str) -> None:
    said = rf"one column, .* pass format=Csv\(delimiter={delimiter!r}\)".replace("|", r"\|").replace("\\t", r"\\t")
    with pytest.warns(UserWarning, match=said):
        _rows(tmp_path, a=f"a{delimiter}b\n1{delimiter}2\n")
    with pytest.warns(UserWarning, match=said):
        StructuredDataset(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(TableError, match=r"which is one field .* pass format=Csv"):
        _rows(tmp_path, a=f"a{delimiter}b\n1,5{delimiter}2\n")


def test_text_in_another_encoding_is_named_or_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"'a' .* comes as bytes; pass .*encoding="):
        assert _rows(tmp_path, a="a\né\n".encode("latin-1")) == ([pa.binary()], [(b"\xe9",)])
    with pytest.raises(TableError, match=r"a\.csv must be text in utf-8, .*encoding="):
        _rows(tmp_path, a="é\n1\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"a\.csv must be text in ascii"):
        _rows(tmp_path, Csv(encoding="ascii"), a="a\né\n")


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"delimiter": ";;"}, ConfigError, "delimiter"),
        ({"delimiter": 5}, ConfigTypeError, "delimiter"),
        ({"delimiter": "é"}, ConfigError, "ASCII"),
        ({"quote": ","}, ConfigError, "another character"),
        ({"quote": ";", "delimiter": ";"}, ConfigError, "another character"),
        ({"encoding": "latn"}, ConfigError, "latin-1"),
        ({"encoding": 1}, ConfigTypeError, "encoding"),
        ({"header": []}, ConfigError, "one name or more"),
        ({"header": ["a", "a"]}, ConfigError, "'a' is there twice"),
        ({"header": "a"}, ConfigTypeError, "list of names"),
        ({"null_values": "NA"}, ConfigTypeError, "null_values"),
        ({"types": {"a": "strin"}}, ConfigError, "strin"),
        ({"types": ["a"]}, ConfigTypeError, "types="),
    ],
)
def test_wrong_options_are_refused(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Csv(**settings)


def test_types_of_columns_that_no_file_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'labl' that no file has; did you mean label"):
        _rows(tmp_path, Csv(types={"labl": "string"}), a="label\n1\n")


def test_options_are_part_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1;2\n")
    forms = [None, "csv", Csv(), Csv(delimiter=";"), Csv(delimiter=";", types={"a": "string"})]
    with pytest.warns(UserWarning, match="one column"):
        prints = [StructuredDataset(tmp_path, form).table.fingerprint for form in forms]
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 3
