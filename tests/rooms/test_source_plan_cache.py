"""The plan cache: stored entries are returned, and nothing else is."""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.logs import said_by
from torch_table_loader.errors import ConfigError, StorageError
from torch_table_loader.extend import FileStorage, PathSource
from torch_table_loader.records import DataFile, FileMeta, FileVersion
from torch_table_loader.source.plan_cache import CacheEntry, PlanCache

LOGGER = "source.plan_cache"
FILE = DataFile("/t/a.parquet", "a.parquet", FileVersion(100, 1_000, "tag"), "parquet")
META = FileMeta(
    pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("l", pa.list_(pa.float32()))]),
    (3, 0, 5),
    (30, 0, 50),
    b"\x00footer\xff",
)
ENTRY = CacheEntry(META, {"filter-1": (1, 0, 5)})


@pytest.fixture(params=["local", "memory"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlanCache]:
    fsspec.filesystem("memory").store.clear()
    yield PlanCache.open(str(tmp_path / "cache") if request.param == "local" else "memory://cache", scope="table")
    fsspec.filesystem("memory").store.clear()


def entry_files(directory: Path) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if entry.is_file())


def test_stored_entries_are_returned(cache: PlanCache) -> None:
    assert cache.get(FILE) is None
    cache.put(FILE, ENTRY)
    found = cache.get(FILE)
    assert found == ENTRY
    assert found is not None
    assert found.meta.schema.field("a").nullable is False
    without = replace(FILE, name="b.csv", format="csv")
    cache.put(without, CacheEntry(replace(META, footer=None)))
    assert cache.get(without) == CacheEntry(replace(META, footer=None))
    assert cache.get_many([without, replace(FILE, name="none"), FILE]) == [cache.get(without), None, ENTRY]


def test_an_immutable_file_is_identified_by_its_path(cache: PlanCache) -> None:
    fixed = replace(FILE, version=FileVersion(100, immutable=True))
    cache.put(fixed, ENTRY)
    assert cache.get(fixed) == ENTRY
    assert cache.get(FILE) is None
    untold = replace(FILE, version=FileVersion(100))
    cache.put(untold, ENTRY)
    assert cache.get(untold) is None


def test_a_note_is_found_only_by_its_key(cache: PlanCache) -> None:
    assert cache.get_note("a") is None
    cache.put_note("a", b"one")
    cache.put_note("b", b"")
    assert (cache.get_note("a"), cache.get_note("b"), cache.get_note("c")) == (b"one", b"", None)
    assert replace(cache, scope="elsewhere").get_note("a") is None


def test_counts_are_added_to_existing_ones(cache: PlanCache) -> None:
    cache.put(FILE, CacheEntry(META))
    cache.put(FILE, ENTRY)
    cache.put(FILE, CacheEntry(META, {"filter-2": (0, 0, 0)}))
    found = cache.get(FILE)
    assert found is not None
    assert found.counts == {"filter-1": (1, 0, 5), "filter-2": (0, 0, 0)}
    other = replace(META, footer=b"another")
    cache.put(FILE, CacheEntry(other))
    assert cache.get(FILE) == CacheEntry(other)


@pytest.mark.parametrize(
    "other",
    [
        replace(FILE, name="b.parquet"),
        replace(FILE, path="/elsewhere/a.parquet"),
        replace(FILE, format="orc"),
        replace(FILE, version=FileVersion(101, 1_000, "tag")),
        replace(FILE, version=FileVersion(100, 1_001, "tag")),
        replace(FILE, version=FileVersion(100, 1_000, "other")),
        replace(FILE, version=FileVersion(100, 1_000)),
    ],
)
def test_another_file_or_version_is_not_found(cache: PlanCache, other: DataFile) -> None:
    cache.put(FILE, ENTRY)
    assert cache.get(other) is None
    assert replace(cache, scope="another table").get(FILE) is None


def test_a_file_of_unknown_version_is_not_cached(tmp_path: Path) -> None:
    cache = PlanCache.open(str(tmp_path))
    untold = replace(FILE, version=FileVersion(100))
    cache.put(untold, ENTRY)
    assert cache.get(untold) is None
    assert entry_files(tmp_path) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.data())
def test_a_damaged_entry_is_never_believed(tmp_path: Path, data: st.DataObject) -> None:
    cache = PlanCache.open(str(tmp_path))
    cache.put(FILE, ENTRY)
    (kept,) = entry_files(tmp_path)
    whole = kept.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[cut] ^= data.draw(st.integers(1, 255))
    for damaged in (whole[:cut], bytes(flipped), whole + b"x"):
        kept.write_bytes(damaged)
        assert cache.get(FILE) is None
    cache.put(FILE, ENTRY)
    assert cache.get(FILE) == ENTRY


def test_damaged_and_unrelated_entries_give_one_warning_and_are_rewritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PlanCache.open(str(tmp_path))
    files = [FILE, replace(FILE, name="b")]
    for entry in files:
        cache.put(entry, ENTRY)
    first, second = entry_files(tmp_path)
    first.write_bytes(b"torn")
    second.write_bytes(first.read_bytes())
    with caplog.at_level(logging.WARNING):
        assert cache.get_many(files) == [None, None]
    (warning,) = said_by(caplog, LOGGER)
    # Threads read the entries, and whichever comes first warns.
    assert re.search("is damaged or of another table, and is written again: (a.parquet|b)$", warning)
    for entry in files:
        cache.put(entry, ENTRY)
    assert cache.get_many(files) == [ENTRY, ENTRY]


