"""The law of bounded memory: Arrow's pool stays within what `explain()` states, whatever the table and the options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from bench.shapes import COUNT, WIDER, Held, held, held_by, held_of, own_pool, shape_of
from tests.effort import daily
from torch_table_loader import Budget, MixedDataset, Pack, StructuredDataset


def _texts(rows: int, width: int, distinct: int, *, nested: bool) -> pa.Array:
    words = pa.array([f"{number:08}".ljust(width, "x") for number in range(distinct)])
    codes = pa.array(np.random.default_rng(0).integers(0, distinct, rows), pa.int32())
    texts = pa.DictionaryArray.from_arrays(codes, words)
    return pa.array([[text] for text in texts.to_pylist()]) if nested else texts


@pytest.mark.parametrize("nested", [False, True], ids=["texts", "lists of texts"])
def test_a_row_store_of_repeated_long_texts_is_built_within_the_bound(tmp_path: Path, *, nested: bool) -> None:
    """Texts that repeat are kept once while the store is built; what cannot be is counted."""
    column = _texts(8_000, 10_000, 50, nested=nested)
    pq.write_table(pa.table({"s": column}), tmp_path / "a.parquet", row_group_size=8_000, store_schema=False)
    found = held(tmp_path, shuffle="rows", row_store="memory", batch_size=64, num_workers=0, output_format="arrow")
    assert found.holds
    assert not found.idle


def _write_orc(table: pa.Table, path: Path) -> None:
    pa.orc.write_table(table, path, stripe_size=1 << 30, compression="zstd", dictionary_key_size_threshold=0.8)


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_table(table)


_ONE_DENSE: dict[str, tuple[Callable[[pa.Table, Path], None], int]] = {
    "parquet": (partial(pq.write_table, store_schema=False), 20_000),
    "orc": (_write_orc, 2_000),
    "arrow": (_write_arrow, 2_000),
}


@pytest.mark.parametrize("kind", _ONE_DENSE)
@pytest.mark.parametrize("nested", [False, True], ids=["texts", "lists of texts"])
@pytest.mark.parametrize("dense", ["a", "c"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": "splits", "shuffle_buffer_size": 5_000},
        {"shuffle": "rows", "row_store": "files"},
        {"shuffle": "rows", "row_store": "memory"},
    ],
    ids=["in order", "mixed", "windows", "stored rows", "rows in memory"],
)
@pytest.mark.parametrize("workers", [0, 2])
@daily(3)
def test_a_small_file_of_long_texts_beside_larger_ones_is_within_the_bound(
    tmp_path: Path, kind: str, dense: str, options: dict[str, Any], workers: int, *, nested: bool
) -> None:
    """It has few bytes and few rows, and any of its rows decodes to more than a hundred of others."""
    write, rows = _ONE_DENSE[kind]
    (table := tmp_path / "table").mkdir()
    texts = pa.list_(pa.string()) if nested else pa.string()
    for name in "abc":
        many, width, distinct = (rows, 8_000, 1) if name == dense else (60_000, 60, 60_000)
        own = pa.table({"s": _texts(many, width, distinct, nested=nested).cast(texts)})
        write(own, table / f"{name}.{kind}")
    if options.get("row_store") == "files":
        options = options | {"row_store": str(tmp_path / "store")}
    found = held(table, batch_size=64, num_workers=workers, output_format="arrow", **options)
    assert found.holds, found


def test_counting_reads_little_of_long_lists_at_a_time(tmp_path: Path) -> None:
    """Before training, documents are counted by their lengths, for which a reader decodes all of them."""
    rng = np.random.default_rng(0)
    for name in "ab":
        ends = np.concatenate(([0], np.cumsum(rng.integers(20, 500, 20_000)))).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 9, ends[-1]), pa.int32()))
        pq.write_table(pa.table({"input_ids": tokens}), tmp_path / f"{name}.parquet", row_group_size=400)
    budget = Budget(tokens=40_000, length="input_ids")
    with own_pool() as pool:
        StructuredDataset.create_dataloader(str(tmp_path), batch_size=budget, ragged="pad", num_workers=1)
        assert (pool.max_memory() or 0) < 56 << 20, "of two files of 20 MiB, two threads read 8 MiB at a time"


def test_batches_by_budget_of_a_far_store_are_within_the_bound(tmp_path: Path) -> None:
    """A read, its rows as they are joined, and the batches that are made of them are here together."""
    rng = np.random.default_rng(0)
    for number in range(20):
        ends = np.concatenate(([0], np.cumsum(rng.integers(20, 500, 4_000)))).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 9, ends[-1]), pa.int32()))
        pq.write_table(pa.table({"input_ids": tokens}), tmp_path / f"{number:02}.parquet")
    budget = Budget(tokens=2_000, length="input_ids", at_most=1024, counts="rows")
    found = held(tmp_path, far=True, batch_size=budget, ragged="pad", num_workers=1, prefetch_batches=4)
    assert found.holds, found
    assert not found.idle, found


def test_a_few_large_batches_of_a_mixture_are_within_the_bound(tmp_path: Path) -> None:
    """What each source gathers is joined, and padded then."""
    rng, sources = np.random.default_rng(0), {}
    for name in "ab":
        (folder := tmp_path / name).mkdir()
        ends = np.concatenate(([0], np.cumsum(rng.integers(20, 500, 20_000)))).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 9, ends[-1]), pa.int32()))
        pq.write_table(pa.table({"input_ids": tokens}), folder / "a.parquet", row_group_size=40)
        sources[name] = partial(StructuredDataset, str(folder), shuffle="rows", row_store="memory")
    options: dict[str, Any] = {"batch_size": 2048, "num_workers": 4, "ragged": "pad"}
    found = held_of(lambda: MixedDataset.create_dataloader(sources, "rows", **options), in_memory=True)
    assert found.holds, found
    assert not found.idle, found


_MIXED: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "small row groups": (32, 4_000, 4_000, 10, {}),
    "large row groups": (6, 120_000, 120_000, 10, {"num_workers": 2}),
    "one thread": (8, 40_000, 20_000, 10, {"num_workers": 0}),
    "wide": (40, 8_000, 4_000, 40, {"num_workers": 2}),
}


@pytest.mark.parametrize(("files", "rows", "group", "width", "options"), _MIXED.values(), ids=_MIXED)
@daily(2)
def test_mixing_stays_within_the_bound(
    tmp_path: Path, files: int, rows: int, group: int, width: int, options: dict[str, Any]
) -> None:
    """Two windows, and the row groups that are open side by side, are counted."""
    rng = np.random.default_rng(0)
    for number in range(files):
        columns = {f"x{place}": rng.random(rows) for place in range(width)}
        pq.write_table(pa.table(columns), tmp_path / f"{number:03}.parquet", row_group_size=group)
    found = held(tmp_path, shuffle="mixed", batch_size=256, **options)
    assert found.holds
    assert not found.idle


@pytest.mark.parametrize("workers", [0, 2])
@daily(1)
def test_large_batches_of_small_row_groups_stay_within_the_bound(tmp_path: Path, workers: int) -> None:
    """A batch is joined of many reads: they are held once, and the batch beside them."""
    rng = np.random.default_rng(0)
    for number in range(4):
        ends = np.concatenate(([0], np.cumsum(rng.integers(400, 1_200, 5_000)))).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 50_000, ends[-1]), pa.int32()))
        pq.write_table(pa.table({"tokens": tokens}), tmp_path / f"{number}.parquet", row_group_size=1_000)
    found = held(tmp_path, batch_size=3_000, num_workers=workers, ragged="offsets")
    assert found.holds
    assert not found.idle
    assert found.used < max(1, workers) * (50 << 20), "a read is a row group"


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_reads_that_span_small_row_groups_stay_within_the_bound(tmp_path: Path, workers: int, *, shuffle: bool) -> None:
    """Arrow keeps room for the levels of a read while its file is open, and mixing has several open."""
    rng = np.random.default_rng(0)
    for number in range(8):
        ends = np.concatenate(([0], np.cumsum(rng.integers(0, 60, 20_000)))).astype(np.int32)
        values = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.random(ends[-1])))
        pq.write_table(pa.table({"x": values}), tmp_path / f"{number}.parquet", row_group_size=200)
    found = held(tmp_path, batch_size=256, num_workers=workers, shuffle=shuffle)
    assert found.holds, found
    assert not found.idle, found


_LARGE_BYTES = 40 << 20


def _write_ipc(path: Path, tables: Sequence[pa.Table], new: Callable[..., Any]) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with new(path / "a.arrow", tables[0].schema, options=options) as file:
        for table in tables:
            file.write_table(table)


def _write_json(path: Path, tables: Sequence[pa.Table]) -> None:
    rows = [f'{{"s": "{text}"}}\n' for table in tables for text in table["s"].to_pylist()]
    (path / "a.json").write_text("".join(rows))


def _write_avro(path: Path, tables: Sequence[pa.Table]) -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": "s", "type": "string"}]}
    with (path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [row for table in tables for row in table.to_pylist()], codec="deflate")


_LARGE: dict[str, Callable[[Path, Sequence[pa.Table]], None]] = {
    "an Arrow file": partial(_write_ipc, new=pa.ipc.new_file),
    "an Arrow stream": partial(_write_ipc, new=pa.ipc.new_stream),
    "JSON lines": _write_json,
    "Avro": _write_avro,
}


@pytest.mark.parametrize("write", _LARGE.values(), ids=_LARGE)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True, "rows"])
@daily(3)
def test_a_large_value_among_small_ones_is_within_the_bound(
    tmp_path: Path, write: Callable[[Path, Sequence[pa.Table]], None], workers: int, shuffle: bool | str
) -> None:
    """Compressed, it is a few bytes of a file, and of its rows one; what is decoded with it is here as long as it."""
    rows = ["small"] * 500
    large = "x" * _LARGE_BYTES
    tables = [pa.table({"s": own}) for own in ([*rows, large], [large, *rows], [*rows, "x"])]
    (table := tmp_path / "table").mkdir()
    write(table, tables)
    options: dict[str, Any] = {"shuffle": shuffle, "batch_size": 64, "num_workers": workers}
    if shuffle == "rows":
        options["row_store"] = str(tmp_path / "store")
    found = held(table, **options)
    assert found.holds, found
    assert not found.idle, found


def test_large_stripes_are_within_the_bound(tmp_path: Path) -> None:
    """ORC decodes a stripe into its own memory, and that into Arrow's."""
    numbers = pa.array(np.random.default_rng(0).integers(0, 1 << 12, 3 << 20))
    for name in "ab":
        pa.orc.write_table(pa.table({"x": numbers}), tmp_path / f"{name}.orc", stripe_size=1 << 30, compression="zstd")
    found = held(tmp_path, batch_size=4096, num_workers=0)
    assert found.holds, found
    assert not found.idle, found


