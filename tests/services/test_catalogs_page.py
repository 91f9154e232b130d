"""The examples of docs/catalogs.md that need a service, run against servers of the tests; and what is no table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from tests.effort import daily
from tests.servers.rest_catalog import RestCatalog, serving
from tests.services.catalogs_page import PAGE, example, run
from tests.services.conftest import ACCESS_KEY, SECRET_KEY
from tests.tables.catalogs import load_catalog
from torch_table_loader import ConfigError, IcebergDataset

ROWS = pa.table({"ad": pa.array(range(60), pa.int64())})


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    catalog.create_table("shop.clicks", ROWS.schema).append(ROWS)
    return catalog


def test_the_example_of_rest(lake: Catalog) -> None:
    catalog = RestCatalog(lake, credential="client-id:client-secret")
    with serving(catalog) as uri:
        assert run(example("REST"), {"https://catalog.example.com": uri}) == list(range(60))
    assert any(call.startswith("POST /v1/oauth/tokens") for call in catalog.calls)
    assert any("warehouse=lake" in call for call in catalog.calls)


def test_a_name_of_the_environment_for_rest(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(RestCatalog(lake, credential="me:secret")) as uri:
        given = {"TYPE": "rest", "URI": uri, "CREDENTIAL": "me:secret", "OAUTH2_SERVER_URI": f"{uri}/v1/oauth/tokens"}
        for name, value in given.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
        loader, _ = IcebergDataset.create_dataloader("shop.clicks", catalog="prod")
        assert sum(len(batch["ad"]) for batch in loader) == 60
        with pytest.raises(ConfigError, match=r"no table 'shop\.click'") as refused:
            IcebergDataset("shop.click", catalog="prod")
        assert "secret" not in str(refused.value)


def test_a_view_of_rest_is_refused_by_name(lake: Catalog) -> None:
    views: dict[tuple[str, ...], Mapping[str, Any]] = {("shop", "cheap"): {"metadata": {}}}
    with serving(RestCatalog(lake, views=views)) as uri:
        config = {"type": "rest", "uri": uri}
        with pytest.raises(
            ConfigError, match=r"'shop\.cheap' is a view, which has no files of its own; read the tables"
        ):
            IcebergDataset("shop.cheap", config)
        with pytest.raises(ConfigError, match=r"no table 'shop\.dear'; the nearest are"):
            IcebergDataset("shop.dear", config)


@pytest.fixture
def glue(moto_url: str, bucket: str) -> dict[str, str]:
    """Properties that lead to the server; a table is there."""
    servers = {"glue.endpoint": moto_url, "s3.endpoint": moto_url}
    keys = {"glue.access-key-id": ACCESS_KEY, "glue.secret-access-key": SECRET_KEY, "glue.region": "us-east-1"}
    s3 = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY, "s3.region": "us-east-1"}
    config = {"type": "glue", "warehouse": f"s3://{bucket}/lake", **servers, **keys, **s3}
    catalog = load_catalog("glue", **config)
    if ("shop",) not in catalog.list_namespaces():
        catalog.create_namespace("shop")
    for name in catalog.list_tables("shop"):
        catalog.drop_table(name)
    catalog.create_table("shop.clicks", ROWS.schema).append(ROWS)
    return config


def test_the_example_of_glue(glue: dict[str, str], moto_url: str) -> None:
    servers = f'"glue.endpoint": "{moto_url}", "s3.endpoint": "{moto_url}", "type": "glue"'
    assert run(example("Glue"), {'"type": "glue"': servers, "a-secret": SECRET_KEY}) == list(range(60))


@pytest.mark.parametrize("parameters", [{}, {"table_type": "VIRTUAL_VIEW"}, {"classification": "parquet"}])
@daily(1)
def test_what_is_no_iceberg_table_in_glue_is_refused_by_name(
    glue: dict[str, str], moto_url: str, parameters: dict[str, str]
) -> None:
    client = boto3.client(
        "glue",
        endpoint_url=moto_url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )
    client.create_table(DatabaseName="shop", TableInput={"Name": "other", "Parameters": parameters})
    try:
        with pytest.raises(
            ConfigError, match=r"'shop\.other' is in the catalog, but is not an Iceberg table .*a view has no"
        ):
            IcebergDataset("shop.other", glue)
    finally:
        client.delete_table(DatabaseName="shop", Name="other")


def test_every_example_that_the_page_does_not_run_is_run_here_or_with_the_metastore() -> None:
    sections = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert {name for name, text in sections if "```text" in text} == {"REST", "Glue", "Hive"}
