"""Metadata that names files elsewhere: without permission, nothing is opened there and no credential is sent there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import pytest

from tests.servers.folders import Site, serving
from tests.servers.remote_files import in_storage_options
from tests.tables.iceberg import IcebergWriter
from torch_table_loader import ConfigError, ConfigTypeError, IcebergDataset, TableError
from torch_table_loader.source.table_storage import TableStorage, locate, read_areas

HEADERS = {"Authorization": "Bearer hunter2", "X-Api-Key": "hunter3"}
ROWS = [{"x": x, "k": x % 3, "s": f"s{x}"} for x in range(30)]


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Site]]:
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(serving(folder))


def table(root: Path) -> IcebergWriter:
    """A table of two data files and an equality delete."""
    writer = IcebergWriter(root)
    writer.append(ROWS[:20])
    writer.append(ROWS[20:])
    writer.commit()
    writer.delete_keys([1], [{"x": 5}])
    writer.commit()
    return writer


def rewrite(root: Path, new: Callable[[str], str]) -> None:
    """Change every path that a table's metadata writes."""
    for file in (root / "metadata").glob("*.json"):
        raw = json.loads(file.read_text())
        raw["location"] = new(raw["location"] + "/").rstrip("/")
        for snapshot in raw["snapshots"]:
            snapshot["manifest-list"] = new(snapshot["manifest-list"])
        file.write_text(json.dumps(raw))
    for file in (root / "metadata").glob("*.avro"):
        with file.open("rb") as source:
            reader = fastavro.reader(source)
            schema, metadata = reader.writer_schema, dict(reader.metadata)
            rows: list[Any] = list(reader)
        for row in rows:
            entry = row.get("data_file", row)
            name = "file_path" if "data_file" in row else "manifest_path"
            entry[name] = new(entry[name])
        with file.open("wb") as sink:
            fastavro.writer(
                sink, schema, rows, metadata={k: v for k, v in metadata.items() if not k.startswith("avro.")}
            )


def read(location: str, **options: Any) -> list[int]:
    """Read a table; manifests that `rewrite` wrote are shorter than their list says, which a retry does not fix."""
    loader, _ = IcebergDataset.create_dataloader(
        metadata_location=location,
        columns=["x"],
        output_format="arrow",
        **in_storage_options({"num_workers": 0, "retry_seconds": 0, **options}),
    )
    return sorted(x for batch in loader for x in batch.column("x").to_pylist())


LIVE = [x for x in range(30) if x != 5]


def moved_to(root: Path, url: str, only: str = "") -> Callable[[str], str]:
    """Replace paths below `root`, or those that contain `only`, by a URL."""
    return lambda path: path.replace(f"file://{root}", url) if only in path else path


PARTS = {"manifest lists": "snap-", "manifests": "/metadata/m", "data files": "/data/"}


