from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.reading import LocalStorage, all_batches, as_table, data_file, inspect, write_parquet
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.extend import FORMATS, format_contracts, reader_for
from torch_table_loader.read import parquet, parquet_sizes, reader_base
from torch_table_loader.records import FileMeta
from torch_table_loader.testing import small_sizes


def _dotted() -> pa.Table:
    return pa.table(
        {
            "a": pa.array([{"b": i, "c": str(i)} for i in range(25)]),
            "a.b": pa.array(range(100, 125), pa.int32()),
            "ab": pa.array(range(200, 225), pa.int32()),
            "l": pa.array([[i] * (i % 3) for i in range(25)]),
            "d": pa.array([str(i % 4) for i in range(25)]).dictionary_encode(),
        }
    )


def test_the_footer_gives_rows_bytes_and_schema_of_each_row_group(tmp_path: Path) -> None:
    table = _dotted()
    meta = inspect(write_parquet(tmp_path / "x.parquet", table))
    assert meta.group_rows == (10, 10, 5)
    assert meta.schema.equals(table.schema)
    parsed = pq.read_metadata(tmp_path / "x.parquet")
    assert meta.group_bytes == tuple(parsed.row_group(i).total_byte_size for i in range(3))


def test_the_footer_takes_one_read_and_opening_does_not_read_it_again(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", pa.table({"a": np.random.default_rng(0).random(50_000)}), 10_000)
    storage = LocalStorage(counting=True)
    meta = reader_for("parquet").inspect(storage, file, None)
    assert len(storage.log) == 1
    assert storage.all_closed
    storage.log.clear()
    assert meta.footer is not None
    footer_start = file.version.num_bytes - len(meta.footer) + 4
    assert as_table(all_batches(file, meta, ["a"], storage=storage, max_rows=9_999), meta.schema).num_rows == 50_000
    assert storage.log
    assert all(start + length <= footer_start for start, length in storage.log)


def test_a_footer_longer_than_the_first_read_is_fetched_whole(tmp_path: Path) -> None:
    table = pa.table({f"column_{i}_{'x' * 40}": [1, 2] for i in range(800)})
    file = write_parquet(tmp_path / "x.parquet", table)
    storage = LocalStorage(counting=True)
    meta = reader_for("parquet").inspect(storage, file, None)
    assert meta.footer is not None
    assert len(meta.footer) > 64 * 1024
    assert len(storage.log) == 2
    assert meta.schema.equals(table.schema)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    "columns",
    [
        ["a"],
        ["a.b"],
        ["a.b", "a"],
        ["ab", "a.b"],
        ["l", "a"],
        ["d", "l", "ab", "a.b", "a"],
        ["a", "a.b", "ab", "l", "d"],
    ],
)
def test_columns_come_by_their_top_level_name_and_in_the_order_asked(
    tmp_path: Path, columns: list[str], is_local: bool
) -> None:
    table = _dotted()
    file = write_parquet(tmp_path / "x.parquet", table)
    batches = all_batches(file, inspect(file), columns, storage=LocalStorage(is_local=is_local))
    assert all(batch.schema.names == columns for batch in batches)
    assert max(batch.num_rows for batch in batches) <= 7
    assert pa.Table.from_batches(batches).equals(table.select(columns))


@pytest.mark.parametrize("columns", [["d", "l", "ab", "a.b", "a"], ["a", "a.b", "ab", "l", "d"], []])
@pytest.mark.parametrize("values", [1, 20, 49])
def test_reading_a_few_columns_at_a_time_gives_the_same_rows(tmp_path: Path, columns: list[str], values: int) -> None:
    table = _dotted()
    file = write_parquet(tmp_path / "x.parquet", table)
    with small_sizes(parquet_values=values):
        batches = all_batches(file, inspect(file), columns, max_rows=10)
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert all(batch.schema.names == columns for batch in batches)
    assert not columns or pa.Table.from_batches(batches).equals(table.select(columns))


@pytest.mark.parametrize("is_local", [True, False])
def test_no_columns_still_have_rows(tmp_path: Path, is_local: bool) -> None:
    file = write_parquet(tmp_path / "x.parquet", _dotted())
    batches = all_batches(file, inspect(file), (), range(1, 3), storage=LocalStorage(is_local=is_local))
    assert sum(batch.num_rows for batch in batches) == 15
    assert {batch.num_columns for batch in batches} == {0}


