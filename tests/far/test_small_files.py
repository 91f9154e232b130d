"""Small files of a far table: how many round trips follow one another, and how many requests there are in all.

One process that reads all of a table asks for each small file once: it comes whole with its footer.
"""

from __future__ import annotations

import gc
import io
import pickle
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.buckets import Bucket, Rounds, serve
from tests.waiting import until
from torch_table_loader import StorageError, StructuredDataset, TableError
from torch_table_loader.far.fetch_queue import FetchQueue
from torch_table_loader.far.fetcher import Fetcher
from torch_table_loader.far.small_files import SmallFiles
from torch_table_loader.records import FileVersion
from torch_table_loader.sizes import sizes
from torch_table_loader.units import Size

FILES, ROWS = 12, 50
FORMATS = ("_delta_log", ".hoodie", "metadata")
LISTING = ["HEAD t", "LIST t", *(f"LIST {name}" for name in FORMATS)]


def table(first: int = 0, rows: int = ROWS, columns: int = 2) -> bytes:
    """Return a file of Parquet whose columns hold numbers from one on."""
    out = io.BytesIO()
    numbers = range(first, first + rows)
    pq.write_table(pa.table({f"c{place}": pa.array(numbers, pa.int64()) for place in range(columns)}), out)
    return out.getvalue()


OBJECTS = {f"t/{number:02}.parquet": table(number * ROWS) for number in range(FILES)}
FOOTERS = [f"GET {key}" for key in OBJECTS]


def make(**options: Any) -> Any:
    return StructuredDataset.create_dataloader("s3://b/t", **{"batch_size": 8, "num_workers": 2} | options)


def rows_of(batches: Iterable[Any]) -> list[int]:
    return sorted(row for batch in batches for row in batch["c0"].tolist())


