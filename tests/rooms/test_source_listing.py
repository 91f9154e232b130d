"""Listing: the files of a directory, a glob, a file, a list and pinned names, their order, and what is left out."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from torch_table_loader.contracts import Source
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.extend import FileStorage, PathSource
from torch_table_loader.source.address import parse_address
from torch_table_loader.source.local_client import LocalClient

TABLE = {
    "b.parquet": 2,
    "a.parquet": 1,
    "é.parquet": 1,
    "day=1/part-0.parquet": 3,
    "day=10/part-0.parquet": 3,
    "day=2/part-0.parquet": 3,
    "day=2/empty.parquet": 0,
    "_SUCCESS": 0,
    "day=2/_SUCCESS": 4,
    ".hidden.parquet": 1,
    ".a.parquet.crc": 1,
    "a.parquet.crc": 1,
    "_temporary/0/part.parquet": 1,
    ".git/x.parquet": 1,
    "_zone=eu/part-0.parquet": 1,
}
SEEN = [
    "_zone=eu/part-0.parquet",
    "a.parquet",
    "b.parquet",
    "day=1/part-0.parquet",
    "day=10/part-0.parquet",
    "day=2/part-0.parquet",
    "é.parquet",
]


@pytest.fixture(params=["local", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write the table, in an order different from any listing, and return its root as a URL."""
    names = random.Random(0).sample(sorted(TABLE), len(TABLE))
    if request.param == "local":
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x" * TABLE[name])
        return str(tmp_path)
    files = fsspec.filesystem("memory")
    files.store.clear()
    for name in names:
        files.pipe_file(f"/table/{name}", b"x" * TABLE[name])
    return "memory://table"


def names(path: Any, **options: Any) -> list[str]:
    return [file.name for file in PathSource.open(path, "parquet", **options).files]


def as_contract(source: PathSource) -> Source:
    """Let the type checker compare the class with its socket."""
    return source


def test_a_directory_is_sorted_and_only_data_files_are_listed(table: str) -> None:
    source = PathSource.open(table, "parquet")
    assert isinstance(source.storage, FileStorage)
    assert [file.name for file in as_contract(source).files] == SEEN
    for file in source.files:
        assert file.version.num_bytes == TABLE[file.name]
        assert file.version == source.storage.version(file.path)
        assert source.storage.read_bytes(file.path) == b"x" * TABLE[file.name]
        assert (file.format, file.partition) == ("parquet", ())
    assert source.partition_schema == pa.schema([])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet", "b.parquet", "é.parquet"]),
        ("?.parquet", ["a.parquet", "b.parquet", "é.parquet"]),
        ("[!a].parquet", ["b.parquet", "é.parquet"]),
        ("day=1*/*.parquet", ["day=1/part-0.parquet", "day=10/part-0.parquet"]),
        ("day=*", [name for name in SEEN if name.startswith("day=")]),
        ("**/part-*.parquet", [name for name in SEEN if "part-" in name]),
        ("**", SEEN),
        ("*", SEEN),
        ("_zone=*", ["_zone=eu/part-0.parquet"]),
        ("_temp*/**", ["_temporary/0/part.parquet"]),
        (".h*", [".hidden.parquet"]),
    ],
)
def test_globs(table: str, pattern: str, expected: list[str]) -> None:
    assert names(f"{table}/{pattern}") == expected


def test_a_glob_names_files_below_its_fixed_part(table: str) -> None:
    assert names(f"{table}/day=2/*.parquet") == ["part-0.parquet"]


