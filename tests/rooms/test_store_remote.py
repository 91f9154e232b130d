"""A store behind a URL holds what its folder held; neighbours come together; what is not whole is not used."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rooms.storing import MemoryTable, everything, numbers
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.planning.ranges import coalesce, in_windows
from torch_table_loader.source.storage import FileStorage
from torch_table_loader.store import remote
from torch_table_loader.store.builder import build_files
from torch_table_loader.store.remote import RemoteRows, open_remote, upload_store
from torch_table_loader.store.spec import MANIFEST, RECORDS, heap_file

WINDOW = {"least": 64, "most": 256}


class Counted:
    """A storage that notes which parts are asked for, and can be told to fail."""

    def __init__(self) -> None:
        self.inner = FileStorage("memory")
        self.parts: list[tuple[str, int, int]] = []
        self.puts = 0
        self.fails_at = -1

    def read_parts(self, path: str, parts: Sequence[tuple[int, int]]) -> list[Any]:
        self.parts += [(path.rpartition("/")[2], *part) for part in parts]
        return self.inner.read_parts(path, parts)

    def put_file(self, local: str, path: str) -> None:
        self.puts += 1
        if self.puts - 1 == self.fails_at:
            raise StorageError("the line was cut")
        self.inner.put_file(local, path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def root() -> Iterator[str]:
    folder = f"/{uuid.uuid4().hex}"
    yield f"{folder}/stores"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(folder, recursive=True)


def uploaded(made: MemoryTable, place: Path, root: str) -> tuple[RemoteRows, Counted]:
    storage = Counted()
    build_files(place, made.spec, made.read, 2)
    upload_store(place, storage, root, made.spec)
    rows = open_remote(storage, root, made.spec, **WINDOW)
    assert rows is not None
    storage.parts.clear()
    return rows, storage


@given(records=st.sets(st.integers(0, 400), min_size=1), gap=st.integers(0, 20), most=st.integers(1, 50))
def test_parts_hold_what_is_wanted_and_little_else(records: set[int], gap: int, most: int) -> None:
    wanted = np.array(sorted(records))
    parts = coalesce(wanted, gap, most)
    found = [wanted[begin:end].tolist() for begin, end in zip(parts.bounds[:-1], parts.bounds[1:], strict=True)]
    assert [record for part in found for record in part] == wanted.tolist()
    for first, stop, part in zip(parts.first, parts.stop, found, strict=True):
        assert (first, stop - 1) == (part[0], part[-1])
        assert stop - first <= most
        assert all(late - early <= gap + 1 for early, late in pairwise(part))
    if most > 401:
        assert (parts.first[1:] - parts.stop[:-1] > gap).all()


def test_windows_grow_and_leave_nothing_out() -> None:
    blocks = [(np.arange(10), number) for number in range(20)]
    windows = list(in_windows(iter(blocks), 10, 50))
    assert [len(window) for window in windows] == [1, 2, 4, 5, 5, 3]
    assert [note for window in windows for _, note in window] == list(range(20))


@pytest.mark.parametrize("with_ids", [False, True])
def test_what_is_gathered_is_the_table(tmp_path: Path, root: str, with_ids: bool) -> None:
    made = MemoryTable(everything(900), [0, 300, 301, 900], ids=np.arange(900) * 3 if with_ids else None)
    rows, _ = uploaded(made, tmp_path, root)
    rng = np.random.default_rng(0)
    for places in ([], [0], [899], [5] * 7, range(900), rng.integers(0, 900, 2000)):
        made.check(rows, places)
    assert (rows.row_ids is not None) == with_ids
    assert rows.row_ids is None or rows.row_ids.tolist() == (np.arange(900) * 3).tolist()


def test_windows_deliver_the_order_and_join_neighbours(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MemoryTable(numbers(5000), [0, 2500, 5000])
    rows, storage = uploaded(made, tmp_path, root)
    monkeypatch.setattr(remote, "GAP_BYTES", 40 * rows.layout.width)
    order = np.random.default_rng(1).permutation(5000)
    blocks = [(order[at : at + 40], at) for at in range(0, 5000, 40)]
    found: list[int] = []
    for source, places, at in rows.windows(iter(blocks)):
        assert len(found) == at
        found += source.gather(places)[0].to_pylist()
        assert source.ids(places).tolist() == order[at : at + 40].tolist()
    assert found == order.tolist()
    asked = sum(stop - start for _, start, stop in storage.parts)
    assert len(storage.parts) < 5000 / 5, "neighbours come with one request"
    assert asked < 20 * 5000 * rows.layout.width
    storage.parts.clear()
    rows.fetch(np.arange(5000))
    assert storage.parts == [(RECORDS, 0, 5000 * rows.layout.width)]


def test_large_parts_are_cut_and_few_are_in_flight(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MemoryTable(numbers(1000), [0, 1000])
    rows, storage = uploaded(made, tmp_path, root)
    width = rows.layout.width
    monkeypatch.setattr(remote, "REQUEST_BYTES", 100 * width)
    monkeypatch.setattr(remote, "IN_FLIGHT_BYTES", 250 * width)
    made.check(rows, range(1000))
    assert max(stop - start for _, start, stop in storage.parts) <= 100 * width


def test_a_window_that_is_left_ends_its_thread(tmp_path: Path, root: str) -> None:
    rows, _ = uploaded(MemoryTable(numbers(500), [0, 500]), tmp_path, root)
    windows = rows.windows(iter([(np.arange(64), None)] * 9))
    next(windows)
    windows.close()  # type: ignore[attr-defined]


# ---- what is not whole ----------------------------------------------------------------------------------


def test_an_upload_that_was_cut_is_not_used_and_goes_on(tmp_path: Path, root: str) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])
    storage = Counted()
    storage.fails_at = 2
    build_files(tmp_path, made.spec, made.read, 1)
    with pytest.raises(StorageError, match="the line was cut"):
        upload_store(tmp_path, storage, root, made.spec)
    assert open_remote(storage, root, made.spec, **WINDOW) is None
    upload_store(tmp_path, storage, root, made.spec)
    rows = open_remote(storage, root, made.spec, **WINDOW)
    assert rows is not None
    made.check(rows, range(300))
    puts = storage.puts
    upload_store(tmp_path, storage, root, made.spec)
    assert storage.puts == puts, "what is there is not put again"


def test_damage_is_named(tmp_path: Path, root: str) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])
    _, storage = uploaded(made, tmp_path, root)
    with pytest.raises(TableError, match=r"holds 300 rows of .*, expected 100 of"):
        open_remote(storage, root, MemoryTable(everything(100), [0, 100]).spec, **WINDOW)
    memory = fsspec.filesystem("memory")
    whole = memory.cat_file(f"{root}/{heap_file(1)}")
    memory.pipe_file(f"{root}/{heap_file(1)}", whole[:-1])
    with pytest.raises(TableError, match=r"memory://.*stores is damaged: heap-000001\.arrow must have \d+ bytes, got"):
        open_remote(storage, root, made.spec, **WINDOW)
    memory.rm_file(f"{root}/{heap_file(1)}")
    with pytest.raises(TableError, match="expected a file, found none"):
        open_remote(storage, root, made.spec, **WINDOW)
    memory.pipe_file(f"{root}/{MANIFEST}", memory.cat_file(f"{root}/{MANIFEST}")[:-9])
    with pytest.raises(TableError, match=r"the manifest of the row store 'memory://.* is damaged"):
        open_remote(storage, root, made.spec, **WINDOW)


def test_a_part_of_another_length_is_an_error(tmp_path: Path, root: str) -> None:
    made = MemoryTable(numbers(300), [0, 300])
    rows, _ = uploaded(made, tmp_path, root)
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{root}/{RECORDS}", b"short")
    with pytest.raises(StorageError, match=r"bytes 0 to .* were asked for, and 5 bytes came"):
        made.check(rows, range(300))
