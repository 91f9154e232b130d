"""Hive partitioning and the fingerprint: the same on every rank, in any order of files."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader import StructuredDataset
from torch_table_loader.errors import ConfigError
from torch_table_loader.extend import PathSource
from torch_table_loader.records import DataFile, FileVersion, fingerprint

NULL_SEGMENT = "__HIVE_DEFAULT_PARTITION__"

Values = list[tuple[tuple[str, Any], ...]]


def decode_hive(names: list[str], schema: pa.Schema | None = None) -> tuple[pa.Schema, Values]:
    """Return the columns that names of files make, and the values of each file."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name in names:
        memory.pipe_file(f"/decoded/{name}.csv", b"x\n1\n")
    source = PathSource.open("memory://decoded", "csv", schema=schema)
    found = {file.name: file.partition for file in source.files}
    return source.partition_schema, [found[f"{name}.csv"] for name in names]


def typed(*values: str | None) -> tuple[pa.DataType, list[Any]]:
    """Decode one column ``k`` with these texts."""
    names = [f"k={NULL_SEGMENT if value is None else quote(value, safe='')}/f{at}" for at, value in enumerate(values)]
    schema, decoded = decode_hive(names)
    return schema.field("k").type, [dict(pairs)["k"] for pairs in decoded]


@pytest.fixture
def by_day(tmp_path: Path) -> Path:
    """Write files into folders of days and cities."""
    for day in (1, 2):
        folder = tmp_path / "t" / f"day=2026-01-0{day}" / "city=S%C3%A3o"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [day], "s": ["a"]}), folder / "part-0.parquet")
    return tmp_path / "t"


@pytest.mark.parametrize("options", [{}, {"shuffle": "rows", "row_store": "memory"}], ids=str)
def test_folders_that_all_files_lie_in_are_columns(by_day: Path, options: dict[str, Any]) -> None:
    dataset = StructuredDataset(str(by_day), output_format="dict", **options)
    assert dataset.schema.names == ["x", "s", "day", "city"]
    assert {(row["x"], str(row["day"]), row["city"]) for row in dataset.head().to_pylist()} == {
        (1, "2026-01-01", "São"),
        (2, "2026-01-02", "São"),
    }
    assert not [note for note in dataset.explain().notes if "folders" in note]
    chosen = StructuredDataset(str(by_day), columns=["x"], filters="day > 2026-01-01", **options)
    assert chosen.schema.names == ["x"]
    assert chosen.explain().live_rows == 1
    one = StructuredDataset(str(by_day / "day=2026-01-01"), **options)
    assert one.schema.names == ["x", "s", "day", "city"]
    with pytest.raises(ConfigError, match="no column 'dya'; did you mean day"):
        StructuredDataset(str(by_day), columns=["dya"], **options)


@pytest.mark.parametrize("options", [{}, {"shuffle": "rows", "row_store": "memory"}], ids=str)
def test_folders_that_some_files_lie_in_are_named(by_day: Path, options: dict[str, Any]) -> None:
    pq.write_table(pa.table({"x": [3], "s": ["b"]}), by_day / "beside.parquet")
    hint = "folders are named by day and city, of which no column is made, because not all files lie in such folders"
    dataset = StructuredDataset(str(by_day), **options)
    assert any(hint in note for note in dataset.explain().notes)
    assert dataset.schema.names == ["x", "s"]
    for ask in (
        lambda: StructuredDataset(str(by_day), columns=["day"], **options),
        lambda: StructuredDataset(str(by_day), filters=pc.field("day") == "2026-01-01", **options),
        lambda: dataset.statistics(["day"]),
    ):
        with pytest.raises(ConfigError, match=r"column 'day'.* folders are named by day, .*not all files lie in such"):
            ask()
    assert StructuredDataset(f"{by_day}/*/*/*.parquet", **options).schema.names == ["x", "s", "day", "city"]


def test_paths_win_over_files_and_folders_further_up_do_not_count(tmp_path: Path) -> None:
    plain = tmp_path / "run=3" / "table"
    plain.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), plain / "a.parquet")
    assert StructuredDataset(str(plain)).schema.names == ["x"]
    in_files = tmp_path / "u" / "day=1"
    in_files.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1], "day": ["2"]}), in_files / "a.parquet")
    assert StructuredDataset(str(tmp_path / "u")).head().to_pylist() == [{"x": 1, "day": 1}]


