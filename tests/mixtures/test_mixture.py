"""Mixture: shares hold over every prefix of blocks, and weights change without a row lost or repeated."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader import ConfigError, Stop
from torch_table_loader.extend import Mixture, Remaining, SourceOrder, StopRule
from torch_table_loader.mixtures.mixture import Shares, ending, smallest
from torch_table_loader.mixtures.stop import StopWord
from torch_table_loader.planning.global_batches import ENDLESS

weights = st.dictionaries(st.sampled_from("abcde"), st.floats(0.01, 10), min_size=1)
changes = st.lists(st.tuples(st.integers(0, 700), weights), max_size=3)
blocks = st.one_of(st.just(256), st.integers(1, 40), st.just(0))
NOTHING = np.empty(0, dtype=np.int64)

UNTIDY = {"a": 1.0, "b": 8.0, "c": 10.0, "d": 0.010000000000000002}
"""As integers they pass 2**63 when they are added up."""


@settings(max_examples=examples(100))
@given(weights=weights, number=st.integers(0, 30), block=blocks, seed=st.integers(0, 5))
def test_counts_over_blocks_are_within_one_of_the_share(
    weights: dict[str, float], number: int, block: int, seed: int
) -> None:
    mixture = Mixture.of(weights, seed, 0, block)
    assert mixture.block_rows >= block
    places = number * mixture.block_rows
    counts = mixture.rows_before(places)
    total = sum(mixture.shares.weights)
    for count, weight in zip(counts, mixture.shares.weights, strict=True):
        assert abs(count - Fraction(places * weight, total)) < 1
    assert sum(counts) == places
    assert np.bincount(mixture.places(0, places).source, minlength=len(counts)).tolist() == list(counts)


@settings(max_examples=examples(60))
@given(weights=weights, changes=changes, block=blocks, epoch=st.integers(0, 2))
@example(weights=UNTIDY, changes=[], block=256, epoch=0)
def test_the_rows_of_each_source_come_in_turn_under_changing_weights(
    weights: dict[str, float], changes: list[tuple[int, dict[str, float]]], block: int, epoch: int
) -> None:
    mixture = Mixture.of(weights, 0, epoch, block)
    at, seen = 0, Counter[str]()
    for step, new in [*changes, (300, weights)]:
        source, turn = mixture.places(at, at + step)
        for name, number in zip((mixture.names[s] for s in source.tolist()), turn.tolist(), strict=True):
            assert number == seen[name]
            seen[name] += 1
        at += step
        assert dict(zip(mixture.names, mixture.rows_before(at), strict=True)) == {n: seen[n] for n in mixture.names}
        mixture = mixture.reweighted(at, new)
        seen = Counter({name: count for name, count in seen.items() if name in new})  # a source that left begins again
        assert mixture.rows_before(at) == tuple(seen[name] for name in mixture.names)


@settings(max_examples=examples(60))
@given(
    weights=weights,
    places=st.lists(st.integers(777, 50_000), min_size=1, max_size=20),
    block=st.sampled_from([0, 1, 7, 256, 65_536]),
)
def test_any_place_is_computed_independently(weights: dict[str, float], places: list[int], block: int) -> None:
    mixture = Mixture.of(weights, 3, 1, block).reweighted(777, {"a": 1, "z": 2})
    together = mixture.take(np.array(places))
    for number, place in enumerate(places):
        source, turn = mixture.take(np.array([place]))
        assert (source[0], turn[0]) == (together.source[number], together.turn[number])


def test_distant_places_are_computed_a_few_blocks_at_a_time() -> None:
    mixture = Mixture.of({"a": 1, "b": 2}, 0, 0, 65_536)
    places = np.arange(0, 65_536 * 20, 6_553)
    source, turn = mixture.take(places)
    assert [mixture.rows_before(int(place))[s] for place, s in zip(places, source, strict=True)] == turn.tolist()


@given(weights=weights, order=st.permutations("abcde"))
def test_the_order_of_names_and_the_scale_of_weights_have_no_effect(
    weights: dict[str, float], order: list[str]
) -> None:
    other = {name: Fraction(str(weights[name])) * 3 for name in order if name in weights}
    assert Mixture.of(weights, 0, 0) == Mixture.of(other, 0, 0)  # type: ignore[arg-type]
    assert Mixture.of(weights, 0, 0).reweighted(9, other).shares.start == 0  # type: ignore[arg-type]


def test_a_rare_source_makes_blocks_longer() -> None:
    mixture = Mixture.of({"a": 1000, "b": 1, "c": 0}, 0, 0)
    assert mixture.block_rows == 1001
    assert mixture.rows_before(1001 * 5) == (5000, 5, 0)


def test_weights_become_the_smallest_integers() -> None:
    assert smallest({"b": 0.3, "a": 0.7}) == {"a": 7, "b": 3}
    assert smallest({"a": float(np.float64(0.1)), "b": 0.2, "c": 0}) == {"a": 1, "b": 2, "c": 0}
    assert smallest({"a": Fraction(1, 3), "b": 1}) == {"a": 1, "b": 3}  # type: ignore[dict-item]


def test_the_order_is_frozen() -> None:
    """It is part of the state's format."""
    mixture = Mixture.of({"a": 2, "b": 1}, 42, 3, 8).reweighted(5, {"a": 1, "b": 1, "c": 2})
    source, turn = mixture.places(5, 29)
    assert "".join(mixture.names[number] for number in source.tolist()) == "ccbccaabcbccbacacbbcaacc"
    assert turn.tolist() == [0, 1, 1, 2, 3, 4, 5, 2, 4, 3, 5, 6, 4, 6, 7, 7, 8, 5, 6, 9, 8, 9, 10, 11]
    assert SourceOrder(Remaining(9, np.array([4])), 42, "b", 3).take(np.arange(20)).tolist() == [
        5,
        0,
        3,
        8,
        1,
        6,
        7,
        2,
        1,
        2,
        8,
        5,
        6,
        7,
        0,
        3,
        6,
        1,
        3,
        0,
    ]


