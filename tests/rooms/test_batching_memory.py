"""What is viewed, what is copied, what is kept alive, and what is shared with nobody."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bench.shapes import own_pool
from tests.conversions import batches_of
from torch_table_loader.arrow.buffers import joined
from torch_table_loader.batching import codec as codec_module
from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.batching.rows import Block, ExactBatches, Part, RowsCodec, WindowDeal, WindowShuffle
from torch_table_loader.planning.window_sizes import WindowSizes
from torch_table_loader.planning.windows import Dealing


def _read(path: Path, rows: int) -> pa.RecordBatch:
    table = pa.table({"f": np.arange(rows, dtype=np.float32), "i": np.arange(rows, dtype=np.int64)})
    pq.write_table(table, path / "a.parquet")
    return next(pq.ParquetFile(path / "a.parquet").iter_batches(batch_size=rows, use_threads=False))


def test_a_decoded_parquet_column_is_viewed(tmp_path: Path) -> None:
    chunk = _read(tmp_path, 1000)
    addresses = {name: chunk.column(name).buffers()[1].address for name in ("f", "i")}
    for part in (chunk, chunk.slice(100)):
        batch = make_codec(chunk.schema, TypePolicy()).decode(part).batches(1000)[0]
        for name, tensor in batch.items():
            offset = part.column(name).offset * tensor.itemsize
            assert tensor.data_ptr() == addresses[name] + offset


def test_tensors_keep_their_memory_alive(tmp_path: Path) -> None:
    chunk = _read(tmp_path, 50_000)
    codec = make_codec(chunk.schema, TypePolicy())
    kept = codec.decode(chunk).batches(1024)[7]
    del chunk, codec
    gc.collect()
    noise = [pa.array(np.full(50_000, 77, np.int64)).cast(pa.float64()) for _ in range(50)]
    noise += [pa.array(np.full(50_000, 77, np.int64)).cast(pa.float32()) for _ in range(50)]
    assert kept["i"].tolist() == list(range(7 * 1024, 8 * 1024))
    assert kept["f"].tolist() == list(range(7 * 1024, 8 * 1024))
    assert len(noise) == 100


def test_memory_that_others_have_is_copied(tmp_path: Path) -> None:
    fresh = np.arange(100.0)
    frozen = pa.array(np.arange(100.0)).buffers()[1].to_pybytes()
    read_only = pa.Array.from_buffers(pa.float64(), 100, [None, pa.py_buffer(frozen)])
    shared = pa.array(fresh)
    batch = pa.record_batch({"once": shared, "twice": shared, "frozen": read_only})
    for output in ("torch", "numpy"):
        rows = make_codec(batch.schema, TypePolicy(output_format=output)).decode(batch)
        out = rows.batches(100)[0]
        out["twice"][:] = -1
        out["frozen"][:] = -1
        assert out["once"][5] == 5
        assert np.frombuffer(frozen)[5] == 5
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.memory_map(str(tmp_path / "a.arrow")) as source:
        mapped = pa.ipc.open_file(source).get_batch(0)
        out = make_codec(batch.schema, TypePolicy()).decode(mapped).batches(100)[0]
        out["once"].zero_()
        assert mapped["once"][5].as_py() == 5


def test_numpy_batches_can_be_written() -> None:
    batch = pa.record_batch(
        {"a": np.arange(10), "b": pa.array([True] * 10), "l": pa.array([[1]] * 10), "d": pa.array([[1, 2]] * 10)}
    ).cast(pa.schema({"a": pa.int64(), "b": pa.bool_(), "l": pa.list_(pa.int8()), "d": pa.list_(pa.int8(), 2)}))
    for out in batches_of(batch, output_format="numpy", batch_size=4):
        arrays = [out["a"], out["b"], out["d"], *out["l"]]
        assert all(array.flags.writeable for array in arrays)


def test_autograd_does_not_tie_batches_together() -> None:
    batch = pa.record_batch({"x": np.arange(12, dtype=np.float32)})
    first, second, third = batches_of(batch, batch_size=4)
    weight = torch.full((4,), 2.0, requires_grad=True)
    loss = (first["x"] * weight).sum()
    second["x"].add_(1)  # would void what autograd saved of `first`, were the version shared
    third["x"].mul_(weight)  # would make all of them part of the graph, were the base shared
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not second["x"].requires_grad


class _Watched(np.ndarray[Any, Any]):
    """An array that can be watched for its end."""


def _watched_chunk(rows: int) -> tuple[pa.RecordBatch, weakref.ref[Any]]:
    values = np.arange(rows, dtype=np.int64).view(_Watched)
    watch = weakref.ref(values)
    buffer = pa.py_buffer(values)
    return pa.record_batch({"x": pa.Array.from_buffers(pa.int64(), rows, [None, buffer])}), watch


def test_the_rest_does_not_keep_a_chunk_alive() -> None:
    chunk, watch = _watched_chunk(1000)
    codec = make_codec(chunk.schema, TypePolicy())
    for waiting in (
        ExactBatches(codec, 300),
        WindowShuffle(codec, WindowSizes(300), lambda _, parts: codec.as_one(parts)),
    ):
        chunk, watch = _watched_chunk(1000)
        if isinstance(waiting, ExactBatches):
            ready = [codec.as_one(parts) for parts in waiting.push(codec.decode(chunk))]
        else:
            ready = list(waiting.push(Part(codec.decode(chunk), 0, 1000)))
        assert sum(rows.num_rows for rows in ready) == 900
        del chunk, ready
        gc.collect()
        assert watch() is None
        assert waiting.rest() if isinstance(waiting, ExactBatches) else list(waiting.finish())


@pytest.mark.parametrize("near", [0, 1 << 19])
def test_a_chunk_is_kept_by_windows_that_are_dealt_only_while_more_of_it_is_to_come(
    near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_module, "_NEAR_BYTES", near)
    chunk, watch = _watched_chunk(1000)
    codec = make_codec(chunk.schema, TypePolicy())
    deal = WindowDeal(codec, WindowSizes(600), 1200, lambda _, size: Dealing.of(size, 100, 1, 0, "window"))
    rows = codec.decode(chunk)
    assert [run.num_rows for run in deal.push(Part(rows, 0, 600))] == [600]
    with monkeypatch.context() as patched:
        patched.delattr(type(codec), "concat")  # a part is not copied before its window is full
        assert not list(deal.push(Part(rows, 600, 900)))
    assert not list(deal.push(Part(rows, 900, 1000)))
    del chunk, rows
    other, _ = _watched_chunk(200)
    assert [run.num_rows for run in deal.push(Part(codec.decode(other), 0, 200))] == [600]
    gc.collect()
    assert watch() is None


def test_the_small_end_of_a_chunk_is_copied_into_a_window_that_is_dealt() -> None:
    chunk, watch = _watched_chunk(1000)
    codec = make_codec(chunk.schema, TypePolicy())
    deal = WindowDeal(codec, WindowSizes(600), 1200, lambda _, size: Dealing.of(size, 100, 1, 0, "window"))
    assert not list(deal.push(Part(codec.decode(chunk), 600, 1000)))
    del chunk
    gc.collect()
    assert watch() is None


def test_a_window_is_permuted_when_it_is_taken() -> None:
    chunk, _ = _watched_chunk(1000)
    codec = make_codec(chunk.schema, TypePolicy())
    asked: list[int] = []

    def in_order(index: int, parts: Any) -> Any:
        asked.append(index)
        return codec.as_one(parts)

    shuffle = WindowShuffle(codec, WindowSizes(300), in_order)
    for number, _ in enumerate(shuffle.push(Part(codec.decode(chunk), 0, 1000))):
        assert asked == [*range(number + 1)]
    assert asked == [0, 1, 2]
    assert [rows.num_rows for rows in shuffle.finish()] == [100]


def _chunks_of_lists(lengths: np.ndarray[Any, Any], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield chunks of lists, each in memory of its own, of Arrow's pool."""
    for start in range(0, len(lengths), rows):
        offsets = np.concatenate(([0], np.cumsum(lengths[start : start + rows]))).astype(np.int32)
        values = pa.array(np.arange(offsets[-1])).cast(pa.int32())
        yield pa.record_batch({"tokens": pa.ListArray.from_arrays(pa.array(offsets), values)})


