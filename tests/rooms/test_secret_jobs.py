"""Random jobs over every store and catalog, with secrets planted and failures injected: nothing shows a secret."""

from __future__ import annotations

import http.server
import json
import logging
import random
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.secrets import found_in
from tests.servers.folders import answering
from torch_table_loader import DeltaDataset, IcebergDataset, StructuredDataset, TableLoaderError
from torch_table_loader.testing import small_sizes

SPELLINGS = ("canary7Xq", "canary7Xq+hunter=", "canary 7Xq%20hunter", "canäry7Xq", "canary7Xq/hunter")
FAULTS = ("403", "404", "500", "503", "301", "307", "closed", "empty", "wrong", "echo", "slow")

Options = dict[str, Any]


class _Faulty(http.server.BaseHTTPRequestHandler):
    """Fails in one way; what it says quotes all that it was told."""

    fault = ""
    elsewhere = "http://127.0.0.1:9/elsewhere"

    def _answer(self) -> None:
        told = f"{self.path}\n{self.headers}"
        if self.fault == "closed":
            self.close_connection = True
            return
        if self.fault == "slow":
            time.sleep(0.5)
        code = int(self.fault) if self.fault.isdecimal() else 200
        body = {"empty": b"", "wrong": b"{]<", "echo": told.encode()}.get(
            self.fault, f"<Error><Code>Failed</Code><Message>{told}</Message></Error>".encode()
        )
        self.send_response(code)
        if code in (301, 307):
            self.send_header("Location", self.elsewhere)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = _answer  # noqa: N815 - so the base class calls them

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            """Whoever asked has gone."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


@pytest.fixture(scope="module")
def host() -> Iterator[tuple[str, type[_Faulty]]]:
    handler = type("Handler", (_Faulty,), {})
    with answering(handler) as found:
        yield found, handler


Job = Callable[[random.Random, str, str, Path], object]
"""Opens a table, given a host, a secret and a folder."""


def _opened(rng: random.Random, folder: Path, where: Any, options: Options) -> object:
    """Open a table of files with options that write something, and read it."""
    given: Options = {"format": rng.choice(["parquet", "csv"]), "num_workers": 0}
    if rng.random() < 0.3:
        given["plan_cache"] = str(folder / "plans")
    if rng.random() < 0.3:
        given |= {"shuffle": "rows", "row_store": rng.choice([where, str(folder / "rows")])}
    files = rng.choice([where, [where], f"{where}*"])
    loader, _ = StructuredDataset.create_dataloader(files, storage_options=options, **given)
    return list(loader)


def s3(rng: random.Random, host: str, secret: str, folder: Path) -> object:
    where = "s3://bucket/t/a.parquet"
    options: Options = {"endpoint_url": f"http://{host}", "region": "eu-west-1"}
    options |= rng.choice(
        [
            {"key": "AKIAME", "secret": secret},
            {"key": "AKIAME", "secret": "hunter2", "token": secret},
            {"aws_access_key_id": secret, "aws_secret_access_key": secret, "aws_session_token": secret},
            {"s3.access-key-id": "me", "s3.secret-access-key": secret},
        ]
    )
    if rng.random() < 0.3:
        where = f"s3://AKIAME:{quote(secret, safe='')}@bucket/t/a.parquet"
        options = {"endpoint_url": f"http://{host}", "region": "eu-west-1"}
    if rng.random() < 0.2:
        options["proxy_options"] = {"host": "127.0.0.1", "port": 9, "username": "me", "password": secret}
    if rng.random() < 0.2:
        return DeltaDataset("s3://bucket/t", storage_options=options)
    if rng.random() < 0.2:
        return IcebergDataset(metadata_location="s3://bucket/t/v1.metadata.json", storage_options=options)
    return _opened(rng, folder, where, options)


def google(rng: random.Random, host: str, secret: str, folder: Path) -> object:
    key = json.dumps(
        {"type": "service_account", "private_key": secret, "private_key_id": secret, "client_email": "me@host"}
    )
    token = secret.replace("/", "_")
    options = rng.choice([{"token": token}, {"bearer_token": token}, {"service_account_key": key}])
    return _opened(rng, folder, "gs://bucket/t/a.parquet", {"base_url": f"http://{host}", **options})


def azure(rng: random.Random, host: str, secret: str, folder: Path) -> object:
    url = f"http://{host}/me"
    options: Options = rng.choice(
        [
            {"account_name": "me", "endpoint": url, "account_key": secret},
            {"account_name": "me", "endpoint": url, "sas_token": f"?sv=2024-11-04&sig={quote(secret, safe='')}"},
            {"account_name": "me", "endpoint": url, "sas_token": f"sv=2024-11-04&sig={secret}"},
            {"connection_string": f"AccountName=me;AccountKey={secret};BlobEndpoint={url}"},
            {"connection_string": f"AccountName=me;SharedAccessSignature=sv=1&sig={secret};BlobEndpoint={url}"},
            {"account_name": "me", "endpoint": url, "tenant_id": "t", "client_id": "c", "client_secret": secret}
            | {"authority_host": f"http://{host}"},
        ]
    )
    return _opened(rng, folder, "az://box/t/a.parquet", options)


def web(rng: random.Random, host: str, secret: str, folder: Path) -> object:
    escaped = quote(secret, safe="")
    where = rng.choice(
        [
            f"http://me:{escaped}@{host}/t/a.parquet",
            f"http://{host}/t/a.parquet?token={escaped}",
            f"http://{host}/t/a.parquet?sig={escaped}&x=1#{escaped}",
            f"http://{host}/t/a.parquet",
        ]
    )
    plain = secret.encode("ascii", "ignore").decode()
    options: Options = rng.choice(
        [
            {"headers": {"X-Key": plain}},
            {"headers": {"Authorization": f"Bearer {plain}"}},
            {"client_kwargs": {"headers": {"Cookie": f"session={plain}"}}},
            {"client_kwargs": {"cookies": {"session": plain}}},
        ]
    )
    return _opened(rng, folder, where, options)


def other(rng: random.Random, host: str, secret: str, folder: Path) -> object:
    escaped = quote(secret, safe="")
    protocol = rng.choice(["ftp", "sftp", "webdav", "nothing"])
    where = rng.choice([f"{protocol}://me:{escaped}@127.0.0.1:9/t/a.parquet", f"{protocol}://127.0.0.1:9/t/a.parquet"])
    return _opened(rng, folder, where, {"username": "me", "password": secret} if rng.random() < 0.5 else {})


def catalog(rng: random.Random, host: str, secret: str, folder: Path) -> object:
    escaped = quote(secret, safe="")
    plain = secret.encode("ascii", "ignore").decode()
    config = rng.choice(
        [
            {"type": "rest", "uri": f"http://{host}", "token": plain},
            {"type": "rest", "uri": f"http://{host}", "credential": f"me:{secret}"},
            {"type": "rest", "uri": f"http://{host}/{escaped}/api"},
            {"type": "rest", "uri": f"http://me:{escaped}@{host}"},
            {"type": "rest", "uri": f"http://{host}", "header.X-Key": plain},
            {"type": "sql", "uri": f"postgresql://me:{escaped}@127.0.0.1:9/db"},
            {"type": "sql", "uri": f"sqlite:////nowhere/at/all.db?password={escaped}"},
            {"type": "glue", "glue.endpoint": f"http://{host}", "glue.region": "eu-west-1", "glue.max-retries": "1"}
            | {"glue.access-key-id": "AKIAME", "glue.secret-access-key": secret, "glue.session-token": plain},
            {"type": "hive", "uri": "thrift://127.0.0.1:9", "ugi": f"me:{secret}"},
        ]
    )
    given: Options = {"storage_options": {"key": "AKIAME", "secret": secret}} if rng.random() < 0.5 else {}
    return IcebergDataset("db.t", config, **given)


STORES: dict[str, Job] = {"s3": s3, "gs": google, "az": azure, "http": web, "fsspec": other, "catalog": catalog}


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that is printed with it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


@daily(lambda seed: seed < 20)
@pytest.mark.parametrize("seed", range(300))
@pytest.mark.filterwarnings("ignore")
def test_a_random_job_shows_no_secret(
    seed: int, host: tuple[str, type[_Faulty]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    caplog.set_level(logging.DEBUG, "torch_table_loader")
    address, handler = host
    store = list(STORES)[seed % len(STORES)]
    secret, handler.fault = rng.choice(SPELLINGS), rng.choice(FAULTS)
    said = [f"{store} {handler.fault}"]
    fast: Options = {"store_warning_s": 0, "first_wait_s": 0.01, "longest_wait_s": 0.01, "answer_s": 5.0}
    with small_sizes(**fast), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        quick = {"retry_seconds": 0.05, "connect_timeout": 1, "read_timeout": 1} if store in ("s3", "gs", "az") else {}
        _in_every_call(patch, {"retry_seconds": 0.05, **quick})
        try:
            said.append(repr(STORES[store](rng, address, secret, tmp_path)))
        except TableLoaderError as error:
            said += ["".join(traceback.format_exception(error)), *(repr(link) for link in chain(error))]
            said += [str(vars(link)) for link in chain(error) if isinstance(link, TableLoaderError)]
    said += [record.getMessage() for record in caplog.records if record.name.startswith("torch_table_loader")]
    for file in tmp_path.rglob("*"):
        said += [str(file), *([file.read_bytes().decode("latin-1")] if file.is_file() else [])]
    shown = "\n".join(said).replace(__file__, "")
    assert not found_in(shown, secret), f"{store}, {handler.fault}: {found_in(shown, secret)}"


def _in_every_call(patch: pytest.MonkeyPatch, more: Options) -> None:
    """Add storage options to whatever table is opened."""
    from torch_table_loader import option_values

    real = option_values.RemoteOptions.of.__func__  # type: ignore[attr-defined]
    seconds = more["retry_seconds"]

    def quick(cls: Any, options: Any) -> Any:
        return real(cls, {"retry_seconds": seconds, **(options or {})})

    patch.setattr(option_values.RemoteOptions, "of", classmethod(quick))


def test_a_secret_that_is_shown_would_be_found() -> None:
    for secret in SPELLINGS:
        assert found_in(f"see {quote(secret, safe='')} here", secret)
        assert found_in(f"a={secret}", secret)
    table = pa.table({"x": [1]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert not found_in(sink.getvalue().to_pybytes().decode("latin-1"), SPELLINGS[0])
