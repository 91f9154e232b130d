"""What runs in the sandbox: a table is read through a REST catalog of damaged answers. It imports all that it needs."""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401 - imported here, once, and not in each case
import pyroaring  # noqa: F401
from pyiceberg.catalog import rest  # noqa: F401

import torch_table_loader.iceberg.source  # noqa: F401
from tests.fuzz.cases import Rows
from torch_table_loader import IcebergDataset
from torch_table_loader.testing import small_sizes

PLANTED = "ttl_fuzz_planted"
"""A module that is not there: no answer may make anybody look for it."""

_RUNS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "pickle.find_class")
_seen: list[str] = []

Answers = Mapping[str, tuple[int, Mapping[str, str], bytes]]


def _watch(event: str, args: Any) -> None:
    """Note what runs code, as an audit hook."""
    if event in _RUNS or (event == "import" and PLANTED in str(args[0])):
        _seen.append(f"{event}: {args}")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the case that runs says."""

    answers: Answers = {}  # noqa: RUF012

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""

    def _handle(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = self.answers.get(self.path.partition("?")[0], (404, {}, b""))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_HEAD = _handle  # noqa: N815


_uri: list[str] = []


def _serve() -> str:
    """Return the address of a server of this process, which a fork does not inherit."""
    if not _uri:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.addaudithook(_watch)
        _uri.append(f"http://127.0.0.1:{server.server_address[1]}")
    return _uri[0]


def _rows(*table: Any, **options: Any) -> Rows:
    loader, _ = IcebergDataset.create_dataloader(
        *table, output_format="arrow", batch_size=16, num_workers=0, storage_options={"retry_seconds": 0}, **options
    )
    rows: list[str] = []
    for batch in loader:
        batch.validate(full=True)
        rows += map(repr, batch.to_pylist())
    return Rows(len(rows), hashlib.sha256("\n".join(sorted(rows)).encode("utf-8", "surrogatepass")).hexdigest())


def read_watched(root: str, name: str, answers: Answers, digest: str) -> Rows:
    """Read a table through a catalog of this process: see `read_answers`. Nothing may be run."""
    try:
        return read_answers(_serve(), root, name, answers, digest)
    finally:
        assert not _seen, _seen


def read_answers(uri: str, root: str, name: str, answers: Answers, digest: str) -> Rows:
    """Read a table through a catalog.

    Args:
        uri: where a server with `Handler` is.
        root: the table's folder.
        name: the table's.
        answers: status, headers and body by path.
        digest: of the sound table's rows; others must be those of the metadata in the answer, read as a file.
    """
    Handler.answers = answers
    config = {"type": "rest", "uri": uri, "credential": "me:secret", "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
    with small_sizes(catalog_answer_s=5.0, names_s=1.0, catalog_answer_bytes=1 << 24):
        found = _rows(name, config | {"rest.client.socket-timeout-ms": "1000"})
    if digest not in ("", found.digest):
        _, _, body = answers["/v1/namespaces/db/tables/t"]
        file = Path(root) / "metadata" / "said.metadata.json"
        file.write_text(json.dumps(json.loads(body)["metadata"]))
        assert _rows(metadata_location=str(file)) == found, "the file of this metadata has other rows"
    return found