def test_a_range_of_row_groups_is_read_without_the_others(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", pa.table({"a": range(45)}))
    batches = all_batches(file, inspect(file), ["a"], range(1, 4))
    assert pa.Table.from_batches(batches)["a"].to_pylist() == list(range(10, 40))
    assert all_batches(file, inspect(file), ["a"], range(4, 5))[0]["a"].to_pylist() == list(range(40, 45))


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_decoded_buffers_are_new_and_writable(tmp_path: Path, compression: str) -> None:
    table = pa.table({"i": np.arange(1000), "f": np.random.default_rng(0).random(1000).astype("f4")})
    file = write_parquet(tmp_path / "x.parquet", table, 1000, compression=compression, use_dictionary=False)
    meta = inspect(file)
    first, second = (all_batches(file, meta, ["i", "f"], max_rows=1000)[0] for _ in range(2))
    for column in range(2):
        one, other = first.column(column).buffers()[1], second.column(column).buffers()[1]
        assert one.is_mutable
        assert one.address != other.address
        np.frombuffer(one, np.uint8)[:] = 0
    assert pa.Table.from_batches([second]).equals(table)
    assert pa.Table.from_batches(all_batches(file, meta, ["i", "f"], max_rows=1000)).equals(table)


def test_empty_files_and_empty_row_groups_have_no_rows(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32())])
    with pq.ParquetWriter(tmp_path / "groups.parquet", schema) as writer:
        for rows in (0, 3, 0, 1, 0):
            writer.write_table(pa.table({"a": pa.array(range(rows), pa.int32())}), row_group_size=10)
    file = data_file(tmp_path / "groups.parquet")
    meta = inspect(file)
    assert meta.num_rows == 4
    assert as_table(all_batches(file, meta, ["a"]), meta.schema)["a"].to_pylist() == [0, 1, 2, 0]
    pq.ParquetWriter(tmp_path / "none.parquet", schema).close()
    empty = inspect(data_file(tmp_path / "none.parquet"))
    assert (empty.num_rows, empty.group_rows, empty.schema) == (0, (), schema)


def test_proven_nulls_are_named_for_kept_row_groups_only(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([None, *range(19)]),
            "b": pa.array([*range(19), None]),
            "c": range(20),
            "l": [[1, None]] * 20,
            "s": [{"x": None}] * 20,
        }
    )
    file = write_parquet(tmp_path / "x.parquet", table)
    meta, reader = inspect(file), reader_for("parquet")
    assert reader.null_columns(meta, ["a", "b", "c", "l", "s"], [True, True]) == {"a", "b"}
    assert reader.null_columns(meta, ["a", "b", "c"], [False, True]) == {"b"}
    assert reader.null_columns(meta, ["c"], [True, True]) == frozenset()
    silent = write_parquet(tmp_path / "y.parquet", table, write_statistics=False)
    assert reader.null_columns(inspect(silent), ["a", "b"], [True, True]) == frozenset()


