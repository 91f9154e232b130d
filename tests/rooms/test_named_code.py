"""A property of a table, or of a catalog's answer, that names code is data: nothing is imported, and it is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.table import Table

from tests.effort import daily
from tests.servers.rest_catalog import RestCatalog, serving
from tests.tables.catalogs import load_catalog
from torch_table_loader import IcebergDataset, StorageError, TableError, TableLoaderError

PLANTED = "ttl_planted"
CODE = {
    "py-io-impl": f"{PLANTED}.f",
    "py-catalog-impl": f"{PLANTED}.f",
    "s3.retry-strategy-impl": f"{PLANTED}.f",
    "auth": {"type": "custom", "impl": f"{PLANTED}.f", "custom": {"x": "1"}},
    "auth.impl": f"{PLANTED}.f",
}
OF_TABLES = [name for name, value in CODE.items() if isinstance(value, str)]


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plant a module that nothing may import."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / f"{PLANTED}.py").write_text("def f(*args, **kwargs): raise SystemExit('called')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "planted"))
    yield
    assert PLANTED not in sys.modules


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    with closing(load_catalog("default", **config(tmp_path))) as made:
        made.create_namespace("db")
        made.create_table("db.clicks", pa.schema([("x", pa.int64())])).append(pa.table({"x": [1, 2, 3]}))
        yield made


def config(folder: Path) -> dict[str, Any]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/lake"}


def set_property(table: Table, name: str, value: Any) -> None:
    """Write a property into a table's metadata file, as anybody who may write the table can."""
    file = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    metadata["properties"][name] = value
    file.write_text(json.dumps(metadata))


def refused(*table: Any, kind: type[TableLoaderError] = TableError, says: str, **options: Any) -> None:
    with pytest.raises(kind, match=says) as caught:
        IcebergDataset(*table, storage_options={"retry_seconds": 0}, **options)
    assert "must not name code" in str(caught.value)


def rows(*table: Any, **options: Any) -> list[int]:
    loader, _ = IcebergDataset.create_dataloader(*table, output_format="dict", num_workers=0, **options)
    return [x for batch in loader for x in batch["x"]]


@pytest.mark.parametrize("name", OF_TABLES)
@daily(lambda name: name == "py-io-impl")
def test_a_table_s_property_is_refused_however_the_table_is_named(tmp_path: Path, lake: Catalog, name: str) -> None:
    table = lake.load_table("db.clicks")
    set_property(table, name, CODE[name])
    mine = load_catalog("default", **config(tmp_path))
    for named in (("db.clicks", config(tmp_path)), ("db.clicks", mine)):
        refused(*named, says=f"'{name}' = '{PLANTED}.f'" if name != "auth.impl" else name)
    refused(metadata_location=table.metadata_location, says=name)
    table.metadata.properties[name] = f"{PLANTED}.f"
    refused(table, says=name)
    assert vars(mine).keys() == vars(lake).keys()  # the caller's catalog is as it was
    assert mine.properties == lake.properties


def answers(lake: Catalog, **changes: Mapping[str, Any]) -> RestCatalog:
    """Make a REST catalog whose answers name code: in the place that is named, by name and value."""

    class Answers(RestCatalog):
        def _route(self, method: str, parts: Any, asked: Any) -> tuple[int, Any]:
            status, said = super()._route(method, parts, asked)
            if parts == ["config"]:
                said |= {place: dict(changes[place]) for place in ("defaults", "overrides") if place in changes}
            elif "metadata" in said:
                said["config"] |= changes.get("config", {})
                said["metadata"]["properties"] |= changes.get("properties", {})
                if given := changes.get("credentials"):
                    said["storage-credentials"] = [{"prefix": "file:", "config": dict(given)}]
            return status, said

    return Answers(lake)


