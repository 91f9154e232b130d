"""The orders of an epoch's sequences, one class for each way in which documents become sequences."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torch_table_loader.planning.packing import best_fit, split_long
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.token_order import Anchor, TokenOrder
from torch_table_loader.planning.token_windows import Slices, Windows, in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.pack import Pack
    from torch_table_loader.planning.document_lengths import DocumentLengths
    from torch_table_loader.planning.exclusion import Remaining
    from torch_table_loader.planning.keys import Key

    Ints: TypeAlias = NDArray[np.int64]

_KEPT_BLOCKS = 8


class SequenceOrder(ABC):
    """The sequences of an epoch, by their place in its order. Threads that call it take turns."""

    count: int
    """Number of sequences."""

    @abstractmethod
    def slices(self, places: Ints) -> Slices:
        """Return the parts of documents in the sequences at given places."""

    def anchor(self, place: int) -> Anchor | None:  # noqa: ARG002 most orders find any place at once
        """Return what lets another process begin at a place without a walk; None if no walk is needed."""
        return None

    def begin_at(self, anchor: Anchor) -> None:  # noqa: B027 most orders need none
        """Take over what `anchor` returned in another process."""


class WindowOrder(SequenceOrder):
    """Windows of the table's tokens, permuted."""

    def __init__(self, pack: Pack, lengths: DocumentLengths, key: Key) -> None:
        self._windows = Windows(lengths.total, pack.seq_len, pack.stride or pack.seq_len)
        self._lengths = lengths
        self.count = self._windows.count
        self._permutation = Permutation(self.count, key)

    def slices(self, places: Ints) -> Slices:
        """Return the parts of documents in the windows at given places."""
        return self._lengths.cut(*self._windows.spans(self._permutation.take(places)))


class _Documents:
    """The remaining documents, permuted, and their lengths."""

    def __init__(self, lengths: DocumentLengths, remaining: Remaining, key: Key) -> None:
        self.lengths, self._remaining = lengths.take, remaining
        self._permutation = Permutation(remaining.num_rows, key)
        self.count = remaining.num_rows

    def take(self, places: Ints) -> Ints:
        """Return the document at each place."""
        return self._remaining.select(self._permutation.take(places))