def test_an_existing_name_takes_precedence_over_a_glob(tmp_path: Path) -> None:
    for name in ("a[1].parquet", "a1.parquet", "[x]/b.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path / "a[1].parquet") == ["a[1].parquet"]
    assert names(tmp_path / "a[0-9].parquet") == ["a1.parquet"]
    assert names(tmp_path / "[x]") == ["b.parquet"]


def test_a_named_file_is_taken_even_if_hidden(table: str) -> None:
    assert names(f"{table}/.hidden.parquet") == [".hidden.parquet"]
    assert names(f"{table}/_temporary/0") == ["part.parquet"]
    assert names(f"{table}/day=2/empty.parquet") == []


def test_a_list_keeps_the_callers_order_below_a_common_root(table: str) -> None:
    paths = [f"{table}/day=2", f"{table}/b.parquet", f"{table}/day=1*"]
    source = PathSource.open(paths, "parquet")
    expected = ["day=2/part-0.parquet", "b.parquet", "day=1/part-0.parquet", "day=10/part-0.parquet"]
    assert [file.name for file in source.files] == expected
    assert names([f"{table}/day=2"]) == names(f"{table}/day=2") == ["part-0.parquet"]


def test_a_repeated_file_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.parquet twice"):
        names([table, f"{table}/a.parquet"])
    with pytest.raises(ConfigError, match=r"a\.parquet twice"):
        names(table, files=["a.parquet", f"{table}/a.parquet"])


@pytest.mark.parametrize("missing", ["nope", "nope.parquet", "nope/*.parquet", "*.orc", "day=1/*.csv"])
def test_a_path_that_matches_nothing_is_an_error_that_says_what_was_expected(table: str, missing: str) -> None:
    with pytest.raises(ConfigError, match="matches nothing") as caught:
        names(f"{table}/{missing}")
    assert f"{table}/{missing}" in str(caught.value)
    with pytest.raises(ConfigError, match="matches nothing"):
        names([table, f"{table}/{missing}"])


def test_an_empty_directory_matches_nothing_but_an_empty_table_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="matches nothing"):
        names(tmp_path)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "part.parquet").touch()
    assert names(tmp_path) == names(tmp_path / "*.parquet") == []


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    for bad in (None, 3, b"x", [3], {"a"}):
        with pytest.raises(ConfigTypeError, match="path must be"):
            names(bad)
    for empty in ([], "", [""]):
        with pytest.raises(ConfigError):
            names(empty)
    (tmp_path / "a").write_bytes(b"x")
    fsspec.filesystem("memory").pipe_file("/other/a", b"x")
    with pytest.raises(ConfigError, match="one file system"):
        names([tmp_path, "memory://other"])


