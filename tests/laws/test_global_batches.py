"""The order law of row mode: for any ranks, lanes and batch sizes, one order, each place once, one integer as state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import row_topologies
from torch_table_loader.errors import ConfigError
from torch_table_loader.extend import GlobalBatches, Topology
from torch_table_loader.options import EvenRanks
from torch_table_loader.planning.global_batches import concat_places, rank_batch_size, steps_of_ranks

topologies = row_topologies(9)


def end_of(total: int, start: int, topology: Topology) -> int:
    """Return the place at which an epoch ends: the last whole optimizer step, if short ones are dropped."""
    rows = topology.num_ranks * topology.batch_size
    ends = range(start % rows, total + 1, rows * topology.micro_batches)
    return max(start, *ends) if topology.drop_last else total


def ranks_of(total: int, start: int, topology: Topology) -> list[GlobalBatches]:
    return [GlobalBatches(total, start, topology, rank) for rank in range(topology.num_ranks)]


@given(total=st.integers(0, 120), start=st.integers(0, 120), topology=topologies)
def test_a_step_of_the_job_is_the_next_global_batch_strided_over_ranks(
    total: int, start: int, topology: Topology
) -> None:
    start = min(start, total)
    ranks = ranks_of(total, start, topology)
    size = topology.num_ranks * topology.batch_size
    for step in range(ranks[0].full_steps):
        first = start + step * size
        for rank, batches in enumerate(ranks):
            places = batches.step(step)
            assert places.places.tolist() == list(range(first, first + size))[rank :: topology.num_ranks]
            assert places.real == topology.batch_size


@given(total=st.integers(0, 120), start=st.integers(0, 120), topology=topologies)
def test_every_place_comes_once_in_the_promised_number_of_steps(total: int, start: int, topology: Topology) -> None:
    start = min(start, total)
    ranks = ranks_of(total, start, topology)
    seen: list[int] = []
    for batches in ranks:
        for step in range(batches.steps):
            places, real = batches.step(step)
            seen += places[:real].tolist()
            assert 0 < len(places) <= topology.batch_size
            assert len(places) == topology.batch_size or step == batches.steps - 1
            if real < len(places):
                assert topology.even_ranks == "pad" or (topology.even_ranks, len(places)) == ("balance", 1)
                assert ((places >= 0) & (places < total)).all()
        for some in batches.steps_of(0, 0, 3):
            for joined, one_by_one in zip(
                batches.places_of(some), concat_places([batches.step(step) for step in some]), strict=True
            ):
                assert joined.tolist() == one_by_one.tolist()
        assert batches.num_rows == sum(len(batches.step(step).places) for step in range(batches.steps))
        assert batches.longest == max(other.steps for other in ranks)
        with pytest.raises(ConfigError, match="step must be in"):
            batches.step(batches.steps)
    assert sorted(seen) == list(range(start, end_of(total, start, topology)))
    assert steps_of_ranks(ranks[0]) == [batches.steps for batches in ranks]
    if topology.even_ranks == "pad" or topology.drop_last:
        assert len({batches.num_rows for batches in ranks}) == 1
    if topology.even_ranks == "balance":
        assert len({batches.steps for batches in ranks}) == 1


@given(total=st.integers(1, 120), topology=topologies)
def test_the_padded_tail_gathers_to_its_real_rows_first(total: int, topology: Topology) -> None:
    """Accelerate concatenates the ranks' last batches and keeps the first `remainder` rows."""
    ranks = ranks_of(total, 0, topology)
    if not ranks[0].pads:
        return
    places, padding = concat_places([batches.tail for batches in ranks])
    remainder = ranks[0].remainder
    assert sorted(places[:remainder].tolist()) == list(range(total - remainder, total))
    assert padding.tolist() == [False] * remainder + [True] * (len(places) - remainder)


@given(total=st.integers(0, 120), topology=topologies)
def test_ranks_take_the_same_with_and_without_padding_where_nothing_is_padded(total: int, topology: Topology) -> None:
    plain, padded = (ranks_of(total, 0, replace(topology, even_ranks=even)) for even in (None, topology.even_ranks))
    if padded[0].pads:
        return
    for one, other in zip(plain, padded, strict=True):
        steps = [[batches.step(step).places.tolist() for step in range(batches.steps)] for batches in (one, other)]
        assert steps[0] == steps[1]


@given(total=st.integers(0, 200), chain=st.lists(st.tuples(topologies, st.integers(0, 6)), max_size=5))
def test_a_chain_of_topologies_continues_from_one_integer(total: int, chain: list[tuple[Topology, int]]) -> None:
    consumed, seen, dropped = 0, [], 0
    for topology, steps in [*chain, (Topology(1, 1, 7), 10**9)]:
        ranks = ranks_of(total, consumed, topology)
        for batches in ranks:
            for step in range(min(steps, batches.steps)):
                places, real = batches.step(step)
                seen += places[:real].tolist()
        taken = min(steps, ranks[0].longest)
        assert len({batches.consumed(taken) for batches in ranks}) == 1
        if topology.drop_last and 0 < taken == ranks[0].longest:
            dropped += total - end_of(total, consumed, topology)
        consumed = ranks[0].consumed(taken)
    assert sorted(seen) == list(range(total - dropped))


