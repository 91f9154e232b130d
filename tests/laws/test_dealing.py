"""A mixture of streams, place by place: shares after every block, and what each channel takes, known in advance."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.extend import Topology
from torch_table_loader.planning.dealing import Deal, deal_of, floor_sum

topologies = st.builds(Topology, st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
weights = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40), min_size=1).filter(lambda w: any(w.values()))
deals = st.builds(deal_of, weights, topologies, st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)))


def total_of(deal: Deal, most: int = 4000) -> int:
    return min(deal.total, max(most, 3 * deal.block_rows))


@settings(max_examples=examples(60), deadline=None)
@given(deal=deals)
def test_each_source_has_its_share_after_every_block_to_within_one_row(deal: Deal) -> None:
    places = np.arange(total_of(deal))
    counts = np.cumsum(deal.sources(places)[:, None] == np.arange(len(deal.names)), axis=0)
    for end in range(deal.block_rows, len(places) + 1, deal.block_rows):
        for number, weight in enumerate(deal.weights):
            assert abs(counts[end - 1, number] - Fraction(end * weight, sum(deal.weights))) < 1
    assert deal.block_steps == 1 or deal.step_rows * min(filter(None, deal.weights)) < sum(deal.weights)


@settings(max_examples=examples(30), deadline=None)
@given(deal=deals, data=st.data())
def test_rows_of_channels_before_a_place_are_known_without_earlier_places(deal: Deal, data: st.DataObject) -> None:
    places, topology = np.arange(total_of(deal)), deal.topology
    source = deal.sources(places)
    lane = places // deal.step_rows % topology.lanes
    place = data.draw(st.integers(0, len(places)))
    counted = np.zeros((len(deal.names), topology.num_ranks, topology.lanes), dtype=np.int64)
    np.add.at(counted, (source[:place], places[:place] % topology.num_ranks, lane[:place]), 1)
    assert np.array_equal(deal.dealt(place), counted)
    assert np.array_equal(deal.rows_before(place), counted.sum(axis=(1, 2)))
    assert [len(found) for found in deal.ordinals(places[:0])] == [0, 0, 0]
    if place < len(places):
        own, turn = int(source[place]), int(counted.sum(axis=(1, 2))[source[place]])
        assert deal.place_of(own, turn) == place
        [number], [channel], [ordinal] = deal.ordinals(places[place : place + 1])
        assert (number, channel) == (own, place % topology.num_ranks * topology.lanes + lane[place])
        assert ordinal == counted[own, place % topology.num_ranks, lane[place]]


@settings(max_examples=examples(60), deadline=None)
@given(deal=deals)
def test_batches_differ_by_at_most_one_row_of_a_source(deal: Deal) -> None:
    source = deal.sources(np.arange(deal.block_rows)).reshape(deal.block_steps, -1, deal.topology.num_ranks)
    for number in range(len(deal.names)):
        counts = (source == number).sum(axis=1)
        assert counts.max() - counts.min() <= 1


@settings(max_examples=examples(60), deadline=None)
@given(deal=deals, data=st.data())
def test_an_epoch_ends_by_its_rule_with_the_shares_met(deal: Deal, data: st.DataObject) -> None:
    left = {name: data.draw(st.integers(1, 300)) for name in deal.names}
    wanted = [number for number, weight in enumerate(deal.weights) if weight]
    rows = np.array([left[name] for name in deal.names])[wanted]
    first = deal.ending(left, "first_exhausted")
    had = first.rows_before(first.total)[wanted]
    assert (had <= rows).all()
    assert ((deal.shares(first.total + deal.block_rows)[0])[wanted] > rows).any()
    every = deal.ending(left, "all_exhausted")
    assert (every.rows_before(every.total)[wanted] >= rows).all()
    for ended in (first, every):
        counts = ended.rows_before(ended.total)
        assert counts.sum() == ended.total
        for number, weight in enumerate(deal.weights):
            assert abs(counts[number] - Fraction(ended.total * weight, sum(deal.weights))) < 1


@settings(max_examples=examples(40), deadline=None)
@given(
    left=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 300), min_size=1).filter(lambda w: any(w.values())),
    topology=topologies,
)
def test_natural_shares_deliver_every_row(left: dict[str, int], topology: Topology) -> None:
    deal = deal_of(left, topology, (0, 0, 0), natural=True).ending(left, "first_exhausted")
    assert deal.total == sum(left.values())
    assert deal.rows_before(deal.total).tolist() == [left[name] for name in deal.names]
    assert deal.ending(left, "all_exhausted").total == deal.total


@settings(max_examples=examples(40), deadline=None)
@given(deal=deals, left=st.integers(1, 50), rows=st.integers(50, 90), data=st.data())
def test_rounds_are_dealt_completely_in_adjacent_runs(deal: Deal, left: int, rows: int, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([number for number, weight in enumerate(deal.weights) if weight]))
    taken = np.zeros((deal.topology.num_ranks, deal.topology.lanes), dtype=np.int64)
    for number in range(3):
        before, first, count, _ = deal.portion(source, left, rows, number)
        assert np.array_equal(before, taken)
        assert count.sum() == (rows if number else left)
        assert np.array_equal(first.reshape(-1), np.cumsum(count) - count.reshape(-1))
        taken += count


@given(number=st.integers(0, 30), modulus=st.integers(1, 50), factor=st.integers(0, 90), offset=st.integers(0, 90))
def test_floor_sums_equal_plain_addition(number: int, modulus: int, factor: int, offset: int) -> None:
    assert floor_sum(number, modulus, factor, offset) == sum((factor * i + offset) // modulus for i in range(number))
