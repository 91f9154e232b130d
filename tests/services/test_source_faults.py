"""A store that fails: whatever is read of it is right, or an error names the file and what was tried."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.leaks import lane_threads_end
from tests.servers.faults import BUCKET, FaultyStore, serving_faults
from tests.servers.remote_files import in_storage_options
from torch_table_loader import StorageError, StructuredDataset, TableError, TableLoader
from torch_table_loader.cancellation import cancellable
from torch_table_loader.extend import FileStorage, open_storage
from torch_table_loader.testing import small_sizes

ROWS, FILES = 4_000, 4
CLIENTS = ("obstore", "s3fs", "http")

FLAKY: dict[str, dict[str, Any]] = {
    "statuses": {"kinds": ("503", "429", "500"), "share": 1 / 3},
    "resets": {"kinds": ("reset",), "share": 1 / 3, "methods": ("GET",)},
    "truncated": {"kinds": ("truncated",), "share": 1 / 3, "methods": ("GET",)},
    "short": {"kinds": ("short",), "share": 1 / 5, "methods": ("GET",)},
}
STORMS: dict[str, dict[str, Any]] = {
    "storm of 503": {"kinds": ("503",), "seconds": 0.4},
    "storm of 429": {"kinds": ("429",), "seconds": 0.4},
    "gone": {"gone": 0.4},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "t").mkdir()
    for number in range(FILES):
        write_rows(folder / "t" / f"{number}.parquet", pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()))
    (folder / "plain").write_bytes(PLAIN)
    with serving_faults(folder) as serving:
        yield serving


def write_rows(path: Path, x: Any) -> None:
    layout = {"row_group_size": 1_000, "compression": None, "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"x": x}), path, **layout)


PLAIN = bytes(itertools.islice(itertools.cycle(range(251)), 300_000))


@pytest.fixture(autouse=True)
def sound_again(store: FaultyStore) -> Iterator[None]:
    store.fail()
    yield
    store.fail()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def options(store: FaultyStore, client: str, timeout: float | None = None) -> dict[str, Any]:
    """Give the storage options that choose a client, and how long it waits for an answer."""
    if client == "obstore":
        limits = {} if timeout is None else {"connect_timeout": timeout, "request_timeout": timeout}
        return {**store.options, **limits}
    if client == "s3fs":
        config: dict[str, Any] = {"retries": {"max_attempts": 0}}
        if timeout is not None:
            config |= {"connect_timeout": timeout, "read_timeout": timeout}
        return {**store.options, "config_kwargs": config, "max_concurrency": 4}
    if timeout is None:
        return {}
    from aiohttp import ClientTimeout

    return {"client_kwargs": {"timeout": ClientTimeout(total=timeout)}}


def url(store: FaultyStore, client: str, key: str) -> str:
    return f"{store.url}/{BUCKET}/{key}" if client == "http" else f"s3://{BUCKET}/{key}"


def opened(
    store: FaultyStore, client: str, key: str = "plain", retry_seconds: float = 60, timeout: float | None = None
) -> tuple[FileStorage, str]:
    return open_storage(url(store, client, key), {**options(store, client, timeout), "retry_seconds": retry_seconds})


def check_reads(storage: FileStorage, path: str) -> None:
    """Read a file in every way."""
    assert storage.version(path).num_bytes == len(PLAIN)
    assert bytes(storage.read_bytes(path)) == PLAIN
    for start, stop in ((0, 1), (1_000, 90_000), (len(PLAIN) - 7, len(PLAIN))):
        assert bytes(storage.read_range(path, start, stop)) == PLAIN[start:stop]
    parts = [(start, start + 500) for start in range(0, 60_000, 4_000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: bytes(storage.read_range(path, *part)), parts))
    assert found == [PLAIN[slice(*part)] for part in parts]
    with storage.open(path) as file:
        for start in (0, 200_000, 100_000):
            assert file.read_at(50_000, start) == PLAIN[start : start + 50_000]


def made(store: FaultyStore, client: str, **more: Any) -> TableLoader:
    paths = [url(store, client, f"t/{number}.parquet") for number in range(FILES)]
    loader, _ = StructuredDataset.create_dataloader(
        paths if client == "http" else url(store, client, "t"),
        **in_storage_options({"batch_size": 700, "num_workers": 2, "storage_options": options(store, client), **more}),
    )
    return loader


def rows(loader: TableLoader) -> list[int]:
    return sorted(int(x) for batch in loader for x in batch["x"])


EVERY_ROW = list(range(FILES * ROWS))


@pytest.mark.parametrize("faults", FLAKY.values(), ids=FLAKY)
@daily(2)
def test_reads_are_right_however_often_they_fail(store: FaultyStore, client: str, faults: Mapping[str, Any]) -> None:
    storage, path = opened(store, client)
    store.fail(*faults["kinds"], **{name: value for name, value in faults.items() if name != "kinds"})
    check_reads(storage, path)
    assert store.seen()["faults"] > 0
    assert storage.traffic().num_bytes >= len(PLAIN)


@pytest.mark.parametrize("faults", FLAKY.values(), ids=FLAKY)
@daily(2)
def test_an_epoch_has_every_row_once(store: FaultyStore, client: str, faults: Mapping[str, Any]) -> None:
    store.fail(*faults["kinds"], **{name: value for name, value in faults.items() if name != "kinds"})
    assert rows(made(store, client)) == EVERY_ROW
    while not store.seen().get("faults"):  # an epoch has few requests
        assert rows(made(store, client)) == EVERY_ROW


def check_storm(store: FaultyStore, client: str, faults: Mapping[str, Any], *, planned: bool) -> None:
    """Read an epoch that was planned before the store fails, or is planned meanwhile."""
    loader = made(store, client) if planned else None
    store.fail(*faults.get("kinds", ()), **{name: value for name, value in faults.items() if name != "kinds"})
    assert rows(loader or made(store, client)) == EVERY_ROW


@pytest.mark.usefixtures("earlier_loaders_gone")
@daily(1)
def test_a_loader_that_is_gone_is_not_kept_by_idle_connections(store: FaultyStore, client: str) -> None:
    delivered = sum(len(batch["x"]) for batch in made(store, client))
    assert delivered == FILES * ROWS
    gc.collect()
    assert lane_threads_end()


@pytest.mark.parametrize("faults", STORMS.values(), ids=STORMS)
@daily(2)
def test_a_storm_passes(store: FaultyStore, client: str, faults: Mapping[str, Any]) -> None:
    check_storm(store, client, faults, planned=True)


@daily(1)
def test_planning_waits_for_a_store_that_is_gone(store: FaultyStore, client: str) -> None:
    check_storm(store, client, STORMS["gone"], planned=False)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
@pytest.mark.parametrize("faults", STORMS.values(), ids=STORMS)
@daily(2)
def test_a_storm_that_lasts_is_said(
    store: FaultyStore, client: str, faults: Mapping[str, Any], planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with small_sizes(store_warning_s=0.1):
        check_storm(store, client, faults, planned=planned)
    assert "still waiting for the store" in caplog.text
    assert "faulty/secret" not in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("usual_waits")
def test_a_storm_passes_with_the_usual_waits(store: FaultyStore, caplog: pytest.LogCaptureFixture) -> None:
    check_storm(store, "obstore", {"gone": 15.0}, planned=True)
    assert "still waiting for the store" in caplog.text


def test_writes_are_repeated(store: FaultyStore, tmp_path: Path) -> None:
    storage, path = opened(store, "s3fs", "new")
    (tmp_path / "local").write_bytes(b"copied")
    store.fail("503", methods=("PUT",), share=0.5)
    storage.write_bytes(path, b"written")
    storage.put_file(str(tmp_path / "local"), f"{path}-2")
    store.fail()
    assert (storage.read_bytes(path), storage.read_bytes(f"{path}-2")) == (b"written", b"copied")


@daily(1)
def test_a_request_that_hangs_ends(store: FaultyStore, client: str) -> None:
    patient, path = opened(store, client)
    patient.version(path)
    storage, _ = opened(store, client, timeout=0.5, retry_seconds=1)
    store.fail("hang")
    with pytest.raises(StorageError, match=r"plain.*tried \d+ times over \d+ s"):
        storage.read_range(path, 0, 10)
    store.fail("hang", seconds=1)
    assert bytes(opened(store, client, timeout=0.5)[0].read_range(path, 0, 10)) == PLAIN[:10]


@daily(1)
def test_a_range_that_is_ignored_is_found(store: FaultyStore, client: str) -> None:
    storage, path = opened(store, client, retry_seconds=2)
    store.fail("ignored", methods=("GET",))
    asks: list[Callable[[], Any]] = [
        lambda: storage.read_range(path, 1_000, 2_000),
        lambda: storage.read_range(path, 0, 10),
        lambda: storage.read_range(path, 50, 90),
        lambda: storage.open(path).read_at(1_000, 100_000),
    ]
    for ask in asks:
        with pytest.raises(StorageError, match=r"plain"):
            ask()
    assert store.seen()["GET"] < 60


def test_a_body_that_stays_short_is_found(store: FaultyStore, client: str) -> None:
    storage, path = opened(store, client, retry_seconds=1)
    store.fail("short", methods=("GET",))
    with pytest.raises(StorageError, match=r"plain"):
        storage.read_range(path, 1_000, 2_000)


@daily(1)
def test_the_error_names_the_file_and_what_was_tried(store: FaultyStore, client: str) -> None:
    store.fail("503", methods=("GET",), suffix="2.parquet")
    with pytest.raises(StorageError, match=r"t/2\.parquet: .*; tried \d+ times over \d+ s") as caught:
        rows(made(store, client, retry_seconds=1.0))
    assert "faulty/secret" not in str(caught.value)


@pytest.mark.parametrize("lasting", ["404", "412"])
@daily(2)
def test_what_lasts_is_asked_once(store: FaultyStore, client: str, lasting: str) -> None:
    storage, path = opened(store, client, "gone" if lasting == "404" else "plain")
    if lasting == "404":
        with pytest.raises(TableError, match="gone"):
            storage.version(path)
    else:
        version = storage.version(path)
        if not storage.checks(version):
            pytest.skip("this client cannot ask for a version")
        with pytest.raises(TableError, match="plain"):
            storage.read_range(path, 0, 10, type(version)(version.num_bytes, etag="another"))
    assert storage.traffic().retries == 0


@daily(1)
def test_a_flipped_bit_is_found(store: FaultyStore, client: str) -> None:
    store.fail("flipped", methods=("GET",), suffix="1.parquet", place=5_000)
    with pytest.raises(TableError, match=r"1\.parquet.*checksum|checksum.*1\.parquet"):
        rows(made(store, client))


def replaced(path: Path) -> Callable[[], None]:
    """Write other rows over a file, of the same size and time; return what writes the old ones back."""
    was, when = path.read_bytes(), path.stat().st_mtime_ns
    old = pq.read_table(path)["x"]
    for factor in itertools.count(2):  # checksums take more or fewer bytes
        write_rows(path, pc.multiply(old, factor))
        if path.stat().st_size == len(was):
            break
    os.utime(path, ns=(when, when))

    def back() -> None:
        path.write_bytes(was)
        os.utime(path, ns=(when, when))

    return back


@pytest.mark.parametrize("tag", ['"{}"', 'W/"{}"', "{}"])
@daily(2)
def test_a_file_replaced_in_an_epoch_is_found_where_the_store_ignores_if_match(
    store: FaultyStore, client: str, tag: str
) -> None:
    store.fail(ignores=("if-match",), tag=tag)
    loader = made(store, client, read_ahead_bytes=0, num_workers=1)
    batches = iter(loader)
    next(batches)
    back = replaced(store.folder / "t" / "3.parquet")
    try:
        with pytest.raises(TableError, match=r"3\.parquet changed while it was in use: .*etag was '\w+' and is '\w+'"):
            list(batches)
    finally:
        back()
    assert rows(made(store, client)) == EVERY_ROW


def test_a_file_replaced_by_one_that_decodes_is_found_where_the_store_ignores_if_match(store: FaultyStore) -> None:
    folder = store.folder / "no checksums"
    folder.mkdir()
    layout: dict[str, Any] = {"row_group_size": 1_000, "compression": None, "use_dictionary": False}
    for number in range(FILES):
        pq.write_table(pa.table({"x": range(ROWS)}), folder / f"{number}.parquet", **layout)
    store.fail(ignores=("if-match",))
    given = {**options(store, "obstore"), "read_ahead_bytes": 40_000}
    loader, _ = StructuredDataset.create_dataloader(
        f"s3://{BUCKET}/no checksums", storage_options=given, batch_size=700, num_workers=1
    )
    batches = iter(loader)
    next(batches)
    pq.write_table(pa.table({"x": range(1, ROWS + 1)}), folder / "3.parquet", **layout)
    with pytest.raises(TableError, match=r"3\.parquet changed while it was in use: .*etag was '\w+' and is '\w+'"):
        list(batches)


def test_answers_without_a_tag_are_taken(store: FaultyStore) -> None:
    store.fail(ignores=("if-match",), tag="")
    assert rows(made(store, "obstore")) == EVERY_ROW


@daily(1)
def test_a_wait_ends_when_nobody_wants_the_answer(store: FaultyStore, client: str) -> None:
    storage, path = opened(store, client)
    store.fail("503")
    left = threading.Event()
    threading.Timer(0.5, left.set).start()
    with cancellable(left.is_set), pytest.raises(StorageError, match=r"plain|nobody waits for these rows"):
        storage.read_range(path, 0, 10)


@daily(1)
def test_single_retries_are_no_warning(store: FaultyStore, client: str, caplog: pytest.LogCaptureFixture) -> None:
    storage, path = opened(store, client)
    store.fail("503", share=0.3)
    caplog.set_level(logging.INFO, "torch_table_loader")
    for start in range(0, 3_000, 100):
        assert bytes(storage.read_range(path, start, start + 100)) == PLAIN[start : start + 100]
    assert [record for record in caplog.records if record.name.startswith("torch_table_loader")] == []
