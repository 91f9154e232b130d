"""The orders of sequences, compared with explicit lists, and an epoch too long to walk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from torch_table_loader.errors import ResumeError
from torch_table_loader.extend import Permutation, Remaining, derive_key
from torch_table_loader.planning.lists import ListLengths, Slices
from torch_table_loader.text.pack import Pack
from torch_table_loader.text.packing import packer_of
from torch_table_loader.text.sequence_orders import Anchor, Drawn, SequenceOrder, Walk
from torch_table_loader.text.slices import TokenRow, Windows

Ints = NDArray[np.int64]
Place = tuple[int, int]


def tokens_of(slices: Slices) -> list[list[Place]]:
    """Return the tokens of each sequence, as document and place."""
    found = []
    for first, stop in zip(slices.offsets, slices.offsets[1:], strict=False):
        parts = range(int(first), int(stop))
        found.append(
            [
                (int(slices.document[part]), int(slices.start[part]) + at)
                for part in parts
                for at in range(slices.length[part])
            ]
        )
    return found


LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@given(lengths=LENGTHS, data=st.data())
def test_cutting_finds_every_token_of_every_stretch(lengths: list[int], data: st.DataObject) -> None:
    row = [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    edge = st.integers(0, len(row))
    stretches = data.draw(st.lists(st.tuples(edge, edge).map(sorted), max_size=8))
    starts = np.array([start for start, _ in stretches], dtype=np.int64)
    stops = np.array([stop for _, stop in stretches], dtype=np.int64)
    found = TokenRow.of(np.array(lengths)).cut(starts, stops)
    assert tokens_of(found) == [row[start:stop] for start, stop in stretches]
    assert (found.length > 0).all()


@given(total=st.integers(0, 60), seq_len=st.integers(1, 20), stride=st.integers(1, 20))
def test_windows_cover_everything_and_each_adds_a_token(total: int, seq_len: int, stride: int) -> None:
    stride = min(stride, seq_len)
    windows = Windows(total, seq_len, stride)
    starts, stops = windows.spans(np.arange(windows.count))
    assert starts.tolist() == list(range(0, windows.count * stride, stride))
    assert (np.diff(stops) > 0).all()
    assert stops[-1:].tolist() == [total] * (total > 0)


@given(
    lengths=LENGTHS,
    gone=st.sets(st.integers(0, 59), max_size=20),
    seq_len=st.integers(1, 30),
    block=st.integers(1, 9),
    data=st.data(),
)
def test_a_walk_finds_any_sequence_from_any_anchor(
    lengths: list[int], gone: set[int], seq_len: int, block: int, data: st.DataObject
) -> None:
    remaining = Remaining(len(lengths), np.array(sorted(each for each in gone if each < len(lengths)), dtype=np.int64))
    permutation = Permutation(remaining.num_rows, derive_key(1, 2, "rows"))
    order = remaining.select(permutation.slice(0, remaining.num_rows)).tolist()
    row = [(number, at) for number in order for at in range(lengths[number])]

    def walk() -> Walk:
        each = np.array(lengths, dtype=np.int64)
        return Walk(
            len(order),
            lambda places: remaining.select(permutation.take(places)),
            lambda documents: TokenRow.of(each[documents]),
            len(row),
            block=block,
        )

    count = -(-len(row) // seq_len)
    numbers = np.array(
        data.draw(st.lists(st.integers(0, max(0, count - 1)), max_size=6 if count else 0)), dtype=np.int64
    )
    wanted = [row[number * seq_len : (number + 1) * seq_len] for number in numbers.tolist()]
    starts, stops = numbers * seq_len, np.minimum((numbers + 1) * seq_len, len(row))
    first = walk()
    assert tokens_of(first.cut(starts, stops)) == wanted
    other = walk()
    anchor = first.anchor(data.draw(st.integers(0, len(row))))
    assert anchor is not None
    place, tokens = anchor
    assert sum(lengths[number] for number in order[:place]) == tokens
    other.begin_at(anchor)
    assert tokens_of(other.cut(starts, stops)) == wanted, "before the anchor as behind it"


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
@given(lengths=LENGTHS, seq_len=st.integers(1, 30), data=st.data())
def test_sequences_contain_every_token_once_for_any_block_size(
    strategy: str, lengths: list[int], seq_len: int, data: st.DataObject
) -> None:
    pack = Pack(seq_len=seq_len, strategy=strategy, block_docs=7)  # type: ignore[arg-type]
    known = ListLengths.of(np.array(lengths))
    remaining, key = Remaining(len(lengths), np.array([0])), derive_key(3, 0, "rows")
    packer, left = packer_of(pack), remaining.num_rows
    drawn = Drawn(remaining, Permutation(left, key), left)
    order = SequenceOrder.of_documents(packer, known, drawn, units=packer.units(known))
    whole = tokens_of(order.slices(np.arange(order.count)))
    assert sorted(place for sequence in whole for place in sequence) == [
        (number, at) for number, length in enumerate(lengths) if number for at in range(length)
    ]
    assert all(1 <= len(sequence) <= seq_len for sequence in whole)
    if order.count:
        places = data.draw(st.lists(st.integers(0, order.count - 1), max_size=9))
        assert tokens_of(order.slices(np.array(places, dtype=np.int64))) == [whole[place] for place in places]


@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit", "windows"])
@given(lengths=LENGTHS, seq_len=st.integers(1, 30))
def test_an_order_has_what_the_packer_makes_of_the_documents_in_its_order(
    strategy: str, lengths: list[int], seq_len: int
) -> None:
    """A stream gives a packer its documents as they come; items give it the documents of an order."""
    packer = packer_of(Pack(seq_len=seq_len, strategy=strategy))  # type: ignore[arg-type]
    known, key = ListLengths.of(np.array(lengths)), derive_key(3, 0, "rows")
    documents = np.arange(len(lengths))
    if strategy == "windows":
        order = SequenceOrder.of_windows(packer, known)
    else:
        remaining = Remaining(len(lengths), np.array([], dtype=np.int64))
        drawn = Drawn(remaining, Permutation(len(lengths), key), len(lengths))
        order = SequenceOrder.of_documents(packer, known, drawn, units=packer.units(known))
        documents = Permutation(len(lengths), key).take(documents)
    row = packer.row(np.array(lengths)[documents])
    wanted = row.cut(*packer.windows(row.total).spans(np.arange(order.count)))
    assert tokens_of(order.slices(np.arange(order.count))) == tokens_of(
        wanted._replace(document=documents[wanted.document])
    )


class Counted:
    """Made-up lengths of documents, which count how many are requested."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, documents: Ints) -> TokenRow:
        self.asked += len(documents)
        return TokenRow.of(200 + documents * 7919 % 1200)


