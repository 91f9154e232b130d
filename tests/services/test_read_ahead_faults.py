"""Reading ahead from a store that fails: every row once and retries counted, or an error that names the file."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.servers.faults import FaultyStore, serving_faults
from tests.servers.faulty_tables import loader_of, taken
from tests.waiting import until
from torch_table_loader import StorageError, TableError, TableLoader

ROWS, FILES, GROUP = 400, 10, 100
EVERY_ROW = list(range(ROWS * FILES))
ENGINES: list[Any] = [
    pytest.param({"num_workers": 0}, id="caller"),
    pytest.param({"num_workers": 3}, id="threads"),
    pytest.param({"worker_type": "process"}, id="processes"),
]
THREADS = ENGINES[1:2]
FLAKY: dict[str, dict[str, Any]] = {
    "statuses": {"kinds": ("503", "429", "500"), "share": 1 / 3},
    "resets and truncated bodies": {"kinds": ("reset", "truncated"), "share": 1 / 3, "methods": ("GET",)},
}
STORMS: dict[str, dict[str, Any]] = {
    "503": {"kinds": ("503",), "seconds": 0.4},
    "429": {"kinds": ("429",), "seconds": 0.4},
    "gone": {"gone": 0.4},
    "hang": {"kinds": ("hang",), "seconds": 1.0},
}


def write_table(root: Path, first: int = 0) -> None:
    root.mkdir(exist_ok=True)
    for number in range(FILES):
        write_file(root, number, first)


def write_file(root: Path, number: int, first: int = 0) -> None:
    start = first + number * ROWS
    table = pa.table({"x": pa.array(range(start, start + ROWS), pa.int64()), "y": pa.array(range(ROWS), pa.int64())})
    path = root / f"{number}.parquet"
    pq.write_table(table, path, row_group_size=GROUP, compression=None, use_dictionary=False, write_page_checksum=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    root = tmp_path_factory.mktemp("faults")
    write_table(root / "t")
    with serving_faults(root) as serving:
        yield serving


@pytest.fixture
def store(shared: FaultyStore) -> Iterator[FaultyStore]:
    shared.fail()
    yield shared
    shared.fail()


Make = Callable[..., TableLoader]


@pytest.fixture
def make(store: FaultyStore) -> Make:
    columns = ["x", "y"]  # named: else files as small as these come while planning, and no request is left to fail
    return partial(loader_of, store, batch_size=70, columns=columns)


def fail(store: FaultyStore, faults: dict[str, Any]) -> None:
    store.fail(*faults.get("kinds", ()), **{name: value for name, value in faults.items() if name != "kinds"})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("faults", FLAKY.values(), ids=FLAKY)
@daily(2)
def test_every_row_comes_once_and_retries_are_counted(
    make: Make, store: FaultyStore, engine: dict[str, Any], faults: dict[str, Any]
) -> None:
    loader = make(**engine)
    fail(store, faults)
    assert sorted(taken(loader)) == EVERY_ROW
    fetched = loader.metrics().fetch
    assert fetched.retries > 0
    assert fetched.unplanned == 0


@pytest.mark.parametrize("faults", FLAKY.values(), ids=FLAKY)
def test_the_order_is_that_of_a_store_that_is_sound(make: Make, store: FaultyStore, faults: dict[str, Any]) -> None:
    options: dict[str, Any] = {"shuffle": "splits", "split_size": 130, "read_ahead_bytes": 4000}
    wanted = [batch["x"].tolist() for batch in make(**options)]
    fail(store, faults)
    assert [batch["x"].tolist() for batch in make(**options)] == wanted


@pytest.mark.parametrize("engine", THREADS)
@pytest.mark.parametrize("faults", STORMS.values(), ids=STORMS)
@daily(2)
def test_a_storm_passes(make: Make, store: FaultyStore, engine: dict[str, Any], faults: dict[str, Any]) -> None:
    loader = make(**engine, storage_options={**store.options, "request_timeout": 0.5})
    fail(store, faults)
    assert sorted(taken(loader)) == EVERY_ROW
    assert loader.metrics().fetch.retries > 0


@pytest.mark.parametrize("faults", [{"kinds": ("503",), "seconds": 0.0}, {"gone": 0.01}], ids=["503", "gone"])
def test_a_storm_begins_with_the_first_request_however_late_it_comes(
    make: Make, store: FaultyStore, faults: dict[str, Any]
) -> None:
    loader = make()
    fail(store, faults)
    assert store.seen() == {}
    assert sorted(taken(loader)) == EVERY_ROW
    assert loader.metrics().fetch.retries > 0
    assert store.seen()["faults"] > 0


def test_a_store_that_is_gone_serves_nobody(store: FaultyStore) -> None:
    """Connections that it accepted in the moment in which it goes are not served either."""
    fail(store, {"gone": 0.3})
    place = urlsplit(store.url)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(20)]
        for client in clients:
            with suppress(ConnectionError):
                client.sendall(b"GET /bucket/t/0.parquet HTTP/1.1\r\nHost: here\r\n\r\n")
        for client in clients:
            with suppress(ConnectionError):
                assert client.recv(1) == b""
    until(lambda: is_there(store))
    assert store.seen()["faults"] == 1


def is_there(store: FaultyStore) -> bool:
    try:
        store.seen()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("engine", ENGINES)
@daily(1)
def test_a_store_that_stays_away_ends_the_epoch(make: Make, store: FaultyStore, engine: dict[str, Any]) -> None:
    loader = make(**engine, retry_seconds=0.5)
    store.fail("503", methods=("GET",), suffix="7.parquet")
    with pytest.raises(StorageError, match=r"t/7\.parquet: .*; tried \d+ times over \d s") as caught:
        taken(loader)
    assert "faulty/secret" not in str(caught.value)
    store.fail()
    assert sorted(taken(loader)) == EVERY_ROW


@pytest.mark.parametrize("kind", ["ignored", "short"])
def test_other_bytes_than_were_asked_for_are_found(make: Make, store: FaultyStore, kind: str) -> None:
    loader = make(retry_seconds=0.5, columns=["x"])
    store.fail(kind, methods=("GET",), suffix="4.parquet")
    with pytest.raises(StorageError, match=r"4\.parquet"):
        taken(loader)


@pytest.mark.parametrize("engine", THREADS)
def test_a_flipped_bit_names_the_file(make: Make, store: FaultyStore, engine: dict[str, Any]) -> None:
    loader = make(**engine)
    store.fail("flipped", methods=("GET",), suffix="6.parquet", place=500)
    with pytest.raises(TableError, match=r"6\.parquet.*checksum|checksum.*6\.parquet"):
        taken(loader)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("deleted", [False, True], ids=["changed", "deleted"])
@daily(2)
def test_a_file_that_changes_in_the_middle_of_an_epoch_is_named(
    tmp_path: Path, engine: dict[str, Any], *, deleted: bool
) -> None:
    write_table(tmp_path / "t")
    with serving_faults(tmp_path) as store:
        loader = loader_of(store, batch_size=70, read_ahead_bytes=1, prefetch_batches=1, **engine)
        batches = iter(loader)
        first = next(batches)
        assert int(first["x"][0]) == 0
        if deleted:
            (tmp_path / "t" / "9.parquet").unlink()
        else:
            write_file(tmp_path / "t", 9, first=100_000)
        with pytest.raises(
            TableError,
            match=r"9\.parquet: expected a file, found none" if deleted else r"9\.parquet changed while it was in use",
        ) as caught:
            for _ in batches:
                pass
        assert caught.type.__name__ == ("MissingFileError" if deleted else "TableError")
        assert loader.metrics().fetch.retries == 0


# ---- what is read beside batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("faults", FLAKY.values(), ids=FLAKY)
def test_the_counting_pass_counts_right(make: Make, store: FaultyStore, faults: dict[str, Any]) -> None:
    fail(store, faults)
    loader = make(filters=pc.field("y") < 130, split_size=90)
    wanted = [x for x in EVERY_ROW if x % ROWS < 130]
    assert sum(len(batch["x"]) for batch in loader) == len(wanted)
    assert sorted(taken(loader)) == wanted
    assert store.seen()["faults"] > 0


@pytest.mark.parametrize("faults", FLAKY.values(), ids=FLAKY)
def test_a_row_store_is_built_right(make: Make, store: FaultyStore, tmp_path: Path, faults: dict[str, Any]) -> None:
    fail(store, faults)
    loader = make(shuffle="rows", row_store=str(tmp_path / "rows"))
    assert sorted(taken(loader)) == EVERY_ROW
    assert store.seen()["faults"] > 0


def test_the_disk_cache_keeps_nothing_that_is_wrong(make: Make, store: FaultyStore, tmp_path: Path) -> None:
    kept = {"cache_dir": str(tmp_path / "cache")}
    store.fail("503", "reset", "truncated", "short", share=1 / 3, methods=("GET",))
    assert sorted(taken(make(**kept))) == EVERY_ROW
    store.fail()
    again = make(**kept)
    assert sorted(taken(again)) == EVERY_ROW
    assert again.metrics().fetch.num_bytes == 0
