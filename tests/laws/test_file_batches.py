"""Batches that end with files: no batch has rows of two, each row once, known length; any world, in one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.generators import HalvesV2
from tests.laws.test_rows_of_in_plans import told
from tests.strategies import as_counts, cutters, tables, topologies
from tests.tables.planned import World
from torch_table_loader import RoundRobinStrategy, WholeFileStrategy
from torch_table_loader.extend import TableLayout, Topology
from torch_table_loader.planning.rows_of import file_of_batch, first_step_of
from torch_table_loader.planning.stages import StreamPosition

Batches = list[list[tuple[int, bool]]]

whole_files = st.just(WholeFileStrategy())
generators = st.sampled_from([HalvesV2(), RoundRobinStrategy(shuffle=True)])


def suited(topology: Topology, strategy: Any) -> Topology:
    """Leave out what batches of files exclude, and options that generators refuse."""
    t = topology
    if t.mixing is not None:
        t = replace(t, shuffle_buffer_size=t.mixing.rows)
    if callable(strategy):
        return t
    return Topology(t.num_ranks, t.lanes, t.batch_size, t.shuffle_buffer_size, None, t.drop_last)


def files_of(layout: TableLayout, batch: list[tuple[int, bool]]) -> set[int]:
    rows = np.array([row for row, _ in batch], dtype=np.int64)
    return set((np.searchsorted(layout.file_starts, rows, side="right") - 1).tolist())


def own_rows(batches: Batches) -> list[int]:
    return [row for batch in batches for row, padding in batch if not padding]


@settings(max_examples=examples(60), deadline=None)
@given(
    layout=tables,
    strategy=st.one_of(whole_files, cutters, generators),
    topology=topologies,
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_no_batch_has_rows_of_two_files_and_each_row_comes_once(
    layout: TableLayout, strategy: Any, topology: Topology, shuffle: bool, epoch: int
) -> None:
    topology = suited(topology, strategy)
    world, start = World(layout, strategy, shuffle=shuffle, by_file=True), StreamPosition.at(epoch, topology)
    played = [world.play(start, rank) for rank in range(topology.num_ranks)]
    plans = [world.plan(start, rank).plan for rank in range(topology.num_ranks)]
    for plan, batches in zip(plans, played, strict=True):
        assert len(batches) == plan.steps
        assert [plan.rows_before(step) for step in range(plan.steps + 1)] == [
            sum(map(len, batches[:step])) for step in range(plan.steps + 1)
        ]
        assert all(len(files_of(layout, batch)) == 1 for batch in batches)
        assert all(0 < len(batch) <= topology.batch_size for batch in batches)
        assert not topology.drop_last or all(len(batch) == topology.batch_size for batch in batches)
    counts = as_counts([row for batches in played for row in own_rows(batches)], layout.num_rows)
    assert max(counts, default=0) <= 1
    assert topology.drop_last or topology.even_ranks == "drop" or min(counts, default=1) == 1
    steps = [plan.steps for plan in plans]
    assert topology.even_ranks is None or len(set(steps)) == 1
    if topology.even_ranks in (None, "drop"):
        assert not any(padding for batches in played for batch in batches for _, padding in batch)
    if isinstance(strategy, WholeFileStrategy) and topology.even_ranks is None:
        size, rows = topology.batch_size, layout.file_rows
        assert sum(steps) == int((rows // size if topology.drop_last else -(-rows // size)).sum())


@settings(max_examples=examples(25), deadline=None)
@given(
    layout=tables,
    strategy=st.one_of(whole_files, cutters, generators),
    chain=st.lists(
        st.tuples(topologies.filter(lambda t: t.even_ranks != "drop" and not t.drop_last), st.integers(0, 12)),
        min_size=2,
        max_size=5,
    ),
    epoch=st.integers(0, 3),
)
def test_a_job_continues_on_any_topology(
    layout: TableLayout, strategy: Any, chain: list[tuple[Topology, int]], epoch: int
) -> None:
    chain = [(suited(topology, strategy), steps) for topology, steps in chain]
    world, cursor = World(layout, strategy, by_file=True), StreamPosition.at(epoch, chain[0][0])
    rows: list[int] = []
    for number, (topology, steps) in enumerate(chain):
        cursor = StreamPosition.of_history(cursor.epoch, cursor.history()).on(topology)
        taken = None if number == len(chain) - 1 else steps
        for rank in range(topology.num_ranks):
            batches = world.play(cursor, rank, taken)
            assert all(len(files_of(layout, batch)) == 1 for batch in batches)
            rows += own_rows(batches)
        cursor = cursor.after(cursor.stage.steps + (taken or 0))
    assert as_counts(rows, layout.num_rows) == [1] * layout.num_rows


@settings(max_examples=examples(50), deadline=None)
@given(layout=tables, strategy=st.one_of(whole_files, generators), topology=topologies, epoch=st.integers(0, 3))
def test_a_state_saved_after_any_batch_delivers_the_same_rest(
    layout: TableLayout, strategy: Any, topology: Topology, epoch: int
) -> None:
    topology = suited(topology, strategy)
    world, start = World(layout, strategy, by_file=True), StreamPosition.at(epoch, topology)
    for rank in range(min(topology.num_ranks, 3)):
        whole = world.play(start, rank)
        for taken in range(len(whole) + 1):
            state = start.after(taken).history()
            assert world.play(StreamPosition.of_history(epoch, state).on(topology), rank) == whole[taken:]


@settings(max_examples=examples(25), deadline=None)
@given(layout=tables, before=topologies, after=topologies, steps=st.integers(0, 12))
def test_the_plan_knows_the_rows_and_the_file_of_each_batch(
    layout: TableLayout, before: Topology, after: Topology, steps: int
) -> None:
    world, cursor = World(layout, WholeFileStrategy(), by_file=True), StreamPosition.at(0, before)
    for topology in (before, after):
        cursor = cursor.on(topology)
        for rank in range(min(topology.num_ranks, 3)):
            planned = world.plan(cursor, rank)
            for at, batch in enumerate(world.play(cursor, rank)):
                step = cursor.stage.steps + at
                assert told(world, cursor, rank, step) == [row for row, padding in batch if not padding]
                [number] = files_of(layout, batch)
                named = file_of_batch(planned.plan, planned.segments, planned.windows, step)
                assert named == layout.files[number].name
        cursor = cursor.after(cursor.stage.steps + steps)


@settings(max_examples=examples(50), deadline=None)
@given(layout=tables, topology=topologies, epoch=st.integers(0, 3))
def test_the_first_step_of_a_file_is_where_its_rows_begin(layout: TableLayout, topology: Topology, epoch: int) -> None:
    world, start = World(layout, WholeFileStrategy(), by_file=True), StreamPosition.at(epoch, topology)
    for rank in range(min(topology.num_ranks, 3)):
        planned, batches = world.plan(start, rank), world.play(start, rank)
        own = [set() if batch[0][1] else files_of(layout, batch) for batch in batches]
        for file in range(len(layout)):
            first = next((step for step, files in enumerate(own) if file in files), None)
            assert first_step_of(planned.plan, planned.segments, file) == first


@settings(max_examples=examples(50), deadline=None)
@given(layout=tables, size=st.integers(1, 40), ranks=st.integers(1, 5), lanes=st.integers(1, 3))
def test_batches_of_whole_files_are_the_same_on_every_topology(
    layout: TableLayout, size: int, ranks: int, lanes: int
) -> None:
    def batches(num_ranks: int, lanes: int, even_ranks: Any) -> Batches:
        start = StreamPosition.at(0, Topology(num_ranks, lanes, size, even_ranks=even_ranks))
        world = World(layout, WholeFileStrategy(), shuffle=False, by_file=True)
        played = [batch for rank in range(num_ranks) for batch in world.play(start, rank)]
        return sorted(batch for batch in played if not batch[0][1])

    assert batches(1, 1, None) == batches(ranks, lanes, None) == batches(ranks, lanes, "balance")