def test_an_epoch_of_a_hundred_million_documents_begins_anywhere_without_a_walk() -> None:
    documents, seq_len = 10**8, 4096
    permutation = Permutation(documents, derive_key(0, 0, "rows"))
    rounds, rest = divmod(documents, 1200)
    total = 200 * documents + rounds * sum(range(1200)) + sum(each * 7919 % 1200 for each in range(rest))

    lengths = Counted()
    order = Walk(documents, permutation.take, lengths, total)
    order.cut(np.array([0]), np.array([seq_len]))
    assert lengths.asked == 65_536

    lengths = Counted()
    order = Walk(documents, permutation.take, lengths, total)
    anchor = Anchor(50_000_000, 40_000_000_000)  # as a state says; what comes before it is not looked at
    order.begin_at(anchor)
    found = order.cut(np.array([anchor.units]), np.array([anchor.units + seq_len]))
    assert found.document[0] == permutation.take(np.array([anchor.place]))[0]
    assert found.start[0] == 0
    later = order.anchor(anchor.units + seq_len)
    assert later is not None
    assert later.place >= anchor.place
    assert lengths.asked <= 2 * 65_536


def test_an_anchor_outside_the_epoch_is_refused() -> None:
    def order() -> Walk:
        take = Permutation(10, derive_key(0, 0, "rows")).take
        return Walk(10, take, lambda each: TokenRow.of(np.full(len(each), 3)), 30, block=4)

    with pytest.raises(ResumeError, match="document 11"):
        order().begin_at(Anchor(11, 30))
    with pytest.raises(ResumeError, match="have more"):
        order().begin_at(Anchor(3, 8))
    late = order()
    late.begin_at(Anchor(8, 12))
    with pytest.raises(ResumeError, match="30 were counted"):
        late.cut(np.array([27]), np.array([30]))
