"""Reading ahead with threads: what a lane waits for arrives, and what it leaves behind is released."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import PATIENCE_S, fetching, until
from torch_table_loader.errors import MissingFileError, StorageError
from torch_table_loader.far.disk_cache import DiskCache, RangeKey
from torch_table_loader.far.fetcher import Fetcher, PartsAhead
from torch_table_loader.ranges import FetchSettings, PlannedRead
from torch_table_loader.records import DataFile, FileNeeds, FileVersion, Traffic
from torch_table_loader.sizes import small_sizes

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_request_is_late() -> Iterator[None]:
    """On a busy machine a request may take long, and would be sent twice."""
    with small_sizes(late_s=PATIENCE_S):
        yield


@dataclass
class Store:
    """A store whose requests wait for the test."""

    size: int = 64 * MIB
    hold: Callable[[str, int], None] = lambda path, start: None
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    place = "test"
    is_local = False

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
        self.asked.append((path, start, stop))
        self.hold(path, start)
        return marked(bytearray(stop - start), start)

    def checks(self, version: FileVersion) -> bool:
        return True

    def version(self, path: str) -> FileVersion:
        raise AssertionError(path)

    def open(self, path: str) -> Any:
        raise AssertionError(path)

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None: ...


def marked(data: bytearray, start: int) -> bytearray:
    data[0] = start >> 20
    return data


def plan(store: Store, reads: int, groups: int = 4, lane: int = 0) -> Iterator[PlannedRead]:
    """Plan reads of one file each, with so many row groups of 8 MiB."""
    for number in range(reads):
        file = DataFile(str(number), str(number), FileVersion(store.size, etag="a"), "parquet")
        needs = FileNeeds(file, tuple(((at * 8 * MIB, (at + 1) * 8 * MIB),) for at in range(groups)))
        yield PlannedRead(number * 100, lane, 100, partial(_given, needs))


def _given(needs: FileNeeds) -> FileNeeds:
    return needs


def begin(store: Store, reads: int, budget: int = 64 * MIB) -> Fetcher:
    return Fetcher(store, plan(store, reads), FetchSettings(budget))


def wait_for(gate: threading.Event) -> None:
    assert gate.wait(PATIENCE_S)


def test_each_read_gets_its_bytes_within_the_budget() -> None:
    store = Store()
    ahead = begin(store, 6, budget=40 * MIB)
    until(lambda: len(store.asked) == 5)
    time.sleep(0.05)
    assert len(store.asked) == 5, "the sixth request would pass the budget"
    for number in range(6):
        with ahead.next_read(0).open(str(number)) as file:
            assert file.size() == store.size
            for group in range(4):
                start = group * 8 * MIB
                assert bytes(file.read_at(2, start)) == bytes([start >> 20, 0])
    assert len(store.asked) == 24
    assert ahead.stats.num_bytes == 24 * 8 * MIB
    assert ahead.stats.unplanned == 0
    ahead.close()
    until(lambda: not fetching())


def test_an_unplanned_byte_is_requested_on_demand() -> None:
    store = Store()
    ahead = begin(store, 1)
    with ahead.next_read(0).open("0") as file:
        assert bytes(file.read_at(2, 50 * MIB)) == bytes([50, 0])
    assert ("0", 50 * MIB, 50 * MIB + 2) in store.asked
    assert ahead.stats.unplanned == 1
    ahead.close()


def test_an_error_is_raised_where_its_bytes_are_needed() -> None:
    def hold(path: str, start: int) -> None:
        if (path, start) == ("1", 8 * MIB):
            raise MissingFileError("1 is gone", "1")

    ahead = begin(Store(hold=hold), 2)
    with ahead.next_read(0).open("0") as file:
        assert file.read_at(2, 8 * MIB)
    with ahead.next_read(0).open("1") as file:
        assert file.read_at(2, 0)
        with pytest.raises(MissingFileError):
            file.read_at(2, 8 * MIB)
    ahead.close()


def test_closing_wakes_waiters_sends_nothing_more_and_ends_the_threads() -> None:
    gate = threading.Event()
    store = Store(hold=lambda path, start: wait_for(gate))
    ahead = begin(store, 4)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ahead.next_read(0).open("0").read_at(1, 0)
        except BaseException as error:  # noqa: BLE001 looked at below
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: len(store.asked) > 0)
    ahead.close()
    waiting.join(PATIENCE_S)
    assert isinstance(errors[0], StorageError)
    before = len(store.asked)
    gate.set()
    until(lambda: not fetching())
    assert len(store.asked) == before


def test_nothing_is_requested_after_close() -> None:
    store = Store()
    ahead = begin(store, 2)
    file = ahead.next_read(0).open("0")
    until(lambda: len(store.asked) == 8)
    ahead.close()
    with pytest.raises(StorageError, match="was abandoned"):
        file.read_at(1, 0)
    with pytest.raises(StorageError, match="was abandoned"):
        ahead.next_read(0)
    assert len(store.asked) == 8


def test_bytes_left_behind_are_released() -> None:
    class Bytes(bytearray):
        """Counts the live instances."""

        alive = 0

        def __init__(self, size: int) -> None:
            super().__init__(size)
            Bytes.alive += 1

        def __del__(self) -> None:
            Bytes.alive -= 1

    class Counting(Store):
        def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> Any:
            self.asked.append((path, start, stop))
            return Bytes(stop - start)

    store = Counting()
    ahead = begin(store, 3, budget=400 * MIB)
    until(lambda: Bytes.alive == 12)
    with ahead.next_read(0).open("0") as file:
        file.read_at(1, 24 * MIB)  # decoding has come to the last row group
        until(lambda: Bytes.alive == 9)
    ahead.next_read(0)
    until(lambda: Bytes.alive == 8)
    ahead.close()
    gc.collect()
    until(lambda: Bytes.alive == 0)


def test_a_row_group_is_kept_until_all_its_columns_are_decoded() -> None:
    columns, groups = 3, 4
    file = DataFile("0", "0", FileVersion(96 * MIB, etag="a"), "parquet")
    chunks = [[((group * columns + at) * 8 * MIB) for at in range(columns)] for group in range(groups)]
    needs = FileNeeds(
        file, tuple(tuple((start, start + 8 * MIB) for start in group) for group in chunks), tuple(range(5, 5 + groups))
    )
    for budget in (1, 40 * MIB, 400 * MIB):
        store = Store(size=96 * MIB)
        ahead = Fetcher(store, iter([PlannedRead(0, 0, 100, partial(_given, needs))]), FetchSettings(budget))
        storage = ahead.next_read(0)
        with storage.open("0") as source:
            for first in range(0, groups, 2):  # two row groups are decoded together, column by column
                for column in range(columns):
                    for group in (first, first + 1):
                        start = chunks[group][column]
                        assert bytes(source.read_at(2, start)) == bytes([start >> 20, 0])
                storage.release(5 + first + 2)
                assert ahead._queue.held <= max(budget, 8 * MIB), "what is decoded makes room"
        assert (ahead.stats.unplanned, len(store.asked)) == (0, columns * groups)
        ahead.close()
    until(lambda: not fetching())


def test_added_reads_use_several_stores_within_one_budget() -> None:
    own, other = Store(), Store()
    file = DataFile("a", "a", FileVersion(64 * MIB, etag="a"), "row store")
    needs = FileNeeds(file, tuple(((at * 8 * MIB, (at + 1) * 8 * MIB),) for at in range(8)))
    fetcher = Fetcher(own, iter(()), FetchSettings(16 * MIB))
    later, sooner = (PartsAhead(fetcher, store).expect(needs, before) for store, before in ((own, 100), (other, 0)))
    for at in range(8):
        assert sooner.read(at * 8 * MIB, (at + 1) * 8 * MIB)[0] == at * 8
    assert len(other.asked) == 8
    assert len(own.asked) <= 4, "the budget is of both, and what is delivered sooner comes first"
    sooner.close()
    sooner.close()
    with pytest.raises(StorageError, match="the epoch was abandoned"):
        sooner.read(0, 8)
    assert later.read(0, 8 * MIB)[0] == 0
    fetcher.close()
    with pytest.raises(StorageError, match="the epoch was abandoned"):
        PartsAhead(fetcher, own).expect(needs, 0)
    until(lambda: fetching() == 0)


@small_sizes(late_s=0.5)  # a busy machine must not use the budget up
def test_a_late_request_is_sent_again_and_the_first_answer_is_taken() -> None:
    over, asked = threading.Event(), list[tuple[str, int]]()

    def hold(path: str, start: int) -> None:
        asked.append((path, start))
        if (path, start) == ("20", 8 * MIB) and asked.count((path, start)) == 1 and not over.wait(PATIENCE_S):
            raise StorageError("nobody asked again")

    ahead = begin(Store(hold=hold), 40)
    for number in range(40):
        with ahead.next_read(0).open(str(number)) as file:
            for group in range(4):
                start = group * 8 * MIB
                assert bytes(file.read_at(2, start)) == bytes([start >> 20, 0])
    assert not over.is_set()
    assert asked.count(("20", 8 * MIB)) == 2
    assert 1 <= ahead.stats.hedges == len(asked) - len(set(asked))
    over.set()
    ahead.close()
    until(lambda: not fetching())


def test_fetched_bytes_are_in_the_cache_after_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = DiskCache.put

    def slow_put(cache: DiskCache, key: RangeKey, data: Any) -> None:
        time.sleep(0.02)
        put(cache, key, data)

    monkeypatch.setattr(DiskCache, "put", slow_put)
    store = Store()
    for _ in range(2):
        ahead = Fetcher(store, plan(store, 2), FetchSettings(64 * MIB, DiskCache(tmp_path, 1 << 30)))
        for number in range(2):
            with ahead.next_read(0).open(str(number)) as file:
                for group in range(4):
                    file.read_at(2, group * 8 * MIB)
        ahead.close()
    assert len(store.asked) == 8
    assert ahead.stats.cached_bytes == 64 * MIB


def cached_epoch(root: Path, store: Store, reads: int, groups: int = 4) -> Fetcher:
    return Fetcher(store, plan(store, reads, groups), FetchSettings(64 * MIB, DiskCache(root, 1 << 30)))


def read_all(ahead: Fetcher, reads: int, groups: int = 4) -> None:
    for number in range(reads):
        with ahead.next_read(0).open(str(number)) as file:
            for group in range(groups):
                start = group * 8 * MIB
                assert bytes(file.read_at(2, start)) == bytes([start >> 20, 0])


def test_cached_bytes_are_read_by_the_decoding_thread_into_reused_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, got, get = Store(), list[tuple[int, str, int, int]](), DiskCache.get
    ahead = cached_epoch(tmp_path, store, 2, 8)
    read_all(ahead, 2, 8)
    ahead.close()
    came = len(store.asked)

    def noted(cache: DiskCache, key: RangeKey, *args: Any) -> memoryview | None:
        found = get(cache, key, *args)
        assert found is not None
        got.append((threading.get_ident(), key.path, key.start, np.frombuffer(found, np.uint8).ctypes.data))
        return found

    expected = list[tuple[str, int]]()
    expect = DiskCache.expect

    def noted_too(cache: DiskCache, key: RangeKey) -> None:
        expected.append((key.path, key.start))
        expect(cache, key)

    monkeypatch.setattr(DiskCache, "get", noted)
    monkeypatch.setattr(DiskCache, "expect", noted_too)
    ahead = cached_epoch(tmp_path, store, 2, 8)
    time.sleep(0.05)
    assert not got, "nothing is read before it is used"
    read_all(ahead, 2, 8)
    assert [each[1:3] for each in got] == [(str(number), group * 8 * MIB) for number in range(2) for group in range(8)]
    assert expected == [each for each in (item[1:3] for item in got) if each[1]], "the system reads the next one"
    assert {thread for thread, *_ in got} == {threading.get_ident()}
    assert len({place for *_, place in got}) <= 2, "what was left behind makes room"
    assert ahead.stats.cached_bytes == 128 * MIB
    ahead.close()
    assert len(store.asked) == came


def test_cached_bytes_that_are_still_referenced_are_never_overwritten(tmp_path: Path) -> None:
    store = Store()
    for _ in range(2):
        ahead = cached_epoch(tmp_path, store, 1, 8)
        with ahead.next_read(0).open("0") as file:
            kept = [file.read_buffer(2) for group in range(8) if file.seek(group * 8 * MIB) >= 0]
        ahead.close()
        assert [bytes(each) for each in kept] == [bytes([group * 8, 0]) for group in range(8)]


def test_a_range_evicted_meanwhile_is_fetched_without_delaying_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    ahead = cached_epoch(tmp_path, store, 4)
    read_all(ahead, 4)
    ahead.close()
    store.asked.clear()
    monkeypatch.setattr(DiskCache, "get", lambda cache, key, *args: None)
    with closing(cached_epoch(tmp_path, store, 4)) as ahead:
        for number in range(4):
            with ahead.next_read(0).open(str(number)) as file:
                for group in range(4):
                    assert bytes(file.read_at(2, group * 8 * MIB)) == bytes([group * 8, 0])
                    # The whole budget, though the lane has come to the first alone. Which eight depends on whose
                    # needs were found first.
                    until(lambda: len(store.asked) >= 8)
        assert len(set(store.asked)) == len(store.asked) == 16
        assert (ahead.stats.cached_bytes, ahead.stats.unplanned) == (0, 0)
    until(lambda: not fetching())


def test_a_cache_failure_is_raised_to_the_reader_that_needs_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> memoryview:
        raise MemoryError("no room")

    store = Store()
    ahead = cached_epoch(tmp_path, store, 1)
    read_all(ahead, 1)
    ahead.close()
    monkeypatch.setattr(DiskCache, "get", fail)
    ahead = cached_epoch(tmp_path, store, 1)
    with ahead.next_read(0).open("0") as file, pytest.raises(MemoryError, match="no room"):
        file.read_at(2, 0)
    ahead.close()
    until(lambda: not fetching())


def test_the_garbage_collector_may_close_it_during_its_own_work() -> None:
    ahead = begin(Store(), 4)
    with ahead._wanted:
        ahead.close()
    until(lambda: not fetching())
