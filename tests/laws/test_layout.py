"""Tables, splits and runs as columns, against plain lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.effort import examples
from tests.strategies import cutters, table, tables
from torch_table_loader import TargetSizeStrategy
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.extend import SegmentTable, SplitTable, TableLayout
from torch_table_loader.planning.consumption import Consumption
from torch_table_loader.planning.runs import Hands, Runs
from torch_table_loader.records import DataFileInfo, RowRange, Split

GROUPS = st.lists(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=5), max_size=6)
PIECES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 6)).map(lambda p: (p[0], p[1], p[1] + p[2])),
    max_size=12,
)


def rows_of(runs: Runs) -> list[tuple[int, int]]:
    return [(split, row) for split, start, stop in runs for row in range(start, stop)]


def kept_table(groups: list[list[tuple[int, bool]]]) -> TableLayout:
    return table([[rows for rows, _ in file] for file in groups], [[kept for _, kept in file] for file in groups])


@given(groups=GROUPS)
def test_pruned_groups_and_files_are_counted(groups: list[list[tuple[int, bool]]]) -> None:
    layout, kept = kept_table(groups), [[is_kept for _, is_kept in file] for file in groups]
    assert layout.kept_groups.tolist() == list(map(sum, kept))
    assert layout.pruned_groups == sum(not is_kept for file in kept for is_kept in file)
    assert layout.pruned_files == sum(bool(file) and not any(file) for file in kept)


@st.composite
def cut_tables(draw: st.DrawFn) -> tuple[TableLayout, list[Split]]:
    """A table, and splits of any of its rows: empty, inside row groups, overlapping."""
    layout = kept_table(draw(GROUPS))
    splits = []
    for file in draw(st.lists(st.sampled_from(range(len(layout))), max_size=8)) if len(layout) else []:
        rows = int(layout.file_rows[file])
        start = draw(st.integers(0, rows))
        splits.append(Split(layout[file], RowRange(start, draw(st.integers(0, rows - start)))))
    return layout, splits


# Runs


@given(pieces=PIECES, start=st.integers(-5, 80), stop=st.integers(-5, 80))
def test_a_slice_of_runs_is_the_slice_of_their_rows(pieces: list[tuple[int, int, int]], start: int, stop: int) -> None:
    runs = Runs.of(pieces)
    assert runs.num_rows == len(rows_of(runs))
    assert rows_of(runs.slice(start, stop)) == rows_of(runs)[max(0, start) : max(0, stop)]


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 80), max_size=4))
def test_adjacent_slices_join_to_the_whole(pieces: list[tuple[int, int, int]], cuts: list[int]) -> None:
    runs = Runs.of(pieces)
    edges = [0, *sorted(cuts), 10_000]
    parts = [runs.slice(a, b) for a, b in itertools.pairwise(edges)]
    assert rows_of(Runs.concat(parts)) == rows_of(runs)


@given(parts=st.lists(PIECES, max_size=4))
def test_concat_joins_in_order(parts: list[list[tuple[int, int, int]]]) -> None:
    joined = Runs.concat([Runs.of(pieces) for pieces in parts])
    assert list(joined) == [piece for pieces in parts for piece in pieces]


@given(pieces=PIECES, data=st.data())
def test_take_returns_whole_pieces(pieces: list[tuple[int, int, int]], data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, max(0, len(pieces) - 1)), max_size=6 if pieces else 0))
    assert list(Runs.of(pieces).take(np.array(index, dtype=np.int64))) == [pieces[at] for at in index]


@given(pieces=PIECES, start=st.integers(0, 80), stop=st.integers(0, 80))
def test_a_slice_does_not_change_the_runs(pieces: list[tuple[int, int, int]], start: int, stop: int) -> None:
    runs = Runs.of(pieces)
    part = runs.slice(start, stop)
    part.stop[:] = -1
    assert list(runs) == pieces or part is runs


@given(hands=st.lists(PIECES, min_size=1, max_size=4), data=st.data())
def test_parts_of_hands_are_slices_of_each(hands: list[list[tuple[int, int, int]]], data: st.DataObject) -> None:
    runs = [Runs.of(pieces) for pieces in hands]
    asked = []
    for hand in data.draw(st.lists(st.integers(0, len(runs) - 1), max_size=6)):
        start = data.draw(st.integers(0, runs[hand].num_rows))
        asked.append((hand, start, data.draw(st.integers(start, runs[hand].num_rows))))
    parts = Hands.of(runs).parts(*np.array(asked, dtype=np.int64).reshape(-1, 3).T)
    assert list(map(rows_of, parts)) == [rows_of(runs[hand].slice(start, stop)) for hand, start, stop in asked]
    assert parts.rows.tolist() == [stop - start for _, start, stop in asked]


@given(hands=st.lists(PIECES, max_size=4), others=st.integers(1, 4), data=st.data())
def test_hands_are_dealt_on_filtered_and_joined_each_for_itself(
    hands: list[list[tuple[int, int, int]]], others: int, data: st.DataObject
) -> None:
    each, total = Hands.of([Runs.of(pieces) for pieces in hands]), sum(map(len, hands))
    to = data.draw(st.lists(st.integers(0, others - 1), min_size=total, max_size=total))
    told = iter(to)
    dealt = [[(piece, next(told)) for piece in pieces] for pieces in hands]
    found = each.dealt(np.array(to, dtype=np.int64), others)
    assert list(map(list, found)) == [
        [piece for piece, lane in pieces if lane == number] for pieces in dealt for number in range(others)
    ]
    first = each.some(np.array(to, dtype=np.int64) == 0)
    assert list(map(list, first)) == [[piece for piece, lane in pieces if lane == 0] for pieces in dealt]
    assert list(map(list, first.followed_by(each))) == [
        [*own, *pieces] for own, pieces in zip(map(list, first), hands, strict=True)
    ]


@given(pieces=PIECES, step=st.integers(1, 5), data=st.data())
def test_each_hand_gets_every_so_many_pieces(
    pieces: list[tuple[int, int, int]], step: int, data: st.DataObject
) -> None:
    first = data.draw(st.lists(st.integers(0, step - 1), max_size=5))
    found = Hands.every(Runs.of(pieces), np.array(first, dtype=np.int64), step)
    assert list(map(list, found)) == [pieces[at::step] for at in first]


@given(
    splits=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=9),
    consumed=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9),
    data=st.data(),
)
def test_what_is_left_of_splits_is_each_of_their_rows_that_was_not_consumed(
    splits: list[tuple[int, int]], consumed: list[tuple[int, int]], data: st.DataObject
) -> None:
    live, gaps = np.array(splits, dtype=np.int64).reshape(-1, 2).T
    numbers = st.permutations(range(len(splits)))
    by_place, order = (np.array(data.draw(numbers), dtype=np.int64) for _ in range(2))
    bases, ends = np.empty_like(live), np.cumsum((live + gaps)[by_place])
    bases[by_place] = ends - (live + gaps)[by_place]
    places = np.cumsum(np.array(consumed, dtype=np.int64)).reshape(-1, 2) - 1
    found = Consumption(places[:, 0], places[:, 1]).left_of(order, live, bases)
    rows = [(split, row) for split in order.tolist() for row in range(live[split])]
    assert rows_of(found) == [(split, row) for split, row in rows if not gone(int(bases[split]) + row, places)]
    assert (found.stop > found.start).all()


def gone(place: int, intervals: NDArray[np.int64]) -> bool:
    return any(start <= place < stop for start, stop in intervals.tolist())


# Layout


@given(groups=GROUPS)
def test_a_layout_reads_as_the_files_it_was_built_from(groups: list[list[tuple[int, bool]]]) -> None:
    layout = kept_table(groups)
    assert len(layout) == len(groups)
    for info, file in zip(layout, groups, strict=True):
        assert [(group.num_rows, group.kept) for group in info.row_groups] == file
        assert info.record_count == sum(rows for rows, _ in file)
    assert layout.num_rows == sum(rows for file in groups for rows, _ in file)
    assert list(TableLayout.of_infos(list(layout))) == list(layout)
    assert layout[1:] == list(layout)[1:]
    assert [layout[at] for at in range(-len(layout), 0)] == list(layout)
    assert [row for file in range(len(layout)) for row in layout.groups_of(file)] == list(range(len(layout.group_rows)))


def test_a_layout_refuses_columns_of_different_lengths() -> None:
    layout = table([[1, 2]])
    with pytest.raises(ConfigError, match="one entry for each of 2 row groups"):
        TableLayout(
            layout.files,
            layout.group_offsets,
            layout.group_rows,
            layout.group_bytes[:1],
            layout.group_kept,
            layout.group_live,
            layout.whole,
        )
    with pytest.raises(IndexError):
        layout[1]


# Splits


@given(cut=cut_tables())
def test_splits_round_trip(cut: tuple[TableLayout, list[Split]]) -> None:
    layout, splits = cut
    laid = SplitTable.of(layout, splits, "me")
    assert list(laid) == splits
    assert laid.num_rows.tolist() == [split.row_range.length for split in splits if split.row_range]
    assert SplitTable.of(layout, laid, "me") is laid
    assert laid[1:3] == splits[1:3]


@given(layout=tables)
def test_a_split_without_a_range_is_the_whole_file(layout: TableLayout) -> None:
    whole = SplitTable.of(layout, [Split(file) for file in layout], "me")
    assert whole.num_rows.tolist() == layout.file_rows.tolist()
    whole.check_coverage("me")


@settings(max_examples=examples(300))
@given(cut=cut_tables(), complete=st.booleans())
def test_coverage_agrees_with_counting_each_row(cut: tuple[TableLayout, list[Split]], complete: bool) -> None:
    layout, splits = cut
    if complete:
        splits = [*splits[:1], *(Split(file) for file in layout if not splits or file != splits[0].file)]
    counts = {(file.path, row): 0 for file in layout for row in range(file.record_count or 0)}
    for split in splits:
        assert split.row_range is None or split.row_range.row_stop <= (split.file.record_count or 0)
        part = split.row_range or RowRange(0, split.file.record_count or 0)
        for row in range(part.offset, part.row_stop):
            counts[split.file.path, row] += 1
    laid = SplitTable.of(layout, splits, "me")
    if set(counts.values()) <= {1}:
        laid.check_coverage("me")
        return
    with pytest.raises(ConfigError) as caught:
        laid.check_coverage("me")
    message = str(caught.value)
    path = message.rpartition(" of ")[2].strip("'")
    low, _, high = message.partition("rows [")[2].partition(")")[0].partition(", ")
    named = {counts[path, row] for row in range(int(low), int(high))}
    assert named
    assert named == {0} if "leaves out" in message else min(named) > 1


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([("0.parquet", None), ("1.parquet", (0, 4))], r"leaves out rows \[4, 7\) of '1.parquet'"),
        ([("0.parquet", (2, 8)), ("1.parquet", None)], r"leaves out rows \[0, 2\) of '0.parquet'"),
        ([("0.parquet", None)], r"leaves out rows \[0, 7\) of '1.parquet'"),
        ([], r"leaves out rows \[0, 10\) of '0.parquet'"),
        ([("0.parquet", None), ("0.parquet", (3, 2)), ("1.parquet", None)], r"more than once rows \[3, 5\) of '0.pa"),
        ([("0.parquet", None), ("1.parquet", None), ("1.parquet", (6, 1))], r"more than once rows \[6, 7\) of '1.pa"),
        ([("2.parquet", None)], r"a split of '2.parquet', which is not a file of the table"),
        ([("0.parquet", (8, 3))], r"rows \[8, 11\) of '0.parquet', which has 10 rows"),
    ],
)
def test_faults_name_the_file_and_the_rows(splits: list[tuple[str, tuple[int, int] | None]], message: str) -> None:
    layout = table([[4, 0, 6], [7], []])
    given_splits = [
        Split(
            DataFileInfo(path if path != "2.parquet" else "elsewhere/2.parquet"),
            None if part is None else RowRange(*part),
        )
        for path, part in splits
    ]
    with pytest.raises(ConfigError, match=message.replace("a split of '2", "a split of 'elsewhere/2")):
        SplitTable.of(layout, given_splits, "me").check_coverage("me")


class Loose:
    """Looks like a row range, with any values."""

    def __init__(self, offset: object, length: object) -> None:
        self.offset, self.length = offset, length


@pytest.mark.parametrize("part", [Loose(0.0, 5.0), Loose("0", 5), Loose(None, None)])
def test_row_numbers_that_are_not_integers_are_refused(part: Loose) -> None:
    layout = table([[10]])
    split = Split(layout[0], part)  # type: ignore[arg-type]  # the fault
    with pytest.raises(ConfigTypeError, match="offset or length of a row range of me must be an integer"):
        SplitTable.of(layout, [split], "me")


@pytest.mark.parametrize("part", [Loose(-1, 5), Loose(5, -1)])
def test_negative_rows_are_refused(part: Loose) -> None:
    layout = table([[10]])
    with pytest.raises(ConfigError, match=r"rows .* of '0[.]parquet'"):
        SplitTable.of(layout, [Split(layout[0], part)], "me")  # type: ignore[arg-type]  # the fault


# Segments


@given(cut=cut_tables(), filtered=st.booleans())
def test_segments_are_intersections_of_splits_and_row_groups(
    cut: tuple[TableLayout, list[Split]], filtered: bool
) -> None:
    layout, splits = cut
    segments = SegmentTable.of(SplitTable.of(layout, splits, "me"), filtered=filtered)
    for at, split in enumerate(splits):
        assert split.row_range is not None
        wanted, start, file = [], 0, int(segments.splits.file[at])
        for number, group in enumerate(layout[file].row_groups):
            low = max(start, split.row_range.offset)
            high = min(start + group.num_rows, split.row_range.row_stop)
            if low < high:
                live = 0 if not group.kept else -1 if filtered else high - low
                wanted.append((int(layout.group_offsets[file]) + number, low, high, group.kept, live))
            start += group.num_rows
        part = slice(int(segments.offsets[at]), int(segments.offsets[at + 1]))
        columns = (segments.group, segments.row_start, segments.row_stop, segments.kept, segments.live)
        found = list(zip(*(column[part].tolist() for column in columns), strict=True))
        assert [row for row in found if row[1] < row[2]] == wanted
        assert all(row[4] == 0 for row in found if row[1] == row[2])
        kept = sum(high - low for _, low, high, keep, _ in wanted if keep)
        assert segments.metadata_rows[at] == kept
        assert segments.live_rows[at] == (-1 if filtered and kept else kept)


@given(cut=cut_tables(), data=st.data())
def test_a_task_reads_the_rows_kept_by_statistics(cut: tuple[TableLayout, list[Split]], data: st.DataObject) -> None:
    layout, splits = cut
    segments = SegmentTable.of(SplitTable.of(layout, splits, "me"), filtered=False)
    for at, split in enumerate(splits):
        live = int(segments.live_rows[at])
        start = data.draw(st.integers(0, live))
        stop = data.draw(st.sampled_from([-1, *range(start, live + 1)]))
        task = segments.task(at, start, stop)
        assert layout.files[task.file_index].name == split.file.path
        groups = layout[task.file_index].row_groups
        rows: list[int] = []
        for segment in task.segments:
            first = sum(group.num_rows for group in groups[: segment.group])
            assert first <= segment.row_start < segment.row_stop <= first + groups[segment.group].num_rows
            assert segment.live == segment.row_stop - segment.row_start
            rows += range(segment.row_start, segment.row_stop)
        taken = rows[task.skip :] if task.take < 0 else rows[task.skip :][: task.take]
        assert taken == kept_rows(split)[start : None if stop < 0 else stop]


def kept_rows(split: Split) -> list[int]:
    """Brute force: the rows of a split that lie in row groups which statistics keep."""
    rows: list[int] = []
    start = 0
    assert split.row_range is not None
    for group in split.file.row_groups:
        inside = range(max(start, split.row_range.offset), min(start + group.num_rows, split.row_range.row_stop))
        rows += inside if group.kept else ()
        start += group.num_rows
    return rows


@given(cut=cut_tables(), data=st.data())
def test_counts_replace_unknown_live_rows(cut: tuple[TableLayout, list[Split]], data: st.DataObject) -> None:
    layout, splits = cut
    unknown = SegmentTable.of(SplitTable.of(layout, splits, "me"), filtered=True)
    rows = (unknown.row_stop - unknown.row_start).tolist()
    live = [
        0 if known == 0 else data.draw(st.integers(0, most)) for known, most in zip(unknown.live, rows, strict=True)
    ]
    counted = unknown.counted(np.array(live, dtype=np.int64))
    for at in range(len(splits)):
        part = slice(int(unknown.offsets[at]), int(unknown.offsets[at + 1]))
        assert counted.live_rows[at] == sum(live[part])
        assert all(segment.live > 0 for segment in counted.task(at, 0, -1).segments)


@given(layout=tables, cutter=cutters)
def test_the_segments_of_a_cover_make_up_the_table(layout: TableLayout, cutter: TargetSizeStrategy) -> None:
    segments = SegmentTable.of(SplitTable.of(layout, cutter(layout), "me"), filtered=False)
    assert segments.live_rows.sum() == layout.num_rows