def test_every_order_inside_a_block_is_equally_likely() -> None:
    """Chi-square over the 6 patterns of a block of 2 + 2, and over the 36 pairs of two epochs' patterns."""
    blocks, patterns = 20_000, {pattern: at for at, pattern in enumerate(sorted(set(permutations("aabb"))))}
    numbers = []
    for epoch in (0, 1):
        mixture = Mixture.of({"a": 1, "b": 1}, 5, epoch, 4)
        source = mixture.places(0, 4 * blocks).source.reshape(-1, 4)
        numbers.append(np.array([patterns[tuple(mixture.names[s] for s in row)] for row in source.tolist()]))
    for found, kinds in ((numbers[0], 6), (numbers[1], 6), (numbers[0] * 6 + numbers[1], 36)):
        expected = blocks / kinds
        square = float(((np.bincount(found, minlength=kinds) - expected) ** 2 / expected).sum())
        assert square < kinds - 1 + 6 * (2 * (kinds - 1)) ** 0.5


def test_huge_places_need_no_iteration() -> None:
    mixture = Mixture(("a", "b"), Shares(10**17, (10**12 + 1, 10**12), (5, 10**16)), 0, 0)
    place = 10**17 + 256 * 10**14
    a, b = mixture.rows_before(place)
    assert a + b == 5 + 10**16 + place - 10**17
    assert abs(a - 5 - Fraction((place - 10**17) * (10**12 + 1), 2 * 10**12 + 1)) < 1
    assert set(mixture.places(place, place + 256).turn.tolist()) <= {*range(a, a + 256), *range(b, b + 256)}


@pytest.mark.parametrize("gone", [0, 3])
@given(rows=st.integers(4, 50), epoch=st.integers(0, 2))
def test_a_source_repeats_no_row_until_it_wraps(gone: int, rows: int, epoch: int) -> None:
    remaining = Remaining(rows, np.arange(gone, dtype=np.int64))
    left, turns = rows - gone, np.arange((rows - gone) * 3)
    taken = SourceOrder(remaining, 0, "a", epoch).take(turns).reshape(3, left)
    assert all(sorted(wrap) == list(range(gone, rows)) for wrap in taken.tolist())
    if left > 20:
        assert len({tuple(wrap) for wrap in taken.tolist()}) == 3
        for other in (SourceOrder(remaining, 0, "b", epoch), SourceOrder(remaining, 1, "a", epoch)):
            assert taken.tolist() != other.take(turns).reshape(3, left).tolist()