class ConcatOrder(SequenceOrder):
    """Documents, permuted and concatenated after `origin` tokens, and cut where a sequence is full."""

    def __init__(self, pack: Pack, lengths: DocumentLengths, remaining: Remaining, key: Key, origin: int = 0) -> None:
        documents = _Documents(lengths, remaining, key)
        total = lengths.total - int(documents.lengths(remaining.gone).sum())
        self._seq_len, self._origin = pack.seq_len, origin
        self._order = TokenOrder(documents.count, documents, documents.lengths, total)
        self.count = -(-(total - origin) // pack.seq_len)

    def tokens_before(self, place: int) -> int:
        """Return the tokens of the epoch before a sequence; the place may be one past the last."""
        return min(self._origin + place * self._seq_len, self._order.total)

    def slices(self, places: Ints) -> Slices:
        """Return the parts of documents in the sequences at given places."""
        starts = self._origin + places * self._seq_len
        return self._order.slices(starts, np.minimum(starts + self._seq_len, self._order.total))

    def anchor(self, place: int) -> Anchor:
        """Return the document at which a sequence begins, and the tokens before that document."""
        return self._order.anchor(self._origin + place * self._seq_len)

    def begin_at(self, anchor: Anchor) -> None:
        """Take over a document's place and the number of tokens before it."""
        self._order.begin_at(anchor)


class PadOrder(SequenceOrder):
    """Documents, permuted; each document, or each of its `pieces` if it is too long, is a sequence."""

    def __init__(self, pack: Pack, lengths: DocumentLengths, remaining: Remaining, key: Key, pieces: int) -> None:
        self._pack = pack
        self._documents = documents = _Documents(lengths, remaining, key)
        self.count = pieces - int(pieces_of(pack, documents.lengths(remaining.gone)).sum())
        self._order = TokenOrder(documents.count, documents, self._pieces, self.count)

    def slices(self, places: Ints) -> Slices:
        """Return the document, or the piece of one, that is the sequence at each place."""
        found = self._order.slices(places, places + 1)
        start = found.start * self._pack.seq_len
        length = np.minimum(self._documents.lengths(found.document) - start, self._pack.seq_len)
        return found._replace(start=start, length=length)

    def anchor(self, place: int) -> Anchor:
        """Return the document of a sequence, and the number of sequences before that document."""
        return self._order.anchor(place)

    def begin_at(self, anchor: Anchor) -> None:
        """Take over a document's place and the number of sequences before it."""
        self._order.begin_at(anchor)

    def _pieces(self, documents: Ints) -> Ints:
        return pieces_of(self._pack, self._documents.lengths(documents))


class BestFitOrder(SequenceOrder):
    """Documents, permuted and packed block by block; counting the sequences requires packing all documents.

    The ends are taken from an equal order, if given, so that nothing is counted again.
    """

    def __init__(
        self, pack: Pack, lengths: DocumentLengths, remaining: Remaining, key: Key, ends: Ints | None = None
    ) -> None:
        self._pack = pack
        self._documents = _Documents(lengths, remaining, key)
        self._blocks: OrderedDict[int, Slices] = OrderedDict()
        blocks = -(-remaining.num_rows // pack.block_docs)
        if ends is None:
            ends = np.cumsum([len(self._packed(block).offsets) - 1 for block in range(blocks)], dtype=np.int64)
        self.ends = ends
        """The sequences up to the end of each block."""
        self.count = int(ends[-1]) if len(ends) else 0

    def slices(self, places: Ints) -> Slices:
        """Return the documents of the sequences at given places."""
        blocks = np.searchsorted(self.ends, places, side="right")
        parts: list[Slices] = []
        whose: list[Ints] = []
        for number in np.unique(blocks).tolist():
            mine = np.flatnonzero(blocks == number)
            block = self._block(number)
            inside = places[mine] - (int(self.ends[number - 1]) if number else 0)
            firsts, stops = block.offsets[inside], block.offsets[inside + 1]
            counts = stops - firsts
            ends = np.cumsum(counts)
            chosen = np.arange(int(ends[-1])) - np.repeat(ends - counts - firsts, counts)
            parts.append(
                Slices(block.document[chosen], block.start[chosen], block.length[chosen], np.concatenate(([0], ends)))
            )
            whose.append(mine)
        return in_order(parts, whose, len(places))

    def _block(self, number: int) -> Slices:
        if (known := self._blocks.get(number)) is not None:
            self._blocks.move_to_end(number)
            return known
        found = self._blocks[number] = self._packed(number)
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return found

    def _packed(self, number: int) -> Slices:
        pack, size = self._pack, self._pack.block_docs
        stop = min((number + 1) * size, self._documents.count)
        documents = self._documents.take(np.arange(number * size, stop, dtype=np.int64))
        pieces = split_long(self._documents.lengths(documents), pack.seq_len, pack.long_docs)
        packed = best_fit(pieces.length, pack.seq_len, pack.max_docs_per_row)
        order = packed.order
        return Slices(documents[pieces.document[order]], pieces.start[order], pieces.length[order], packed.offsets)


def pieces_of(pack: Pack, lengths: Ints) -> Ints:
    """Return how many sequences each document becomes under the strategy "pad".

    >>> from torch_table_loader.pack import Pack
    >>> pieces_of(Pack(seq_len=4, strategy="pad", long_docs="drop"), np.array([0, 4, 5])).tolist()
    [0, 1, 0]
    """
    if pack.long_docs == "split":
        return -(-lengths // pack.seq_len)
    if pack.long_docs == "drop":
        return ((lengths > 0) & (lengths <= pack.seq_len)).astype(np.int64)
    return (lengths > 0).astype(np.int64)


def attention_costs(lengths: Ints, offsets: Ints) -> Ints:
    """Return the cost of attention within documents for each sequence: the sum of their squared lengths.

    Args:
        lengths: int64[n] tokens of each part of a document.
        offsets: int64[sequences + 1]; sequence s has the parts ``offsets[s]:offsets[s + 1]``.

    >>> attention_costs(np.array([2, 3, 5]), np.array([0, 2, 3])).tolist()
    [13, 25]
    """
    sums = np.concatenate(([0], np.cumsum(lengths * lengths)))
    found: Ints = sums[offsets[1:]] - sums[offsets[:-1]]
    return found


def balanced(costs: Ints, ranks: int) -> Ints:
    """Deal the sequences of a global batch to ranks, the same number to each.

    The most expensive sequence comes first, and goes to the rank with the least work among those with room. If that
    leaves the busiest rank with no less than taking every R-th sequence would, each rank takes every R-th sequence.

    Args:
        costs: int64[n] cost of each sequence; n is a multiple of `ranks`.

    Returns:
        int64[ranks, n / ranks] the sequences of each rank, ascending.

    >>> balanced(np.array([9, 1, 9, 1]), 2).tolist()
    [[0, 1], [2, 3]]
    """
    size = len(costs) // ranks
    in_turn = np.arange(len(costs), dtype=np.int64).reshape(size, ranks).T
    rank_of = np.empty(len(costs), dtype=np.int64)
    loads = [(0, rank) for rank in range(ranks)]
    room = [size] * ranks
    order = np.argsort(-costs, kind="stable")
    for sequence, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        load, rank = loads[0]
        rank_of[sequence] = rank
        room[rank] -= 1
        if room[rank]:
            heapq.heapreplace(loads, (load + cost, rank))
        else:
            heapq.heappop(loads)
    dealt: Ints = np.argsort(rank_of, kind="stable").reshape(ranks, size)
    return dealt if costs[dealt].sum(axis=1).max() < costs[in_turn].sum(axis=1).max() else in_turn