def test_pinned_files_are_used_without_listing(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr(LocalClient, "walk", refuse)
    pins = ["day=2/part-0.parquet", f"{table}/a.parquet", ".hidden.parquet"]
    source = PathSource.open(table, "parquet", files=pins)
    assert [file.name for file in source.files] == ["day=2/part-0.parquet", "a.parquet", ".hidden.parquet"]
    assert [file.version.num_bytes for file in source.files] == [3, 1, 1]
    assert names(f"{table}/*.parquet", files=["b.parquet"]) == ["b.parquet"]
    assert names(f"{table}/a.parquet", files=["b.parquet"]) == ["b.parquet"]


def test_pinning_a_listing_gives_the_same_listing(table: str) -> None:
    listed = PathSource.open(table, "parquet")
    assert isinstance(listed.storage, FileStorage)
    assert PathSource.open(table, "parquet", files=[file.name for file in listed.files]) == listed
    assert PathSource.open(table, "parquet", files=[listed.storage.shown(file.path) for file in listed.files]) == listed


def test_a_missing_pin_is_a_table_error_and_a_foreign_one_a_config_error(table: str) -> None:
    with pytest.raises(TableError, match=r"gone\.parquet"):
        names(table, files=["a.parquet", "gone.parquet"])
    for outside in ("/etc/passwd", "../x", "memory://elsewhere/x", "s3://bucket/x", ""):
        with pytest.raises(ConfigError, match="files must name files below"):
            names(table, files=[outside])


def test_hive_columns_come_with_every_file(tmp_path: Path) -> None:
    for name in ("day=2024-01-02/n=7/a", "day=2024-01-01/n=__HIVE_DEFAULT_PARTITION__/a"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    source = PathSource.open(tmp_path, "parquet")
    assert source.partition_schema == pa.schema([("day", pa.date32()), ("n", pa.int64())])
    assert [dict(file.partition)["n"] for file in source.files] == [None, 7]
    typed = PathSource.open(tmp_path, "parquet", schema=pa.schema([("day", pa.string())]))
    assert [dict(file.partition)["day"] for file in typed.files] == ["2024-01-01", "2024-01-02"]
    below = PathSource.open(tmp_path / "day=2024-01-02", "parquet")
    assert below.partition_schema.names == ["day", "n"]


def test_a_source_pickles(tmp_path: Path) -> None:
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1" / "a").write_bytes(b"x")
    source = PathSource.open(tmp_path, "csv")
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301


def test_a_moved_table_has_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for name in ("b", "a"):
        (tmp_path / "here" / name).write_bytes(b"x")
    before = names(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert names(tmp_path / "there") == before


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.parquet")).write_bytes(b"x")
    with pytest.raises(TableError, match="UTF-8"):
        names(tmp_path)


def test_a_directory_is_listed_in_one_walk_without_queries_per_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(50):
        (tmp_path / f"{index:02}").write_bytes(b"x")
    walked: list[str] = []
    asked: list[str] = []
    walk, stat = LocalClient.walk, LocalClient.stat

    def count_walk(self: LocalClient, root: str, *, recursive: bool) -> Any:
        walked.append(root)
        return walk(self, root, recursive=recursive)

    def count_stat(self: LocalClient, path: str) -> Any:
        asked.append(path)
        return stat(self, path)

    monkeypatch.setattr(LocalClient, "walk", count_walk)
    monkeypatch.setattr(LocalClient, "stat", count_stat)
    for path in (tmp_path, tmp_path / "*"):
        walked.clear()
        asked.clear()
        assert len(names(path)) == 50
        assert len(walked) == 1
        assert len(asked) <= 2 + 6  # those that look for another table format


def test_files_are_sorted_by_their_utf8_bytes(tmp_path: Path) -> None:
    written: Sequence[str] = ("Z", "a", "a-b", "a/b", "a.b", "ä", "\U0001f600", "\uffff")
    for name in written:
        target = tmp_path / (f"{name}/x" if name == "a" else name)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(b"x")
    expected = sorted(["Z", "a-b", "a/b", "a/x", "a.b", "ä", "\U0001f600", "\uffff"], key=str.encode)
    assert names(tmp_path) == expected


SPELLED = ["./a.parquet", "{root}/a.parquet", "{root}/./a.parquet"]
"""Other spellings of ``a.parquet``."""


@pytest.mark.parametrize("spelled", [*SPELLED, ".//a.parquet", "{root}//a.parquet", "file://{root}/a.parquet"])
def test_a_file_is_one_however_it_is_spelled(tmp_path: Path, spelled: str) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    for other in (spelled, f"file:{tmp_path}/a.parquet"):
        pin = other.format(root=tmp_path)
        assert names(tmp_path, files=[pin]) == ["a.parquet"]
        with pytest.raises(ConfigError, match=r"a\.parquet twice"):
            names(tmp_path, files=["a.parquet", pin])
        if pin[0] != ".":
            with pytest.raises(ConfigError, match=r"a\.parquet twice"):
                names([tmp_path / "a.parquet", pin])


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_file_far_away_is_one_however_it_is_spelled(spelled: str) -> None:
    fsspec.filesystem("memory").pipe_file("/spelled/a.parquet", b"x")
    pin = spelled.format(root="memory://spelled")
    assert names("memory://spelled", files=[pin]) == ["a.parquet"]
    with pytest.raises(ConfigError, match=r"a\.parquet twice"):
        names("memory://spelled", files=["a.parquet", pin])


@pytest.mark.parametrize("pin", ["x/../a.parquet", "{root}/x/../a.parquet", "file://{root}/../a.parquet", "{root}"])
def test_no_spelling_leads_out_of_the_table(tmp_path: Path, pin: str) -> None:
    for folder in ("x", "."):
        (tmp_path / "table" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "table" / folder / "a.parquet").write_bytes(b"x")
    with pytest.raises(ConfigError, match="files must name files below"):
        names(tmp_path / "table", files=["a.parquet", pin.format(root=tmp_path / "table")])


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_link_to_a_file_is_that_file(tmp_path: Path, link: str) -> None:
    one, other = tmp_path / "a.parquet", tmp_path / "b" / "c.parquet"
    other.parent.mkdir()
    one.write_bytes(b"x")
    (tmp_path / "z.parquet").write_bytes(b"x")
    getattr(other, link)(one)
    for path, files in [
        (tmp_path, None),
        (tmp_path / "**", None),
        ([one, other.parent], None),
        (tmp_path, ["a.parquet", "z.parquet", "b/c.parquet"]),
    ]:
        with pytest.raises(ConfigError, match=r"b/c\.parquet twice: .*a\.parquet is the same file by another name"):
            names(path, files=files)
    assert names(tmp_path, files=["z.parquet", "b/c.parquet"]) == ["z.parquet", "b/c.parquet"]


def test_a_link_into_another_partition_holds_other_rows(tmp_path: Path) -> None:
    one, other = tmp_path / "day=1" / "a.parquet", tmp_path / "day=2" / "a.parquet"
    for file in (one, other):
        file.parent.mkdir()
    one.write_bytes(b"x")
    other.hardlink_to(one)
    assert names(tmp_path) == ["day=1/a.parquet", "day=2/a.parquet"]


@pytest.mark.parametrize(
    "other", ["HTTPS://Host/t/a", "https://HOST/t/a", "https://host:443/t/a", "https://host:/t/a", "https://host/t/a#x"]
)
def test_a_server_has_one_spelling(other: str) -> None:
    assert parse_address(other) == parse_address("https://host/t/a")
    with_login = other.replace("://", "://User:pass@", 1)
    assert parse_address(with_login).path == "https://host/t/a"
    assert parse_address(with_login).login == parse_address("https://User:pass@host/t/a").login
