"""Listing a table on an object store: its requests, and which of them are sent concurrently."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers.buckets import Bucket, Rounds, serve
from torch_table_loader import MissingPathError
from torch_table_loader.extend import PathSource

OBJECTS = {
    "lake/t/day=1/a.parquet": b"x",
    "lake/t/day=2/b.parquet": b"xx",
    "lake/t/c.parquet": b"xxx",
    "lake/u": b"x",
    "lake/v.1/a.parquet": b"x",
}
ALL = ["t/c.parquet", "t/day=1/a.parquet", "t/day=2/b.parquet", "u", "v.1/a.parquet"]
NAMES = ["c.parquet", "day=1/a.parquet", "day=2/b.parquet"]


def looks(*folders: str) -> list[str]:
    """Return the requests that look for metadata of other table formats in folders."""
    return [f"LIST {folder}/{name}".replace(" /", " ") for folder in folders for name in FORMATS]


FORMATS = ("_delta_log", ".hoodie", "metadata")

HEADS = ["HEAD lake/t/day=1", "HEAD lake/t/day=2"]
LISTS = ["LIST lake/t/day=1", "LIST lake/t/day=2"]
FILES = ["HEAD lake/t/c.parquet", "HEAD lake/t/day=1/a.parquet"]

CASES: dict[str, tuple[Any, dict[str, Any], list[str], list[list[str]]]] = {
    "folder": ("lake/t", {}, NAMES, [["HEAD lake/t", "LIST lake/t", *looks("lake")]]),
    "upper": ("lake", {}, ALL, [["HEAD lake", "LIST lake", *looks("")]]),
    "bucket": ("", {}, [f"lake/{name}" for name in ALL], [["LIST "]]),
    "partition": ("lake/t/day=1", {}, ["a.parquet"], [[HEADS[0], LISTS[0], *looks("lake/t", "lake")]]),
    "partitions": (
        ["lake/t/day=2", "lake/t/day=1"],
        {},
        ["day=2/b.parquet", "day=1/a.parquet"],
        [[*HEADS, *LISTS, *looks("lake/t", "lake")]],
    ),
    "folder with a dot": ("lake/v.1", {}, ["a.parquet"], [["HEAD lake/v.1"], ["LIST lake/v.1", *looks("lake")]]),
    "object like a folder": ("lake/u", {}, ["u"], [["HEAD lake/u", "LIST lake/u", *looks("lake")], looks("lake", "")]),
    "object and folder": (
        ["lake/u", "lake/t/day=1"],
        {},
        ["u", "t/day=1/a.parquet"],
        [["HEAD lake/u", "LIST lake/u", HEADS[0], LISTS[0], *looks("lake/t", "lake")], looks("lake/t", "lake", "")],
    ),
    "file": ("lake/t/c.parquet", {}, ["c.parquet"], [FILES[:1], looks("lake/t", "lake")]),
    "files": (
        ["lake/t/c.parquet", "lake/t/day=1/a.parquet"],
        {},
        ["c.parquet", "day=1/a.parquet"],
        [FILES, looks("lake/t", "lake")],
    ),
    "pins": (
        "lake/t",
        {"files": ["c.parquet", "day=1/a.parquet"]},
        ["c.parquet", "day=1/a.parquet"],
        [["HEAD lake/t"], ["LIST lake/t"], [*FILES, *looks("lake/t", "lake")]],
    ),
    "glob": (
        "lake/t/*.parquet",
        {},
        ["c.parquet"],
        [["HEAD lake/t/*.parquet"], ["LIST lake/t/*.parquet"], ["LIST lake/t", *looks("lake/t", "lake")]],
    ),
    "deep glob": (
        "lake/t/**/*.parquet",
        {},
        NAMES,
        [["HEAD lake/t/**/*.parquet"], ["LIST lake/t/**/*.parquet"], ["LIST lake/t", *looks("lake")]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_exactly_the_expected_requests_are_sent_concurrently(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, options, expected, rounds = CASES[case]
    asked = Rounds(*rounds)
    serve(Bucket(OBJECTS, asked), monkeypatch)
    paths = [f"s3://b/{entry}" for entry in (path if isinstance(path, list) else [path])]
    source = PathSource.open(paths, "parquet", **options)
    assert [file.name for file in source.files] == expected
    assert asked.over


@pytest.mark.parametrize("path", ["lake/x", "lake/t/c", "lake/t/x*", "x/*.parquet", "x/**/*.parquet"])
def test_missing_paths_are_reported(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(Bucket(OBJECTS), monkeypatch)
    with pytest.raises(MissingPathError, match="matches nothing"):
        PathSource.open(f"s3://b/{path}", "parquet")
