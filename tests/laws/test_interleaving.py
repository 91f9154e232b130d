"""`shuffle="mixed"`: a batch draws on the whole table, and rows that are neighbours are parted, by the plans alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.strategies import table
from tests.tables.planned import World
from torch_table_loader import TargetSizeStrategy
from torch_table_loader.arrow.buffers import ROUNDED_PARTS
from torch_table_loader.engine.sizing import mixing_of
from torch_table_loader.extend import Topology
from torch_table_loader.planning.interleaving import interleaved, interleaved_until, shares_of_windows, strata_of
from torch_table_loader.planning.ranks import Mixing
from torch_table_loader.planning.runs import Hands, Runs
from torch_table_loader.planning.stages import StreamPosition
from torch_table_loader.planning.window_sizes import WindowSizes
from torch_table_loader.planning.windows import Dealing

pieces = st.lists(st.integers(1, 400), min_size=1, max_size=40)
windows = st.builds(
    WindowSizes.growing, st.integers(1, 9000), st.integers(1, 2000), st.integers(1, 500), st.integers(1, 60)
)


@settings(max_examples=examples(200), deadline=None)
@given(
    total=st.integers(1, 9000),
    rows=st.integers(1, 2000),
    first=st.integers(1, 500),
    unit=st.integers(1, 60),
    row=st.integers(0, 9000),
)
def test_windows_are_whole_batches_that_grow_to_about_equal_ones(
    total: int, rows: int, first: int, unit: int, row: int
) -> None:
    sizes = WindowSizes.growing(total, rows, first, unit)
    ends = sizes.ends(total)
    lengths = np.diff(ends)
    assert ends[0] == 0
    assert ends[-1] == total
    assert lengths.tolist()[:-1] == [sizes.size(number) for number in range(len(lengths) - 1)]
    assert (lengths > 0).all()
    assert not (lengths[:-1] % unit).any()
    assert lengths.max() <= sizes.most
    grown = lengths[: len(sizes.first)]
    assert (grown < rows).all()
    assert len(grown) == 0 or grown[0] <= -(-first // unit) * unit
    row %= total
    number, begin = sizes.at(row)
    assert ends[number] == begin <= row < ends[number + 1]


@settings(max_examples=examples(200), deadline=None)
@given(
    row_bytes=st.integers(1, 3000),
    rows=st.integers(1, 10**9),
    batch_size=st.integers(1, 9000),
    memory=st.sampled_from([64 << 20, 1 << 30, 8 << 30]),
)
@example(row_bytes=603, rows=6280, batch_size=273, memory=64 << 20)
def test_two_windows_are_within_an_eighth_of_the_memory_as_it_is_rounded(
    row_bytes: int, rows: int, batch_size: int, memory: int
) -> None:
    mixing = mixing_of(row_bytes, rows, batch_size, None, 1 << 20, memory)
    window = mixing.windows_of(rows, 1, batch_size).most
    if window > batch_size:
        assert 2 * (window + window // ROUNDED_PARTS) * row_bytes <= memory // 8


def test_a_table_of_many_windows_begins_with_small_ones_and_a_table_of_few_does_not() -> None:
    table = {"row_bytes": 64, "batch_size": 256, "held": 1 << 20}
    many = mixing_of(rows=1_000_000, window=None, **table)
    few = [mixing_of(rows=80_000, window=None, **table), mixing_of(rows=1_000_000, window=200_000, **table)]
    assert many.windows_of(1_000_000, 1, 256).first == (4096, 16384)
    assert [each.first for each in few] == [None, None]


@settings(max_examples=examples(60), deadline=None)
@given(rows=pieces, splits=st.integers(1, 20), sizes=windows, seed=st.integers(0, 9))
def test_every_row_comes_once_and_windows_end_where_pieces_end(
    rows: list[int], splits: int, sizes: WindowSizes, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    runs = Runs(order, np.zeros(len(rows), dtype=np.int64), np.array(rows)[order])
    mixed = interleaved(runs, splits, sizes)
    for split, count in enumerate(rows):
        own = mixed.take(np.flatnonzero(mixed.split == split))
        assert [0, *own.stop.tolist()] == [*own.start.tolist(), count]
    if len(mixed) > len(runs):
        assert set(sizes.ends(runs.num_rows).tolist()) <= {0, *mixed.ends.tolist()}


@settings(max_examples=examples(60), deadline=None)
@given(
    lanes=st.lists(
        st.tuples(st.lists(st.integers(0, 400), max_size=30), windows, st.integers(0, 9000)), min_size=1, max_size=4
    ),
    splits=st.integers(1, 20),
    seed=st.integers(0, 9),
)
def test_what_windows_hold_is_known_of_all_lanes_without_laying_them_out(
    lanes: list[tuple[list[int], WindowSizes, int]], splits: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    orders = [random.permutation(len(rows)) for rows, _, _ in lanes]
    hands = [
        Runs(order, np.zeros_like(order), np.array(rows, dtype=np.int64)[order])
        for order, (rows, _, _) in zip(orders, lanes, strict=True)
    ]
    rows = np.array([row for _, _, row in lanes], dtype=np.int64)
    found = interleaved_until(Hands.of(hands), splits, [sizes for _, sizes, _ in lanes], rows)
    assert len(found) == len(lanes)
    for part, runs, (_, sizes, row) in zip(found, hands, lanes, strict=True):
        whole = interleaved(runs, splits, sizes)
        number, begin = sizes.at(max(0, min(row, whole.num_rows - 1)))
        end = min(sizes.begin(number + 1), whole.num_rows)
        assert rows_of(part.slice(begin, end)) == rows_of(whole.slice(begin, end))
        assert sorted(rows_of(part.slice(0, begin))) == sorted(rows_of(whole.slice(0, begin)))
        assert part.num_rows == end


def rows_of(runs: Runs) -> list[tuple[int, int]]:
    return [(split, row) for split, start, stop in runs for row in range(start, stop)]


@settings(max_examples=examples(100), deadline=None)
@given(splits=st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_each_split_has_the_lowest_slot_that_is_free_while_it_is_read(splits: list[int]) -> None:
    stops = [10 * splits[: place + 1].count(split) for place, split in enumerate(splits)]
    runs = Runs.of([(split, stop - 10, stop) for split, stop in zip(splits, stops, strict=True)])
    last, slot = runs.chains()
    taken: dict[int, int] = {}
    for place, split in enumerate(splits):
        if last[place] >= 0:
            taken[split] = min(set(range(11)) - set(taken.values()))
        assert slot[place] == taken[split]
        if split not in splits[place + 1 :]:
            del taken[split]


@settings(max_examples=examples(60), deadline=None)
@given(rows=pieces, sizes=windows)
@example(rows=[3, 5, 5], sizes=WindowSizes.growing(1, 6, 5, 1))
def test_windows_take_rows_of_strata_in_proportion(rows: list[int], sizes: WindowSizes) -> None:
    total = np.array(rows, dtype=np.int64)
    if (total * sizes.least < total.sum()).any():
        return
    ends = sizes.ends(sum(rows))
    shares = shares_of_windows(total, ends)
    assert shares[-1].tolist() == rows
    assert (np.diff(shares, axis=0) >= 0).all()
    assert shares.sum(axis=1).tolist() == ends.tolist()
    assert (np.abs(shares - ends[:, None] * (total / total.sum())) < 1).all()


@settings(max_examples=examples(60), deadline=None)
@given(rows=pieces, count=st.integers(1, 20))
def test_strata_are_runs_of_the_table_of_fair_size(rows: list[int], count: int) -> None:
    runs = Runs(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64), np.array(rows))
    strata = strata_of(Hands.of([runs]), np.array([count]))
    assert strata[0] == 0
    assert set(np.diff(strata).tolist()) <= {0, 1}
    sums = np.bincount(strata, rows)
    assert len(sums) <= count
    assert (sums * 4 * count >= sum(rows)).all()


@settings(max_examples=examples(60), deadline=None)
@given(length=st.integers(0, 3000), batch_size=st.integers(1, 300), epoch=st.integers(0, 3))
def test_a_dealt_window_gives_each_batch_one_row_of_every_run(length: int, batch_size: int, epoch: int) -> None:
    dealing = Dealing.of(length, batch_size, 7, epoch, "window")
    order = dealing.order
    assert sorted(order.tolist()) == list(range(length))
    batches = -(-length // batch_size)
    if length and length % batches == 0:
        runs = (order // batches).reshape(batches, -1)
        assert (np.sort(runs, axis=1) == np.arange(length // batches)).all()
        assert (dealing.places(order) == np.arange(length)).all()


@pytest.mark.parametrize("first", [None, 4])
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("table_of", ["sorted", "large", "days"])
@daily(4)
def test_batches_of_a_sorted_table_are_like_random_ones(table_of: str, ranks: int, first: int | None) -> None:
    """Spread and drift of the row numbers of the batches that one step of all ranks trains on; uniform: 1 and 1."""
    sizes = {
        "sorted": [[250] * 4] * 64,
        "large": [[8000]] * 16,
        "days": [[100] * (1 + day * day % 37) for day in range(60)],
    }
    world = World(table(sizes[table_of]), TargetSizeStrategy(least_splits=64))
    rows, size = world.layout.num_rows, 256 // ranks
    grows = None if first is None else first * size
    topology = Topology(ranks, 1, size, Mixing(rows // ranks // 12, 16, grows), "balance")
    start = StreamPosition.at(0, topology)
    played = [world.play(start, rank) for rank in range(ranks)]
    steps = [np.array([row for own in step for row, _ in own]) for step in zip(*played, strict=True)][:-1]
    spread, mean = rows / 12**0.5, [step.mean() for step in steps]
    assert np.mean([step.std() for step in steps]) / spread == pytest.approx(1, abs=0.03)
    assert np.std(mean) * 256**0.5 / spread < (2.6 if table_of == "large" else 1.5)
