"""The laws of batches by budget: one order, cut once for all ranks, each row once, at equal steps, anywhere on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.extend import Topology
from torch_table_loader.options import EvenRanks
from torch_table_loader.planning.budgets import WAITING, BudgetBatches, BudgetPosition, FilledOrder, Limits, Measure
from torch_table_loader.planning.budgets import filled as batches_of
from torch_table_loader.planning.global_batches import steps_of_ranks
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.stages import Stage


class Permuted:
    """Permuted rows, in parts that end where `ends` says."""

    def __init__(self, rows: int, *ends: int) -> None:
        self.ends = (*ends, rows)
        self._rows = rows

    def take(self, places: Any) -> Any:
        parts = np.searchsorted(self.ends, places, side="right")
        found = np.empty_like(places)
        before = 0
        for part, end in enumerate(self.ends):
            mine = parts == part
            order = Permutation(end - before, derive_key(0, 0, f"part {part}"))
            found[mine] = before + order.take(places[mine] - before)
            before = end
        return found


def cut(lengths: Any, limits: Limits, similar: int | None = None, *ends: int) -> FilledOrder:
    def key(place: int) -> Any:
        return derive_key(0, 0, f"similar {place}")

    rows = len(lengths)
    measure = Measure(limits, lambda some: np.asarray(lengths)[some], lambda found: found)
    return FilledOrder.of(Permuted(rows, *ends), rows, rows, measure, None if similar is None else (similar, key))


def held(lengths: Any, limits: Limits) -> int:
    """What some rows take of a budget, counted by hand."""
    return max(lengths) * len(lengths) if limits.padded else sum(lengths)


def by_hand(lengths: list[int], limits: Limits) -> list[list[int]]:
    """Cut a list as the law says it: rows in order; what does not fit waits, and few may wait."""
    left, batches = list(range(len(lengths))), []
    seen = -1
    while left:
        batch, waits = [left[0]], 0
        for row in left[1:]:
            full = limits.tokens - held([lengths[each] for each in batch], limits) <= limits.tokens // 64
            if len(batch) == limits.at_most or (row > seen and waits == WAITING):
                break
            seen = max(seen, row)
            if held([lengths[each] for each in (*batch, row)], limits) <= limits.tokens:
                batch.append(row)
                continue
            waits += 1
            if full and row == seen:
                break
        seen = max(seen, *batch)
        batches.append(batch)
        left = [row for row in left if row not in batch]
    return batches


sizes = st.lists(st.integers(0, 40), max_size=60)
limits_of = st.builds(Limits, st.integers(1, 60), st.integers(1, 9), st.booleans())


@given(lengths=sizes, limits=limits_of, parts=st.integers(1, 4))
def test_rows_are_cut_as_by_hand(lengths: list[int], limits: Limits, parts: int) -> None:
    given_as = [np.array(part, dtype=np.int64) for part in np.array_split(np.array(lengths, dtype=np.int64), parts)]
    assert [sorted(batch) for batch in batches_of(given_as, limits)] == [
        sorted(batch) for batch in by_hand(lengths, limits)
    ]


@given(lengths=sizes, limits=limits_of, similar=st.none() | st.integers(1, 30))
def test_every_row_comes_once_and_no_batch_is_over_the_budget_but_of_one_row(
    lengths: list[int], limits: Limits, similar: int | None
) -> None:
    order = cut(lengths, limits, similar)
    assert sorted(order.rows.tolist()) == list(range(len(lengths)))
    assert order.edges[0] == 0
    assert order.edges[-1] == len(lengths)
    assert (np.diff(order.edges) > 0).all()
    for first, stop in zip(order.edges, order.edges[1:], strict=False):
        rows = order.take(np.arange(first, stop)).tolist()
        assert len(rows) == 1 or held([lengths[row] for row in rows], limits) <= limits.tokens
        assert len(rows) <= limits.at_most
    assert order.tokens == sum(min(length, limits.tokens) for length in lengths)
    assert order.longer == sum(length > limits.tokens for length in lengths)
    assert order.longest[0] == max(lengths, default=0)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("similar", [None, 2000])
def test_batches_are_full(sigma: float, similar: int | None) -> None:
    budget = 8192
    draws = np.random.default_rng(1).lognormal(np.log(budget / 30) - sigma**2 / 2, sigma, 30_000)
    lengths = np.minimum(np.maximum(1, draws), budget).astype(np.int64)
    order = cut(lengths, Limits(budget, 10_000), similar)
    fill = order.tokens / budget / (len(order.edges) - 1)
    assert fill >= (0.99 if similar is None else 0.92)


def test_a_batch_has_rows_of_similar_lengths_where_that_was_asked_for() -> None:
    lengths = np.random.default_rng(2).lognormal(4, 1, 20_000).astype(np.int64) + 1
    spread = []
    for similar in (None, 5000):
        order = cut(lengths, Limits(8192, 1000, padded=True), similar)
        spread.append(np.add.reduceat(lengths[order.rows], order.edges[:-1]).sum() / 8192 / (len(order.edges) - 1))
        firsts = np.maximum.reduceat(lengths[order.rows], order.edges[:-1])
        assert abs(np.corrcoef(np.arange(len(firsts)), firsts)[0, 1]) < 0.2
    assert spread[0] < 0.35
    assert spread[1] > 0.9


def test_a_part_is_cut_as_it_was_before_others_came() -> None:
    """A table that grew within an epoch goes on where it was."""
    lengths = np.random.default_rng(3).integers(1, 50, 900)
    for similar in (None, 100):
        before, after = cut(lengths[:500], Limits(200, 99), similar), cut(lengths, Limits(200, 99), similar, 500)
        assert after.rows[:500].tolist() == before.rows.tolist()
        assert after.edges[: len(before.edges)].tolist() == before.edges.tolist()


EVEN: list[EvenRanks | None] = [None, "balance", "pad"]
topologies = st.builds(
    Topology,
    num_ranks=st.integers(1, 8),
    lanes=st.integers(1, 3),
    batch_size=st.just(9),
    shuffle_buffer_size=st.none(),
    even_ranks=st.sampled_from(EVEN),
    drop_last=st.booleans(),
)


@given(lengths=sizes, limits=limits_of, stages=st.lists(st.tuples(topologies, st.integers(0, 9)), min_size=1))
def test_the_job_goes_on_at_any_batch_on_any_ranks(
    lengths: list[int], limits: Limits, stages: list[tuple[Topology, int]]
) -> None:
    order, seen, start = cut(lengths, limits), [], 0
    for at, (topology, wanted) in enumerate(stages):
        ranks = [BudgetBatches(len(lengths), start, topology, rank, order=order) for rank in range(topology.num_ranks)]
        taken = ranks[0].longest if at == len(stages) - 1 else min(wanted, ranks[0].full_steps)
        for plan in ranks:
            for step in range(min(taken, plan.steps)):
                places, real = plan.step(step)
                assert real == len(places) or (real, len(places)) == (0, 1)
                seen += places[:real].tolist()
        position = BudgetPosition(0, Stage(topology, taken), total=len(lengths), start=start, order=order)
        start = position.consumed
        assert start == ranks[0].consumed(taken)
    assert len(seen) == len(set(seen))
    if not any(topology.drop_last for topology, _ in stages):
        assert sorted(seen) == list(range(len(lengths)))


@given(lengths=sizes, limits=limits_of, topology=topologies)
def test_the_plan_of_a_rank_says_what_its_steps_have(lengths: list[int], limits: Limits, topology: Topology) -> None:
    order = cut(lengths, limits)
    ranks = [BudgetBatches(len(lengths), 0, topology, rank, order=order) for rank in range(topology.num_ranks)]
    if topology.even_ranks is not None or topology.drop_last:
        assert len({plan.steps for plan in ranks}) == 1
    assert steps_of_ranks(ranks[0]) == [plan.steps for plan in ranks]
    for plan in ranks:
        steps = [plan.step(number) for number in range(plan.steps)]
        assert plan.num_rows == sum(len(step.places) for step in steps)
        assert sum(plan.rows_of(lane) for lane in range(topology.lanes)) == plan.num_rows
        assert plan.longest == max(other.steps for other in ranks)
        with pytest.raises(ConfigError, match="step must be in"):
            plan.step(plan.steps)
        for some in plan.steps_of(0, 0, 2):
            places, padding = plan.places_of(some)
            assert places.tolist() == [place for number in some for place in steps[number].places.tolist()]
            assert plan.sizes_of(some).tolist() == [len(steps[number].places) for number in some]
            assert int(padding.sum()) == sum(len(steps[number].places) - steps[number].real for number in some)
        for number in range(plan.full_steps):
            assert plan.step_of(int(steps[number].places[0])) == number
            assert set(steps[number].places.tolist()) <= set(plan.global_batch(number).tolist())
        for until in range(plan.full_steps):
            short = plan.up_to(until)
            assert (short.steps, short.consumed(until)) == (until, plan.consumed(until))
    if topology.drop_last and len(lengths) and not topology.even_ranks:
        taken = ranks[0].full_steps * topology.num_ranks
        assert taken >= len(order.edges) - 1 - topology.num_ranks


def test_a_place_where_no_batch_begins_is_refused() -> None:
    order = cut([5, 5, 5, 5], Limits(10, 9))
    with pytest.raises(ResumeError, match="taken 1 rows, and no batch of the epoch begins there"):
        BudgetBatches(4, 1, Topology(1, 1, 9), 0, order=order)


def test_the_order_is_frozen() -> None:
    """States name places of it."""
    lengths = (np.arange(24) * 7919) % 23 + 1
    plain, alike = cut(lengths, Limits(40, 6)), cut(lengths, Limits(40, 6), 12)
    rows = "19 9 23 0 11 18 17 20 8 22 12 4 3 5 10 2 6 7 15 14 1 21 16 13"
    assert " ".join(map(str, plain.rows)) == rows
    assert " ".join(map(str, plain.edges)) == "0 4 9 12 15 18 22 23 24"
    rows = "12 22 3 5 2 23 20 17 11 18 9 19 21 8 15 13 6 0 10 7 4 14 1 16"
    assert " ".join(map(str, alike.rows)) == rows
    assert " ".join(map(str, alike.edges)) == "0 2 3 5 10 12 15 16 17 23 24"
