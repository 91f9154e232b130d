"""`shuffle="mixed"`: a batch draws on the whole table, and rows that are neighbours are parted, by the plans alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.strategies import table
from tests.tables.planned import World
from torch_table_loader import TargetSizeStrategy
from torch_table_loader.extend import Topology
from torch_table_loader.planning.interleaving import interleaved, shares_of_windows, strata_of
from torch_table_loader.planning.ranks import Mixing
from torch_table_loader.planning.runs import Runs
from torch_table_loader.planning.stages import StreamPosition
from torch_table_loader.planning.windows import Dealing

pieces = st.lists(st.integers(1, 400), min_size=1, max_size=40)


@settings(max_examples=examples(60), deadline=None)
@given(rows=pieces, splits=st.integers(1, 20), window=st.integers(1, 500), seed=st.integers(0, 9))
def test_every_row_comes_once_and_windows_end_where_pieces_end(
    rows: list[int], splits: int, window: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    runs = Runs(order, np.zeros(len(rows), dtype=np.int64), np.array(rows)[order])
    mixed = interleaved(runs, splits, window)
    for split, count in enumerate(rows):
        own = mixed.take(np.flatnonzero(mixed.split == split))
        assert [0, *own.stop.tolist()] == [*own.start.tolist(), count]
    if len(mixed) > len(runs):
        assert set(range(window, runs.num_rows, window)) <= set(mixed.ends.tolist())


@settings(max_examples=examples(60), deadline=None)
@given(rows=pieces, window=st.integers(1, 2000))
def test_windows_take_rows_of_strata_in_proportion(rows: list[int], window: int) -> None:
    total = np.array(rows, dtype=np.int64)
    if (total * window < total.sum()).any():
        return
    shares = shares_of_windows(total, window)
    assert shares[-1].tolist() == rows
    assert (np.diff(shares, axis=0) >= 0).all()
    ends = shares.sum(axis=1)
    assert ends.tolist() == [min(window * number, sum(rows)) for number in range(len(shares))]
    assert (np.abs(shares - ends[:, None] * (total / total.sum())) < 1).all()


@settings(max_examples=examples(60), deadline=None)
@given(rows=pieces, count=st.integers(1, 20))
def test_strata_are_runs_of_the_table_of_fair_size(rows: list[int], count: int) -> None:
    runs = Runs(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64), np.array(rows))
    strata = strata_of(runs, count)
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


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("table_of", ["sorted", "large", "days"])
def test_batches_of_a_sorted_table_are_like_random_ones(table_of: str, ranks: int) -> None:
    """Spread and drift of the row numbers of the batches that one step of all ranks trains on; uniform: 1 and 1."""
    sizes = {
        "sorted": [[250] * 4] * 64,
        "large": [[8000]] * 16,
        "days": [[100] * (1 + day * day % 37) for day in range(60)],
    }
    world = World(table(sizes[table_of]), TargetSizeStrategy(least_splits=64))
    rows, size = world.layout.num_rows, 256 // ranks
    topology = Topology(ranks, 1, size, Mixing(rows // ranks // 12, 16), "balance")
    start = StreamPosition.at(0, topology)
    played = [world.play(start, rank) for rank in range(ranks)]
    steps = [np.array([row for own in step for row, _ in own]) for step in zip(*played, strict=True)][:-1]
    spread, mean = rows / 12**0.5, [step.mean() for step in steps]
    assert np.mean([step.std() for step in steps]) / spread == pytest.approx(1, abs=0.03)
    assert np.std(mean) * 256**0.5 / spread < (2.6 if table_of == "large" else 1.5)