@settings(max_examples=examples(100))
@given(
    weights=weights,
    data=st.data(),
    block=blocks,
    change=st.integers(0, 60),
    rule=st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_the_epoch_ends_by_its_rule(
    weights: dict[str, float], data: st.DataObject, block: int, change: int, rule: StopRule
) -> None:
    mixture = Mixture.of({"a": 1.5, "b": 1}, 0, 0, block).reweighted(change, weights)
    rows = [data.draw(st.integers(1, 200)) for _ in mixture.names]
    length, start = mixture.length(rows, rule), mixture.shares.start
    counts, after = mixture.rows_before(length), mixture.rows_before(length + 1)
    pairs = [list(zip(entry, rows, strict=True)) for entry in (counts, after)]
    assert length >= start
    if rule == "first_exhausted":
        assert length == start or all(count <= most for count, most in pairs[0])
        assert any(count > most for count, most in pairs[1])
    else:
        assert all(count >= most for count, most in pairs[0])
        assert length == start or any(
            count < most for count, most in zip(mixture.rows_before(length - 1), rows, strict=True)
        )
    assert mixture.length(rows, "forever") == ENDLESS


@settings(max_examples=examples(40))
@given(
    weights=st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1, 2, 7]), min_size=1),
    data=st.data(),
    block=blocks,
    change=st.integers(0, 60),
    at=st.sampled_from(["first_exhausted", "all_exhausted", "forever"]),
    budget=st.none() | st.integers(1, 400),
)
def test_a_dropped_source_comes_as_often_as_it_may_and_the_others_keep_their_proportions(
    weights: dict[str, float], data: st.DataObject, block: int, change: int, at: StopWord, budget: int | None
) -> None:
    mixture = Mixture.of({"a": 1.5, "b": 1}, 0, 0, block).reweighted(change, weights)
    names, first = mixture.names, mixture.shares.start
    rows = {name: data.draw(st.integers(1, 60)) for name in names}
    caps = {name: data.draw(st.integers(1, 3)) for name in names if data.draw(st.booleans())}
    if at == "forever" and budget is None:
        budget = 300
    mixture, length = ending(mixture, tuple(rows[name] for name in mixture.names), Stop(at, drop=caps, samples=budget))
    assert length >= first
    source, turn = mixture.places(first, length)
    counts = dict(zip(names, mixture.shares.before, strict=True))
    since, run = Counter[str](), 0
    for place, (number, nth) in enumerate(zip(source.tolist(), turn.tolist(), strict=True), first):
        name = names[number]
        assert nth == counts[name]
        counts[name] += 1
        assert counts[name] <= caps.get(name, 1 << 30) * rows[name]
        since[name] += 1
        run += 1
        if place % 7 == 0:
            assert mixture.rows_before(place + 1) == tuple(counts.values())
        if counts[name] == caps.get(name, 0) * rows[name]:
            since, run = Counter(), 0
        going = [each for each in names if counts[each] < caps.get(each, 1 << 30) * rows[each]]
        if not block and run % 13 == 12 and set(since) <= set(going):  # however long the run is
            for each in going:
                share = Fraction(run * mixture.weights[each], sum(mixture.weights[name] for name in going))
                assert abs(since[each] - share) < 4
    going = [name for name in names if counts[name] < caps.get(name, 1 << 30) * rows[name]]
    if budget is not None and length == max(budget, first):
        return
    if at == "all_exhausted":
        assert all(counts[name] >= rows[name] for name in names)
    else:
        free = [name for name in names if name not in caps]
        assert not going if not free else any(counts[name] >= rows[name] for name in free)


def test_a_source_without_weight_does_not_end_the_epoch() -> None:
    mixture = Mixture.of({"a": 1, "b": 0}, 0, 0)
    assert mixture.length([5, 0], "first_exhausted") == mixture.length([5, 0], "all_exhausted") == 5


@pytest.mark.parametrize(
    "wrong",
    [{}, {"a": 0}, {"a": 1, "b": -1}, {"a": float("nan")}, {"a": float("inf")}, {"a": 1, "b": 1e-9}, {"a": "1"}],
)
def test_invalid_weights_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="weight"):
        Mixture.of(wrong, 0, 0)


@pytest.mark.parametrize("block", [-1, 65_537, True, 2.0])
def test_invalid_blocks_are_refused(block: int) -> None:
    with pytest.raises(ConfigError, match="block must be"):
        Mixture.of({"a": 1}, 0, 0, block)


def test_an_empty_source_and_an_earlier_change_are_refused() -> None:
    mixture = Mixture.of({"a": 1, "b": 1}, 0, 0)
    with pytest.raises(ConfigError, match="'b' has no row"):
        mixture.length([3, 0], "forever")
    with pytest.raises(ConfigError, match="stop must be one of"):
        mixture.length([3, 3], "never")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="after 9"):
        mixture.reweighted(10, {"a": 1}).reweighted(9, {"a": 1})
