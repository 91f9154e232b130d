"""A secret is planted wherever a caller may write one: no message, repr, log, state, list or file shows it."""

from __future__ import annotations

import http.server
import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rooms.test_iceberg_places import moved_to, rewrite, table
from tests.servers.folders import answering, serving
from tests.tables.iceberg import IcebergWriter
from torch_table_loader import IcebergDataset, StructuredDataset, TableLoaderError
from torch_table_loader.options import LoaderOptions
from torch_table_loader.scrubbing import secrets_of, shown_url
from torch_table_loader.testing import small_sizes

CANARY = "canary7Xq"
NOWHERE = "127.0.0.1:9"
LOGIN = f"https://me:{CANARY}@{NOWHERE}/t/a.csv"
QUERY = f"https://{NOWHERE}/t/a.csv?token={CANARY}"
FRAGMENT = f"https://{NOWHERE}/t/a.csv#{CANARY}"
URLS = [LOGIN, QUERY, FRAGMENT, f"{LOGIN}?sig={CANARY}#{CANARY}"]
S3 = f"s3://AKIAME:{CANARY}@bucket/t"
TABLE = pa.table({"x": range(64), "s": [f"s{i}" for i in range(64)]})


def told(error: BaseException) -> str:
    """Return what Python prints for an error, and each of our own messages in its chain."""
    texts, link = traceback.format_exception(error), error.__context__
    while link is not None:
        texts += [str(link)] if isinstance(link, TableLoaderError) else []
        link = link.__context__
    return "".join(texts)


