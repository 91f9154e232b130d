"""Iceberg through services: a REST catalog with OAuth2 and vended credentials, Glue, and S3."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from demo.moto import held_port
from tests.effort import daily
from tests.servers.gate import gate_before
from tests.servers.rest_catalog import RestCatalog, serving
from tests.services.conftest import ACCESS_KEY, SECRET_KEY
from tests.tables.catalogs import load_catalog
from torch_table_loader import ConfigError, IcebergDataset, StorageError
from torch_table_loader.source.table_storage import EXPIRY, TableStorage

ROWS = pa.table({"x": pa.array(range(60), pa.int64()), "s": [f"s{i % 3}" for i in range(60)]})


def s3_properties(moto_url: str) -> dict[str, str]:
    return {
        "s3.endpoint": moto_url,
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.region": "us-east-1",
    }


@pytest.fixture
def lake(tmp_path: Path, moto_url: str, bucket: str) -> Catalog:
    """A table on S3, in a catalog of SQLite."""
    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"s3://{bucket}/lake", **s3_properties(moto_url)
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.clicks", ROWS.schema)
    for start in range(0, 60, 20):
        table.append(ROWS.slice(start, 20))
    table.delete("x < 3")
    return catalog


def rows(*table: Any, **options: Any) -> list[int]:
    loader, _ = IcebergDataset.create_dataloader(*table, **{"num_workers": 2, "batch_size": 7, **options})
    return sorted(int(x) for batch in loader for x in batch["x"])


LIVE = list(range(3, 60))


def test_s3_with_the_catalogs_properties(lake: Catalog) -> None:
    assert rows("db.clicks", lake) == LIVE


def test_storage_options_win(lake: Catalog, moto_url: str) -> None:
    location = lake.load_table("db.clicks").metadata_location
    options = {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": moto_url}
    assert rows(metadata_location=location, storage_options=options) == LIVE
    assert rows(metadata_location=location, catalog_config=s3_properties(moto_url)) == LIVE


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(1)
def test_a_rest_catalog_vends_the_credentials(lake: Catalog, moto_url: str, worker_type: str) -> None:
    catalog = RestCatalog(lake, credential="me:secret", vend=lambda: s3_properties(moto_url))
    with serving(catalog) as uri:
        tokens = {"oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
        config = {"type": "rest", "uri": uri, "credential": "me:secret", **tokens}
        assert rows("db.clicks", config, worker_type=worker_type) == LIVE
        assert rows("db.clicks", {"type": "rest", "uri": uri, "token": catalog.token}) == LIVE
        with pytest.raises(ConfigError, match=r"no table 'db.click'; the nearest are 'db.clicks'"):
            rows("db.click", config)
        with pytest.raises(StorageError) as refused:
            rows("db.clicks", {**config, "credential": "me:wrong-secret"})
        assert "wrong-secret" not in str(refused.value)


def test_credentials_for_a_prefix(lake: Catalog, moto_url: str) -> None:
    with serving(RestCatalog(lake, vend=lambda: s3_properties(moto_url), by_prefix=True)) as uri:
        assert rows("db.clicks", {"type": "rest", "uri": uri}) == LIVE


def test_names_of_three_parts_through_rest(lake: Catalog, moto_url: str) -> None:
    lake.create_namespace("db.inner")
    lake.create_table("db.inner.clicks", ROWS.schema).append(ROWS)
    with serving(RestCatalog(lake, vend=lambda: s3_properties(moto_url))) as uri:
        config = {"type": "rest", "uri": uri}
        assert rows("db.inner.clicks", config) == list(range(60))
        with pytest.raises(ConfigError, match=r"no table 'db.inner.clic'; the nearest are 'db.inner.clicks'"):
            rows("db.inner.clic", config)
        with pytest.raises(ConfigError, match=r"no namespace 'db.outer'; the nearest are 'db.inner'"):
            rows("db.outer.clicks", config)


def test_a_rest_catalog_that_is_not_there() -> None:
    with held_port() as port, pytest.raises(StorageError, match=r"the catalog \(rest\) does not answer"):
        rows("db.clicks", {"type": "rest", "uri": f"http://127.0.0.1:{port}"}, storage_options={"retry_seconds": 0})


def test_credentials_that_end_are_renewed_before(lake: Catalog, moto_url: str) -> None:
    ends = iter([time.time() + 1, time.time() + 86_400])
    catalog = RestCatalog(lake, vend=lambda: {**s3_properties(moto_url), EXPIRY: str(int(next(ends) * 1000))})
    with serving(catalog) as uri:
        assert rows("db.clicks", {"type": "rest", "uri": uri}) == LIVE
    assert catalog.loads == 2


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(1)
def test_a_provider_is_asked_where_the_store_refuses(lake: Catalog, moto_url: str, worker_type: str) -> None:
    location = lake.load_table("db.clicks").metadata_location
    provider = Provider(s3_properties(moto_url), wrong=0)
    assert rows(metadata_location=location, credentials=provider, worker_type=worker_type) == LIVE


class Provider:
    """Gives the right properties after so many wrong ones."""

    def __init__(self, properties: dict[str, str], wrong: int) -> None:
        self._properties, self._wrong, self.calls = properties, wrong, 0

    def __call__(self) -> dict[str, str]:
        self.calls += 1
        if self.calls <= self._wrong:
            return {**self._properties, "s3.access-key-id": "expired"}
        return self._properties


def test_once_more_after_a_refusal(lake: Catalog, moto_url: str) -> None:
    location = lake.load_table("db.clicks").metadata_location
    with gate_before(moto_url) as gate:
        gate.ended.add("expired")
        right = {**s3_properties(moto_url), "s3.endpoint": gate.url}
        provider = Provider(right, wrong=1)
        assert rows(metadata_location=location, credentials=provider) == LIVE
        assert provider.calls == 2
        assert gate.refused >= 1
        hopeless = TableStorage(location, {**right, "s3.access-key-id": "expired"}, provider=Provider(right, wrong=9))
        with pytest.raises(StorageError, match=r"403|ACCESS_DENIED"):
            hopeless.open(location)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(1)
def test_credentials_that_end_before_anyone_said(lake: Catalog, moto_url: str, worker_type: Any) -> None:
    location = lake.load_table("db.clicks").metadata_location
    with gate_before(moto_url) as gate:
        provider = Provider({**s3_properties(moto_url), "s3.endpoint": gate.url}, wrong=1)
        loader, _ = IcebergDataset.create_dataloader(
            metadata_location=location, credentials=provider, num_workers=1, batch_size=7, worker_type=worker_type
        )
        assert gate.refused == 0
        gate.ended.add("expired")
        assert sorted(int(x) for batch in loader for x in batch["x"]) == LIVE
        assert gate.refused >= 1


@pytest.fixture
def glue(moto_url: str, bucket: str) -> dict[str, str]:
    return {
        "type": "glue",
        "glue.endpoint": moto_url,
        "s3.endpoint": moto_url,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "region_name": "us-east-1",
        "warehouse": f"s3://{bucket}/lake",
    }


def test_glue_by_the_short_names(glue: dict[str, str], moto_url: str, bucket: str) -> None:
    keys = {"glue.access-key-id": ACCESS_KEY, "glue.secret-access-key": SECRET_KEY, "glue.region": "us-east-1"}
    own = load_catalog(
        "glue",
        type="glue",
        warehouse=f"s3://{bucket}/lake",
        **{"glue.endpoint": moto_url},
        **keys,
        **s3_properties(moto_url),
    )
    own.create_namespace("db")
    own.create_table("db.clicks", ROWS.schema).append(ROWS)
    for worker_type in ("thread", "process"):
        assert rows("db.clicks", glue, worker_type=worker_type) == list(range(60))
    with pytest.raises(ConfigError, match=r"no namespace 'bd'; the nearest are 'db'"):
        rows("bd.clicks", glue)
    with pytest.raises(ConfigError, match=r"no table 'a.db.clicks': .*hierarchical namespaces are not supported|'a'"):
        rows("a.db.clicks", glue)
    with pytest.raises(ConfigError, match=r"no table 'db.nothing'; the nearest are 'db.clicks'"):
        rows("db.nothing", glue)


def test_an_in_memory_catalog(tmp_path: Path) -> None:
    catalog = load_catalog("memory", type="in-memory", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    catalog.create_table("db.clicks", ROWS.schema).append(ROWS)
    assert rows("db.clicks", catalog) == list(range(60))


def test_a_hive_metastore_that_is_not_there() -> None:
    with pytest.raises((ConfigError, StorageError)):
        rows("db.clicks", {"type": "hive", "uri": "thrift://127.0.0.1:1"}, storage_options={"retry_seconds": 0})