_PACKED: dict[str, tuple[int, int, int, Pack, dict[str, Any]]] = {
    "small row groups": (32, 2_000, 1_000, Pack(seq_len=2048), {}),
    "large row groups": (4, 40_000, 40_000, Pack(seq_len=2048), {"num_workers": 2}),
    "one thread": (8, 8_000, 4_000, Pack(seq_len=2048), {"num_workers": 0}),
    "best fit": (16, 4_000, 2_000, Pack(seq_len=2048, strategy="best_fit", block_docs=1_000), {"num_workers": 2}),
    "padded": (16, 2_000, 1_000, Pack(seq_len=500, strategy="pad"), {"num_workers": 2}),
}


@pytest.mark.parametrize(("files", "rows", "group", "pack", "options"), _PACKED.values(), ids=_PACKED)
@daily(2)
def test_mixing_documents_stays_within_the_bound(
    tmp_path: Path, files: int, rows: int, group: int, pack: Pack, options: dict[str, Any]
) -> None:
    """Windows are counted in tokens, and what is read of documents with them."""
    rng = np.random.default_rng(0)
    for number in range(files):
        ends = np.concatenate(([0], np.cumsum(rng.integers(20, 500, rows)))).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 999, ends[-1]), pa.int32()))
        table = pa.table({"input_ids": tokens, "id": np.arange(rows)})
        pq.write_table(table, tmp_path / f"{number:03}.parquet", row_group_size=group)
    found = held(tmp_path, shuffle="mixed", batch_size=8, pack=pack, columns=["id"], **options)
    assert found.holds, found
    assert not found.idle, found


