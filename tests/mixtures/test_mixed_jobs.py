"""A job over a mixture, chained through topologies, weights and exclusions: one order, no row twice before it wraps."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.strategies import row_topologies
from torch_table_loader.extend import Exclusions, ExclusionVersions, Mixture, Remaining, SourceOrder, Topology
from torch_table_loader.mixtures.row_position import MixedRowsPosition
from torch_table_loader.mixtures.stop import StopWord
from torch_table_loader.planning.stages import Stage

SEED = 11

topologies = row_topologies(20)
weights = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.1, 0.5, 1, 2, 3, 7]), min_size=1)
stages = st.lists(st.tuples(topologies, st.integers(0, 12), st.none() | weights), min_size=1, max_size=6)


@dataclasses.dataclass
class Sources:
    """Tables with excluded rows."""

    rows: dict[str, int]
    gone: dict[str, set[int]]

    def remaining(self, name: str) -> Remaining:
        return Remaining(self.rows[name], np.array(sorted(self.gone[name]), dtype=np.int64))

    @property
    def left(self) -> dict[str, int]:
        return {name: self.remaining(name).num_rows for name in self.rows}


@st.composite
def sources(draw: st.DrawFn) -> Sources:
    rows = {name: draw(st.integers(1, 90)) for name in "abcd"}
    gone = {name: draw(st.sets(st.integers(0, count - 1), max_size=count - 1)) for name, count in rows.items()}
    return Sources(rows, gone)


def start(tables: Sources, weights: dict[str, float], epoch: int, block: int, stop: StopWord) -> MixedRowsPosition:
    mixture = Mixture.of(weights, SEED, epoch, block)
    rows = {name: tables.left[name] for name in mixture.names}
    versions = {name: ExclusionVersions(*2 * [Exclusions(np.array(sorted(tables.gone[name])))]) for name in tables.rows}
    stage = Stage(Topology(1, 1, 1))
    begun = MixedRowsPosition(epoch, stage, mixture=mixture, rows=rows, exclusions=versions)
    return replace(begun, total=begun.ending(stop)[1])


def delivered(cursor: MixedRowsPosition, steps: int) -> tuple[list[int], bool]:
    """Return the places of all ranks in some steps, in order, without padding; and whether a tail was dropped."""
    found: list[int] = []
    ranks = [cursor.batches(rank) for rank in range(cursor.stage.topology.num_ranks)]
    for step in range(min(steps, ranks[0].longest)):
        taken = [ranks[rank].step(step) for rank in range(len(ranks)) if step < ranks[rank].steps]
        for places, real in taken:
            assert ((places >= cursor.mixture.shares.start) & (places < cursor.total)).all()
            assert real == len(places) or cursor.stage.topology.marks_padding
        found += sorted(place for places, real in taken for place in places[:real].tolist())
    dropped = bool(ranks[0].longest) and steps >= ranks[0].longest and cursor.stage.topology.drop_last
    return found, dropped


def told(cursor: MixedRowsPosition, tables: Sources, places: list[int]) -> list[tuple[str, int]]:
    """Turn places into sources and rows."""
    source, turn = cursor.mixture.take(np.array(places, dtype=np.int64))
    rows = np.empty_like(turn)
    for number, name in enumerate(cursor.mixture.names):
        own = source == number
        rows[own] = SourceOrder(tables.remaining(name), SEED, name, cursor.epoch).take(turn[own])
    return [(cursor.mixture.names[s], row) for s, row in zip(source.tolist(), rows.tolist(), strict=True)]


@settings(max_examples=examples(75))
@given(
    tables=sources(),
    first=weights,
    chain=stages,
    block=st.sampled_from([0, 1, 10, 256]),
    stop=st.sampled_from(["first_exhausted", "all_exhausted", "forever"]),
    epoch=st.integers(0, 3),
)
def test_a_chain_of_topologies_and_weights_repeats_and_skips_nothing(
    tables: Sources, first: dict[str, float], chain: list[Any], block: int, stop: StopWord, epoch: int
) -> None:
    cursor = start(tables, first, epoch, block, stop)
    runs: list[tuple[Mixture, int, int]] = []
    taken: dict[str, list[int]] = {}
    consumed = 0
    for topology, steps, new in [*chain, (Topology(1, 1, 13), 10**9 if stop != "forever" else 9, None)]:
        if new is not None and cursor.consumed < cursor.total:
            cursor = replace(cursor, rows={name: tables.left[name] for name in new}).reweighted(new, stop)
            taken = {name: rows for name, rows in taken.items() if name in cursor.mixture.names}
        cursor = cursor.on(topology)
        places, dropped = delivered(cursor, steps)
        assert places == list(range(consumed, consumed + len(places))), "the job goes on with the very next place"
        for name, row in told(cursor, tables, places):
            taken.setdefault(name, []).append(row)
        runs.append((cursor.mixture, consumed, consumed + len(places)))
        cursor = cursor.after(min(steps, cursor.batches(0).longest))
        consumed = cursor.consumed
        assert dropped or consumed == runs[-1][2]
        for name, rows in taken.items():
            repeats_no_row_before_it_wraps(rows, tables, name)
            if stop == "first_exhausted" and cursor.mixture.weights[name]:
                assert len(rows) <= tables.left[name]
        if dropped:
            break
    keeps_its_shares(runs)
    if stop == "all_exhausted" and not dropped:
        wanted = [name for name, weight in cursor.mixture.weights.items() if weight]
        assert all(set(taken[name]) == set(range(tables.rows[name])) - tables.gone[name] for name in wanted)


def repeats_no_row_before_it_wraps(rows: list[int], tables: Sources, name: str) -> None:
    left = set(range(tables.rows[name])) - tables.gone[name]
    for begin in range(0, len(rows), len(left)):
        turn = rows[begin : begin + len(left)]
        assert len(set(turn)) == len(turn)
        assert set(turn) <= left


def keeps_its_shares(runs: list[tuple[Mixture, int, int]]) -> None:
    """Check the shares of every whole block delivered under one set of weights; without blocks, of every prefix."""
    for mixture in {run[0] for run in runs}:
        stop = max(run[2] for run in runs if run[0] == mixture)
        source = mixture.places(mixture.shares.start, stop).source
        every = mixture.block_rows if mixture.block else 1
        for edge in range(every, len(source) + 1, every):
            counts = np.bincount(source[:edge], minlength=len(mixture.names))
            for count, weight in zip(counts.tolist(), mixture.shares.weights, strict=True):
                assert abs(count - Fraction(edge * weight, sum(mixture.shares.weights))) < 1


@settings(max_examples=examples(60))
@given(tables=sources(), first=weights, one=topologies, other=topologies, epoch=st.integers(0, 2))
def test_the_order_does_not_depend_on_the_topology(
    tables: Sources, first: dict[str, float], one: Topology, other: Topology, epoch: int
) -> None:
    orders = []
    for topology in (one, other):
        cursor = start(tables, first, epoch, 10, "all_exhausted").on(topology)
        orders.append(told(cursor, tables, delivered(cursor, 10**9)[0]))
    short = min(map(len, orders))
    assert orders[0][:short] == orders[1][:short]


@given(tables=sources(), first=weights)
def test_each_epoch_starts_every_source_over(tables: Sources, first: dict[str, float]) -> None:
    orders = []
    for epoch in range(3):
        cursor = start(tables, first, epoch, 10, "all_exhausted").on(Topology(1, 1, 50))
        orders.append(told(cursor, tables, delivered(cursor, 10**9)[0]))
    for one, other in pairwise(orders):
        assert one != other or len(set(one)) < 8


@given(new=weights, ranks=st.integers(2, 8))
def test_padding_repeats_from_the_last_change_of_weights(new: dict[str, float], ranks: int) -> None:
    tables = Sources(dict.fromkeys("abcde", 20), {name: set() for name in "abcde"})
    before = start(tables, {"a": 1, "e": 1}, 0, 1, "all_exhausted").on(Topology(1, 1, 2))
    rows = {name: tables.left[name] for name in new}
    cursor = replace(before.after(1), rows=rows).reweighted(new, "all_exhausted")
    cursor = cursor.on(Topology(ranks, 1, 1000, even_ranks="pad"))
    tails = [cursor.batches(rank).tail for rank in range(ranks)]
    padding = [place for places, real in tails for place in places[real:].tolist()]
    assert padding == [2 + number % (cursor.total - 2) for number in range(len(padding))]


@given(tables=sources(), first=weights)
def test_a_finished_epoch_stays_finished_under_new_weights(tables: Sources, first: dict[str, float]) -> None:
    cursor = start(tables, first, 0, 10, "first_exhausted").on(Topology(2, 1, 7))
    done = cursor.after(cursor.batches(0).longest)
    assert done.reweighted(dict.fromkeys(first, 1), "first_exhausted") == done
