"""A table that grows within an epoch: its remaining rows and the new rows come once; in one process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.generators import HalvesV2
from tests.strategies import cutters, table, topologies
from tests.tables.planned import World
from torch_table_loader import RoundRobinStrategy, TargetSizeStrategy
from torch_table_loader.extend import Topology
from torch_table_loader.planning.stages import Extent, StreamPosition

files = st.tuples(st.integers(0, 4), st.lists(st.integers(0, 20), max_size=4))
"""The version of a table that adds a file, and its row groups."""


class GrowingWorld:
    """The versions of a table; a row is identified by its file's name and its place in the file."""

    def __init__(self, added: list[tuple[int, list[int]]], strategy: Any, *, shuffle: bool) -> None:
        self.worlds: list[World] = []
        self.names: list[list[int]] = []
        for version in range(5):
            self.names.append([name for name, (since, _) in enumerate(added) if since <= version])
            world = World(table([added[name][1] for name in self.names[version]]), strategy, shuffle=shuffle)
            files_of = {
                self.extent(older): np.flatnonzero(np.isin(self.names[version], self.names[older]))
                for older in range(version)
            }
            world.planner = world.planner.grown_from(files_of)
            self.worlds.append(world)

    @staticmethod
    def extent(version: int) -> Extent:
        return Extent(version, 0, "")

    def rows(self, version: int, played: list[list[tuple[int, bool]]]) -> list[tuple[int, int]]:
        """Return the rows of some batches, without padding."""
        starts = self.worlds[version].layout.file_starts
        found = [row for batch in played for row, padding in batch if not padding]
        file = np.searchsorted(starts, found, side="right") - 1
        return [(self.names[version][at], row - int(starts[at])) for at, row in zip(file.tolist(), found, strict=True)]

    def all_rows(self, version: int) -> list[tuple[int, int]]:
        layout = self.worlds[version].layout
        counts = zip(self.names[version], layout.file_rows.tolist(), strict=True)
        return [(name, row) for name, count in counts for row in range(count)]

    def live(
        self, parts: list[tuple[int, Topology, int]], epoch: int
    ) -> list[tuple[int, Topology, list[list[tuple[int, int]]], list[int]]]:
        """Run some steps of each version under each topology, the last to its end; return rows and steps by rank."""
        position, before, lived = StreamPosition.at(epoch, parts[0][1]), parts[0][0], []
        for number, (version, topology, steps) in enumerate(parts):
            position = StreamPosition.of_history(position.epoch, position.history())
            if version != before:
                position = position.before_growth(self.extent(before))
            position, before = position.on(topology), version
            take = None if number == len(parts) - 1 else steps
            world, ranks = self.worlds[version], range(topology.num_ranks)
            played = [world.play(position, rank, take) for rank in ranks]
            left = [world.plan(position, rank).plan.steps - position.stage.steps for rank in ranks]
            lived.append((version, topology, [self.rows(version, each) for each in played], left))
            position = position.after(position.stage.steps + (take or 0))
        return lived


lossless = topologies.filter(lambda t: t.even_ranks != "drop" and not t.drop_last)


@st.composite
def lives(draw: st.DrawFn, shapes: st.SearchStrategy[Topology] = lossless) -> list[tuple[int, Topology, int]]:
    """Draw the parts of an epoch: versions that never decrease, topologies that may stay the same, and steps."""
    versions = sorted(draw(st.lists(st.integers(0, 4), min_size=2, max_size=5)))
    same, parts = st.booleans(), list[tuple[int, Topology, int]]()
    for version in versions:
        topology = parts[-1][1] if bool(parts) and draw(same) else draw(shapes)
        parts.append((version, topology, draw(st.integers(0, 12))))
    return parts


@settings(max_examples=examples(60), deadline=None)
@given(
    added=st.lists(files, max_size=8),
    strategy=cutters,
    parts=lives(),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_a_growing_table_delivers_every_row_once(
    added: list[tuple[int, list[int]]],
    strategy: Any,
    parts: list[tuple[int, Topology, int]],
    shuffle: bool,
    epoch: int,
) -> None:
    world = GrowingWorld(added, strategy, shuffle=shuffle)
    lived = world.live(parts, epoch)
    rows = [row for _, _, by_rank, _ in lived for own in by_rank for row in own]
    assert sorted(rows) == world.all_rows(parts[-1][0])
    for _, topology, _, steps in lived:
        assert topology.even_ranks is None or len(set(steps)) == 1


@settings(max_examples=examples(25), deadline=None)
@given(added=st.lists(files, max_size=8), strategy=cutters, parts=lives(topologies), epoch=st.integers(0, 3))
def test_a_growing_table_repeats_nothing_when_rows_are_dropped(
    added: list[tuple[int, list[int]]], strategy: Any, parts: list[tuple[int, Topology, int]], epoch: int
) -> None:
    world = GrowingWorld(added, strategy, shuffle=True)
    rows = Counter(row for _, _, by_rank, _ in world.live(parts, epoch) for own in by_rank for row in own)
    assert max(rows.values(), default=0) <= 1


@settings(max_examples=examples(100), deadline=None)
@given(
    added=st.lists(files, max_size=8),
    strategy=st.sampled_from([HalvesV2(), RoundRobinStrategy(shuffle=True)]),
    parts=lives(st.builds(Topology, st.integers(1, 4), st.integers(1, 4), st.integers(1, 20), st.integers(1, 30))),
    epoch=st.integers(0, 3),
)
def test_a_growing_table_under_a_generator_strategy(
    added: list[tuple[int, list[int]]], strategy: Any, parts: list[tuple[int, Topology, int]], epoch: int
) -> None:
    world = GrowingWorld(added, strategy, shuffle=True)
    rows = [row for _, _, by_rank, _ in world.live(parts, epoch) for own in by_rank for row in own]
    assert sorted(rows) == world.all_rows(parts[-1][0])


def test_a_finished_epoch_continues_with_only_the_new_rows() -> None:
    topology = Topology(2, 2, 3)
    world = GrowingWorld([(1, [4]), (0, [10]), (1, [3])], TargetSizeStrategy(target_rows=4), shuffle=True)
    [_, (_, _, rows, steps)] = world.live([(0, topology, 100), (1, topology, 0)], epoch=1)
    assert sorted(rows[0] + rows[1]) == [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (2, 1), (2, 2)]
    assert sum(steps) == 3


def test_the_state_describes_earlier_tables_and_round_trips() -> None:
    one, two = Topology(1, 1, 8), Topology(2, 1, 8)
    position = StreamPosition.at(0, one).after(3).before_growth(Extent(7, 2, "ab")).on(two).after(5)
    shape = {"ended": False, "lanes": 1, "batch_size": 8, "even_ranks": None, "drop_last": False}
    before = {"snapshot_id": 7, "files": 2, "fingerprint": "ab"}
    assert position.history() == [
        {**shape, "steps": 3, "num_ranks": 1, "extent": before},
        {**shape, "steps": 5, "num_ranks": 2},
    ]
    assert StreamPosition.of_history(position.epoch, position.history()) == position
    grown_again = position.before_growth(Extent(8, 3, "cd")).on(two)
    assert grown_again.extents == (Extent(7, 2, "ab"), Extent(8, 3, "cd"))