@given(total=st.integers(0, 150), topology=topologies, block=st.integers(1, 4), data=st.data())
def test_lanes_share_the_steps_without_affecting_the_order(
    total: int, topology: Topology, block: int, data: st.DataObject
) -> None:
    batches = GlobalBatches(total, 0, topology, 0)
    start = data.draw(st.integers(0, batches.steps))
    turn = list(batches.schedule(start))
    begun = batches.batches_before(start)
    assert sum(begun) == start
    lanes = [
        iter([step for run in batches.steps_of(lane, begun[lane], block) for step in run])
        for lane in range(topology.lanes)
    ]
    assert [next(lanes[lane]) for lane in turn] == list(range(start, batches.steps))
    assert all(next(lane, None) is None for lane in lanes)
    assert all(len(run) <= block for run in batches.steps_of(0, 0, block))


@st.composite
def divided(draw: st.DrawFn) -> tuple[int, list[Topology]]:
    """Draw a global batch, and jobs that divide it over several ranks and micro-batches."""
    rows = draw(st.sampled_from([1, 6, 12, 24, 36]))
    ways = [
        (ranks, micro) for ranks in range(1, rows + 1) for micro in range(1, rows + 1) if not rows % (ranks * micro)
    ]
    chosen = draw(st.lists(st.sampled_from(ways), min_size=1, max_size=5, unique=True))
    even: EvenRanks | None = draw(st.sampled_from([None, "balance", "pad"]))
    drop = draw(st.booleans())
    jobs = [
        Topology(ranks, 1, rank_batch_size(rows // (ranks * micro), rows, ranks), None, even, drop, micro)
        for ranks, micro in [(1, 1), *chosen]
    ]
    return rows, jobs


def steps_of_the_optimizer(ranks: list[GlobalBatches]) -> list[list[int]]:
    """Return the rows of each step of a job, sorted and without padding."""
    micro, steps = ranks[0].topology.micro_batches, ranks[0].longest
    taken = [
        [place for batches in ranks if step < batches.steps for place in real_places(batches, step)]
        for step in range(steps)
    ]
    return [sorted(sum(taken[first : first + micro], [])) for first in range(0, steps, micro)]


def real_places(batches: GlobalBatches, step: int) -> list[int]:
    places, real = batches.step(step)
    found: list[int] = places[:real].tolist()
    return found


@given(total=st.integers(0, 150), job=divided())
def test_an_optimizer_step_has_the_same_rows_on_any_ranks_and_micro_batches(
    total: int, job: tuple[int, list[Topology]]
) -> None:
    rows, topologies = job
    stop = total // rows * rows if topologies[0].drop_last else total
    wanted = [list(range(first, min(first + rows, stop))) for first in range(0, stop, rows)]
    for topology in topologies:
        assert steps_of_the_optimizer(ranks_of(total, 0, topology)) == wanted


@given(total=st.integers(0, 150), topology=topologies, start=st.integers(0, 30), data=st.data())
def test_a_job_resumed_within_an_optimizer_step_takes_the_rest(
    total: int, topology: Topology, start: int, data: st.DataObject
) -> None:
    for rank, whole in enumerate(ranks_of(total, min(start, total), topology)):
        steps = data.draw(st.integers(0, whole.steps))
        rest = GlobalBatches(total, whole.consumed(steps), topology, rank)
        assert rest.steps == whole.steps - steps
        for step in range(rest.steps):
            assert rest.step(step).places.tolist() == whole.step(steps + step).places.tolist()


def test_the_tail_of_a_job_that_is_larger_than_the_table() -> None:
    topology = Topology(4, 1, 100, even_ranks="pad")
    tails = [batches.tail for batches in ranks_of(6, 0, topology)]
    assert [tail.places.tolist() for tail in tails] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert [tail.real for tail in tails] == [2, 2, 2, 0]


def test_huge_epochs_need_no_iteration() -> None:
    batches = GlobalBatches(10**12, 0, Topology(4096, 4, 1024), 4095)
    assert batches.steps == 10**12 // (4096 * 1024) + 1
    assert batches.step(7).places[:2].tolist() == [7 * 4096 * 1024 + 4095, 7 * 4096 * 1024 + 8191]


def test_a_global_batch_that_does_not_divide_is_refused_with_the_nearest_sizes() -> None:
    assert rank_batch_size(256, 1024, 4) == 256
    with pytest.raises(ConfigError, match="nearest is 1001"):
        rank_batch_size(None, 1000, 7)
    with pytest.raises(ConfigError, match="nearest is 8"):
        rank_batch_size(None, 3, 8)
    with pytest.raises(
        ConfigError, match="multiple of num_ranks=4 times batch_size=100, got 1024; the nearest is 1200"
    ):
        rank_batch_size(100, 1024, 4)
    with pytest.raises(
        ConfigError, match="multiple of num_ranks=4 times batch_size=512, got 1024; the nearest is 2048"
    ):
        rank_batch_size(512, 1024, 4)


def test_dropping_rows_of_long_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="is for splits"):
        GlobalBatches(10, 0, Topology(2, 1, 3, even_ranks="drop"), 0)


def test_places_outside_the_epoch_are_refused() -> None:
    with pytest.raises(ConfigError, match="start must be in"):
        GlobalBatches(10, 11, Topology(2, 1, 3), 0)
    with pytest.raises(ConfigError, match="rank must be in"):
        GlobalBatches(10, 0, Topology(2, 1, 3), 2)
    assert np.array_equal(GlobalBatches(10, 10, Topology(2, 1, 3), 0).tail.places, [])
