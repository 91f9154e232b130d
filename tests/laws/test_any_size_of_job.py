"""Promises 5 and 6: a job resumes at the next batch, on any number of ranks and workers; in one process."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.generators import HalvesV1, HalvesV2
from tests.strategies import as_counts, cutters, tables, topologies
from tests.tables.planned import World
from torch_table_loader import RoundRobinStrategy
from torch_table_loader.engine.state import history_of
from torch_table_loader.extend import TableLayout, Topology
from torch_table_loader.planning.stages import StreamPosition

lossless = topologies.filter(lambda t: t.even_ranks != "drop" and not t.drop_last)


@settings(max_examples=examples(70), deadline=None)
@given(layout=tables, strategy=st.one_of(cutters, st.just(HalvesV2())), topology=topologies, epoch=st.integers(0, 3))
def test_a_state_saved_after_any_batch_delivers_the_same_rest(
    layout: TableLayout, strategy: Any, topology: Topology, epoch: int
) -> None:
    if not callable(strategy):
        topology = Topology(topology.num_ranks, topology.lanes, topology.batch_size, topology.shuffle_buffer_size)
    world, start = World(layout, strategy), StreamPosition.at(epoch, topology)
    for rank in range(min(topology.num_ranks, 3)):
        whole = world.play(start, rank)
        for taken in range(len(whole) + 1):
            state = start.after(taken).history()
            assert world.play(StreamPosition.of_history(epoch, state).on(topology), rank) == whole[taken:]


@settings(max_examples=examples(60), deadline=None)
@given(
    layout=tables,
    strategy=cutters,
    chain=st.lists(st.tuples(lossless, st.integers(0, 12)), min_size=2, max_size=6),
    epoch=st.integers(0, 3),
)
def test_chains_of_topologies_deliver_every_row_once(
    layout: TableLayout, strategy: Any, chain: list[tuple[Topology, int]], epoch: int
) -> None:
    rows = _play_chain(World(layout, strategy), chain, epoch)
    assert as_counts(rows, layout.num_rows) == [1] * layout.num_rows


@settings(max_examples=examples(35), deadline=None)
@given(
    layout=tables,
    strategy=st.sampled_from([HalvesV2(), RoundRobinStrategy(shuffle=True), HalvesV1()]),
    chain=st.lists(st.tuples(lossless, st.integers(0, 12)), min_size=2, max_size=6),
    epoch=st.integers(0, 3),
)
def test_chains_of_topologies_under_a_generator(
    layout: TableLayout, strategy: Any, chain: list[tuple[Topology, int]], epoch: int
) -> None:
    plain = [(Topology(t.num_ranks, t.lanes, t.batch_size, t.shuffle_buffer_size), steps) for t, steps in chain]
    world = World(layout, strategy)
    if isinstance(strategy, HalvesV2 | RoundRobinStrategy):
        rows = _play_chain(world, plain, epoch)
        assert as_counts(rows, layout.num_rows) == [1] * layout.num_rows
    else:
        for rank in (0, 3):  # each rank reads everything
            rows = _play_chain(world, plain, epoch, only=rank)
            assert as_counts(rows, layout.num_rows) == [1] * layout.num_rows


def _play_chain(world: World, chain: list[tuple[Topology, int]], epoch: int, only: int | None = None) -> list[int]:
    """Run some steps under each topology, passing on rank 0's state, and the last one to its end."""
    cursor = StreamPosition.at(epoch, chain[0][0])
    rows: list[int] = []
    for number, (topology, steps) in enumerate(chain):
        cursor = StreamPosition.of_history(cursor.epoch, cursor.history()).on(topology)
        take = None if number == len(chain) - 1 else steps
        ranks = range(topology.num_ranks) if only is None else [only]
        played = [world.play(cursor, rank, take) for rank in ranks]
        rows += [row for batches in played for batch in batches for row, padding in batch if not padding]
        cursor = cursor.after(cursor.stage.steps + (take or 0))
    return rows


@settings(max_examples=examples(60), deadline=None)
@given(layout=tables, strategy=cutters, before=topologies, after=topologies, steps=st.integers(0, 20))
def test_a_rescaled_job_drops_no_more_than_its_topologies_allow(
    layout: TableLayout, strategy: Any, before: Topology, after: Topology, steps: int
) -> None:
    rows = _play_chain(World(layout, strategy), [(before, steps), (after, 0)], epoch=1)
    assert max(as_counts(rows, layout.num_rows), default=0) <= 1


def test_the_state_stays_small_and_plain() -> None:
    cursor = StreamPosition.at(3, Topology(8, 4, 1024, 10_000, "balance", drop_last=True))
    for ranks in range(1, 21):
        cursor = cursor.after(1_000_000_000).on(Topology(ranks, 4, 1024, 10_000, "balance", drop_last=True))
    assert len(repr(history_of(cursor.history()))) < 2000
    assert StreamPosition.of_history(cursor.epoch, cursor.history()) == cursor


def test_a_stage_without_steps_leaves_no_trace() -> None:
    one, two = Topology(1, 1, 8), Topology(2, 1, 8)
    assert StreamPosition.at(0, one).on(two) == StreamPosition.at(0, two)
    assert StreamPosition.at(0, one).after(3).on(two).on(one).past == (StreamPosition.at(0, one).after(3).stage,)