def names_of(root: Path, part: str) -> list[str]:
    return [file.name for file in root.rglob("*") if PARTS[part] in str(file)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_no_header_goes_to_another_host(tmp_path: Path, serve: Callable[[Path], Site], part: str, footers: Any) -> None:
    lake = tmp_path / "lake"
    writer = table(lake)
    location = writer.metadata
    own, other = serve(lake), serve(lake)
    assert names_of(lake, part)
    rewrite(lake, lambda path: path.replace(f"file://{lake}", other.url if PARTS[part] in path else own.url))
    where = f"{own.url}/metadata/{location.rpartition('/')[2]}"
    with pytest.raises(TableError, match="lies elsewhere") as refused:
        read(where, storage_options={"headers": HEADERS}, footers=footers)
    assert f'allow_locations=["{other.url}"]'.replace('"', "'") in str(refused.value)
    assert other.asked == []
    found = read(where, storage_options={"headers": HEADERS}, footers=footers, allow_locations=[other.url])
    assert found == LIVE
    assert other.asked
    assert other.headers.isdisjoint(HEADERS)
    assert own.headers >= set(HEADERS)


@pytest.mark.parametrize("part", PARTS)
def test_a_remote_table_reads_no_local_file(
    tmp_path: Path, serve: Callable[[Path], Site], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    location = table(lake).metadata
    own = serve(lake)
    rewrite(lake, lambda path: path if PARTS[part] in path else path.replace(f"file://{lake}", own.url))
    where = f"{own.url}/metadata/{location.rpartition('/')[2]}"
    opened: list[str] = []
    real = TableStorage._at

    def noting(self: TableStorage, path: str) -> Any:
        store = real(self, path)
        opened.append(path)
        return store

    monkeypatch.setattr(TableStorage, "_at", noting)
    with pytest.raises(TableError, match="lies elsewhere") as refused:
        read(where)
    assert str(tmp_path) in str(refused.value)
    assert not [path for path in opened if path.startswith("file:")]
    assert read(where, allow_locations=[str(lake)]) == LIVE
    with pytest.raises(TableError, match="lies elsewhere"):
        read(where, allow_locations=[str(tmp_path / "lak"), "file:///mnt"])


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "s3://elsewhere", "memory://a", "ftp://elsewhere"])
@pytest.mark.parametrize("part", PARTS)
def test_a_local_table_opens_nothing_remote(tmp_path: Path, url: str, part: str) -> None:
    location = table(tmp_path).metadata
    rewrite(tmp_path, moved_to(tmp_path, url, PARTS[part]))
    with pytest.raises(TableError, match="lies elsewhere") as refused:
        read(location)
    assert url in str(refused.value)


@pytest.mark.parametrize("what", ["a delete file", "a file that a filter keeps"])
def test_deletes_and_filtered_files_are_checked_too(tmp_path: Path, what: str) -> None:
    writer = table(tmp_path)
    target = writer.deletes[0].entry["file_path"] if what == "a delete file" else writer.data[1].path
    rewrite(tmp_path, lambda path: f"http://127.0.0.1:9/{path}" if path == target else path)
    with pytest.raises(TableError, match="lies elsewhere"):
        read(writer.metadata, footers="lazy", scan_filter="x > 0")


def test_a_cached_plan_is_checked_too(tmp_path: Path) -> None:
    lake, plans = tmp_path / "lake", str(tmp_path / "plans")
    writer = table(lake)
    first = writer.data[0].path
    rewrite(lake, lambda path: "memory://elsewhere/a.parquet" if path == first else path)
    target = fsspec.filesystem("memory")
    target.pipe_file("/elsewhere/a.parquet", Path(first.removeprefix("file://")).read_bytes())
    where = writer.metadata
    try:
        assert len(read(where, plan_cache=plans, allow_locations=["memory://elsewhere"])) == 29
        for file in (lake / "metadata").glob("*.avro"):
            file.unlink()
        assert len(read(where, plan_cache=plans, allow_locations=["memory://elsewhere"])) == 29
        with pytest.raises(TableError, match="lies elsewhere"):
            read(where, plan_cache=plans)
    finally:
        target.rm_file("/elsewhere/a.parquet")


def test_a_redirect_to_another_host_carries_no_secret(tmp_path: Path, serve: Callable[[Path], Site]) -> None:
    lake = tmp_path / "lake"
    location = table(lake).metadata
    own, other = serve(lake), serve(lake)
    rewrite(lake, moved_to(lake, own.url))
    own.redirects = {f"/data/{name}": f"{other.url}/data/{name}" for name in names_of(lake, "data files")}
    secrets: dict[str, Any] = {"headers": HEADERS}
    secrets["client_kwargs"] = {"headers": {"X-Other": "hunter5"}, "cookies": {"second": "hunter6"}}
    where = f"{own.url}/metadata/{location.rpartition('/')[2]}"
    assert read(where, storage_options=secrets) == LIVE
    assert "hunter5" in str(own.asked)
    assert "hunter6" in str(own.asked)
    assert other.asked
    assert "hunter" not in str(other.asked)
    assert any("Range" in headers for _, headers in other.asked)
    own.redirects = {f"/data/{name}": f"/data/again/{name}" for name in names_of(lake, "data files")}
    shutil.copytree(lake / "data", lake / "data" / "again")
    own.asked.clear()
    assert read(where, storage_options=secrets) == LIVE
    again = [headers for path, headers in own.asked if "again" in path]
    assert all("hunter3" in str(headers) for headers in again)


