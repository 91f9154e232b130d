"""Strategies that may leave rows out or repeat them: each row comes as often as splits contain it, on any topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.strategies import as_counts, tables, topologies
from tests.tables.planned import World
from torch_table_loader.errors import ConfigError
from torch_table_loader.extend import SegmentTable, SplitTable, TableLayout, Topology, resolve_strategy
from torch_table_loader.planning.stages import StreamPosition
from torch_table_loader.records import DataFileInfo, RowRange, Split


@dataclass(frozen=True)
class AnyPieces:
    """Pieces of files by numbers that are drawn: some rows in none, some in several."""

    pieces: tuple[tuple[int, int, int], ...]
    coverage: str = "any"

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        splits = []
        for file, start, length in self.pieces if files else ():
            info = files[file % len(files)]
            rows = info.record_count or 0
            first = min(start, rows)
            splits.append(Split(info, RowRange(first, min(length, rows - first))))
        return splits


pieces = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60), st.integers(0, 60)), max_size=12).map(tuple)
lossless = topologies.filter(lambda t: t.even_ranks != "drop" and not t.drop_last)


def expected(layout: TableLayout, strategy: AnyPieces) -> list[int]:
    counts = np.zeros(layout.num_rows, dtype=np.int64)
    for split in strategy(list(layout)):
        assert split.row_range is not None
        file = [each.name for each in layout.files].index(split.file.path)
        first = int(layout.file_starts[file]) + split.row_range.offset
        counts[first : first + split.row_range.length] += 1
    return counts.tolist()


@settings(max_examples=examples(75), deadline=None)
@given(
    layout=tables,
    pieces=pieces,
    by_file=st.booleans(),
    chain=st.lists(st.tuples(lossless, st.integers(0, 12)), min_size=1, max_size=5),
    epoch=st.integers(0, 3),
)
def test_rows_come_as_often_as_splits_contain_them_in_any_topology(
    layout: TableLayout, pieces: Any, by_file: bool, chain: list[tuple[Topology, int]], epoch: int
) -> None:
    world = World(layout, AnyPieces(pieces), by_file=by_file)
    cursor, rows = StreamPosition.at(epoch, chain[0][0]), []
    for number, (topology, steps) in enumerate(chain):
        cursor = StreamPosition.of_history(cursor.epoch, cursor.history()).on(topology)
        taken = None if number == len(chain) - 1 else steps
        for rank in range(topology.num_ranks):
            batches = world.play(cursor, rank, taken)
            left = max(0, world.plan(cursor, rank).plan.steps - cursor.stage.steps)
            assert len(batches) == (left if taken is None else min(taken, left))
            rows += [row for batch in batches for row, padding in batch if not padding]
        cursor = cursor.after(cursor.stage.steps + (taken or 0))
    assert as_counts(rows, layout.num_rows) == expected(layout, AnyPieces(pieces))


@settings(max_examples=examples(150), deadline=None)
@given(layout=tables, pieces=pieces, seed=st.integers(0, 9))
def test_a_cover_counts_the_rows_of_loose_splits(layout: TableLayout, pieces: Any, seed: int) -> None:
    lives = np.random.default_rng(seed).random(layout.num_rows) < 0.5
    splits = resolve_strategy(AnyPieces(pieces), {}).cut(layout)
    files = np.unique(splits.file)
    cover = splits.cover(files)
    rows_of = [list(range(int(layout.file_starts[f]), int(layout.file_starts[f + 1]))) for f in files]
    assert sorted(row for rows in rows_of for row in rows) == [row for rows in _rows(cover) for row in rows]

    whole = SegmentTable.of(cover, filtered=True)
    firsts = layout.file_starts[np.repeat(cover.file, np.diff(whole.offsets))]
    spans = zip((firsts + whole.row_start).tolist(), (firsts + whole.row_stop).tolist(), strict=True)
    known = whole.counted(np.array([int(lives[a:b].sum()) for a, b in spans], dtype=np.int64))
    live = SegmentTable.of(splits, filtered=True).counted_by(known).live_rows
    assert live.tolist() == [int(lives[rows].sum()) for rows in _rows(splits)]


def _rows(splits: SplitTable) -> list[list[int]]:
    firsts = splits.layout.file_starts[splits.file]
    return [
        list(range(int(first + start), int(first + stop)))
        for first, start, stop in zip(firsts, splits.row_start, splits.row_stop, strict=True)
    ]


def test_an_unknown_coverage_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"coverage of AnyPieces must be 'once', or 'any' .* got 'most'"):
        resolve_strategy(AnyPieces((), coverage="most"), {})
