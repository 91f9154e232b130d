"""`rows_of` returns the delivered rows in order: every step of random jobs on any topology, in one process."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.generators import HalvesV1, HalvesV2
from tests.strategies import SEED, cutters, tables, topologies
from tests.tables.planned import World
from torch_table_loader.extend import RowSpan, TableLayout, Topology
from torch_table_loader.planning.rows_of import spans_of_batch
from torch_table_loader.planning.stages import StreamPosition


@settings(max_examples=examples(120), deadline=None)
@given(
    layout=tables,
    strategy=st.one_of(cutters, st.sampled_from([HalvesV2(), HalvesV1()])),
    chain=st.lists(st.tuples(topologies, st.integers(0, 12)), min_size=1, max_size=4),
    epoch=st.integers(0, 3),
)
def test_rows_of_every_step_are_those_delivered(
    layout: TableLayout, strategy: Any, chain: list[tuple[Topology, int]], epoch: int
) -> None:
    if not callable(strategy):
        chain = [(Topology(t.num_ranks, t.lanes, t.batch_size, t.shuffle_buffer_size), steps) for t, steps in chain]
    world, cursor = World(layout, strategy), StreamPosition.at(epoch, chain[0][0])
    for topology, steps in chain:
        cursor = cursor.on(topology)
        for rank in range(min(topology.num_ranks, 3)):
            batches = world.play(cursor, rank)
            own = [[row for row, padding in batch if not padding] for batch in batches]
            first = cursor.stage.steps
            assert [told(world, cursor, rank, first + step) for step in range(len(batches))] == own
        cursor = cursor.after(cursor.stage.steps + steps)


def told(world: World, cursor: StreamPosition, rank: int, step: int) -> list[int]:
    """Return the ordinals, counted over the table, of the rows that `rows_of` returns."""
    planned, keys = world.plan(cursor, rank), (SEED, cursor.epoch)
    spans = spans_of_batch(planned.plan, planned.segments, planned.windows, keys, no_filter, step)
    starts = dict(zip((file.name for file in world.layout.files), world.layout.file_starts.tolist(), strict=False))
    assert all(isinstance(span, RowSpan) for span in spans)
    return [starts[span.file] + row for span in spans for row in range(span.row_start, span.row_stop)]  # type: ignore[union-attr]


def no_filter(group: int, row: int) -> int:
    raise AssertionError("without a filter nothing is counted")
