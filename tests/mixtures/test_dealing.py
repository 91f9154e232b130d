"""A mixture of streams, place by place: shares after every block, and what each channel takes, known in advance."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.extend import Topology
from torch_table_loader.mixtures.dealing import Deal, deal_of, floor_sum

topologies = st.builds(Topology, st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
weights = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40), min_size=1).filter(lambda w: any(w.values()))
keys = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
first_deals = st.builds(deal_of, weights, topologies, keys, width=st.integers(1, 9))


def gone_on(deal: Deal, topology: Topology, width: int, places: int) -> Deal:
    """Return the deal behind some places of another one, with the same weights."""
    return deal_of(deal.by_name, topology, (1, 0, 1), width=width).dropping({}, (deal, places))


deals = st.one_of(
    first_deals, st.builds(gone_on, first_deals, topologies, st.sampled_from([1, 2, 9, 31]), st.integers(0, 90))
)


def lack(deal: Deal, number: int, count: int, end: int) -> Fraction:
    """Return what a source lacks after some places of which it had so many, in rows."""
    whole = sum(deal.weights)
    began = Fraction((deal.lacks or [0] * len(deal.weights))[number], whole * deal.width)
    return Fraction(end * deal.weights[number], whole) + began - count


def total_of(deal: Deal, most: int = 4000) -> int:
    return min(deal.total, max(most, 3 * deal.block_rows))


@settings(max_examples=examples(60), deadline=None)
@given(deal=deals)
def test_each_source_has_its_share_after_every_block_to_within_one_row(deal: Deal) -> None:
    places = np.arange(total_of(deal))
    counts = np.cumsum(deal.sources(places)[:, None] == np.arange(len(deal.names)), axis=0)
    for end in range(deal.block_rows, len(places) + 1, deal.block_rows):
        for number in range(len(deal.weights)):
            assert abs(lack(deal, number, counts[end - 1, number], end)) < 1
    assert deal.lacks or deal.block_steps == 1 or deal.step_rows * min(filter(None, deal.weights)) < sum(deal.weights)


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
        if deal.lacks and ended.total < deal.block_rows:
            continue  # they may not be made up yet
        for number, count in enumerate(counts):
            assert abs(lack(deal, number, count, ended.total)) < 1


@settings(max_examples=examples(150), deadline=None)
@given(deal=deals, drops=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 200), max_size=3), data=st.data())
def test_a_stage_that_ends_anywhere_deals_each_place_once(
    deal: Deal, drops: dict[str, int], data: st.DataObject
) -> None:
    deal = deal.dropping(drops)
    total = data.draw(st.integers(0, min(deal.end, 5 * deal.block_rows)))
    check_the_end(replace(deal, total=total))


def test_many_short_stages_deal_each_place_once() -> None:
    random = np.random.default_rng(48)
    check_the_end(replace(deal_of({"a": 5, "b": 1, "c": 5}, Topology(3, 1, 1), (0, 0, 0)), total=73))
    for _ in range(examples(600)):
        weights = dict(zip("abcdefg", random.integers(1, 12, random.integers(2, 8)).tolist(), strict=False))
        deal = deal_of(weights, Topology(*random.integers(1, 5, 3).tolist()), (0, 0, 0))
        check_the_end(replace(deal, total=int(random.integers(0, 4 * deal.block_rows))))


def check_the_end(deal: Deal) -> None:
    """Check what a stage deals up to its end, which may be anywhere in a block."""
    places, topology = np.arange(deal.end), deal.topology
    source = deal.sources(places)
    counts = np.bincount(source, minlength=len(deal.names))
    dealt = deal.dealt(deal.end)
    assert (dealt >= 0).all()
    assert dealt.sum() == counts.sum() == deal.end
    assert np.array_equal(dealt.sum(axis=(1, 2)), counts)
    assert np.array_equal(deal.rows_before(deal.end), counts)
    last = deal.end // deal.block_rows * deal.block_rows
    for end in range(deal.block_rows, last + 1, deal.block_rows):
        had = np.bincount(source[:end], minlength=len(deal.names))
        assert all(abs(lack(deal, i, had[i], end)) < 1 for i in range(len(deal.names)))
    began = np.bincount(source[:last], minlength=len(deal.names))
    if last or not deal.lacks:
        off = [abs(lack(deal, i, count, deal.end)) for i, count in enumerate(counts)]
        assert all(each < 2 for each in off)
        assert max(off) < 1 or not may_have_shares(deal, began.tolist())
    for number in range(len(deal.names)):
        turns = np.flatnonzero(source == number)
        assert [deal.place_of(number, turn) for turn in range(len(turns))] == turns.tolist()
        assert deal.place_of(number, len(turns)) == deal.end
    lane = places // deal.step_rows % topology.lanes
    channels = places % topology.num_ranks * topology.lanes + lane
    found, channel, ordinal = deal.ordinals(places)
    assert (np.array_equal(found, source), np.array_equal(channel, channels)) == (True, True)
    for number in range(topology.num_ranks * topology.lanes):
        for own in range(len(deal.names)):
            inside = ordinal[(channels == number) & (source == own)]
            assert inside.tolist() == list(range(len(inside)))


def may_have_shares(deal: Deal, had: list[int]) -> bool:
    """Return whether rows of the last block may give each source its share, to within one row, and take none back."""
    due = [rows + int(max(Fraction(0), lack(deal, number, rows, deal.end))) for number, rows in enumerate(had)]
    least = [max(rows, own) for rows, own in zip(had, due, strict=True)]
    return sum(least) <= deal.end


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