def test_files_of_a_callers_own_source_and_storage(by_day: Path) -> None:
    listed = PathSource.open(str(by_day), "parquet")
    names = [file.name for file in listed.files]
    assert StructuredDataset(str(by_day), files=names).schema.names == ["x", "s", "day", "city"]
    own = StructuredDataset(str(by_day), files=names, storage=listed.storage)
    assert own.schema.names == ["x", "s", "day", "city"]
    bare = tuple(replace(file, partition=()) for file in listed.files)
    source = SimpleNamespace(storage=listed.storage, files=bare, partition_schema=pa.schema([]))
    assert StructuredDataset.from_source(source).schema.names == ["x", "s"], "a source says its columns itself"


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-20", "0"], pa.int64(), [1, -20, 0]),
        (["1", None], pa.int64(), [1, None]),
        (["9223372036854775807", "-9223372036854775808"], pa.int64(), [2**63 - 1, -(2**63)]),
        (["9223372036854775808"], pa.string(), ["9223372036854775808"]),
        (["1", "007"], pa.string(), ["1", "007"]),
        (["+1"], pa.string(), ["+1"]),
        (["-0"], pa.string(), ["-0"]),
        (["1 "], pa.string(), ["1 "]),
        (["1\n"], pa.string(), ["1\n"]),
        (["١"], pa.string(), ["١"]),
        (["2024-02-29"], pa.date32(), [dt.date(2024, 2, 29)]),
        (["2024-02-29", None], pa.date32(), [dt.date(2024, 2, 29), None]),
        (["2023-02-29"], pa.string(), ["2023-02-29"]),
        (["2024-02-29", "1"], pa.string(), ["2024-02-29", "1"]),
        (["20240229", "2024-02-29"], pa.string(), ["20240229", "2024-02-29"]),
        (["2024-W01-1"], pa.string(), ["2024-W01-1"]),
        ([None, None], pa.string(), [None, None]),
        ([""], pa.string(), [""]),
        (["a/b=c é%"], pa.string(), ["a/b=c é%"]),
        (["1.5"], pa.string(), ["1.5"]),
    ],
)
def test_types_depend_on_all_values(texts: list[str | None], kind: pa.DataType, values: list[Any]) -> None:
    assert typed(*texts) == (kind, values)


texts = st.one_of(
    st.none(),
    st.integers(-(2**65), 2**65).map(str),
    st.dates().map(str),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["007", "-0", "+5", "2024-13-01", " 1"]),
)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_types_and_values_never_depend_on_the_order_of_files(
    rows: list[tuple[str | None, str | None]], shuffler: random.Random
) -> None:
    def segment(key: str, value: str | None) -> str:
        return f"{key}={NULL_SEGMENT if value is None else quote(value, safe='')}"

    names = [f"{segment('a', a)}/{segment('b c', b)}/{at}" for at, (a, b) in enumerate(rows)]
    schema, values = decode_hive(names)
    order = list(range(len(names)))
    shuffler.shuffle(order)
    again, shuffled = decode_hive([names[at] for at in order])
    assert again == schema
    assert shuffled == [values[at] for at in order]
    # What was written comes back: the types lose nothing.
    texts_back = [tuple(None if value is None else str(value) for _, value in pairs) for pairs in values]
    assert texts_back == [tuple(row) for row in rows]
    for column in schema:
        pa.array([dict(pairs)[column.name] for pairs in values], column.type)


def test_keys_are_percent_decoded_and_other_segments_ignored() -> None:
    assert decode_hive(["x/a%20b=c%2Fd/=1/plain/k=v"])[1] == [(("a b", "c/d"),)]
    assert decode_hive(["file=1"])[1] == [()]


def test_a_key_that_comes_twice_or_is_no_text_makes_no_column() -> None:
    for name in ("a=1/a=2/x", "a=%ff/x"):
        assert decode_hive([name]) == (pa.schema([]), [()])
    assert decode_hive(["a=1/b=2/x", "b=3/a=4/y"])[1] == [(("a", 1), ("b", 2)), (("a", 4), ("b", 3))]


def test_files_in_no_folders_have_no_columns() -> None:
    assert decode_hive(["x", "y"]) == (pa.schema([]), [(), ()])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "7", "7"),
        (pa.int32(), "007", 7),
        (pa.float32(), "1.5", 1.5),
        (pa.bool_(), "true", True),
        (pa.timestamp("us"), "2024-01-02 03:04:05", dt.datetime(2024, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        (pa.decimal128(5, 2), "1.25", decimal.Decimal("1.25")),
        (pa.large_string(), "x", "x"),
    ],
)
def test_the_callers_schema_takes_precedence(kind: pa.DataType, text: str, value: object) -> None:
    given_schema = pa.schema([pa.field("k", kind), pa.field("other", pa.int8())])
    schema, values = decode_hive([f"k={quote(text, safe='')}/f", f"k={NULL_SEGMENT}/f"], given_schema)
    assert schema == pa.schema([pa.field("k", kind)])
    assert values == [(("k", value),), (("k", None),)]


@pytest.mark.parametrize(("kind", "text"), [(pa.int64(), "x"), (pa.int8(), "300"), (pa.date32(), "1")])
def test_a_value_that_does_not_fit_the_callers_schema_is_named(kind: pa.DataType, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"k={text}/: hive value k='{text}' cannot be read as {kind}")):
        decode_hive([f"k={text}/f"], pa.schema([("k", kind)]))


def file(name: str, size: int) -> DataFile:
    return DataFile(f"/root/{name}", name, FileVersion(size, 1, "tag"), "parquet")


