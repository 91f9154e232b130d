"""Text that was compressed as a whole, and formats declared by suffixes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather, orc

from tests.effort import daily
from tests.tables.reading import LocalStorage
from torch_table_loader import ConfigError, StructuredDataset, TableError
from torch_table_loader.extend import FORMATS, reader_for
from torch_table_loader.formats.csv_json import text_files
from torch_table_loader.read.formats import reader_by_suffix, suffixes_of
from torch_table_loader.testing import small_sizes

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4", ".br": "brotli"}
ROWS = 3000
TABLE = pa.table({"x": range(ROWS), "s": [f"row {row}" for row in range(ROWS)]})


def _text(form: str) -> bytes:
    if form == "json":
        return "".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()).encode()
    sink = pa.BufferOutputStream()
    csv.write_csv(TABLE, sink)
    return bytes(sink.getvalue())


def _compressed(data: bytes, suffix: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, CODECS[suffix]) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def _rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    dataset = StructuredDataset(path, output_format="arrow", **options)
    return [row for batch in dataset for row in batch.to_pylist()]


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("suffix", CODECS)
@daily(4)
def test_compressed_text_is_read_as_its_text(tmp_path: Path, form: str, suffix: str) -> None:
    data = _text(form)
    (tmp_path / f"0.{form}").write_bytes(data)
    # Two members one behind the other are one file, as gzip and zstd have it.
    cut = data.rindex(b"\n", 0, len(data) // 2) + 1
    (tmp_path / f"1.{form}{suffix}").write_bytes(_compressed(data[:cut], suffix) + _compressed(data[cut:], suffix))
    expected = TABLE.to_pylist()
    for schema in (None, TABLE.schema):
        for path in sorted(tmp_path.iterdir()):
            assert _rows(path, schema=schema) == expected
        assert _rows(tmp_path, schema=schema) == expected * 2


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_truncated_stream_is_an_error_that_names_the_file(tmp_path: Path, form: str, suffix: str) -> None:
    whole = _compressed(_text(form), suffix)
    path = tmp_path / f"torn.{form}{suffix}"
    for data in (whole[: len(whole) // 2], whole[:-1], whole + b"not a stream", _text(form)):
        path.write_bytes(data)
        for schema in (None, TABLE.schema):
            with pytest.raises(TableError, match=rf"torn\.{form}\{suffix}"):
                StructuredDataset(path, schema=schema)


def test_damage_after_planning_is_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(_compressed(_text("csv"), ".gz"))
    reader, storage = reader_for("csv"), LocalStorage()
    dataset = StructuredDataset(path)
    (file,) = dataset.table.files
    meta = reader.inspect(storage, file, None)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(OSError, match="Truncated"):
        list(reader.open(storage, file, meta).batches(range(1), ["x"], 100))
    with pytest.raises(TableError, match=r"x\.csv\.gz"):
        list(dataset)


def test_unsupported_compression_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv.xz").write_bytes(b"\xfd7zXZ\0")
    with pytest.raises(TableError, match=r"x\.csv\.xz must be text.*'\.xz'; compress it with gzip or zstd"):
        StructuredDataset(tmp_path)


@pytest.mark.slow
def test_highly_compressed_text_takes_little_memory(tmp_path: Path) -> None:
    line = b'{"x": 1}\n'
    (tmp_path / "x.jsonl.gz").write_bytes(_compressed(line * 3_000_000, ".gz"))
    before = pa.total_allocated_bytes()
    with small_sizes(inference_bytes=1 << 20), pytest.raises(TableError, match="at most 1048576 bytes for its types"):
        StructuredDataset(tmp_path)
    tracemalloc.start()
    try:
        dataset = StructuredDataset(tmp_path, schema=pa.schema([("x", pa.int64())]), output_format="arrow")
        assert sum(batch.num_rows for batch in dataset) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 24 << 20
    (tmp_path / "x.jsonl.gz").write_bytes(_compressed(b" " * (32 << 20) + line, ".gz"))
    said = r"x\.jsonl\.gz.*a line is longer than 8388608 bytes"
    with small_sizes(json_line_bytes=8 << 20), pytest.raises(TableError, match=said):
        StructuredDataset(tmp_path, schema=pa.schema([("x", pa.int64())]))


def test_a_compressed_file_is_not_cut_and_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = text_files.text_of

    def counting(source: Any, file: Any, encoding: str) -> Any:
        opened.append(file.name)
        return real(source, file, encoding)

    monkeypatch.setattr("torch_table_loader.formats.csv_json.text_files.text_of", counting)
    for part in range(3):
        (tmp_path / f"t/{part}.csv.zst").parent.mkdir(exist_ok=True)
        (tmp_path / f"t/{part}.csv.zst").write_bytes(_compressed(_text("csv"), ".zst"))
    options: dict[str, Any] = {"plan_cache": str(tmp_path / "cache"), "schema": TABLE.schema, "split_size": 10}
    first = StructuredDataset(tmp_path / "t", **options)
    assert [len(meta.group_rows) for meta in first.table.metas] == [1, 1, 1]
    assert first.explain().splits == 3
    assert opened
    opened.clear()
    again = StructuredDataset(tmp_path / "t", **options)
    assert opened == []
    assert len(again) == len(first)


def test_ranks_and_a_state_share_compressed_files(tmp_path: Path) -> None:
    for part in range(5):
        (tmp_path / f"{part}.jsonl.gz").write_bytes(_compressed(_text("json"), ".gz"))
    options: dict[str, Any] = {"shuffle": "splits", "row_id": True, "columns": ["x"], "batch_size": 700}
    options |= {"files": [f"{part}.jsonl.gz" for part in range(5)], "even_ranks": "balance"}
    seen: list[int] = []
    loaders = [StructuredDataset.create_dataloader(tmp_path, **options, num_ranks=2, rank=rank)[0] for rank in (0, 1)]
    for loader in loaders:
        batches = iter(loader)
        seen += [row for _ in range(3) for row in next(batches)["row_id"].tolist()]
        del batches
    again, _ = StructuredDataset.create_dataloader(tmp_path, **options, num_workers=2)
    again.load_state_dict(loaders[0].state_dict())
    seen += [row for batch in again for row in batch["row_id"].tolist()]
    assert sorted(seen) == list(range(5 * ROWS))


WRITERS: dict[str, Callable[[Path], object]] = {
    "x.parquet": lambda path: pq.write_table(TABLE, path),
    "x.pq": lambda path: pq.write_table(TABLE, path),
    "000000_0": lambda path: pq.write_table(TABLE, path),
    "x.PARQUET": lambda path: pq.write_table(TABLE, path),
    "x.orc": lambda path: orc.write_table(TABLE, str(path)),
    "x.csv": lambda path: path.write_bytes(_text("csv")),
    "x.csv.gz": lambda path: path.write_bytes(_compressed(_text("csv"), ".gz")),
    "x.json": lambda path: path.write_bytes(_text("json")),
    "x.ndjson": lambda path: path.write_bytes(_text("json")),
    "x.jsonl.zst": lambda path: path.write_bytes(_compressed(_text("json"), ".zst")),
    "x.arrow": lambda path: feather.write_feather(TABLE, str(path)),
    "x.feather": lambda path: feather.write_feather(TABLE, str(path)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_suffixes_decide_the_format(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    expected = TABLE.to_pylist()
    assert _rows(tmp_path) == _rows(tmp_path / name) == _rows(tmp_path, files=[name]) == expected
    own = StructuredDataset(str(tmp_path / name), storage=LocalStorage(), output_format="arrow")
    assert [row for batch in own for row in batch.to_pylist()] == expected


def test_empty_and_hidden_files_do_not_decide_the_format(tmp_path: Path) -> None:
    csv.write_csv(TABLE, tmp_path / "x.csv")
    (tmp_path / "note.txt").touch()
    (tmp_path / "_SUCCESS").write_text("yes")
    assert _rows(tmp_path) == TABLE.to_pylist()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.parquet", "b.csv"], r"got \.parquet \(a\.parquet\) and \.csv \(b\.csv\); pass format=, .*/\*\.parquet'"),
        (["a.csv.gz", "b.jsonl"], r"\.csv\.gz \(a\.csv\.gz\) and \.jsonl \(b\.jsonl\)"),
        (["readme.md", "x.orc"], r"\.md \(readme\.md\) and \.orc \(x\.orc\).*/\*\.orc'"),
        (["000000_0", "x.parquet"], r"no suffix \(000000_0\) and \.parquet \(x\.parquet\)"),
        (["x.parquet.gz"], r"'parquet' are not read when they are compressed.*x\.parquet\.gz; take '\.gz' away"),
    ],
)
def test_mixed_folders_are_refused_by_name(tmp_path: Path, names: list[str], said: str) -> None:
    for name in names:
        (tmp_path / name).write_text("a\n1\n")
    with pytest.raises(ConfigError, match=said):
        StructuredDataset(tmp_path)


def test_every_built_in_format_declares_its_suffixes() -> None:
    for form in FORMATS:
        assert suffixes_of(reader_for(form)), form
        for suffix in suffixes_of(reader_for(form)):
            found = reader_by_suffix([f"x{suffix}"])
            assert suffix in suffixes_of(found)


def test_an_installed_format_declares_its_suffixes_too(tmp_path: Path) -> None:
    assert reader_by_suffix(["a/x.npy"]).name == "npy"
    with pytest.raises(ConfigError, match=r"\.npy \(x\.npy\) and \.txt \(y\.txt\)"):
        reader_by_suffix(["x.npy", "y.txt"])
