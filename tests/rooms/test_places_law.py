"""Whatever metadata names: what is accepted is opened in the table's own place, as the clients themselves read it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yarl import URL

from tests.effort import examples
from tests.tables.delta import DeltaWriter, some
from torch_table_loader import DeltaDataset
from torch_table_loader.delta.delta_options import path_of
from torch_table_loader.errors import TableLoaderError
from torch_table_loader.source import table_storage
from torch_table_loader.source.table_storage import Place, TableStorage, locate

ROOTS = ("s3://bucket/lake/t", "https://host/lake/t", "gs://bucket/t", "az://box@me/t", "/lake/t")
PIECES = (
    *(
        "s3",
        "S3",
        "s3a",
        "http",
        "HTTPS",
        "file",
        "FILE",
        "memory",
        "az",
        "gs",
        "ftp",
        ":",
        "://",
        ":/",
        "/",
        "//",
        "///",
    ),
    *(
        "bucket",
        "host",
        "evil",
        "box",
        "me",
        "@",
        "user:pass@",
        ":443",
        ":80",
        ".",
        "..",
        "/../",
        "%2e%2e/",
        "%2F",
        "%3A",
    ),
    *("%2f%2fevil", "\\", "?", "#", "\t", "\n", " ", "\0", "etc/passwd", "lake/t", "x.parquet", "[::1]", "é"),
)


def opened(root: str, name: str) -> tuple[str, str]:
    """Return the protocol and path that a client is asked for."""
    storage = TableStorage(root)
    store, inner = storage._at(name)
    return store.protocol, inner


@settings(max_examples=examples(1500))
@given(st.sampled_from(ROOTS), st.lists(st.sampled_from(PIECES), max_size=7), st.booleans())
@example(ROOTS[0], ["s3", "://", "evil", "/", "x.parquet"], True)
@example(ROOTS[0], ["%2F", "etc/passwd"], True)
@example(ROOTS[1], ["https", "://", "host", "@", "evil", "/"], False)
@example(ROOTS[1], ["//", "evil", "/", "x.parquet"], True)
def test_what_is_accepted_is_in_the_place_of_the_table(root: str, pieces: list[str], delta: bool) -> None:
    name = "".join(pieces)
    name = path_of(root, name) if delta else name
    try:
        protocol, inner = opened(root, name)
    except TableLoaderError:
        return
    if root.startswith("/"):
        assert protocol == "file"
    elif root.startswith("https"):
        assert urlsplit(inner).hostname == "host"
        assert (URL(inner).host, URL(inner).port) == ("host", 443)
        assert "@" not in urlsplit(inner).netloc
    else:
        assert protocol in ("s3", "s3a", "S3", "gs", "gcs", "az")
        assert inner.partition("/")[0] == ("box" if root.startswith("az") else "bucket")


@pytest.mark.parametrize(
    "name",
    [
        *("s3://evil/x.parquet", "S3A://evil/x.parquet", "http://127.0.0.1:9/x.parquet", "HTTP://127.0.0.1:9/x"),
        *(
            "memory://x.parquet",
            "%68ttp://127.0.0.1:9/x",
            "az://box@evil/x",
            "https://me:hunter2@127.0.0.1:9/x?sig=hunter2",
        ),
    ],
)
@pytest.mark.parametrize("part", ["add", "remove"])
def test_a_delta_log_names_nothing_elsewhere(tmp_path: Path, name: str, part: str) -> None:
    """The files of a version, and what came and went before it."""
    writer = DeltaWriter(tmp_path / "t")
    writer.append(some(0, 9))
    writer.commit()
    writer.append(some(9, 18))
    writer.actions[-1]["add"]["path"] = name
    writer.commit()
    if part == "remove":
        writer.remove(name)
        writer.commit()
    options: dict[str, Any] = {} if part == "add" else {"start_version": 0, "changelog": True}
    with pytest.raises(TableLoaderError, match="lies elsewhere and is not opened") as refused:
        DeltaDataset(writer.uri, **options)
    assert "hunter2" not in str(refused.value)


def test_a_path_is_located_once_each_time_that_a_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    found: list[str] = []

    def counted(path: str) -> tuple[Place, str]:
        found.append(path)
        return locate(path)

    monkeypatch.setattr(table_storage, "locate", counted)
    moves = {"s3://old/": f"{tmp_path}/"}
    storage = TableStorage.at(str(tmp_path), {}, None, ["s3://b"], location_override=moves)
    for used in (storage, copy(storage), replace(storage, properties={"x": "y"})):
        found.clear()
        assert not used.is_local
        used.version(f"{tmp_path}/a")
        used.open("s3://old/a").close()
        used.require(["s3://b/x"])
        assert found == [f"{tmp_path}/a", f"{tmp_path}/a", "s3://b/x"]