@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated")
def test_a_login_of_the_client_stays_with_its_host(tmp_path: Path, serve: Callable[[Path], Site]) -> None:
    import aiohttp

    lake = tmp_path / "lake"
    location = table(lake).metadata
    own, other = serve(lake), serve(lake)
    rewrite(lake, moved_to(lake, own.url))
    own.redirects = {f"/data/{name}": f"{other.url}/data/{name}" for name in names_of(lake, "data files")}
    options = {"client_kwargs": {"auth": aiohttp.BasicAuth("me", "hunter2")}}
    assert read(f"{own.url}/metadata/{location.rpartition('/')[2]}", storage_options=options) == LIVE
    assert all("Authorization" in headers for _, headers in own.asked)
    assert other.asked
    assert all("Authorization" not in headers for _, headers in other.asked)


def test_places_named_in_an_override_are_allowed(tmp_path: Path, serve: Callable[[Path], Site]) -> None:
    lake, elsewhere = tmp_path / "lake", tmp_path / "elsewhere"
    location = table(lake).metadata
    own = serve(lake)
    (elsewhere / "data").mkdir(parents=True)
    for file in (lake / "data").iterdir():
        file.rename(elsewhere / "data" / file.name)
    rewrite(lake, moved_to(lake, own.url))
    where = f"{own.url}/metadata/{location.rpartition('/')[2]}"
    assert read(where, location_override={f"{own.url}/data/": f"{elsewhere}/data/"}) == LIVE
    climbing = f"{own.url}/data/../data/"
    rewrite(lake, lambda path: path.replace(f"{own.url}/data/", climbing))
    with pytest.raises(TableError, match="lies elsewhere"):
        read(where, location_override={f"{own.url}/data/": f"{elsewhere}/data/"})


@pytest.mark.parametrize(
    ("root", "same"),
    [
        ("s3://bucket/t/m.json", "s3a://bucket/x s3n://bucket/t/y S3://key:word@bucket/x"),
        (
            "abfss://box@account.dfs.core.windows.net/t",
            "wasbs://box@account.blob.core.windows.net/x abfs://box@account/x",
        ),
        ("file:/lake/m.json", "/data/x file:///x file:/y FILE:///z local:///a relative/x"),
        ("/lake/m.json", "file:///x file:/y"),
        ("https://Host/t/m.json", "https://host/x https://me:word@host:443/x https://host"),
        ("http://host:80/m.json", "http://host/x"),
        ("hdfs://nn:8020/t", "hdfs://nn:8020/x"),
        ("gs://bucket/t", "gcs://bucket/x"),
    ],
)
def test_spellings_of_one_place(root: str, same: str) -> None:
    storage = TableStorage(root)
    storage.require([root, *same.split()])
    storage.require(same.split())


@pytest.mark.parametrize(
    ("root", "others"),
    [
        (
            "s3://bucket/t",
            "s3://bucket2/x s3://bucket@evil/x http://bucket/x /bucket s3://bucket?x/a gs://bucket/x s3:x",
        ),
        ("s3://arn:aws:s3:eu:1:accesspoint/mine/t", "s3://arn:aws:s3:eu:1:accesspoint/other/t"),
        (
            "https://host/t",
            "http://host/x https://host:444/x https://host.evil/x https://host@evil/x https://evil#@host/x",
        ),
        (
            "https://host/t",
            "https:/host/x https://evil?@host/x https://evil\\@host/x https://evil\\.host/ simplecache::https://host/x",
        ),
        ("/lake", "http://host/x s3://bucket/x memory://x hdfs://nn/x ftp://x/y"),
        ("hdfs://nn:8020/t", "hdfs://nn:9/x hdfs://other/x"),
        (
            "abfss://box@account.dfs.core.windows.net/t",
            "abfss://box@other.dfs.core.windows.net/x abfs://other@account/x",
        ),
    ],
)
def test_other_places(root: str, others: str) -> None:
    storage = TableStorage(root)
    for other in others.split():
        with pytest.raises(TableError, match="lies elsewhere"):
            storage.require([other])
        with pytest.raises(TableError, match="lies elsewhere"):
            storage.open(other)