@pytest.mark.parametrize(
    ("place", "name"),
    [(place, name) for place in ("defaults", "overrides", "config") for name in CODE]
    + [(place, name) for place in ("properties", "credentials") for name in OF_TABLES],
)
@daily(lambda place, name: name == "py-io-impl" or (place, name) == ("overrides", "auth"))
def test_an_answer_of_a_rest_catalog_is_refused(lake: Catalog, place: str, name: str) -> None:
    if place == "credentials" and "storage_credentials" not in TableResponse.model_fields:
        pytest.skip("pyiceberg 0.11 does not read them")
    with serving(answers(lake, **{place: {name: CODE[name]}})) as uri:
        kind = StorageError if place in ("defaults", "overrides") else TableError
        refused("db.clicks", {"type": "rest", "uri": uri}, kind=kind, says=f"'{name}'")
        if place in ("config", "properties", "credentials"):
            with closing(load_catalog("mine", type="rest", uri=uri)) as mine:
                refused("db.clicks", mine, says=f"'{name}'")


def test_login_with_the_machine_s_own_account_is_the_caller_s_choice(lake: Catalog) -> None:
    for auth in ({"type": "google"}, {"type": "entra"}, {"type": "noop"}):
        with serving(answers(lake, overrides={"auth": auth})) as uri:
            refused("db.clicks", {"uri": uri}, kind=StorageError, says="the property 'auth'")
    with serving(RestCatalog(lake)) as uri:
        assert rows("db.clicks", {"uri": uri, "auth": {"type": "noop"}}) == [1, 2, 3]


@pytest.mark.parametrize("given", [{"ssl": {"cabundle": False}}, {"rest.sigv4-enabled": "true"}], ids=repr)
def test_how_the_client_connects_is_the_caller_s_choice(lake: Catalog, given: Any) -> None:
    with (
        serving(answers(lake, defaults=given)) as uri,
        pytest.raises(StorageError, match=r"must not set '.*', which is the caller's"),
    ):
        IcebergDataset("db.clicks", {"uri": uri})


def test_what_reading_does_not_look_at_may_stay(tmp_path: Path, lake: Catalog) -> None:
    theirs = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO", "write.py-location-provider.impl": f"{PLANTED}.f"}
    with serving(answers(lake, defaults=theirs, config=theirs, properties=theirs)) as uri:
        assert rows("db.clicks", {"uri": uri}) == [1, 2, 3]
    for name, value in theirs.items():
        set_property(lake.load_table("db.clicks"), name, value)
    assert rows("db.clicks", config(tmp_path)) == [1, 2, 3]
    lake.update_namespace_properties("db", updates={"py-io-impl": f"{PLANTED}.f"})
    assert rows("db.clicks", config(tmp_path)) == [1, 2, 3]


def test_what_the_caller_names_is_followed(tmp_path: Path, lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted" / "ttl_own.py").write_text(
        "from pyiceberg.catalog.sql import SqlCatalog as Lake\n"
        "from pyiceberg.io.pyarrow import PyArrowFileIO\n"
        "made = []\n"
        "class Own(PyArrowFileIO):\n"
        "    def __init__(self, properties):\n"
        "        made.append(1)\n"
        "        super().__init__(properties)\n"
    )
    mine = config(tmp_path) | {"py-io-impl": "ttl_own.Own"}
    assert rows("db.clicks", mine) == [1, 2, 3]
    assert sys.modules["ttl_own"].made
    set_property(lake.load_table("db.clicks"), "py-io-impl", "ttl_own.Own")
    assert rows("db.clicks", mine) == [1, 2, 3]
    own = {name: value for name, value in mine.items() if name != "type"}
    assert rows("db.clicks", own | {"py-catalog-impl": "ttl_own.Lake"}) == [1, 2, 3]
    with serving(answers(lake, config={"py-io-impl": "ttl_own.Own"})) as uri:
        assert rows("db.clicks", {"uri": uri, "py-io-impl": "ttl_own.Own"}) == [1, 2, 3]
    monkeypatch.delitem(sys.modules, "ttl_own")