def _with_one_long(rng: np.random.Generator, rows: int) -> np.ndarray[Any, Any]:
    lengths = rng.integers(40, 120, rows)
    lengths[250] = 200_000
    return lengths


_LENGTHS: dict[str, tuple[Any, float]] = {
    "alike": (lambda rng, rows: rng.integers(400, 1_200, rows), 1.5),
    "log-normal": (lambda rng, rows: np.exp(rng.normal(5, 1.1, rows)).astype(np.int64), 1.5),
    "one is long": (_with_one_long, 1.8),
    "sorted": (lambda rng, rows: np.sort(rng.integers(0, 1_200, rows)), 1.9),
}
"""Lengths of lists, and how often a batch of them may be held: room grows where what came says little of the rest."""


@pytest.mark.parametrize(("lengths_of", "times"), _LENGTHS.values(), ids=_LENGTHS)
def test_a_batch_of_lists_is_held_once_while_it_is_joined_of_many_chunks(lengths_of: Any, times: float) -> None:
    """Each chunk is copied when it comes, into room for the whole batch, and released."""
    chunk_rows, batch_rows = 100, 2_000
    lengths = lengths_of(np.random.default_rng(0), 2 * batch_rows)
    codec = make_codec(pa.schema({"tokens": pa.list_(pa.int32())}), TypePolicy(ragged="offsets"))
    exact = ExactBatches(codec, batch_rows)
    found = 0
    with own_pool() as pool:
        for chunk in _chunks_of_lists(lengths, chunk_rows):
            for parts in exact.push(codec.decode(chunk)):
                [batch] = codec.as_one(parts).batches(batch_rows)
                found += batch["tokens"].values.sum().item()
                del batch, parts
        most = pool.max_memory()
    batch_bytes = 4 * lengths.reshape(2, -1).sum(axis=1).max()
    assert found == sum((each := lengths[at : at + chunk_rows].sum()) * (each - 1) // 2 for at in range(0, 4_000, 100))
    assert most < times * batch_bytes


class _Counting:
    """A codec that counts the rows it copies."""

    as_one = RowsCodec.as_one

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.copied: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def concat(self, parts: Any) -> Any:
        self.copied.append(sum(part.num_rows for part in parts))
        return self._codec.concat(parts)


def test_only_the_batch_that_spans_chunks_is_copied() -> None:
    chunk = pa.record_batch({"x": np.arange(10_000)})
    codec = _Counting(make_codec(chunk.schema, TypePolicy()))
    exact = ExactBatches[Any](cast("Any", codec), 64)
    for _ in range(3):
        ready = exact.push(codec.decode(chunk))
        assert all(sum(part.num_rows for part in parts) % 64 == 0 for parts in ready)
        assert len(ready) <= 2
        for parts in exact.push(codec.decode(chunk)):
            cast("Any", codec).as_one(parts)
    # At a border at most one batch is joined, and at most one rest made small.
    assert all(rows <= 64 for rows in codec.copied)
    assert 0 < len(codec.copied) <= 10
    codec.copied.clear()
    small = ExactBatches[Any](cast("Any", codec), 1000)
    for _ in range(100):
        for parts in small.push(codec.decode(chunk.slice(0, 30))):
            assert cast("Any", codec).as_one(parts).num_rows == 1000
    assert not codec.copied  # of many small chunks, each was copied to its place when it came


def test_the_rest_can_be_joined_by_someone_else() -> None:
    chunk = pa.record_batch({"x": np.arange(10)})
    codec = make_codec(chunk.schema, TypePolicy())
    exact = ExactBatches(codec, 4)
    assert sum(len(codec.as_one(parts).batches(4)) for parts in exact.push(codec.decode(chunk))) == 2
    [rest] = exact.rest()
    assert rest.batches(4)[0]["x"].tolist() == [8, 9]
    assert not exact.rest()


def test_a_block_is_one_flat_piece_with_aligned_columns(tmp_path: Path) -> None:
    chunk = pa.record_batch(
        {"a": np.arange(7, dtype=np.int8), "b": np.arange(7.0), "t": pa.array(["x"] * 7), "m": pa.array([[1]] * 7)}
    )
    codec = make_codec(chunk.schema, TypePolicy(ragged="offsets"))
    asked: list[int] = []

    def shared(num_bytes: int) -> torch.Tensor:
        asked.append(num_bytes)
        return torch.from_file(str(tmp_path / "block"), shared=True, size=num_bytes, dtype=torch.uint8)

    rows = codec.decode(chunk)
    block = codec.pack(rows, rows.slice(0, 0), rows, out=shared)
    assert isinstance(block, Block)
    assert asked == [block.data.nbytes]
    assert block.num_rows == 14
    assert all(isinstance(size, int) for size in block.sizes)
    batch = codec.unpack(block).batches(14)[0]
    start, stop = block.data.data_ptr(), block.data.data_ptr() + block.data.nbytes
    for tensor in (batch["a"], batch["b"], *batch["m"][:1]):
        assert start <= tensor.data_ptr() < stop
        assert (tensor.data_ptr() - start) % 64 == 0
    del block
    gc.collect()
    assert batch["b"].tolist() == [*range(7), *range(7)]
    assert batch["t"] == ["x"] * 14


@pytest.mark.parametrize("ragged", ["nested", "pad", "offsets"])
def test_lists_survive_the_crossing_and_the_shuffle(ragged: Any) -> None:
    lists = pa.array([[row] * (row % 50) for row in range(300)], pa.list_(pa.int32()))
    chunk = pa.record_batch({"x": lists, "grid": pa.array([[row, row] for row in range(300)], pa.list_(pa.int16(), 2))})
    codec = make_codec(chunk.schema, TypePolicy(ragged=ragged))
    order = np.random.default_rng(0).permutation(300)
    rows = codec.unpack(codec.pack(codec.decode(chunk.slice(10)).take(order[order < 290])))
    wanted = [[row + 10] * ((row + 10) % 50) for row in order[order < 290].tolist()]
    came = []
    for batch in rows.batches(100):
        out = batch["x"]
        if ragged == "nested":
            came += [row.tolist() for row in out.unbind()]
        elif ragged == "pad":
            came += [row[:n] for row, n in zip(out.values.tolist(), out.lengths.tolist(), strict=True)]
        else:
            came += [row.tolist() for row in out.values.split(out.offsets.diff().tolist())]
    assert came == wanted


def test_large_joins_are_new_writable_and_shared_with_nobody() -> None:
    parts = [np.arange(100_000).reshape(-1, 2), np.arange(100_000, 300_000).reshape(-1, 2)]
    once, again = joined(parts), joined(parts)
    assert once.tolist() == np.concatenate(parts).tolist()
    once[:] = 0
    assert again[-1].tolist() == [299_998, 299_999]
    assert not np.shares_memory(once, again)
    assert parts[0][1].tolist() == [2, 3]


def test_the_columns_of_a_joined_batch_do_not_overlap() -> None:
    rows = 1000
    columns = {"a": np.arange(rows, dtype=np.int8), "b": np.arange(rows) / 2, "c": np.arange(rows) % 3 == 0}
    chunk = pa.record_batch({**columns, "d": pa.array([[1.5, row] for row in range(rows)], pa.list_(pa.float32(), 2))})
    codec = make_codec(chunk.schema, TypePolicy())
    [batch] = codec.concat([codec.decode(chunk.slice(0, 3)), codec.decode(chunk.slice(3))]).batches(rows)
    for name, values in columns.items():
        assert np.array_equal(batch[name].numpy(), values)
    assert batch["d"][:, 1].tolist() == list(range(rows))
    batch["a"].zero_()
    assert np.array_equal(batch["b"].numpy(), columns["b"])


def test_bytes_are_counted_the_same_whether_rows_have_one_width_or_not() -> None:
    chunk = pa.record_batch({"a": [1, 2, 3], "b": [[1.0], [2.0, 3.0], []], "c": [True, False, True]})
    rows = make_codec(chunk.schema, TypePolicy()).decode(chunk)
    assert rows.num_bytes == 3 * (8 + 1) + 8 * 4 + 8 * 3
