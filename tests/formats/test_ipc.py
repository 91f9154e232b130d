from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.effort import daily
from tests.tables.reading import LocalStorage, all_batches, data_file, inspect
from torch_table_loader.errors import TableError
from torch_table_loader.extend import reader_for
from torch_table_loader.read.failures import reading
from torch_table_loader.records import DataFile

TABLE = pa.table(
    {
        "wide": ["x" * 500 + str(i) for i in range(1000)],
        "d": pa.array([f"key {i % 5}" for i in range(1000)]).dictionary_encode(),
        "n": pa.array(range(1000), pa.int16()),
        "l": [[i, i + 1] for i in range(1000)],
    }
)


def _write(path: Path, *, stream: bool, compression: str | None = None, table: pa.Table = TABLE) -> DataFile:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=300)
    return data_file(path, "arrow")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("columns", [["d"], ["l", "d"], ["n", "wide", "l", "d"]])
def test_single_columns_are_read_in_the_requested_order(
    tmp_path: Path, stream: bool, compression: str | None, columns: list[str]
) -> None:
    file = _write(tmp_path / "x.arrow", stream=stream, compression=compression)
    meta = inspect(file)
    assert meta.group_rows == ((1000,) if stream else (300, 300, 300, 100))
    got = pa.Table.from_batches(all_batches(file, meta, columns, max_rows=77))
    assert got.equals(TABLE.select(columns))


def test_counting_a_file_reads_one_cheap_column(tmp_path: Path) -> None:
    file = _write(tmp_path / "x.arrow", stream=False)
    storage = LocalStorage(counting=True)
    meta = reader_for("arrow").inspect(storage, file, None)
    assert meta.num_rows == 1000
    assert sum(length for _, length in storage.log) < file.version.num_bytes / 10


def test_batches_do_not_share_memory_with_a_mapped_source(tmp_path: Path) -> None:
    class Mapped(LocalStorage):
        def open(self, path: str) -> pa.NativeFile:
            return pa.memory_map(path, "r+")

    table = pa.table({"a": np.arange(1000), "d": pa.array(["x", "y"] * 500).dictionary_encode()})
    for stream in (False, True):
        file = _write(tmp_path / f"{stream}.arrow", stream=stream, table=table)
        before = Path(file.path).read_bytes()
        for batch in all_batches(file, inspect(file), ["a", "d"], max_rows=300, storage=Mapped()):
            assert isinstance(batch.column("d"), pa.DictionaryArray)
            for buffer in (batch.column("a").buffers()[1], batch.column("d").indices.buffers()[1]):
                assert buffer.is_mutable
                memoryview(buffer).cast("B")[:] = bytes(buffer.size)
        assert Path(file.path).read_bytes() == before


def test_empty_batches_and_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    batch = pa.record_batch({"a": [1, 2]})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        for part in (batch.slice(0, 0), batch, batch.slice(0, 0)):
            writer.write_batch(part)
    file = data_file(path, "arrow")
    meta = inspect(file)
    assert meta.group_rows == (0, 2, 0)
    assert pa.Table.from_batches(all_batches(file, meta, ["a"]))["a"].to_pylist() == [1, 2]
    nothing = _write(tmp_path / "y.arrow", stream=False, table=pa.table({}))
    assert (inspect(nothing).schema.names, inspect(nothing).num_rows) == ([], 0)


def test_feather_version_1_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(TableError, match=r"x\.feather must be .* got Feather version 1; write it again"):
        inspect(data_file(tmp_path / "x.feather", "feather"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("giant", [1 << 44, (1 << 62) + 8])
@daily(4)
def test_a_length_that_no_file_can_have_is_an_error_of_the_file(
    tmp_path: Path, stream: bool, compression: str | None, giant: int
) -> None:
    table = pa.table({"n": range(60), "s": [f"value {i}" for i in range(60)]})
    path = tmp_path / "x.arrow"
    _write(path, stream=stream, compression=compression, table=table)
    data = path.read_bytes()
    said = []
    for place in range(0, len(data) - 8, 8):
        path.write_bytes(data[:place] + giant.to_bytes(8, "little") + data[place + 8 :])
        file = data_file(path, "arrow")
        try:
            storage = LocalStorage()
            with reading(storage, file):
                meta = inspect(file)
                all_batches(file, meta, meta.schema.names)
        except TableError as error:
            said.append(str(error))
    assert all("x.arrow" in each for each in said)
    assert any("says" in each for each in said)


def as_polars_writes(path: Path, num_columns: int, *, batches: int = 2) -> bytes:
    """Write a file whose leading schema lacks its length."""
    table = pa.table({f"c{place}": [1, 2] for place in range(num_columns)})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        for _ in range(batches):
            writer.write_table(table)
    data = path.read_bytes()
    assert data[8:12] == b"\xff\xff\xff\xff"
    length = int.from_bytes(data[12:16], "little")
    data = data[:8] + data[16 : 16 + length] + bytes(8) + data[16 + length :]
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("num_columns", [1, 2, 3, 40])
def test_a_leading_schema_needs_no_length(tmp_path: Path, num_columns: int) -> None:
    path = tmp_path / "x.arrow"
    as_polars_writes(path, num_columns)
    file = data_file(path, "arrow")
    meta = inspect(file)
    assert meta.group_rows == (2, 2)
    assert pa.Table.from_batches(all_batches(file, meta, ["c0"]))["c0"].to_pylist() == [1, 2, 1, 2]


def test_a_batch_that_the_footer_does_not_name_is_damage_there_too(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    data = as_polars_writes(path, 3)
    first = data.index(b"\xff\xff\xff\xff", 8)
    second = data.index(b"\xff\xff\xff\xff", first + 8)
    # The place of the first block becomes that of the second, and the vector of blocks has one element.
    block = data.rindex(first.to_bytes(8, "little"))
    spoilt = bytearray(data[:block] + second.to_bytes(8, "little") + data[block + 8 :])
    spoilt[block - 4 : block] = (1).to_bytes(4, "little")
    path.write_bytes(spoilt)
    with pytest.raises(TableError, match=rf"x\.arrow.*does not name the batch at byte {first}"):
        inspect(data_file(path, "arrow"))


def test_a_stream_may_end_at_a_message(tmp_path: Path) -> None:
    file = _write(tmp_path / "x.arrow", stream=True)
    data = Path(file.path).read_bytes()
    path = tmp_path / "y.arrow"
    path.write_bytes(data[:-8])
    file = data_file(path, "arrow")
    with pytest.warns(UserWarning, match=r"y\.arrow ends without an end-of-stream marker"):
        meta = inspect(file)
    assert meta.num_rows == 1000
    assert pa.Table.from_batches(all_batches(file, meta, ["n"])).equals(TABLE.select(["n"]))
    for cut in (1, 4, 7, 9, 40):
        path.write_bytes(data[:-cut])
        with pytest.raises(TableError, match=r"y\.arrow"):
            inspect(data_file(path, "arrow"))
