"""Tables behind an HTTP server: index pages are directories, queries are secrets, failures keep their kind."""

from __future__ import annotations

import functools
import http.server
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.folders import serving
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.extend import PathSource


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serve files; whatever lies below ``/closed`` is forbidden."""

    def send_head(self) -> object:  # type: ignore[override]
        if self.path.startswith("/closed"):
            self.send_error(403)
            return None
        return super().send_head()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("site")
    for name in ("t/b.csv", "t/day=1/é a.csv", "t/_SUCCESS"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(Path(name).name.encode())
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=root)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_an_index_page_is_a_directory_and_its_names_are_decoded(site: str) -> None:
    source = PathSource.open(f"{site}/t/", "csv")
    assert [file.name for file in source.files] == ["b.csv", "day=1/é a.csv"]
    for file in source.files:
        assert source.storage.version(file.path) == file.version
        with source.storage.open(file.path) as opened:
            assert opened.read() == Path(file.name).name.encode()
    hive = PathSource.open(f"{site}/t/day=*/*.csv", "csv")
    assert [file.partition for file in hive.files] == [(("day", 1),)]


def test_a_signature_is_used_in_requests_and_never_shown(site: str) -> None:
    source = PathSource.open([f"{site}/t/b.csv?sig=hunter2"], "csv")
    assert source.files[0].name == "b.csv"
    assert source.files[0].path.endswith("?sig=hunter2")
    assert "hunter2" not in repr(source)
    url = f"{site}/closed/b.csv?sig=hunter2"
    with pytest.raises(StorageError, match="refuses access") as caught:
        PathSource.open(url, "csv")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_missing_and_unreachable_are_distinguished(site: str) -> None:
    with pytest.raises(ConfigError, match="matches nothing"):
        PathSource.open(f"{site}/t/gone.csv", "csv")
    source = PathSource.open(f"{site}/t/b.csv", "csv")
    with pytest.raises(TableError, match=r"gone\.csv"):
        source.storage.open(f"{site}/t/gone.csv")
    with pytest.raises(StorageError, match="Cannot connect"):
        PathSource.open("http://127.0.0.1:9/b.csv", "csv", storage_options={"retry_seconds": 0})


def test_headers_of_the_caller_do_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    with serving(tmp_path) as own, serving(tmp_path) as other:
        own.redirects = {"/a.parquet": f"{other.url}/a.parquet"}
        options = {"headers": {"X-Key": "hunter2"}}
        loader, _ = StructuredDataset.create_dataloader([f"{own.url}/a.parquet"], storage_options=options)
        assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(10))
    assert "X-Key" in own.headers
    assert other.asked
    assert "X-Key" not in other.headers


@pytest.mark.parametrize(
    "spelled", ["./b.csv", "{site}/t/./b.csv", "{site}/t/%62.csv", "{site}/t//b.csv", "b.csv?x=./1"]
)
def test_a_file_is_one_however_it_is_spelled(site: str, spelled: str) -> None:
    pin = spelled.format(site=site)
    assert [file.name for file in PathSource.open(f"{site}/t/", "csv", files=[pin]).files] == ["b.csv"]
    with pytest.raises(ConfigError, match=r"must name each file once, got .* twice"):
        PathSource.open(f"{site}/t/", "csv", files=["b.csv", pin])
    if "://" in pin:
        with pytest.raises(ConfigError, match=r"must name each file once, got .* twice"):
            PathSource.open([f"{site}/t/b.csv", pin], "csv")
