"""Shares of tokens go on where sequences change their length: what a source lacked or had too much is made up."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from torch_table_loader.extend import Mixture, Topology
from torch_table_loader.mixtures.dealing import deal_of
from torch_table_loader.mixtures.lacks import MOST_TURNS, Dues

weights = st.lists(st.sampled_from([1, 2, 3, 5, 20, 100]), min_size=2, max_size=7).map(
    lambda found: tuple(each // gcd(*found) for each in found)
)
widths = st.sampled_from([1, 3, 7, 16, 64])
stages = st.lists(st.tuples(widths, st.integers(1, 60)), min_size=2, max_size=6)
NAMES = tuple("abcdefg")


class Reference:
    """Counts tokens, and knows nothing else of shares."""

    def __init__(self, weights: tuple[int, ...]) -> None:
        self.shares = [Fraction(weight, sum(weights)) for weight in weights]
        self.had = [0] * len(weights)

    def take(self, source: int, width: int) -> None:
        self.had[source] += width

    @property
    def lacks(self) -> list[Fraction]:
        """Tokens that each source lacks of its share of all that came."""
        return [share * sum(self.had) - had for share, had in zip(self.shares, self.had, strict=True)]


@settings(max_examples=examples(150), deadline=None)
@given(weights=weights, stages=stages, seed=st.integers(0, 9), grows=st.booleans())
def test_every_prefix_has_its_shares_of_tokens(
    weights: tuple[int, ...], stages: list[tuple[int, int]], seed: int, grows: bool
) -> None:
    """The bound is one sequence of the present length, but for what longer ones left, and what they pushed back."""
    names = NAMES[: len(weights)]
    mixture, reference = Mixture.of(dict(zip(names, weights, strict=True)), seed, 0, block=0), Reference(weights)
    place, was = 0, stages[0][0]
    for width, number in sorted(stages) if grows else stages:
        mixture = mixture.recounted(place, dict.fromkeys(names, 0), {}, (was, width))
        began = [lack / width for lack in reference.lacks]
        ahead = sum(max(Fraction(0), -lack) for lack in began)
        for source in mixture.places(place, place + number).source.tolist():
            reference.take(source, width)
            for lack, first, share in zip(reference.lacks, began, reference.shares, strict=True):
                assert min(Fraction(-1), first) < lack / width < max(Fraction(1), first) + ahead * share
                assert not grows or abs(lack) <= width
        place, was = place + number, width


@settings(max_examples=examples(60), deadline=None)
@given(weights=weights, stages=stages, block=st.sampled_from([0, 1, 16, 256]))
def test_shares_are_exact_again_after_a_block(
    weights: tuple[int, ...], stages: list[tuple[int, int]], block: int
) -> None:
    names = NAMES[: len(weights)]
    mixture, reference = Mixture.of(dict(zip(names, weights, strict=True)), 0, 0, block), Reference(weights)
    place, was = 0, stages[0][0]
    for width, number in stages:
        mixture = mixture.recounted(place, dict.fromkeys(names, 0), {}, (was, width))
        for count in (number, mixture.block_rows - number % mixture.block_rows):
            for source in mixture.places(place, place + count).source.tolist():
                reference.take(source, width)
            place += count
        assert all(abs(lack) < width for lack in reference.lacks)
        for source in mixture.places(place, place + number).source.tolist():
            reference.take(source, width)
        place, was = place + number, width


@settings(max_examples=examples(60), deadline=None)
@given(weights=weights, stages=stages, worlds=st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=6, max_size=6))
def test_deals_go_on_with_their_shares(
    weights: tuple[int, ...], stages: list[tuple[int, int]], worlds: list[tuple[int, int, int]]
) -> None:
    """After each block that a stage completes, all tokens so far have their shares, whatever the worlds before."""
    names, last, reference = NAMES[: len(weights)], None, Reference(weights)
    by_name = dict(zip(names, weights, strict=True))
    for number, ((width, steps), world) in enumerate(zip(stages, worlds, strict=False)):
        deal = deal_of(by_name, Topology(*world), (0, 0, number), width=width).dropping({}, last)
        places = steps * deal.step_rows
        for place, source in enumerate(deal.sources(np.arange(places)).tolist(), 1):
            reference.take(source, width)
            if place % deal.block_rows == 0:
                assert all(abs(lack) < width for lack in reference.lacks)
        last = (deal, places)


def test_what_takes_too_long_to_make_up_is_forgotten() -> None:
    dues = Dues((1, 10**6), (-(10**12), 10**12))
    assert dues.turns_to_make_up == MOST_TURNS
    assert dues.made_up_in(MOST_TURNS) == (-MOST_TURNS, MOST_TURNS)
    assert Dues((1, 1, 2), (-50, 30, 20), 2).made_up_in(10) == (-20, 0, 20)


@settings(max_examples=examples(60), deadline=None)
@given(
    weights=weights,
    width=widths,
    turns=st.lists(st.integers(0, 50) | st.integers(1 << 55, 1 << 60), min_size=1, max_size=3),
    lacks=st.lists(st.integers(-(1 << 40), 1 << 40), min_size=7, max_size=7),
)
def test_all_counts_of_shares_are_of_what_is_due(
    weights: tuple[int, ...], width: int, turns: list[int], lacks: list[int]
) -> None:
    dues = Dues(weights, tuple(lacks[: len(weights)]), width)
    due = [[turn * weight * width + lack for weight, lack in zip(weights, lacks, strict=False)] for turn in turns]
    assert dues.at(np.array(turns)).tolist() == due
    ends = [
        [sum(own[:number]) // dues.whole * (turn > 0) for number in range(len(own) + 1)]
        for turn, own in zip(turns, due, strict=True)
    ]
    assert dues.edges(np.array(turns)).tolist() == ends
    for source, turn in enumerate(turns[: len(weights)]):
        least = dues.turns_until(source, turn)
        assert not least or dues.at(np.array([least]))[0][source] <= turn * dues.whole
        assert dues.at(np.array([least + 1]))[0][source] > turn * dues.whole
