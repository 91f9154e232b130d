from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from tests.rooms.reading import LocalStorage, all_batches, data_file, inspect
from torch_table_loader.errors import TableError
from torch_table_loader.read.orc import OrcReader, read_postscript, read_stripes


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_stripe_rows_come_from_the_footer_under_every_compression(tmp_path: Path, compression: str) -> None:
    table = pa.table({f"column_{i}": np.random.default_rng(i).integers(0, 1 << 40, 40_000) for i in range(6)})
    path = tmp_path / "x.orc"
    orc.write_table(table, str(path), compression=compression, stripe_size=1 << 17, batch_size=1024)
    file = data_file(path, "orc")
    storage = LocalStorage(counting=True)
    meta = OrcReader().inspect(storage, file, None)
    handle = orc.ORCFile(str(path))
    assert handle.nstripes > 3
    assert meta.group_rows == tuple(
        handle.read_stripe(i, columns=["column_0"]).num_rows for i in range(handle.nstripes)
    )
    assert 0 < sum(meta.group_bytes) <= file.version.num_bytes
    assert len(storage.log) == 1
    got = pa.Table.from_batches(all_batches(file, meta, ["column_3"], range(1, 3), max_rows=5000))
    start = meta.group_rows[0]
    assert got["column_3"].to_pylist() == table["column_3"][start : start + sum(meta.group_rows[1:3])].to_pylist()


def test_a_footer_longer_than_the_first_read_is_fetched_whole(tmp_path: Path) -> None:
    table = pa.table({f"c{i}_{np.random.default_rng(i).bytes(60).hex()}": [1, 2] for i in range(900)})
    path = tmp_path / "x.orc"
    orc.write_table(table, str(path), compression="uncompressed")
    meta = inspect(data_file(path, "orc"))
    assert meta.group_rows == (2,)
    assert meta.schema.equals(table.schema)


def test_a_damaged_stripe_names_file_and_row_group(tmp_path: Path) -> None:
    from tests.rooms.reading import whole_task
    from torch_table_loader.read.tasks import TaskReader

    path = tmp_path / "x.orc"
    table = pa.table({"a": np.random.default_rng(0).random(50_000), "b": np.arange(50_000)})
    orc.write_table(table, str(path), compression="zstd", stripe_size=1 << 17, batch_size=1024)
    meta = inspect(data_file(path, "orc"))
    raw = bytearray(path.read_bytes())
    start = meta.group_bytes[0]
    raw[start + 10 : start + meta.group_bytes[1]] = bytes(meta.group_bytes[1] - 10)
    path.write_bytes(raw)
    reader = TaskReader(LocalStorage(), [data_file(path, "orc")], [meta], meta.schema, ["a", "b"])
    with pytest.raises(TableError, match=r"x\.orc, row group 1"):
        list(reader.read(whole_task(meta)))


@given(st.binary(max_size=300))
def test_invalid_footers_are_never_accepted(data: bytes) -> None:
    tail = data + b"\x03" + b"\x00" * 3
    with pytest.raises(ValueError, match=r"postscript|footer|number|field|type"):
        read_stripes(tail, read_postscript(tail))