def test_an_entry_copied_to_another_files_name_is_not_used(tmp_path: Path) -> None:
    cache = PlanCache.open(str(tmp_path))
    cache.put(FILE, ENTRY)
    (mine,) = entry_files(tmp_path)
    other = replace(FILE, name="b")
    cache.put(other, CacheEntry(META))
    (theirs,) = (entry for entry in entry_files(tmp_path) if entry != mine)
    theirs.write_bytes(mine.read_bytes())
    assert cache.get(other) is None


def test_concurrent_writers_leave_a_complete_entry(tmp_path: Path) -> None:
    def write(at: int) -> bool:
        cache = PlanCache.open(str(tmp_path))
        cache.put(FILE, CacheEntry(META, {f"filter-{at % 4}": (at % 4, 0, 0)}))
        found = cache.get(FILE)
        return (
            found is not None
            and found.meta == META
            and all(counts == (int(key[-1]), 0, 0) for key, counts in found.counts.items())
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, range(64)))
    assert len(entry_files(tmp_path)) == 1


def test_an_unusable_cache_gives_a_warning_instead_of_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_bytes(b"a file where the directory should be")
    cache = PlanCache.open(str(tmp_path / "occupied"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cache.put(FILE, ENTRY)
    assert len(said_by(caplog, LOGGER)) == 1
    assert cache.get(FILE) is None

    def refuse(self: FileStorage, path: str) -> bytes:
        raise StorageError("the network is gone")

    monkeypatch.setattr(FileStorage, "read_bytes", refuse)
    with caplog.at_level(logging.WARNING):
        assert cache.get_many([FILE] * 5) == [None] * 5
    assert len(said_by(caplog, LOGGER)) == 2


def test_entries_inside_the_table_are_not_data_files(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    PlanCache.open(str(tmp_path)).put(FILE, ENTRY)
    assert len(entry_files(tmp_path)) == 2
    assert [file.name for file in PathSource.open(tmp_path, "parquet").files] == ["a.parquet"]


def test_entries_hold_no_path_and_no_secret(tmp_path: Path) -> None:
    cache = PlanCache.open(str(tmp_path), scope="scope-words")
    signed = replace(FILE, path="https://host/private-place/a.parquet?sig=hunter2")
    cache.put(signed, ENTRY)
    (kept,) = entry_files(tmp_path)
    for secret in ("private-place", "hunter2", "scope-words"):
        assert secret not in kept.name
        assert secret.encode() not in kept.read_bytes()
    renewed = replace(signed, path="https://host/private-place/a.parquet?sig=other")
    assert cache.get(renewed) == ENTRY


def test_entries_can_be_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        PlanCache.open(str(tmp_path)).put(FILE, ENTRY)
    finally:
        os.umask(before)
    (kept,) = entry_files(tmp_path)
    assert kept.stat().st_mode & 0o777 == 0o644


def test_counts_must_fit_the_row_groups() -> None:
    with pytest.raises(ConfigError, match="got 1 under 'k' for 3 row groups"):
        CacheEntry(META, {"k": (1,)})


def test_a_cache_pickles(cache: PlanCache) -> None:
    assert pickle.loads(pickle.dumps(cache)) == cache  # noqa: S301


# ---- folders to which others may write -------------------------------------------------------------------


def test_a_planted_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    cache = PlanCache.open(str(tmp_path / "cache"), scope="table")
    cache.put(FILE, ENTRY)
    [entry] = entry_files(tmp_path / "cache")
    (tmp_path / "key").write_text("theirs")
    entry.unlink()
    entry.symlink_to(tmp_path / "key")
    assert cache.get(FILE) is None
    cache.put(FILE, ENTRY)
    assert (tmp_path / "key").read_text() == "theirs"
    assert not entry.is_symlink()
    assert cache.get(FILE) == ENTRY


@pytest.mark.timeout(20)
def test_a_planted_pipe_does_not_block(tmp_path: Path) -> None:
    cache = PlanCache.open(str(tmp_path / "cache"), scope="table")
    cache.put(FILE, ENTRY)
    [entry] = entry_files(tmp_path / "cache")
    entry.unlink()
    os.mkfifo(entry)
    assert cache.get(FILE) is None
    cache.put(FILE, ENTRY)
    assert cache.get(FILE) == ENTRY


def test_a_new_cache_is_private_and_an_existing_one_is_unchanged(tmp_path: Path) -> None:
    PlanCache.open(str(tmp_path / "new" / "cache"), scope="table").put(FILE, ENTRY)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o775)
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    cache = PlanCache.open(str(tmp_path / "link"), scope="table")
    cache.put(FILE, ENTRY)
    assert cache.get(FILE) == ENTRY, "the caller's own folder may be a link"
    modes = [
        path.stat().st_mode & 0o777 for path in (tmp_path / "new", tmp_path / "new" / "cache", tmp_path / "shared")
    ]
    assert modes == [0o700, 0o700, 0o775]
