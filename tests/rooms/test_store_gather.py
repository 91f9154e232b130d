"""Rows gathered from a store equal the table's rows: every type, every null, any order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.row_stores import MemoryTable, everything, in_memory, numbers
from tests.waiting import PATIENCE_S
from torch_table_loader.errors import ConfigError
from torch_table_loader.store.builder import build_files, build_memory
from torch_table_loader.store.manifest import read_manifest, write_manifest
from torch_table_loader.store.opened import open_store
from torch_table_loader.store.record_layout import CODES, WORDS, RecordLayout, check_storable
from torch_table_loader.testing import small_sizes

ORDERS = [
    [],
    [0],
    [899],
    list(range(900)),
    list(range(899, -1, -1)),
    [5] * 300,
    np.random.default_rng(1).integers(0, 900, 20_000).tolist(),
]


@pytest.fixture(scope="module")
def table() -> MemoryTable:
    return MemoryTable(everything(1000).slice(3, 900), [0, 300, 300, 301, 900])


@pytest.mark.parametrize("places", ORDERS, ids=lambda places: f"{len(places)} places")
def test_every_type_round_trips(table: MemoryTable, places: list[int]) -> None:
    check_storable(table.batch.schema)
    table.check(in_memory(table), places)


@pytest.mark.parametrize("count", [0, 1, 5000, 40_000])
def test_columns_come_together_unless_one_has_nulls(count: int) -> None:
    rng = np.random.default_rng(3)
    columns: dict[str, object] = {f"f{place}": rng.standard_normal(900).astype(np.float32) for place in range(9)}
    columns |= {"d": rng.standard_normal(900), "i": rng.integers(-(2**62), 2**62, 900), "n": [None, 1.0] * 450}
    table = MemoryTable(pa.record_batch(columns), [0, 300, 900])
    kinds = {name: np.dtype(table.batch.schema.field(name).type.to_pandas_dtype()) for name in columns}
    sets = (("f2", "f3", "f4", "f5", "f6", "f7", "f8", "f0"), ("i", "d"), ("n", "f1"))
    named = {name: place for place, name in enumerate(columns)}
    places = rng.integers(0, 900, count)
    rows, plain = in_memory(table), in_memory(table).gather(places)
    found = rows.gather(places, [{named[name]: kinds[name] for name in some} for some in sets])
    for some in sets[:2]:
        wanted = np.stack([plain[named[name]].to_numpy().astype(np.float32) for name in some], axis=1)
        for name in some:
            assert found[named[name]].type == pa.list_(pa.float32(), len(some))
            assert found[named[name]].values.to_numpy().tobytes() == wanted.tobytes()
    for name in sets[2]:
        assert found[named[name]].equals(plain[named[name]])


def test_threads_that_store_their_first_nulls_at_once_lose_none() -> None:
    values = [None, 1] * 8
    table = MemoryTable(pa.record_batch({"x": pa.array(values, pa.int8())}), list(range(0, 17, 2)))
    together = threading.Barrier(8, timeout=PATIENCE_S)

    def read(chunk: int) -> Iterator[pa.RecordBatch]:
        for batch in table.read(chunk):
            together.wait()
            yield batch

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(examples(130)):
            assert build_memory(table.spec, read, 8).gather(np.arange(16))[0].to_pylist() == values
    finally:
        sys.setswitchinterval(interval)


def test_a_store_on_disk_equals_one_in_memory(table: MemoryTable, tmp_path: Path) -> None:
    build_files(tmp_path, table.spec, table.read, 2)
    rows = open_store(tmp_path, table.spec, 1)
    assert rows is not None
    for places in ORDERS:
        table.check(rows, places)


def test_ids_are_kept_under_a_filter(tmp_path: Path) -> None:
    table = MemoryTable(numbers(500), [0, 200, 500], ids=np.arange(500) * 7 + 3)
    build_files(tmp_path, table.spec, table.read, 1)
    rows = open_store(tmp_path, table.spec, 1)
    assert rows is not None
    for found in (rows, in_memory(table)):
        table.check(found, [3, 499, 0, 3])


def test_without_nulls_no_null_bits_are_stored(tmp_path: Path) -> None:
    table = MemoryTable(numbers(100), [0, 100])
    build_files(tmp_path, table.spec, table.read, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "records.bin"]


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_table_and_one_row(rows: int, tmp_path: Path) -> None:
    table = MemoryTable(everything(10).slice(0, rows), [0, rows] if rows else [0])
    build_files(tmp_path, table.spec, table.read, 2)
    found = open_store(tmp_path, table.spec, 1)
    assert found is not None
    table.check(found, range(rows))
    table.check(in_memory(table), range(rows))


KINDS = st.sampled_from([pa.int8(), pa.int64(), pa.float32(), pa.bool_(), pa.binary(3), pa.decimal128(9), pa.int16()])


@settings(max_examples=examples(50))
@given(kinds=st.lists(KINDS, min_size=1, max_size=6), sizes=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_a_record_has_each_column_once_and_aligned(kinds: list[pa.DataType], sizes: list[int]) -> None:
    types = [pa.list_(kind, size) if size else kind for kind, size in zip(kinds, sizes, strict=False)]
    layout = RecordLayout(pa.schema([(str(n), kind) for n, kind in enumerate(types)]))
    taken: set[int] = set()
    for slot in layout.slots:
        span = range(slot.offset, slot.offset + slot.kind.width * slot.kind.count)
        assert not taken & set(span)
        taken |= set(span)
        assert slot.offset % min(slot.kind.width & -slot.kind.width, 8) == 0
    assert max(taken) < layout.width
    assert {slot.column for slot in layout.slots} == set(range(len(types)))


@settings(max_examples=examples(50), deadline=None)
@given(
    kinds=st.lists(KINDS, min_size=1, max_size=12),
    sizes=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    rows=st.integers(0, 300),
    block=st.integers(1, 200),
    data=st.data(),
)
def test_blocks_of_records_have_the_bytes_of_each_column(
    kinds: list[pa.DataType], sizes: list[int], rows: int, block: int, data: st.DataObject
) -> None:
    types = [pa.list_(kind, size) if size else kind for kind, size in zip(kinds, sizes, strict=False)]
    layout = RecordLayout(pa.schema([(str(n), kind) for n, kind in enumerate(types)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = tuple(
        rng.integers(0, 256, (rows, slot.kind.count * slot.kind.width), np.uint8).view(group.dtype)
        for group in layout.groups
        for slot in (layout.slots[number] for number in group.slots)
    )
    with small_sizes(record_block_bytes=block * layout.width, record_block_rows=1):
        pieces = [(start, records.copy()) for start, records in layout.blocks(values, rows)]
    assert [start for start, _ in pieces] == list(range(0, rows, block))
    whole = np.concatenate([np.zeros((0, layout.width), np.uint8), *(each for _, each in pieces)])
    for slot, bare in zip(layout.slots, values, strict=True):
        there = whole[:, slot.offset : slot.offset + slot.kind.count * slot.kind.width]
        assert there.tobytes() == bare.tobytes()


def test_a_type_that_cannot_be_gathered_is_refused() -> None:
    kind = pa.list_(pa.string_view())
    with pytest.raises(ConfigError, match="column 'v' is of type list<item: string_view>, which cannot be gathered"):
        check_storable(pa.schema([("x", pa.int32()), ("v", kind)]))


SOME_WORDS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "long" * 9]), st.text(max_size=3))


@settings(max_examples=examples(35))
@given(
    chunks=st.lists(st.lists(st.tuples(SOME_WORDS, SOME_WORDS), max_size=12), min_size=1, max_size=4),
    read_rows=st.integers(1, 5),
    data=st.data(),
)
def test_strings_round_trip_with_and_without_codes(
    tmp_path_factory: pytest.TempPathFactory,
    chunks: list[list[tuple[str | None, str | None]]],
    read_rows: int,
    data: st.DataObject,
) -> None:
    rows = [row for chunk in chunks for row in chunk]
    words = pa.array([row[0] for row in rows], pa.string())
    blobs = pa.array([None if row[1] is None else row[1].encode() for row in rows], pa.large_binary())
    bounds = np.cumsum([0, *map(len, chunks)]).tolist()
    table = MemoryTable(pa.record_batch({"words": words, "blobs": blobs}), bounds, read_rows=read_rows)
    places = data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []
    held = in_memory(table)
    table.check(held, places)
    place = tmp_path_factory.mktemp("store")
    build_files(place, table.spec, table.read, 1)
    mapped = open_store(place, table.spec, 1)
    assert mapped is not None
    table.check(mapped, places)
    assert [None if each.strings is None else each.strings.columns for each in (held, mapped)].count(None) != 1


@pytest.mark.parametrize("where", ["memory", "files"])
def test_repeated_strings_are_stored_once_until_a_chunk_differs(where: str, tmp_path: Path) -> None:
    often = [f"word {number % 3}" for number in range(60)]
    seldom = [*often[:40], *map(str, range(20))]
    table = MemoryTable(pa.record_batch({"often": often, "seldom": seldom}), [0, 20, 40, 60], read_rows=7)
    if where == "files":
        build_files(tmp_path, table.spec, table.read, 1)
    stored = in_memory(table, threads=1) if where == "memory" else open_store(tmp_path, table.spec, 1)
    assert stored is not None
    assert stored.strings is not None
    assert list(stored.strings.columns) == [0]
    assert [len(words) for words in stored.strings.dictionaries] == [3]
    assert stored.heap[0].schema.types == [pa.string()], "what differs is kept as it is, from the first chunk on"
    table.check(stored, np.random.default_rng(0).integers(0, 60, 500))


def test_strings_that_repeat_in_chunks_and_not_in_the_store_are_kept_as_they_are() -> None:
    words = [f"{chunk} {number % 10}" for chunk in range(3) for number in range(20)]
    few = [f"{number % 4}" for number in range(60)]
    table = MemoryTable(pa.record_batch({"words": words, "few": few}), [0, 20, 40, 60])
    stored = in_memory(table)
    assert stored.strings is not None
    assert list(stored.strings.columns) == [0, 1], "each of the words occurs twice"
    lonely = MemoryTable(pa.record_batch({"words": [str(number // 2) for number in range(9)]}), [0, 3, 4, 9])
    assert in_memory(lonely).strings is None
    lonely.check(in_memory(lonely), [8, 0, 3, 3])


@pytest.mark.parametrize("limit", ["chunk_word_bytes", "store_word_bytes"])
def test_too_many_bytes_of_distinct_strings_are_kept_as_they_are(limit: str, tmp_path: Path) -> None:
    words = pa.array([f"a rather long string {number % 5}" for number in range(60)])
    table = MemoryTable(pa.record_batch({"words": words, "few": ["a", "b"] * 30}), [0, 20, 40, 60])
    with small_sizes(**{limit: 100}):
        build_files(tmp_path, table.spec, table.read, 1)
        in_files, held = open_store(tmp_path, table.spec, 1), in_memory(table)
    for stored in (held, in_files):
        assert stored is not None
        assert stored.strings is not None
        assert list(stored.strings.columns) == [1]
        table.check(stored, [59, 0, 7, 7])


def test_a_store_of_files_without_codes_is_read_from_its_heaps(tmp_path: Path) -> None:
    table = MemoryTable(everything(300), [0, 100, 300])
    build_files(tmp_path, table.spec, table.read, 1)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.codes
    write_manifest(tmp_path, table.spec, manifest.parts, {}, {})  # as where a chunk was built without codes
    (tmp_path / CODES).unlink()
    (tmp_path / WORDS).unlink()
    stored = open_store(tmp_path, table.spec, 1)
    assert stored is not None
    assert stored.strings is None
    table.check(stored, range(300))
