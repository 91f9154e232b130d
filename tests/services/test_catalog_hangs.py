"""A REST catalog that takes a request and never answers is an error in the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from tests.effort import daily
from tests.servers.rest_catalog import RestCatalog, serving
from tests.tables.catalogs import load_catalog
from tests.waiting import PATIENCE_S, until
from torch_table_loader import ConfigError, IcebergDataset, StorageError, StorageTimeoutError

LIMITS = {"rest.client.connection-timeout-ms": "2000", "rest.client.socket-timeout-ms": 150}


@dataclass
class Hanging(RestCatalog):
    """Does not answer requests for one path until it is over.

    Args:
        hangs: how that path ends.
        tries: how many requests for it are under way when it is over; 0 waits for `over`.
    """

    hangs: str = ""
    tries: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        if self.hangs and path.endswith(self.hangs):
            until(lambda: self.over.is_set() or 0 < self.tries <= sum(call.endswith(path) for call in self.calls))
        return super().answer(method, path, token, body)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    with closing(
        load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file:{tmp_path}")
    ) as made:
        made.create_namespace("db")
        made.create_table("db.clicks", pa.schema([("x", pa.int64())]))
        yield made


def opened(config: dict[str, Any], retry_seconds: float = 0) -> IcebergDataset:
    return IcebergDataset("db.clicks", config, storage_options={"retry_seconds": retry_seconds})


@pytest.mark.parametrize("hangs", ["/config", "/oauth/tokens", "/tables/clicks"])
@daily(1)
def test_each_request_to_a_catalog_has_a_limit(lake: Catalog, hangs: str) -> None:
    catalog = Hanging(lake, credential="me:secret")
    with serving(catalog) as uri:
        config = {"type": "rest", "uri": uri, "credential": "me:secret", "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
        assert opened(config).num_rows == 0
        catalog.hangs = hangs
        try:
            with pytest.raises(StorageTimeoutError, match=r"catalog.*[Rr]ead timed out"):
                opened(config | LIMITS)
        finally:
            catalog.over.set()


def test_a_catalog_that_hangs_once_is_asked_again(lake: Catalog) -> None:
    catalog = Hanging(lake, hangs="/config", tries=2)
    with serving(catalog) as uri:
        assert opened({"uri": uri, **LIMITS}, retry_seconds=PATIENCE_S).num_rows == 0
    assert sum(call.endswith("/config") for call in catalog.calls) > 1


def test_a_machine_that_takes_no_connection_is_left_alone_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        uri = f"http://127.0.0.1:{full.getsockname()[1]}"
        with pytest.raises(StorageError, match="timed out"):
            opened({"uri": uri, **LIMITS, "rest.client.connection-timeout-ms": 150})


@pytest.mark.parametrize("given", ["soon", 0, -1, float("inf"), "nan"])
def test_a_limit_must_be_a_number(given: Any) -> None:
    config = {"type": "rest", "uri": "http://127.0.0.1:9", "rest.client.socket-timeout-ms": given}
    with pytest.raises(ConfigError, match=r"socket-timeout-ms must be a number of milliseconds above 0, got"):
        opened(config)
