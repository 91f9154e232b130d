"""A store larger than memory: the pages of a window are requested in order, joined, before they are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.tables.row_stores import MemoryTable, everything, numbers
from torch_table_loader.store.builder import build_files
from torch_table_loader.store.gather import GAP_PAGES, PAGE, ReadAhead
from torch_table_loader.store.opened import open_store
from torch_table_loader.store.record_layout import RECORDS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record what is requested from the system."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, length, advice: found.append((start, length)))
    return found


def test_pages_come_sorted_and_joined(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    path = tmp_path / "records"
    path.write_bytes(bytes(3000 * PAGE))
    read_ahead = ReadAhead([(path, 100)], 1 << 20)
    far = 200 * PAGE // 100
    places = np.array([far, 0, 1, 40, 3, 3])  # record 40 lies on pages 0 and 1
    assert read_ahead.expect(places) == 2
    assert asked == [(0, 2 * PAGE), (200 * PAGE, PAGE)]
    asked.clear()
    assert read_ahead.expect(np.arange(0, 3000 * PAGE // 100 - 1, (GAP_PAGES * PAGE) // 100)) == 3
    assert [length <= 1024 * PAGE for _, length in asked] == [True] * 3
    asked.clear()
    assert read_ahead.expect(np.empty(0, dtype=np.int64)) == 0


def test_the_next_window_is_requested_before_this_one_is_read(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    made = MemoryTable(numbers(40_000), [0, 20_000, 40_000])
    build_files(tmp_path, made.spec, made.read, 2)
    rows = open_store(tmp_path, made.spec, 1, window_bytes=8192 * PAGE)
    assert rows is not None
    order = np.random.default_rng(0).permutation(40_000)
    blocks = ((order[at : at + 4096], at) for at in range(0, 40_000, 4096))
    found: list[int] = []
    seen = []
    for source, places, _ in rows.windows(blocks):
        seen.append(len(asked))
        found += source.gather(places)[0].to_pylist()
    assert found == order.tolist()
    width = rows.layout.width
    whole = (0, -(-40_000 * width // PAGE) * PAGE)
    assert asked == [whole] * 6, "so dense a window is one request"
    assert seen[0] == 2


def test_records_of_nulls_and_codes_are_requested_too(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    made = MemoryTable(everything(300), [0, 300])
    build_files(tmp_path, made.spec, made.read, 1)
    rows = open_store(tmp_path, made.spec, 1, window_bytes=1)
    assert rows is not None
    made.check(rows, range(300))
    assert [place.tolist() for _, place, _ in rows.windows(iter([(np.array([5]), None)]))] == [[5]]
    assert len(asked) == 3
    assert open_store(tmp_path, made.spec, 1).windows(iter([])) is not None  # type: ignore[union-attr]


def test_the_last_page_is_warm_and_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / RECORDS
    path.write_bytes(bytes(10))
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_ahead = ReadAhead([(path, 5)], 1)
    assert read_ahead.expect(np.array([1])) == 1
    del read_ahead
    assert len(list(Path("/proc/self/fd").iterdir())) == before
