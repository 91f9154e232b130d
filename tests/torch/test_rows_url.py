"""Row stores behind URLs through the loader: built once, then read by ranges on any machine."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.tables.row_stores import stored
from torch_table_loader import ConfigError, StorageError, StructuredDataset
from torch_table_loader.engine import row_store
from torch_table_loader.engine.row_store import RowStoreHandle
from torch_table_loader.testing import small_sizes

ROWS = 3_000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("table")
    for number in range(3):
        ids = np.arange(number * 1000, (number + 1) * 1000)
        names = [None if i % 7 == 0 else f"row {i}" for i in ids]
        columns = {"id": ids, "x": ids.astype("f4") / 3, "name": names}
        pq.write_table(pa.table(columns), root / f"part-{number}.parquet", row_group_size=130)
    return str(root)


@pytest.fixture(autouse=True)
def _small_gaps() -> Iterator[None]:
    """So small a store would come with one request."""
    with small_sizes(far_gap_bytes=64):
        yield


def make(path: str, **options: Any) -> Any:
    defaults: dict[str, Any] = {"batch_size": 64, "shuffle": "rows", "check_plan": False}
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, "parquet", **stored(defaults | options))


def rows(loader: Any) -> list[tuple[Any, ...]]:
    return [
        row
        for batch in loader
        for row in zip(*(v if isinstance(v, list) else v.tolist() for v in batch.values()), strict=True)
    ]


FORMS: list[dict[str, Any]] = [
    {},
    {"columns": ["id", "x"], "memory": "16KiB"},
    {"memory": "16KiB", "filters": pc.field("id") > 1000, "row_id": True},
    {"memory": 1, "num_ranks": 2, "rank": 1, "even_ranks": "pad", "batch_size": 70},
    {"worker_type": "fork", "num_workers": 2},
]


@pytest.mark.parametrize("options", FORMS, ids=str)
@daily(2)
def test_any_machine_reads_what_one_built(
    table: str, machine: Callable[[str], None], tmp_path: Path, url: str, options: dict[str, Any]
) -> None:
    wanted = make(table, **{name: value for name, value in options.items() if name != "memory"})[0]
    builder = make(table, row_store=url, **options)[0]
    machine("second")
    reader = make(table, row_store=url, **options)[0]
    for epoch in (0, 1):
        for loader in (wanted, builder, reader):
            loader.set_epoch(epoch)
        machine("first")
        expected = rows(wanted)
        assert rows(builder) == expected
        machine("second")
        assert rows(reader) == expected
    assert (tmp_path / "first").exists()
    assert not (tmp_path / "second").exists(), "nothing is built where the store is there"


def test_resume_map_and_exclusion(table: str, machine: Callable[[str], None], url: str) -> None:
    options = {"row_store": url, "memory": "16KiB", "filters": pc.field("id") >= 500, "row_id": True}
    expected = rows(make(table, **options)[0])
    machine("second")
    loader, dataset = make(table, **options)
    batches = iter(loader)
    taken = [next(batches) for _ in range(5)]
    dataset.exclude(taken[0]["row_id"])
    state = loader.state_dict()
    batches.close()
    fresh, again = make(table, **options)
    fresh.load_state_dict(state)
    assert rows(taken) + rows(fresh) == expected
    fresh.set_epoch(1)
    gone = set(taken[0]["row_id"].tolist())
    assert {row[-1] for row in rows(fresh)} == set(range(500, ROWS)) - gone
    view = again.as_map()
    assert view[3] == {"id": 503, "x": pytest.approx(503 / 3), "name": "row 503", "row_id": 503}
    assert view.row_ids().tolist() == list(range(500, ROWS))
    assert str(loader.rows_of(0)[0][0]).startswith("part-")
    assert dataset.explain().memory_bound > 128 << 20
    assert f"in {url}" in str(dataset.explain())


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {}, {"worker_type": "process", "num_workers": 2}], ids=str)
@daily(1)
def test_what_came_from_the_store_is_counted(
    table: str, machine: Callable[[str], None], url: str, workers: dict[str, Any]
) -> None:
    options = {
        "row_store": url,
        "memory": 1,
        "columns": ["id", "x"],
        "storage_options": {"read_ahead_bytes": "1MiB"},
    }
    if "worker_type" in workers:
        workers |= {"worker_type": "fork"}
    expected = rows(make(table, **options, **workers)[0])
    machine("second")
    loader, _ = make(table, **options, **workers)
    assert rows(loader) == expected
    fetched = loader.metrics().fetch
    assert fetched.requests >= 1
    assert fetched.num_bytes >= ROWS * 12
    assert fetched.unplanned == 0


def test_the_builder_reads_its_own_copy_later_too(
    table: str, machine: Callable[[str], None], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(make(table, row_store=url)[0])
    monkeypatch.setattr(RowStoreHandle, "_read", None)
    assert rows(make(table, row_store=url)[0]) == expected


@pytest.mark.parametrize("more", [{}, {"worker_type": "process", "num_workers": 2}], ids=str)
def test_files_larger_than_memory_are_asked_for_ahead(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    expected = rows(make(table)[0])
    monkeypatch.setattr(row_store, "available_memory", lambda: 1000)
    loader, dataset = make(table, row_store=str(tmp_path), **more)
    assert rows(loader) == expected
    assert dataset.job.live_rows[""].store.rows().read_ahead is not None


# ---- a plain HTTP server ---------------------------------------------------------------------------------


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves files, and parts of them where `ranges` says so."""

    ranges = True

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if not (asked and self.ranges and path.is_file()):
            super().do_GET()
            return
        start, stop = map(int, asked.removeprefix("bytes=").split("-"))
        data = path.read_bytes()[start : stop + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {start}-{stop}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(_Ranges, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/stores"
        server.shutdown()
        thread.join()


def test_a_store_that_was_put_on_a_web_server(
    table: str, machine: Callable[[str], None], tmp_path: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"columns": ["id", "x"], "memory": "16KiB", "num_workers": 2}
    with pytest.raises(ConfigError, match=r"no whole row store at http://.*rows-.*store build --store DIR"):
        next(iter(make(table, row_store=site, **options)[0]))
    expected = rows(make(table, row_store=str(tmp_path / "stores"), **options)[0])
    assert rows(make(table, row_store=site, **options)[0]) == expected
    monkeypatch.setattr(_Ranges, "ranges", False)
    with pytest.raises(StorageError, match="the server must answer requests for ranges"):
        rows(make(table, row_store=site, **options)[0])


def test_what_is_no_folder_of_stores_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="the URL of a folder, got http://host/stores with a query"):
        make(table, row_store="http://host/stores?sig=secret")
    with pytest.raises(ConfigError, match="nosuch"):
        make(table, row_store="nosuch://host/stores")
    with pytest.raises(ConfigError, match='row_store must be "memory", a directory, or a URL'):
        make(table, row_store=3)
