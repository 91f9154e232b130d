"""A store at a URL equals the local one; neighbors share requests; an incomplete store is not used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables.row_stores import MemoryTable, everything, folder_in_memory, numbers
from tests.waiting import PATIENCE_S, threads, until
from torch_table_loader.errors import MissingFileError, StorageError, TableError
from torch_table_loader.extend import FileStorage
from torch_table_loader.far.fetcher import reading_parts
from torch_table_loader.far.remote import RemoteRows, open_remote, row_width, upload_store
from torch_table_loader.planning.record_ranges import coalesce, in_windows
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.records import FileVersion
from torch_table_loader.sizes import small_sizes
from torch_table_loader.store.builder import build_files
from torch_table_loader.store.record_layout import (
    CODES,
    IDS,
    MANIFEST,
    NULLS,
    RECORDS,
    WORDS,
    RecordLayout,
    StoreSpec,
    heap_file,
)


class Bytes(bytearray):
    """Bytes whose release is recorded."""

    gone: Callable[[int], None]

    def __del__(self) -> None:
        self.gone(len(self))


class Counted:
    """A storage that records requested parts and live bytes, and that can be made to wait or fail."""

    def __init__(self) -> None:
        self.inner = FileStorage("memory")
        self.parts: list[tuple[str, int, int]] = []
        self.hold: Callable[[str], None] = lambda name: None
        self.living = self.most_living = 0
        self.lock = threading.Lock()
        self.puts = 0
        self.fails_at = -1

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        name = path.rpartition("/")[2]
        with self.lock:
            self.parts.append((name, start, stop))
            self._live(stop - start)
        self.hold(name)
        data = Bytes(self.inner.read_range(path, start, stop, version))
        data.gone = lambda size: self._live(-size)
        return data

    def _live(self, num_bytes: int) -> None:
        self.living += num_bytes
        self.most_living = max(self.most_living, self.living)

    def put_file(self, local: str, path: str) -> None:
        self.puts += 1
        if self.puts - 1 == self.fails_at:
            raise StorageError("the line was cut")
        self.inner.put_file(local, path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def root() -> Iterator[str]:
    with folder_in_memory() as folder:
        yield f"{folder}/stores"


def opened(storage: Counted, root: str, spec: StoreSpec, ahead_bytes: int = 1 << 20) -> RemoteRows | None:
    reader = partial(reading_parts, storage, FetchSettings(ahead_bytes))
    with small_sizes(window_rows=64):
        return open_remote(storage, root, spec, reader, 256 * row_width(spec.layout))


def uploaded(made: MemoryTable, place: Path, root: str, ahead_bytes: int = 1 << 20) -> tuple[RemoteRows, Counted]:
    storage = Counted()
    build_files(place, made.spec, made.read, 2)
    upload_store(place, storage, root, made.spec)
    rows = opened(storage, root, made.spec, ahead_bytes)
    assert rows is not None
    storage.parts.clear()
    return rows, storage


@given(records=st.sets(st.integers(0, 400), min_size=1), gap=st.integers(0, 20), most=st.integers(1, 50))
def test_parts_contain_the_wanted_records_and_little_else(records: set[int], gap: int, most: int) -> None:
    wanted = np.array(sorted(records))
    parts = coalesce(wanted, gap, most)
    found = [wanted[begin:end].tolist() for begin, end in zip(parts.bounds[:-1], parts.bounds[1:], strict=True)]
    assert [record for part in found for record in part] == wanted.tolist()
    for first, stop, part in zip(parts.first, parts.stop, found, strict=True):
        assert (first, stop - 1) == (part[0], part[-1])
        assert stop - first <= most
        assert all(late - early <= gap + 1 for early, late in pairwise(part))
    if most > 401:
        assert (parts.first[1:] - parts.stop[:-1] > gap).all()


def test_windows_grow_and_include_everything() -> None:
    blocks = [(np.arange(10), number) for number in range(20)]
    windows = list(in_windows(iter(blocks), 10, 50))
    assert [len(window) for window in windows] == [1, 2, 4, 5, 5, 3]
    assert [note for window in windows for _, note in window] == list(range(20))


@pytest.mark.parametrize("with_ids", [False, True])
def test_gathered_rows_equal_the_table(tmp_path: Path, root: str, with_ids: bool) -> None:
    made = MemoryTable(everything(900), [0, 300, 301, 900], ids=np.arange(900) * 3 if with_ids else None)
    rows, _ = uploaded(made, tmp_path, root)
    rng = np.random.default_rng(0)
    for places in ([], [0], [899], [5] * 7, range(900), rng.integers(0, 900, 2000)):
        made.check(rows, places)
    assert (rows.row_ids is not None) == with_ids
    assert rows.row_ids is None or rows.row_ids.tolist() == (np.arange(900) * 3).tolist()


def test_windows_deliver_the_order_and_join_neighbours(tmp_path: Path, root: str) -> None:
    made = MemoryTable(numbers(5000), [0, 2500, 5000])
    rows, storage = uploaded(made, tmp_path, root)
    order = np.random.default_rng(1).permutation(5000)
    blocks = [(order[at : at + 40], at) for at in range(0, 5000, 40)]
    found: list[int] = []
    with small_sizes(far_gap_bytes=40 * rows.layout.width):
        for source, places, at in rows.windows(iter(blocks)):
            assert len(found) == at
            found += source.gather(places)[0].to_pylist()
            assert source.ids(places).tolist() == order[at : at + 40].tolist()
    assert found == order.tolist()
    asked = sum(stop - start for _, start, stop in storage.parts)
    assert len(storage.parts) < 5000 / 5, "neighbours come with one request"
    assert asked < 20 * 5000 * rows.layout.width
    storage.parts.clear()
    rows.fetch(np.arange(5000))
    assert storage.parts == [(RECORDS, 0, 5000 * rows.layout.width)]


def test_large_parts_are_cut_and_few_bytes_live(tmp_path: Path, root: str) -> None:
    made = MemoryTable(numbers(4000), [0, 4000])
    width = RecordLayout(made.spec.schema).width
    rows, storage = uploaded(made, tmp_path, root, ahead_bytes=250 * width)
    with small_sizes(far_request_bytes=100 * width):
        made.check(rows, range(4000))
    assert max(stop - start for _, start, stop in storage.parts) == 100 * width
    assert storage.most_living <= 450 * width, "the budget, the part that is wanted, and the one that is gathered"
    assert storage.living == 0


def test_the_bytes_of_a_window_are_requested_together(tmp_path: Path, root: str) -> None:
    made = MemoryTable(everything(900), [0, 300, 600, 900], ids=np.arange(900) * 3)
    rows, storage = uploaded(made, tmp_path, root)
    wanted = {RECORDS, NULLS, IDS, CODES, WORDS, heap_file(0), heap_file(1), heap_file(2)}
    in_flight, together = set(), threading.Event()

    def hold(name: str) -> None:
        in_flight.add(name)
        if in_flight >= wanted:
            together.set()
        assert together.wait(PATIENCE_S), "no request waits for the answer to another"

    storage.hold = hold
    made.check(rows, range(0, 900, 10))


@small_sizes(far_gap_bytes=0)
def test_while_one_window_is_read_the_next_two_are_requested(tmp_path: Path, root: str) -> None:
    rows, storage = uploaded(MemoryTable(numbers(3000), [0, 3000]), tmp_path, root)
    windows = rows.windows((np.arange(at, at + 300), at) for at in range(0, 3000, 300))
    next(windows)
    until(lambda: len(storage.parts) == 3)
    assert [start // rows.layout.width for _, start, _ in sorted(storage.parts)] == [0, 300, 600]
    assert [at for _, _, at in windows] == list(range(300, 3000, 300))
    assert len(storage.parts) == 10


@small_sizes(far_gap_bytes=16)
def test_answers_may_arrive_in_any_order(tmp_path: Path, root: str) -> None:
    made = MemoryTable(everything(900), [0, 300, 301, 900], ids=np.arange(900) * 3)
    rows, storage = uploaded(made, tmp_path, root)
    random = Random(0)
    storage.hold = lambda name: time.sleep(random.choice((0, 0, 0.001, 0.004)))
    order = np.random.default_rng(2).integers(0, 900, 1200)
    found = []
    for source, places, _ in rows.windows((order[at : at + 60], None) for at in range(0, 1200, 60)):
        found += source.gather(places)[0].to_pylist()
    assert found == made.batch.column(0).take(order).to_pylist()
    assert storage.living == 0


@pytest.mark.parametrize("name", [RECORDS, NULLS, IDS, CODES, heap_file(1)])
def test_a_missing_file_is_named_and_the_threads_end(tmp_path: Path, root: str, name: str) -> None:
    made = MemoryTable(everything(900), [0, 300, 900], ids=np.arange(900) * 3)
    rows, _ = uploaded(made, tmp_path, root)
    windows = rows.windows((np.arange(300), None) for _ in range(9))
    next(windows)
    fsspec.filesystem("memory").rm_file(f"{root}/{name}")
    before = rows.windows((np.arange(300, 600), None) for _ in range(9))
    with pytest.raises(MissingFileError, match=rf"memory:/.*stores/{name}: expected a file, found none"):
        list(before)
    windows.close()  # type: ignore[attr-defined]
    assert not threads("table-loader-window")
    until(lambda: not threads("table-loader-fetch"))


def test_abandoned_windows_wait_for_no_answer(tmp_path: Path, root: str) -> None:
    rows, storage = uploaded(MemoryTable(numbers(500), [0, 500]), tmp_path, root)
    windows = rows.windows(iter([(np.arange(256), None)] * 9))
    next(windows)
    answer, held = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        held.set()
        assert answer.wait(PATIENCE_S)

    until(lambda: len(storage.parts) == 3)
    storage.hold = hold
    next(windows)
    assert held.wait(PATIENCE_S)
    windows.close()  # type: ignore[attr-defined]
    assert not threads("table-loader-window")
    answer.set()
    until(lambda: not threads("table-loader-fetch"))
    assert storage.living == 0


def test_a_store_rewritten_meanwhile_is_noticed(tmp_path: Path) -> None:
    """Each request names the version that was there when the store was opened."""
    made, versions = MemoryTable(numbers(300), [0, 300]), []
    storage, root = Counted(), str(tmp_path / "there")
    storage.inner = FileStorage("file")
    build_files(tmp_path / "here", made.spec, made.read, 1)
    upload_store(tmp_path / "here", storage, root, made.spec)
    rows = opened(storage, root, made.spec)
    assert rows is not None
    read = storage.inner.read_range

    def noting(path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        versions.append(version)
        return read(path, start, stop)

    storage.read_range = noting  # type: ignore[method-assign]
    made.check(rows, range(300))
    assert set(versions) == {storage.version(f"{root}/{RECORDS}")}


# ---- what is not whole ----------------------------------------------------------------------------------


def test_an_interrupted_upload_is_not_used_and_can_be_resumed(tmp_path: Path, root: str) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])
    storage = Counted()
    storage.fails_at = 2
    build_files(tmp_path, made.spec, made.read, 1)
    with pytest.raises(StorageError, match="the line was cut"):
        upload_store(tmp_path, storage, root, made.spec)
    assert opened(storage, root, made.spec) is None
    upload_store(tmp_path, storage, root, made.spec)
    rows = opened(storage, root, made.spec)
    assert rows is not None
    made.check(rows, range(300))
    puts = storage.puts
    upload_store(tmp_path, storage, root, made.spec)
    assert storage.puts == puts, "what is there is not put again"


def test_of_strings_that_repeat_only_the_codes_of_the_wanted_rows_are_read(tmp_path: Path, root: str) -> None:
    words = pa.array([None if row % 7 == 0 else f"word {row % 9}" for row in range(90_000)])
    made = MemoryTable(pa.record_batch({"x": np.arange(90_000), "word": words}), [0, 30_000, 90_000], read_rows=9_000)
    rows, storage = uploaded(made, tmp_path, root)
    made.check(rows, [89_999, 5, 5])
    asked = {name: stop - start for name, start, stop in storage.parts}
    assert set(asked) == {RECORDS, CODES, WORDS}
    assert asked[CODES] == 4
    storage.parts.clear()
    made.check(rows, [89_999])
    assert WORDS not in {name for name, _, _ in storage.parts}, "the distinct strings are fetched once"
    damaged = bytearray((tmp_path / WORDS).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    fsspec.filesystem("memory").pipe_file(f"{root}/{WORDS}", bytes(damaged))
    again = opened(storage, root, made.spec)
    assert again is not None
    with pytest.raises(TableError, match=rf"is damaged: {WORDS} is not what was written"):
        again.gather(np.array([0]))


def test_damage_is_named(tmp_path: Path, root: str) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])
    _, storage = uploaded(made, tmp_path, root)
    with pytest.raises(TableError, match=r"holds 300 rows of .*, expected 100 of"):
        opened(storage, root, MemoryTable(everything(100), [0, 100]).spec)
    memory = fsspec.filesystem("memory")
    whole = memory.cat_file(f"{root}/{heap_file(1)}")
    memory.pipe_file(f"{root}/{heap_file(1)}", whole[:-1])
    with pytest.raises(
        TableError, match=r"'memory://.*stores' is damaged: heap-000001\.arrow must have \d+ bytes, got"
    ):
        opened(storage, root, made.spec)
    memory.rm_file(f"{root}/{heap_file(1)}")
    with pytest.raises(TableError, match="expected a file, found none"):
        opened(storage, root, made.spec)
    memory.pipe_file(f"{root}/{MANIFEST}", memory.cat_file(f"{root}/{MANIFEST}")[:-9])
    with pytest.raises(TableError, match=r"the manifest of the row store 'memory://.* is damaged"):
        opened(storage, root, made.spec)


def test_a_part_of_the_wrong_length_is_an_error(tmp_path: Path, root: str) -> None:
    made = MemoryTable(numbers(300), [0, 300])
    rows, _ = uploaded(made, tmp_path, root)
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{root}/{RECORDS}", b"short")
    with pytest.raises(StorageError, match=r"bytes 0 to .* were asked for, and 5 bytes came"):
        made.check(rows, range(300))