def _damaged(tmp_path: Path, how: str) -> Path:
    path = tmp_path / "bad.parquet"
    write_parquet(path, pa.table({"a": range(1000)}), 100)
    raw = path.read_bytes()
    footer = int.from_bytes(raw[-8:-4], "little")
    path.write_bytes(
        {
            "torn": raw[: len(raw) // 2],
            "zeros": raw[: -footer - 8] + bytes(footer + 8),
            "zero footer": raw[: -footer - 8] + bytes(footer) + raw[-8:],
            "zero length": raw[:-8] + bytes(4) + raw[-4:],
            "long length": raw[:-8] + b"\xff\xff\xff\x7f" + raw[-4:],
            "csv": b"a,b\n" * 100,
            "tiny": b"PAR1",
            "encrypted": raw[:-4] + b"PARE",
            "garbage": raw[: -footer - 8] + b"\x19" * footer + raw[-8:],
        }[how]
    )
    return path


@pytest.mark.parametrize(
    "how", ["torn", "zeros", "zero footer", "zero length", "long length", "csv", "tiny", "encrypted", "garbage"]
)
def test_a_damaged_footer_names_the_file_what_was_expected_and_what_to_do(tmp_path: Path, how: str) -> None:
    file = data_file(_damaged(tmp_path, how))
    with pytest.raises(TableError, match=r"^bad.parquet must .*, got .*(write it again|decrypt it)") as caught:
        inspect(file)
    assert ("encrypted" in str(caught.value)) == (how == "encrypted")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(TableError, match=r"x.parquet .*'a' 2 times"):
        inspect(write_parquet(tmp_path / "x.parquet", table))


def test_metadata_without_a_footer_is_refused_by_name(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "x.parquet", pa.table({"a": [1]}))
    meta = inspect(file)
    with pytest.raises(TableError, match=r"x.parquet must come with the Parquet footer"):
        reader_for("parquet").open(LocalStorage(), file, FileMeta(meta.schema, meta.group_rows, meta.group_bytes))


def test_an_unknown_format_names_the_known_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'parquet'.*got 'parqet'; did you mean parquet"):
        reader_for("parqet")
    assert [reader_for(name).name for name in FORMATS] == list(FORMATS)


@pytest.mark.parametrize("options", [{}, {"filters": "v >= 0"}, {"schema": True}])
@pytest.mark.parametrize("batch_size", [7, 64])
def test_a_long_text_of_a_dictionary_is_not_repeated_all_at_once(
    tmp_path: Path, options: dict[str, Any], batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["x" * 1000, "", "y" * 10]
    indices = pa.array([at % 3 if at % 5 else None for at in range(200)], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(words))
    pq.write_table(pa.table({"s": column, "v": range(200)}), tmp_path / "a.parquet")
    given = {"schema": pa.schema([("s", pa.string()), ("v", pa.int64())])} if options.get("schema") else options
    decoded: list[int] = []
    cast = reader_base.bounded

    def seen(batch: pa.RecordBatch, max_rows: int) -> Any:
        for part in cast(batch, max_rows):
            if "s" in part.schema.names:
                decoded.append(part["s"].dictionary_decode().nbytes)
            yield part

    monkeypatch.setattr(parquet, "bounded", seen)
    with small_sizes(dictionary_bytes=5000):
        loader = StructuredDataset.create_dataloader(
            str(tmp_path), "parquet", output_format="dict", batch_size=batch_size, num_workers=0, **given
        )[0]
        assert [text for batch in loader for text in batch["s"]] == column.to_pylist()
    assert 0 < max(decoded) < 8000


@pytest.mark.parametrize("options", [{}, {"shuffle": "rows"}, {"columns": ["n"]}])
def test_a_column_of_nulls_that_says_it_has_none_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    schema = pa.schema([pa.field("n", pa.date32(), nullable=False), pa.field("x", pa.int64())])
    table = pa.table({"n": pa.array([1, 2, 3], pa.int32()).cast(pa.date32()), "x": [1, 2, 3]}).cast(schema)
    pq.write_table(table, path, store_schema=False, write_statistics=False, use_dictionary=False)
    data = path.read_bytes()
    assert data.count(b"\x6c\0\0") == 1
    path.write_bytes(data.replace(b"\x6c\0\0", b"\xbc\0\0"))  # the logical type, of dates, becomes that of nulls
    assert str(pq.read_schema(path).field("n")) == "pyarrow.Field<n: null not null>"
    (batch,) = StructuredDataset(str(path), output_format="dict", num_workers=0, **options)
    assert batch["n"] == [None] * 3


@pytest.mark.parametrize("options", [{}, {"shuffle": "rows"}, {"filters": "x > 1"}])
def test_a_footer_that_says_no_rows_leaves_those_of_its_row_groups(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(1000)}), path, row_group_size=600)
    data = path.read_bytes()
    assert data.count(b"\x16\xd0\x0f\x19") == 1
    path.write_bytes(data.replace(b"\x16\xd0\x0f\x19", b"\x16\x80\x00\x19"))  # 0, in as many bytes
    assert pq.read_metadata(path).num_rows == 0
    loader, _ = StructuredDataset.create_dataloader(str(path), output_format="arrow", num_workers=0, **options)
    assert sorted(x for batch in loader for x in batch["x"].to_pylist()) == list(
        range(2 if "filters" in options else 0, 1000)
    )


_POOLS: list[pa.MemoryPool] = []
"""Buffers must not outlive the pool that they are of."""


def _repeated(kind: str, num_rows: int) -> pa.Array:
    words = pa.array(["x" * 10_000], pa.binary() if kind == "binary" else pa.string())
    word = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), words)
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array(range(num_rows + 1), pa.int32()), word)
    if kind == "struct":
        return pa.StructArray.from_arrays([word, pa.array(range(num_rows))], ["text", "number"])
    if kind == "numbers":
        return pa.array([[7] * 1250] * num_rows, pa.list_(pa.int64()))
    return word


