"""Promises 1, 3 and 4: exactly once, full batches, known length; for every world, in one process."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.strategies import as_counts, cutters, tables, topologies
from tests.tables.planned import World, delivered
from torch_table_loader import TargetSizeStrategy
from torch_table_loader.extend import TableLayout, Topology
from torch_table_loader.planning.stages import StreamPosition


@settings(max_examples=examples(200), deadline=None)
@given(layout=tables, cutter=cutters, topology=topologies, shuffle=st.booleans(), epoch=st.integers(0, 5))
def test_exactly_once_full_batches_known_length(
    layout: TableLayout, cutter: TargetSizeStrategy, topology: Topology, shuffle: bool, epoch: int
) -> None:
    world, cursor = World(layout, cutter, shuffle=shuffle), StreamPosition.at(epoch, topology)
    own: list[int] = []
    steps, widths, order = [], [], []
    for rank in range(topology.num_ranks):
        planned = world.plan(cursor, rank)
        plan, batches = planned.plan, delivered(planned, cursor)
        assert len(batches) == plan.steps
        assert sum(map(len, batches)) == plan.num_rows
        assert all(len(batch) == topology.batch_size for batch in batches[:-1])
        assert not batches or 0 < len(batches[-1]) <= topology.batch_size
        assert not (topology.drop_last and batches and len(batches[-1]) < topology.batch_size)
        own += [row for batch in batches for row, padding in batch if not padding]
        order.append([row for batch in batches for row, padding in batch if padding])
        steps.append(len(batches))
        widths.append(plan.padding.num_rows)
    counts = as_counts(own, layout.num_rows)
    lossy = topology.drop_last or topology.even_ranks == "drop"
    assert max(counts, default=0) <= 1
    assert lossy or min(counts, default=1) == 1
    total, ranks, size = layout.num_rows, topology.num_ranks, topology.batch_size
    if topology.even_ranks is not None:
        assert len(set(steps)) == 1
    if topology.even_ranks == "balance":
        assert steps[0] == (total // (ranks * size) if topology.drop_last else -(-total // (ranks * size)))
        needed = topology.drop_last is False and total // ranks % size == 0 and total % ranks
        assert sum(widths) == (ranks - total % ranks if needed else 0)
        if topology.drop_last:
            assert total - len(own) == total - steps[0] * ranks * size
    if topology.even_ranks in (None, "drop"):
        assert not any(widths)


@settings(max_examples=examples(200), deadline=None)
@given(layout=tables, cutter=cutters, topology=topologies, step=st.integers(0, 200))
def test_a_position_in_the_epoch_is_computed_without_iterating(
    layout: TableLayout, cutter: TargetSizeStrategy, topology: Topology, step: int
) -> None:
    world = World(layout, cutter)
    for rank in range(min(topology.num_ranks, 3)):
        plan = world.plan(StreamPosition.at(1, topology), rank).plan
        order = list(plan.schedule())
        assert list(plan.schedule(step)) == order[step:]
        taken = order[: min(step, plan.steps)]
        place = plan.batches_before(step)
        assert place == [taken.count(lane) for lane in range(topology.lanes)]
        for lane, start in enumerate(place):
            whole = [run for section in plan.sections(lane) for run in expand(section.runs)]
            rest = [run for section in plan.sections(lane, start) for run in expand(section.runs)[section.skip :]]
            assert rest == whole[start * topology.batch_size :]


@settings(max_examples=examples(200), deadline=None)
@given(layout=tables, cutter=cutters, topology=topologies, steps=st.integers(0, 40), started=st.integers(0, 5))
def test_a_stage_that_ends_early_delivers_the_first_steps_of_the_plan(
    layout: TableLayout, cutter: TargetSizeStrategy, topology: Topology, steps: int, started: int
) -> None:
    world, begin = World(layout, cutter), StreamPosition.at(1, topology)
    cursor = begin.after(started)
    for rank in range(min(topology.num_ranks, 3)):
        planned = world.plan(begin, rank)
        early = replace(planned, plan=planned.plan.up_to(steps))
        assert delivered(early, cursor) == delivered(planned, begin)[started:steps]


def expand(runs: object) -> list[tuple[int, int]]:
    return [(split, row) for split, start, stop in runs for row in range(start, stop)]  # type: ignore[attr-defined]


@settings(max_examples=examples(100), deadline=None)
@given(layout=tables, cutter=cutters)
def test_one_lane_unshuffled_is_file_order(layout: TableLayout, cutter: TargetSizeStrategy) -> None:
    played = World(layout, cutter, shuffle=False).play(StreamPosition.at(0, Topology(1, 1, 7)), 0)
    rows = [row for batch in played for row, _ in batch]
    assert rows == list(range(layout.num_rows))


@settings(max_examples=examples(150), deadline=None)
@given(layout=tables, cutter=cutters)
def test_every_cutter_covers_each_row_once(layout: TableLayout, cutter: TargetSizeStrategy) -> None:
    splits = cutter(layout)
    splits.check_coverage("the cutter")  # type: ignore[attr-defined]
    assert list(splits) == list(cutter(list(layout)))