@pytest.fixture(autouse=True)
def silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Expect no secret in the log while waiting for a store."""
    caplog.set_level(logging.DEBUG, "torch_table_loader")
    with small_sizes(store_warning_s=0):
        yield
    assert CANARY not in caplog.text


def silent(call: Any, *args: Any, **options: Any) -> None:
    """Expect an error of ours without the secret."""
    if call in (StructuredDataset, IcebergDataset):
        options["storage_options"] = {"retry_seconds": 0.05, **options.get("storage_options", {})}
    with pytest.raises(TableLoaderError) as caught:
        call(*args, **options)
    assert CANARY not in told(caught.value).replace(__file__, "")


@pytest.mark.parametrize("url", [*URLS, S3])
@pytest.mark.parametrize("name", ["row_store", "plan_cache", "files"])
def test_options_show_no_url_in_full(name: str, url: str) -> None:
    given: dict[str, Any] = {name: [url] if name == "files" else url}
    if name == "row_store":
        given["shuffle"] = "rows"
    assert CANARY not in repr(LoaderOptions(**given))
    assert CANARY not in repr(LoaderOptions(storage_options={"key": CANARY, "other": url}))
    silent(LoaderOptions, shuffle=False, row_store=url)
    silent(LoaderOptions, files=[url, url])
    silent(LoaderOptions, files=[url, 5])
    silent(LoaderOptions, columns=[url, 5])


@pytest.mark.parametrize("url", URLS)
def test_a_path_that_does_not_answer(url: str, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    silent(StructuredDataset, url, format="csv")
    silent(StructuredDataset, [url, str(tmp_path)], format="csv")
    silent(StructuredDataset, str(tmp_path), files=[url])
    silent(StructuredDataset, str(tmp_path), files=url)
    silent(
        lambda: next(
            iter(
                StructuredDataset(str(tmp_path), shuffle="rows", row_store=url, storage_options={"retry_seconds": 0.05})
            )
        )
    )
    silent(StructuredDataset, "https://h/a.csv", format="csv", storage_options={"proxy": url, "nothing": CANARY})
    silent(IcebergDataset, url)
    silent(IcebergDataset, metadata_location=url)
    silent(IcebergDataset, metadata_location=url, location_override={url: "file:///x"})
    silent(IcebergDataset, metadata_location=url, location_override={f"{url}/": url})
    silent(IcebergDataset, metadata_location=url, allow_locations=[url])
    silent(IcebergDataset, metadata_location=url, allow_locations=url)


@pytest.mark.parametrize(
    "config",
    [
        *({"type": "rest", "uri": f"http://{NOWHERE}{rest}"} for rest in (f"/{CANARY}", f"/v/{CANARY}/api/")),
        *({"type": "rest", "uri": f"http://{NOWHERE}{rest}"} for rest in (f"?token={CANARY}", f"/a#{CANARY}")),
        {"type": "rest", "uri": f"http://me:{CANARY}@{NOWHERE}"},
        {"type": "rest", "uri": f"http://{NOWHERE}", "token": CANARY, "credential": f"me:{CANARY}"},
        {"type": "rest", "uri": f"http://{NOWHERE}", "header.X-Key": CANARY, "prefix": "a"},
        {"type": "rest", "uri": f"ftp://{CANARY}@{NOWHERE}"},
        {"type": "rest", "uri": f"http://{NOWHERE}", "oauth2-server-uri": f"http://me:{CANARY}@{NOWHERE}/{CANARY}"},
        {"type": "sql", "uri": f"postgresql://me:{CANARY}@{NOWHERE}/db"},
        {"type": "sql", "uri": f"nothing://me:{CANARY}@{NOWHERE}/db"},
        {"type": "sql", "uri": f"sqlite:////nowhere/at/all.db?password={CANARY}"},
        {"type": CANARY},
        {"name": CANARY, "type": CANARY},
        {"name": CANARY},
        {"py-catalog-impl": f"a.{CANARY}", "token": CANARY},
        [("type", "rest"), ("token", CANARY)],
        ["sql", f"postgresql://me:{CANARY}@{NOWHERE}/db"],
        {"token": CANARY}.items(),
        CANARY,
    ],
    ids=repr,
)
def test_a_catalog_that_does_not_answer(config: Any) -> None:
    silent(IcebergDataset, "db.t", config)
    silent(IcebergDataset, {"table": "db.t", "token": CANARY}, config)


def test_a_catalog_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://{NOWHERE}/{CANARY}")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", CANARY)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    silent(IcebergDataset, "db.t", "lake")


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    config = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "name": CANARY, "token": CANARY}
    silent(IcebergDataset, "db.t", config)


class _Answers(http.server.BaseHTTPRequestHandler):
    """A catalog whose answers are no tables, and quote secrets."""

    def do_GET(self) -> None:
        body = json.dumps({"defaults": {}, "overrides": {}} if "config" in self.path else {"config": {"t": CANARY}})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


def test_an_answer_that_pyiceberg_cannot_read() -> None:
    with answering(_Answers) as host:
        silent(IcebergDataset, "db.t", {"type": "rest", "uri": f"http://{host}"})


@pytest.mark.parametrize("part", ["snap-", "/metadata/m", "/data/"])
def test_metadata_that_holds_signed_urls(tmp_path: Path, part: str) -> None:
    location = table(tmp_path).metadata
    rewrite(tmp_path, lambda path: f"https://me:{CANARY}@{NOWHERE}/{path[7:]}?sig={CANARY}" if part in path else path)
    silent(IcebergDataset, metadata_location=location)
    silent(IcebergDataset, metadata_location=location, allow_locations=[f"https://{NOWHERE}"])


def everything_said(dataset: Any, loader: Any, folder: Path) -> str:
    """Return everything that a dataset shows or writes."""
    texts = [repr(dataset), str(dataset), repr(dataset.options), repr(loader), str(dataset.explain())]
    texts += [repr(dataset.explain()), repr(dataset.table), repr(dataset.job), json.dumps(loader.state_dict())]
    texts += [repr(dataset.metrics()), dataset.explain().to_html(), dataset._repr_html_(), loader._repr_html_()]
    for file in folder.rglob("*"):
        texts += [str(file), *([file.read_bytes().decode("latin-1")] if file.is_file() else [])]
    return "\n".join(texts)


@pytest.mark.parametrize("shuffle", [True, "rows"])
@pytest.mark.parametrize("iceberg", [False, True])
def test_working_calls_do_not_show_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, iceberg: bool, shuffle: Any
) -> None:
    caplog.set_level(logging.DEBUG, "torch_table_loader")
    lake, kept = tmp_path / "lake", tmp_path / "kept"
    lake.mkdir()
    kept.mkdir()
    options: dict[str, Any] = {
        "storage_options": {
            "headers": {"X-Key": CANARY},
            "client_kwargs": {"cookies": {"c": CANARY}},
            "retry_seconds": 0,  # manifests that `rewrite` wrote are shorter than their list says, which no retry mends
        },
        "plan_cache": str(kept / "plans"),
        "shuffle": shuffle,
        "num_workers": 0,
        "batch_size": 8,
        "columns": ["x"],
        **({"row_store": f"file://{kept}/rows"} if shuffle == "rows" else {}),
    }
    with serving(lake) as site:
        loader: Any
        dataset: Any
        host = site.url.partition("://")[2]
        if iceberg:
            writer = IcebergWriter(lake)
            writer.append([{"x": x, "k": 1, "s": "s"} for x in range(64)])
            writer.commit()
            name = writer.metadata.rpartition("/")[2]
            rewrite(lake, lambda path: f"{moved_to(lake, site.url)(path)}?sig={CANARY}")
            where = f"http://me:{CANARY}@{host}/metadata/{name}?sig={CANARY}"
            loader, dataset = IcebergDataset.create_dataloader(metadata_location=where, **options)
        else:
            (lake / "a.csv").write_text("x\n" + "\n".join(map(str, range(64))) + "\n")
            where = f"http://me:{CANARY}@{host}/a.csv?sig={CANARY}#{CANARY}"
            loader, dataset = StructuredDataset.create_dataloader(where, format="csv", **options)
            dataset.save_files(str(kept / "files.json"))
        assert sum(len(batch["x"]) for batch in loader) == 64
        assert CANARY in str(site.asked)
        said = everything_said(dataset, loader, kept) + "".join(
            record.getMessage() for record in caplog.records if record.name.startswith("torch_table_loader")
        )
    assert CANARY not in said, said[max(0, said.index(CANARY) - 200) : said.index(CANARY) + 50]


def test_urls_are_shown_without_secrets() -> None:
    for url in URLS:
        assert shown_url(url) == f"https://{NOWHERE}/t/a.csv"
    assert shown_url(S3) == "s3://bucket/t"


def test_values_that_are_secrets_by_name_or_form_are_hidden() -> None:
    options = {
        "headers": {"Authorization": f"Bearer {CANARY}"},
        "endpoint_url": f"http://me:{CANARY}@host",
        "auth": ("me", CANARY),
        "uri": f"http://host/{CANARY}/v1",
        "s3.region": "eu-west-1",
    }
    found = set(secrets_of(options))
    assert {CANARY, f"me:{CANARY}", f"{CANARY}/v1"} <= found
    assert "eu-west-1" not in found


@pytest.mark.parametrize(
    "options",
    [
        {"service_account_key": json.dumps({"client_email": "me@host", "private_key": CANARY})},
        {"connection_string": f"AccountName=lake;AccountKey={CANARY};EndpointSuffix=core.windows.net"},
        {"sas_token": f"?sv=2024-11-04&sp=r&sig={CANARY}"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_the_secret_part_of_an_option_is_hidden_by_itself(options: dict[str, str]) -> None:
    found = set(secrets_of(options))
    assert CANARY in found
    assert not {"lake", "2024-11-04"} & found