def check_shape(number: int, folder: Path) -> None:
    """Hold a shape to its bound. Threads that decode may or may not do so at once: the bound counts all of them."""
    runs = list[Held]()
    for run in range(3):
        runs.append(held_by(shape_of(number), folder / f"{run}"))
        assert runs[-1].holds, f"{shape_of(number)}: {runs}"
        if not runs[-1].idle:
            return
    pytest.fail(f"{shape_of(number)} uses far less than its bound: {runs}")


_DAILY = (6, 9, 20, 37, 39)
"""Those that are not marked as slow; CI runs all."""


@pytest.mark.parametrize(
    "number", [*_DAILY, *(pytest.param(each, marks=pytest.mark.slow) for each in range(COUNT) if each not in _DAILY)]
)
def test_a_job_of_any_shape_stays_within_its_bound(tmp_path: Path, number: int) -> None:
    """Arrow's memory, tensors and fetched bytes are at most what `explain()` says, which is at most 3 times as much."""
    check_shape(number, tmp_path)


_IN_CI = {100, 112, 122, 137}


def _wider() -> Iterator[Any]:
    for number in WIDER:
        if shape_of(number).options.get("worker_type") != "process":  # for which see `test_resident_memory.py`
            yield pytest.param(number, marks=pytest.mark.slow if number in _IN_CI else pytest.mark.rare)


@pytest.mark.parametrize("number", list(_wider()))
def test_a_job_of_a_wider_shape_stays_within_its_bound(tmp_path: Path, number: int) -> None:
    """Mixtures and batches by budget too, and columns of more kinds."""
    check_shape(number, tmp_path)
