"""S3 against a moto server: obstore and s3fs must say the same of the same table."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.logs import said_by
from torch_table_loader.errors import ConfigError, StorageError, TableError
from torch_table_loader.extend import FileStorage, PathSource, open_storage
from torch_table_loader.records import FileMeta
from torch_table_loader.source.plan_cache import CacheEntry, PlanCache

TABLE = {
    "t/day=2/b c%20.parquet": b"two",
    "t/day=10/é.parquet": b"ten",
    "t/day=1/a.parquet": bytes(range(256)) * 64,
    "t/day=1/_SUCCESS": b"",
    "t/day=1/.a.parquet.crc": b"crc",
    "t/day=1/empty.parquet": b"",
    "t/_temporary/x": b"no",
    "t/": b"",
    "tail/x": b"another table",
}
SEEN = ["day=1/a.parquet", "day=10/é.parquet", "day=2/b c%20.parquet"]


@pytest.fixture
def table(bucket: str, s3_client: Any) -> str:
    for key, body in TABLE.items():
        s3_client.put_object(Bucket=bucket, Key=key, Body=body)
    return f"s3://{bucket}/t"


@pytest.fixture(params=["obstore", "s3fs"])
def options(request: pytest.FixtureRequest, s3_options: dict[str, Any]) -> dict[str, Any]:
    """Give options that choose the client: obstore has no word for max_concurrency."""
    return s3_options if request.param == "obstore" else {**s3_options, "max_concurrency": 4}


def names(path: Any, options: dict[str, Any], **more: Any) -> list[str]:
    return [file.name for file in PathSource.open(path, "parquet", storage_options=options, **more).files]


def test_both_clients_list_the_same_files_with_the_same_bytes(table: str, s3_options: dict[str, Any]) -> None:
    first = PathSource.open(table, "parquet", storage_options=s3_options)
    other = PathSource.open(table, "parquet", storage_options={**s3_options, "max_concurrency": 4})
    assert isinstance(first.storage, FileStorage)
    assert isinstance(other.storage, FileStorage)
    assert (first.storage.client_name, other.storage.client_name) == ("obstore", "s3fs")
    assert [file.name for file in first.files] == SEEN
    for ours, theirs in zip(first.files, other.files, strict=True):
        assert (ours.path, ours.name, ours.partition) == (theirs.path, theirs.name, theirs.partition)
        assert ours.version == theirs.version
        assert ours.version.etag is not None
        with first.storage.open(ours.path) as one, other.storage.open(theirs.path) as two:
            assert one.size() == two.size() == ours.version.num_bytes
            assert one.read() == two.read() == TABLE[f"t/{ours.name}"]
            assert one.read_at(2, 1) == two.read_at(2, 1) == TABLE[f"t/{ours.name}"][1:3]
    assert first.partition_schema == other.partition_schema == pa.schema([("day", pa.int64())])


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        ("/", SEEN),
        ("/day=1*/*.parquet", SEEN[:2]),
        ("/*", SEEN),
        ("/day=2", ["b c%20.parquet"]),
        ("/day=1/?.parquet", ["a.parquet"]),
        ("/day=1/a.parquet", ["a.parquet"]),
        ("/**/é*", SEEN[1:2]),
    ],
)
@daily(3)
def test_directories_globs_and_files(table: str, options: dict[str, Any], suffix: str, expected: list[str]) -> None:
    assert names(table + suffix, options) == expected


def test_lists_and_pins(table: str, options: dict[str, Any]) -> None:
    assert names([f"{table}/day=2", f"{table}/day=1"], options) == [SEEN[2], SEEN[0]]
    assert names(table, options, files=[SEEN[2], f"{table}/{SEEN[0]}"]) == [SEEN[2], SEEN[0]]
    with pytest.raises(TableError, match="day=3/gone"):
        names(table, options, files=["day=3/gone"])


def test_a_listed_version_is_what_asking_says_until_the_object_is_rewritten(
    table: str, bucket: str, options: dict[str, Any], s3_client: Any
) -> None:
    source = PathSource.open(table, "parquet", storage_options=options)
    for file in source.files:
        assert source.storage.version(file.path) == file.version
    changed = source.files[2]
    s3_client.put_object(Bucket=bucket, Key=f"t/{changed.name}", Body=b"longer")
    assert source.storage.version(changed.path) != changed.version
    assert source.storage.version(changed.path).num_bytes == 6


def test_a_file_may_have_the_name_of_a_folder(bucket: str, options: dict[str, Any], s3_client: Any) -> None:
    for key, body in (("t/a", b""), ("t/a/", b""), ("t/a/1.parquet", b"one"), ("t/a.parquet", b"two")):
        s3_client.put_object(Bucket=bucket, Key=key, Body=body)
    assert names(f"s3://{bucket}/t", options) == ["a.parquet", "a/1.parquet"]
    storage, path = open_storage(f"s3://{bucket}/t", options)
    assert f"{bucket}/t/a" in [found.path for found in storage.walk(path, recursive=False)]


EMPTY_PARTS = {
    "e/a.parquet": b"one",
    "e//a.parquet": b"two",
    "e///b c%20.parquet": b"three",
    "e/day=1//x//é.parquet": b"four",
    "e//": b"",
    "/a.parquet": b"root",
}
"""Object stores take any key; some writers join folders with two slashes."""


@pytest.fixture
def empty_parts(bucket: str, s3_client: Any) -> str:
    for key, body in EMPTY_PARTS.items():
        s3_client.put_object(Bucket=bucket, Key=key, Body=body)
    return f"s3://{bucket}"


def test_keys_may_have_empty_parts(empty_parts: str, s3_options: dict[str, Any]) -> None:
    source = PathSource.open(f"{empty_parts}/e", "parquet", storage_options=s3_options)
    assert {file.name: source.storage.open(file.path).read() for file in source.files} == {
        key.removeprefix("e/"): body for key, body in EMPTY_PARTS.items() if key.startswith("e/") and body
    }
    for file in source.files:
        assert source.storage.version(file.path) == file.version
        alone = PathSource.open(f"{empty_parts}/e/{file.name}", "parquet", storage_options=s3_options)
        assert [each.path for each in alone.files] == [file.path]
    pinned = [file.name for file in source.files]
    assert names(f"{empty_parts}/e", s3_options, files=pinned) == pinned
    assert names(f"{empty_parts}//a.parquet", s3_options) == ["a.parquet"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("e/*.parquet", ["a.parquet"]),
        ("e//*.parquet", ["a.parquet"]),
        ("e/**/[ab]*.parquet", ["//b c%20.parquet", "/a.parquet", "a.parquet"]),
        ("e/day=*/**", ["day=1//x//é.parquet"]),
    ],
)
def test_globs_know_empty_parts(
    empty_parts: str, s3_options: dict[str, Any], pattern: str, expected: list[str]
) -> None:
    source = PathSource.open(f"{empty_parts}/{pattern}", "parquet", storage_options=s3_options)
    assert [file.name for file in source.files] == expected
    if pattern == "e//*.parquet":
        assert source.storage.open(source.files[0].path).read() == b"two"


def test_keys_with_empty_parts_are_written(bucket: str, s3_options: dict[str, Any], tmp_path: Path) -> None:
    storage, folder = open_storage(f"s3://{bucket}//w", s3_options)
    storage.write_bytes(f"{folder}//a", b"small")
    (tmp_path / "large").write_bytes(bytes(20 << 20))
    storage.put_file(str(tmp_path / "large"), f"{folder}//b")
    assert storage.read_bytes(f"{folder}//a") == b"small"
    assert sorted((found.path, found.version and found.version.num_bytes) for found in storage.walk(folder)) == [
        (f"{bucket}//w//a", 5),
        (f"{bucket}//w//b", 20 << 20),
    ]


@pytest.mark.parametrize("key", ["a/./b//c", "a/../b//c", "a//./c"])
def test_keys_that_no_url_can_say_are_refused(bucket: str, s3_options: dict[str, Any], key: str) -> None:
    storage, _ = open_storage(f"s3://{bucket}", s3_options)
    with pytest.raises(StorageError, match=r"cannot ask for this key.*copy the object"):
        storage.read_bytes(f"{bucket}/{key}")


def test_the_etag_tells_an_object_of_equal_size_and_second_apart(
    table: str, bucket: str, options: dict[str, Any], s3_client: Any
) -> None:
    source = PathSource.open(table, "parquet", storage_options=options)
    s3_client.put_object(Bucket=bucket, Key=f"t/{SEEN[2]}", Body=b"owt")
    assert source.storage.version(source.files[2].path).etag != source.files[2].version.etag


def test_what_is_missing_or_refused(table: str, bucket: str, options: dict[str, Any]) -> None:
    for missing in (f"s3://{bucket}/nope", f"s3://{bucket}/ta", f"{table}/*.csv"):
        with pytest.raises(ConfigError, match="matches nothing"):
            names(missing, options)
    with pytest.raises(ConfigError, match=r"there is no bucket|matches nothing"):  # s3fs does not tell them apart
        names("s3://no-such-bucket-here/t", options)
    storage, path = open_storage(f"{table}/gone", options)
    for call in (storage.open, storage.version, storage.read_bytes):
        with pytest.raises(TableError, match=r"s3://.*/gone"):
            call(path)


@daily(1)
def test_a_server_that_does_not_answer_is_a_storage_error_without_secrets(options: dict[str, Any]) -> None:
    nowhere = {**options, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match="s3://bucket/t") as caught:
        names("s3://bucket/t", {**nowhere, "retry_seconds": 0})
    assert options["secret"] not in str(caught.value)


def test_a_login_in_the_url_connects_and_stays_unseen(
    table: str, options: dict[str, Any], s3_options: dict[str, Any]
) -> None:
    rest = {name: value for name, value in options.items() if name not in {"key", "secret"}}
    url = table.replace("s3://", f"s3://{s3_options['key']}:{s3_options['secret'].replace('/', '%2F')}@")
    source = PathSource.open(url, "parquet", storage_options=rest)
    assert [file.name for file in source.files] == SEEN
    assert isinstance(source.storage, FileStorage)
    assert source.storage.options["secret_access_key"] == s3_options["secret"]
    for secret in (s3_options["key"], s3_options["secret"], "%2F"):
        assert secret not in repr(source)


def test_a_storage_works_after_pickling_and_after_closing(table: str, options: dict[str, Any]) -> None:
    source = PathSource.open(table, "parquet", storage_options=options)
    assert isinstance(source.storage, FileStorage)
    assert not source.storage.fork_safe
    again: PathSource = pickle.loads(pickle.dumps(source))  # noqa: S301
    source.storage.close()
    for storage in (again.storage, source.storage):
        assert isinstance(storage, FileStorage)
        assert storage.read_bytes(again.files[2].path) == b"two"


def test_an_unknown_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"storage_options do not fit s3fs.*bogus"):
        names("s3://bucket/t", {**options, "bogus": 1})


def test_the_plan_cache_lives_on_s3(
    table: str, bucket: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture, s3_client: Any
) -> None:
    source = PathSource.open(table, "parquet", storage_options=options)
    assert isinstance(source.storage, FileStorage)
    cache = PlanCache.open(f"s3://{bucket}/cache/plans", options, scope=source.storage.place)
    entries = [
        CacheEntry(FileMeta(pa.schema([("a", pa.int8())]), (at,), (9,), b"footer"), {"k": (at,)}) for at in range(3)
    ]
    with caplog.at_level(logging.WARNING):
        assert cache.get_many(source.files) == [None] * 3
        for file, entry in zip(source.files, entries, strict=True):
            cache.put(file, entry)
        assert cache.get_many(source.files) == entries
        cache.put(source.files[0], CacheEntry(entries[0].meta, {"z": (0,)}))
    found = cache.get(source.files[0])
    assert found is not None
    assert found.counts == {"k": (0,), "z": (0,)}
    assert not said_by(caplog, "source.plan_cache")
    kept = s3_client.list_objects_v2(Bucket=bucket, Prefix="cache/")["Contents"]
    assert len(kept) == 3