FILES = [file("a", 10), file("b", 20)]


def test_the_fingerprint_is_frozen() -> None:
    assert fingerprint(FILES, [1, 2]) == "30c247ad149066fe6c22f6b7e60a9fb2a6139a33b48d358cc64922bcff15c2de"


def test_the_fingerprint_depends_only_on_names_sizes_rows_and_order() -> None:
    base = fingerprint(FILES, [1, 2])
    moved = [
        replace(entry, path=f"/else/{entry.name}", version=FileVersion(entry.version.num_bytes)) for entry in FILES
    ]
    assert fingerprint(moved, [1, 2]) == base
    others = [
        fingerprint(FILES, [2, 1]),
        fingerprint(FILES, [1, -1]),
        fingerprint(FILES[::-1], [2, 1]),
        fingerprint(FILES[:1], [1]),
        fingerprint([file("a", 11), FILES[1]], [1, 2]),
        fingerprint([file("c", 10), FILES[1]], [1, 2]),
    ]
    assert len({base, *others}) == 7
    with pytest.raises(ConfigError, match="2 files and 1 counts"):
        fingerprint(FILES, [1])


@pytest.fixture(params=["local", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write a table below a folder that has ``=`` in its name by accident, and return its root."""
    files = [
        f"run=3/table/year={year}/region={region}/part-{part}.csv"
        for year in (2023, 2024)
        for region in ("us", "S%C3%A3o")
        for part in (0, 1)
    ]
    if request.param == "local":
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x\n1\n")
        return f"{tmp_path}/run=3/table"
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name in files:
        memory.pipe_file(f"/{name}", b"x\n1\n")
    return "memory://run=3/table"


US = (("year", 2023), ("region", "us"))
LEAF = "year=2023/region=us"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([""], {US, (("year", 2023), ("region", "São")), (("year", 2024), ("region", "us"))}),
        (["year=2023"], {US, (("year", 2023), ("region", "São"))}),
        ([LEAF], {US}),
        ([f"{LEAF}/"], {US}),
        ([f"{LEAF}/part-0.csv"], {US}),
        ([f"{LEAF}/*.csv"], {US}),
        (["year=2023/region=u*/*.csv"], {US}),
        (["year=2023/region=u*"], {US}),
        (["*/region=us"], {US, (("year", 2024), ("region", "us"))}),
        ([f"{LEAF}/part-0.csv", f"{LEAF}/part-1.csv"], {US}),
        ([LEAF, "year=2023/region=S%C3%A3o"], {US, (("year", 2023), ("region", "São"))}),
        ([LEAF, "year=2024/region=us"], {US, (("year", 2024), ("region", "us"))}),
    ],
)
def test_every_form_of_a_path_has_the_same_columns(lake: str, paths: list[str], expected: set[Any]) -> None:
    full = [f"{lake}/{path}" for path in paths]
    for path in [full, full[0]] if len(full) == 1 else [full]:
        source = PathSource.open(path, "csv")
        assert source.partition_schema == pa.schema([("year", pa.int64()), ("region", pa.string())])
        assert {file.partition for file in source.files} >= expected
        assert {file.partition[0][1] for file in source.files} <= {2023, 2024}


def test_the_columns_of_a_partition_can_be_pinned_typed_and_read(lake: str, tmp_path: Path) -> None:
    pinned = PathSource.open(f"{lake}/{LEAF}", "csv", files=["part-1.csv"])
    assert [(file.name, file.partition) for file in pinned.files] == [("part-1.csv", US)]
    schema = pa.schema([("year", pa.string())])
    typed = PathSource.open(f"{lake}/{LEAF}", "csv", schema=schema)
    assert typed.files[0].partition == (("year", "2023"), ("region", "us"))
    loader, _ = StructuredDataset.create_dataloader(
        f"{lake}/{LEAF}", format="csv", filters=pc.field("year") == 2023, output_format="dict"
    )
    assert next(iter(loader)) == {"x": [1, 1], "year": [2023, 2023], "region": ["us", "us"]}


def test_a_key_above_and_below_the_path_makes_no_column(tmp_path: Path) -> None:
    (tmp_path / "day=1" / "day=2").mkdir(parents=True)
    (tmp_path / "day=1" / "day=2" / "a.csv").write_bytes(b"x\n1\n")
    source = PathSource.open(tmp_path / "day=1", "csv")
    assert (source.partition_schema.names, source.unread_keys) == ([], ("day",))


def test_values_are_percent_decoded_where_they_are_delivered(by_day: Path) -> None:
    options: dict[str, Any] = {"columns": ["x", "day", "city"], "output_format": "arrow"}
    loader, _ = StructuredDataset.create_dataloader(str(by_day), **options)
    rows = sorted((row["x"], str(row["day"]), row["city"]) for batch in loader for row in batch.to_pylist())
    assert rows == [(1, "2026-01-01", "São"), (2, "2026-01-02", "São")]