ALL_ROWS = [*range(FILES * ROWS)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_first_epoch_follows_three_round_trips_and_asks_for_each_file_once(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Rounds(LISTING, FOOTERS, ["LIST t"])
    serve(Bucket(OBJECTS, asked), monkeypatch)
    loader, _ = make(shuffle=shuffle)
    assert rows_of(loader) == ALL_ROWS
    assert asked.over


def test_files_of_which_a_part_is_read_are_asked_for_their_ends_and_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Rounds(LISTING, FOOTERS, FOOTERS)
    serve(Bucket(OBJECTS, asked), monkeypatch)
    loader, _ = make(columns=["c0"])
    assert rows_of(loader) == ALL_ROWS
    assert asked.over


class Store:
    """A bucket whose requests are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, objects: dict[str, bytes] | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self.bucket = Bucket(OBJECTS if objects is None else objects, lambda what: self.asked.update([what.split()[0]]))
        serve(self.bucket, monkeypatch)

    def gets(self) -> int:
        """Return how many objects were asked for since the last call."""
        return self.asked.pop("GET", 0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


@pytest.mark.filterwarnings("ignore:2 ranks list the table on their own")
@pytest.mark.parametrize(
    "options",
    [
        {"columns": ["c0"]},
        {"filters": [("c0", ">=", 0)]},
        {"storage_options": {"read_ahead_bytes": 0}},
        {"rank": 0, "num_ranks": 2},
    ],
    ids=["columns", "filter", "nothing ahead", "ranks"],
)
def test_only_who_reads_all_bytes_keeps_them(options: dict[str, Any], store: Store) -> None:
    _, dataset = make(**options)
    assert dataset.job.table.brought_bytes == 0
    assert store.gets() >= FILES


def test_later_epochs_ask_for_each_file_again(store: Store) -> None:
    loader, dataset = make()
    assert (store.gets(), dataset.job.table.brought_bytes) == (FILES, sum(map(len, OBJECTS.values())))
    for gets in (0, FILES, FILES):
        assert rows_of(loader) == ALL_ROWS
        assert store.gets() == gets
        fetch = dataset.metrics().fetch
        assert (fetch.requests, fetch.unplanned) == (gets, 0)
        assert dataset.job.table.brought_bytes == 0


@pytest.mark.parametrize("how", ["same rows", "other rows", "gone"])
def test_a_file_that_changed_after_planning_is_noticed_as_before(how: str, store: Store) -> None:
    loader, _ = make()
    if how == "gone":
        store.bucket.delete("t/03.parquet")
    else:
        store.bucket.put("t/03.parquet", table(3 * ROWS, ROWS if how == "same rows" else ROWS + 1))
    what = r"03\.parquet: expected a file, found none" if how == "gone" else r"03\.parquet changed while it was in use"
    with pytest.raises(TableError, match=what):
        rows_of(loader)


def test_what_is_kept_is_a_part_of_what_is_fetched_ahead(store: Store) -> None:
    each = max(map(len, OBJECTS.values()))
    _, dataset = make(storage_options={"read_ahead_bytes": 8 * each})
    kept = dataset.job.table.brought_bytes
    assert 3 * each < kept <= 4 * each
    assert store.gets() == FILES
    loader, dataset = make(storage_options={"read_ahead_bytes": 8 * each})
    store.gets()
    assert rows_of(loader) == ALL_ROWS
    assert store.gets() == FILES - 4
    fetch = dataset.metrics().fetch
    assert fetch.cached_bytes == kept


def test_the_bound_has_room_for_what_is_kept(store: Store) -> None:
    _, dataset = make()
    kept = dataset.job.table.brought_bytes
    assert dataset.explain().memory_bound >= Size(kept)
    parts = dataset.job.explain(0)
    assert parts.fetch is not None
    assert kept == sum(map(len, OBJECTS.values()))


def test_a_large_file_is_asked_for_its_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large = table(0, 40_000)
    assert len(large) > sizes().far_gap_bytes
    store = Store(monkeypatch, {"t/a.parquet": large, "t/b.parquet": table(40_000)})
    loader, dataset = make()
    assert dataset.job.table.brought_bytes == len(table(40_000))
    store.gets()
    assert rows_of(loader) == [*range(40_000 + ROWS)]
    assert store.gets() >= 1


def test_bytes_are_let_go_with_the_epoch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = []
    init = FetchQueue.__init__

    def watched(self: FetchQueue, plan: Any, budget: int, kept: Any = None) -> None:
        init(self, plan, budget, kept)
        assert len(kept) == FILES
        known.append(weakref.ref(self))

    monkeypatch.setattr(FetchQueue, "__init__", watched)
    loader, _ = make()
    assert rows_of(loader) == ALL_ROWS
    assert len(known) == 1
    until(lambda: gc.collect() >= 0 and known[0]() is None)  # threads that ask a store end soon after their epoch


def test_nothing_is_found_out_and_no_thread_started_for_files_that_are_here(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[Any] = []
    grown: list[int] = []
    find, grow = Fetcher._find, Fetcher._grow

    def finding(self: Fetcher, task: Any) -> None:
        sought.append(task)
        find(self, task)

    def growing(self: Fetcher) -> None:
        grow(self)
        grown.append(self._threads)

    monkeypatch.setattr(Fetcher, "_find", finding)
    monkeypatch.setattr(Fetcher, "_grow", growing)
    loader, dataset = make()
    assert rows_of(loader) == ALL_ROWS
    assert (len(sought), max(grown)) == (0, 1)
    assert dataset.metrics().fetch.cached_bytes == sum(map(len, OBJECTS.values()))
    assert rows_of(loader) == ALL_ROWS
    assert len(sought) == FILES


def test_an_epoch_that_was_left_lets_the_next_one_ask_again(store: Store) -> None:
    loader, _ = make()
    store.gets()
    next(iter(loader))
    assert rows_of(loader) == ALL_ROWS
    assert store.gets() == FILES


def test_pickles_are_those_of_the_storage_itself(store: Store) -> None:
    _, dataset = make()
    storage = dataset.job.table.storage
    assert isinstance(storage, SmallFiles)
    assert pickle.loads(pickle.dumps(storage)) == storage._inner  # noqa: S301


class Scripted:
    """A storage whose reads are scripted: each does something, and then gives what lies there."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self.steps = list(steps)
        self.asked: list[tuple[int, int]] = []

    def checks(self, version: FileVersion) -> bool:
        return True

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> bytes:
        self.asked.append((start, stop))
        if self.steps:
            self.steps.pop(0)()
        return bytes(range(start, stop))


def kept_by(storage: Scripted, most_bytes: int) -> tuple[SmallFiles, Callable[[str], bytes]]:
    """Return small files, and what reads the last two bytes of one of ten."""
    files, version = SmallFiles(storage, "t", most_bytes), FileVersion(10, etag="e")  # type: ignore[arg-type]
    return files, lambda path: bytes(files.read_range(path, 8, 10, version))


def failing() -> None:
    raise StorageError("the store does not answer")


def test_a_failed_read_leaves_its_room_to_others() -> None:
    files, read = kept_by(Scripted(failing), most_bytes=10)
    with pytest.raises(StorageError, match="does not answer"):
        read("t/a")
    assert (read("t/b"), files.brought_bytes) == (bytes([8, 9]), 10)


def test_a_file_whose_end_is_asked_for_again_is_here_and_takes_no_other_room() -> None:
    store = Scripted()
    files, read = kept_by(store, most_bytes=20)
    assert read("t/a") == read("t/a") == read("t/b") == bytes([8, 9])
    assert (store.asked, files.brought_bytes) == ([(0, 10)] * 2, 20)


def test_a_file_that_two_threads_ask_for_takes_its_room_once() -> None:
    files, read = kept_by(Scripted(lambda: read("t/a") and None), most_bytes=20)
    read("t/a")
    read("t/b")
    assert files.brought_bytes == 20


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_still_to_come_when_all_is_let_go_is_not_kept(fails: bool) -> None:
    def let_go() -> None:
        files.let_go()
        if fails:
            failing()

    files, read = kept_by(Scripted(let_go), most_bytes=10)
    with pytest.raises(StorageError) if fails else nullcontext():
        assert read("t/a") == bytes([8, 9])
    read("t/b")
    assert files.brought_bytes == 0