def test_allowing_a_folder_does_not_allow_its_siblings() -> None:
    storage = TableStorage("s3://bucket/t", allowed=read_areas(["s3a://other/lake/", "/mnt/lake", "https://h/a"]))
    storage.require(["s3://other/lake/x", "/mnt/lake/x", "file:///mnt/lake/a/b", "https://h/a/b?q=1"])
    for path in (
        "s3://other/lake2/x",
        "s3://other/x",
        "/mnt/lake/../x",
        "/mnt",
        "https://h/a/%2e%2e/b",
        "https://h/a/..\\b",
        "https://h/ab",
    ):
        with pytest.raises(TableError, match="lies elsewhere"):
            storage.require([path])


def test_options_are_passed_only_to_their_places() -> None:
    options = {"key": "K", "secret": "S", "headers": HEADERS}
    properties = {"s3.access-key-id": "C", "s3.region": "eu"}
    allowed = read_areas(["s3://other", "https://other", "https://host", "gs://box", "/mnt"])

    def given(root: str, path: str, **more: Any) -> set[str]:
        storage = TableStorage(root, properties, options, allowed=allowed, **more)
        return set(storage._options_of(locate(path)[0], {}))

    of_s3 = {"access_key_id", "secret_access_key", "headers", "region"}
    assert given("s3://bucket/t", "s3://bucket/x") == of_s3
    assert given("s3://bucket/t", "s3a://other/x") == of_s3
    assert given("s3://bucket/t", "https://other/x") == set()
    assert given("s3://bucket/t", "gs://box/x") == set()
    assert given("https://host/t", "https://host/x") == set(options)
    assert given("https://host/t", "https://other/x") == set()
    assert given("https://host/t", "s3://other/x") == {"access_key_id", "region"}
    assert given("/lake/t", "s3://other/x") == of_s3
    assert given("/lake/t", "https://other/x") == set()
    assert given("/lake/t", "https://new/x", overrides=(("/a/", "https://new/"),)) == set(options)


def test_the_place_of_a_file_is_resolved_once(tmp_path: Path) -> None:
    """However often its file is checked, opened and asked for its version."""
    locate.cache_clear()
    made = table(tmp_path)
    list(IcebergDataset.create_dataloader(metadata_location=made.metadata, num_workers=0)[0])
    asked = locate.cache_info()
    assert asked.hits > 0
    assert asked.misses == asked.currsize <= len([path for path in tmp_path.rglob("*") if path.is_file()]) + 2


@pytest.mark.parametrize("entry", ["bucket", "s3://", "https://me:hunter2@host", "https://host/?sig=hunter2", "http:x"])
def test_invalid_locations_are_refused(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ConfigError, match="allow_locations must hold URLs") as refused:
        read(table(tmp_path).metadata, allow_locations=[entry])
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigTypeError, match="must be a list"):
        read("x", allow_locations="s3://bucket")


def test_a_table_property_names_no_endpoint(tmp_path: Path) -> None:
    from tests.tables.catalogs import load_catalog
    from torch_table_loader.iceberg.catalog import TableAddress, open_table

    config = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/lake",
        "s3.endpoint": "https://mine",
    }
    catalog = load_catalog("default", **config)
    catalog.create_namespace("db")
    hostile = {"s3.endpoint": "http://evil", "s3.proxy-uri": "http://evil"}
    from pyiceberg.schema import Schema

    made = catalog.create_table("db.t", Schema(), properties=hostile)
    for at in (TableAddress("db.t", config), TableAddress(made)):
        known = open_table(at).storage.known()
        assert known["s3.endpoint"] == "https://mine"
        assert "evil" not in str(known)
    catalog.close()