@pytest.mark.parametrize("said", [True, False], ids=["said", "unsaid"])
@pytest.mark.parametrize("options", [{}, {"filters": "v >= 1000"}], ids=["all", "some"])
@pytest.mark.parametrize("kind", ["text", "binary", "list", "struct", "numbers"])
@daily(7)
def test_a_row_group_that_decodes_to_far_more_than_it_stores_is_read_in_parts(
    tmp_path: Path, kind: str, options: dict[str, Any], said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds a few parts, whatever the types, and whether or not the writer said what they decode to."""
    rows = 2000
    path = tmp_path / "a.parquet"
    column = _repeated(kind, rows)
    pq.write_table(pa.table({"s": column, "v": range(rows)}), path, row_group_size=rows, store_schema=False)
    assert path.stat().st_size < 200_000
    if not said:
        monkeypatch.setattr(parquet_sizes, "_said", lambda *_: None)
    _POOLS.append(pa.proxy_memory_pool(pa.default_memory_pool()))
    before = pa.default_memory_pool()
    with small_sizes(dictionary_bytes=1 << 20):
        pa.set_memory_pool(_POOLS[-1])
        try:
            loader = StructuredDataset.create_dataloader(
                str(path), output_format="arrow", batch_size=8, num_workers=0, **options
            )[0]
            found = [number for batch in loader for number in batch["v"].to_pylist()]
        finally:
            pa.set_memory_pool(before)
    assert found == list(range(1000 if options else 0, rows))
    most = _POOLS[-1].max_memory()
    assert most is not None
    assert most < 2_500_000, f"{rows * 10_000} bytes are not decoded at once"


def test_parts_of_a_row_group_grow_from_the_longest_text_that_its_dictionary_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a row group of short texts was read, those like it are read whole, and one of long texts still is not."""
    monkeypatch.setattr(parquet_sizes, "_said", lambda *_: None)
    short, long = [f"{at % 100:05}" for at in range(4000)], ["y" * 50_000] * 4000
    written = pa.table({"s": short + short + long})
    file = write_parquet(tmp_path / "a.parquet", written, 4000)
    meta = inspect(file)
    with small_sizes(dictionary_bytes=1 << 20):
        opened = reader_for("parquet").open(LocalStorage(), file, meta)
        rows = [[batch.num_rows for batch in opened.batches(range(at, at + 1), ["s"], 4000)] for at in range(3)]
        opened.close()
    assert list(map(sum, rows)) == [4000] * 3
    assert rows[0][0] < 100
    assert max(rows[0]) > 1000
    assert rows[1] == [4000]
    assert max(rows[2]) * 50_000 < 1 << 20


def _held_columns(kind: str, rows: int) -> dict[str, pa.Array]:
    rng = np.random.default_rng(0)
    flags = rng.integers(0, 2, rows)
    if kind == "lists":
        return {
            "x": pa.ListArray.from_arrays(pa.array(np.arange(0, 4 * rows + 1, 4), pa.int32()), rng.random(4 * rows))
        }
    if kind == "bytes":
        return {f"x{place}": pa.array(flags, pa.int8()) for place in range(10)}
    if kind == "flags":
        return {f"x{place}": pa.array(flags, pa.bool_()) for place in range(10)}
    return {f"x{place}": pa.array(flags, pa.float64()) for place in range(4)}


@pytest.mark.parametrize("max_rows", [8_192, 8_300, 33_000, 52_480])
@pytest.mark.parametrize("kind", ["bytes", "flags", "lists", "doubles"])
@daily(6)
def test_an_open_file_holds_no_more_than_its_reader_says(tmp_path: Path, kind: str, max_rows: int) -> None:
    """The room of Arrow's readers is counted, which is a power of two, and their levels, whatever pages come to."""
    rows = 150_000
    file = write_parquet(tmp_path / "a.parquet", pa.table(_held_columns(kind, rows)), rows)
    reader, meta = reader_for("parquet"), inspect(file)
    columns = list(meta.schema.names)
    _POOLS.append(pa.proxy_memory_pool(pa.default_memory_pool()))
    before = pa.default_memory_pool()
    pa.set_memory_pool(_POOLS[-1])
    try:
        opened = reader.open(LocalStorage(), file, meta)
        batch_bytes = max(batch.nbytes for batch in opened.batches(range(1), columns, max_rows))
        opened.close()
    finally:
        pa.set_memory_pool(before)
    given = 2 * (batch_bytes + batch_bytes // 8)  # the one before is here while the next is decoded
    assert isinstance(reader, format_contracts.HoldingReader)
    held = reader.held_bytes(meta, 0, columns, max_rows, batch_bytes // max_rows)
    used = (_POOLS[-1].max_memory() or 0) - given
    assert used <= held
    assert held <= 3 * used + (8 << 20)
