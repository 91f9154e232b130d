"""The command line's conversion between Parquet and tensor shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.tensor_shards import WIDTHS, Tensor, tensor, values_of, write_shard
from torch_table_loader import StructuredDataset
from torch_table_loader.cli.main import main
from torch_table_loader.formats.tensorproto import TensorProtoReader, TensorProtoWriter

SHAPES = [(), (3,), (2, 3), (0, 2), (2, 0)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def table_of(folder: Path, form: str) -> pa.Table:
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), form, output_format="arrow", num_workers=0, batch_size=1000
    )
    return pa.Table.from_batches(list(loader))


def shards(folder: Path) -> Path:
    """Write two shards with every element type, and every form of a column."""
    for file in range(2):
        samples = []
        for number in range(5 * file, 5 * file + 5):
            own = [tensor("id", np.int64(number)), tensor("r", np.arange(number % 3, dtype=np.int16))]
            own.append(tensor("s", np.zeros((2, number % 2, 3), np.uint8)))
            own.append(tensor("any", np.ones((1,) * (number % 3), np.float32)))
            for place, kind in enumerate(WIDTHS):
                dims = SHAPES[place % len(SHAPES)]
                own.append(Tensor(kind, kind, dims, values_of(kind, dims, number, raw=False)))
            samples.append(own)
        write_shard(folder / f"{file}.pb", samples)
    return folder


def test_a_round_trip_through_parquet_is_byte_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, parquet, back = shards(tmp_path / "source"), tmp_path / "parquet", tmp_path / "back"
    assert main(["convert", str(source), str(parquet), "--format", "tensorproto"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{parquet} has 10 rows in 2 files of the format 'parquet'\n"
    assert said.err == ""
    assert main(["convert", str(parquet), str(back)]) == 0
    assert contents(back) == contents(source)
    assert table_of(parquet, "parquet").equals(table_of(source, "tensorproto"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "parquet", "source"]


def test_a_table_of_days_becomes_shards_of_some_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2):
        (tmp_path / f"t/day={day}").mkdir(parents=True)
        columns = {"x": [1.5, 2.5], "words": ["a", "b"], "n": pa.array([[1], [2, 3]], pa.list_(pa.int32()))}
        pq.write_table(pa.table(columns), tmp_path / f"t/day={day}/part.parquet")
    given = ["convert", str(tmp_path / "t"), str(tmp_path / "out")]
    assert main(given) == 2
    assert "column 'words' is of type string, which a tensor shard cannot hold" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*given, "--columns", "x,n,day", "--filter", "day > 1"]) == 0
    found = table_of(tmp_path / "out", "tensorproto")
    assert found.to_pydict() == {"x": [1.5, 2.5], "n": [[1], [2, 3]], "day": [2, 2]}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["day=2-part.pb"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"x": pa.array([1, None], pa.int32())}, "column 'x' has a null, which a tensor cannot hold"),
        ({"x": pa.array([[1], [None]], pa.list_(pa.int32()))}, "column 'x' has a null"),
        ({"x": pa.array([[1], None], pa.list_(pa.int32(), 1))}, r"column 'x' (has a null|holds .* pyarrow before 26)"),
        ({"x": pa.array([[[1]], [[2], [3]]], pa.list_(pa.list_(pa.int32())))}, "lists inside lists"),
        ({"x": pa.array([{"values": [1], "shape": [2]}] * 2)}, r"has 1 values, and the shape \[2\]"),
        ({"x": pa.array([{"a": 1}] * 2)}, "column 'x' is of type struct<a: int64>"),
    ],
)
def test_columns_that_tensors_cannot_carry_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, Any], says: str
) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "t/a.parquet")
    assert main(["convert", str(tmp_path / "t"), str(tmp_path / "out")]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["t"], "nothing is left"


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shards(tmp_path / "source")
    (tmp_path / "out").mkdir()
    given = ["convert", str(source), str(tmp_path / "out"), "--format", "tensorproto"]
    assert main(given) == 2
    assert "already exists" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
    assert main([*given[:2], "s3://bucket/out", *given[3:]]) == 2
    assert "OUT must be a local folder" in capsys.readouterr().err
    assert main([*given, "--to", "tensorproot"]) == 2
    assert "--to must be one of parquet, tensorproto" in capsys.readouterr().err


def test_damage_is_left_out_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shards(tmp_path / "source")
    torn = source / "1.pb"
    torn.write_bytes(torn.read_bytes()[:-1])
    given = ["convert", str(source), str(tmp_path / "out"), "--format", "tensorproto"]
    assert main(given) == 2
    assert "1.pb, sample 4" in capsys.readouterr().err
    assert main([*given, "--on-error", "skip"]) == 0
    said = capsys.readouterr()
    assert "leaves out 1 damaged part" in said.err
    assert said.out.startswith(f"{tmp_path / 'out'} has 9 rows")


def test_the_writer_accepts_slices_from_the_reader(tmp_path: Path) -> None:
    source = shards(tmp_path / "source")
    table = table_of(source, "tensorproto")
    with (tmp_path / "one.pb").open("wb") as file:
        parts = [batch.slice(1) for batch in table.slice(0, 10).to_batches()]
        TensorProtoWriter().write(parts, table.schema, file)
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path / "one.pb"), TensorProtoReader(), output_format="arrow", num_workers=0, batch_size=100
    )
    assert pa.Table.from_batches(list(loader)).to_pydict() == table.slice(1).to_pydict()


def test_the_names_of_files_decide_the_direction_of_conversion(tmp_path: Path) -> None:
    source, parquet, back = shards(tmp_path / "shards"), tmp_path / "parquet", tmp_path / "back"
    assert main(["convert", str(source), str(parquet)]) == 0
    assert {path.suffix for path in parquet.iterdir()} == {".parquet"}
    assert main(["convert", str(parquet), str(back)]) == 0
    assert contents(back) == contents(source)
