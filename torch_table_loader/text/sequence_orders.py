"""The order of an epoch's sequences: windows over a row of documents, permuted and walked block by block.

For each block that was walked, one number is kept: the units before it. A position in a saved state has such a number
too, so that an epoch can continue in the middle without walking there.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.exclusion import Remaining
from torch_table_loader.planning.lists import Slices
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.text.slices import TokenRow, in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.keys import Key
    from torch_table_loader.planning.lists import ListLengths
    from torch_table_loader.planning.orders import Selects
    from torch_table_loader.text.packing import Packer
    from torch_table_loader.text.slices import Windows

    Ints: TypeAlias = NDArray[np.int64]

BLOCK_DOCUMENTS = 1 << 16
_KEPT_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Drawn:
    """The documents of a round of an epoch, in an order.

    Args:
        rows: those that are left, or are drawn of them.
        permutation: of all of these.
        count: so many of the order come.
        number: rounds before this one, each of which draws anew.
    """

    rows: Selects
    permutation: Permutation
    count: int
    number: int = 0

    @property
    def each_once(self) -> bool:
        """Whether each document that is left comes once."""
        return isinstance(self.rows, Remaining) and self.count == self.rows.num_rows

    def take(self, places: Ints) -> Ints:
        """Return the documents at some places of the order."""
        return self.rows.select(self.permutation.take(places), self.number)

    def blocks(self) -> Iterator[Ints]:
        """Yield all documents in order."""
        for first in range(0, self.count, BLOCK_DOCUMENTS):
            yield self.take(np.arange(first, min(first + BLOCK_DOCUMENTS, self.count), dtype=np.int64))


class Anchor(NamedTuple):
    """A place in an order of documents, and how many units come before it."""

    place: int
    units: int


class _Block(NamedTuple):
    """Consecutive documents of an order, the units before them, and theirs."""

    documents: Ints
    first: int
    row: TokenRow | Slices


class Walk:
    """A row of documents in an order that need not be known before: it is walked block by block.

    Args:
        count: number of documents.
        take: returns the documents at given places of the order.
        row: returns the units of given documents.
        total: number of units; None walks the whole order to count them, unless `ends` says it.
        ends: the units up to the end of each block, from an equal order.
        block: documents that are walked at a time.
    """

    def __init__(
        self,
        count: int,
        take: Callable[[Ints], Ints],
        row: Callable[[Ints], TokenRow | Slices],
        total: int | None,
        ends: Ints | None = None,
        block: int = BLOCK_DOCUMENTS,
    ) -> None:
        """Look at no document yet, if the total is known."""
        self._count, self._take, self._row, self._size = count, take, row, block
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        if total is None and ends is None:
            rows = (self._walked(number)[1] for number in range(-(-count // block)))
            ends = np.cumsum([found.total for found in rows], dtype=np.int64)
        self.ends = ends
        """The units up to the end of each block, if all were counted."""
        firsts = [0]
        if ends is not None:
            firsts += ends.tolist()
        self.total = firsts[-1]
        if total is not None:
            self.total = total
        self._firsts = firsts[: max(1, len(firsts) - 1)]
        """The units before each known block, ascending."""
        self._numbers = list(range(len(self._firsts)))

    def begin_at(self, anchor: Anchor) -> None:
        """Take over a place from a saved state.

        Raises:
            ResumeError: the order has no such place.
        """
        place, units = anchor
        if not (0 <= place <= self._count and 0 <= units <= self.total):
            raise ResumeError(
                f"the state stands at document {place} of the epoch's order, after {units} tokens or sequences, and "
                f"the epoch has {self._count} documents of {self.total}; pass state_dict() unchanged"
            )
        number = min(place, max(self._count - 1, 0)) // self._size
        documents, row = self._walked(number)
        first = units - row.before(place - number * self._size)
        if first < 0:
            raise ResumeError(
                f"the state says that {units} tokens or sequences come before document {place} of the epoch's order, "
                "and the documents before it have more; pass state_dict() unchanged"
            )
        self._keep(number, _Block(documents, first, row))

    def anchor(self, unit: int) -> Anchor | None:
        """Return the document of a unit, which may be one past the last; None if any place is found without a walk."""
        if self.ends is not None:
            return None
        if unit >= self.total:
            return Anchor(self._count, self.total)
        number, (_, first, row) = self._block_of(unit)
        at = int(row.cut(np.array([unit - first]), np.array([unit - first + 1])).document[0])
        return Anchor(number * self._size + at, first + row.before(at))

    def cut(self, starts: Ints, stops: Ints) -> Slices:
        """Return the parts of documents in stretches of the row.

        Args:
            starts: int64[n] the first unit of each stretch, in any order.
            stops: int64[n] the unit after its last; a stretch that begins later does not end sooner.
        """
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], stops[order]
        parts: list[Slices] = []
        whose: list[Ints] = []
        at = 0
        while at < len(order):
            _, (documents, first, row) = self._block_of(int(starts[at]))
            end = first + row.total
            last = int(np.searchsorted(starts, end, side="left"))
            until = np.minimum(stops[at:last], end)
            found = row.cut(starts[at:last] - first, until - first)
            parts.append(found._replace(document=documents[found.document]))
            whose.append(order[at:last])
            starts[at:last] = until
            at += int(np.count_nonzero(stops[at:last] <= end))
        return in_order(parts, whose, len(order))

    def _block_of(self, unit: int) -> tuple[int, _Block]:
        """Return the block with a unit, walking on from the nearest known block."""
        at = bisect_right(self._firsts, unit) - 1
        number = self._numbers[at]
        block = self._block(number, self._firsts[at])
        while unit >= (end := block.first + block.row.total):
            number += 1
            if number * self._size >= self._count:
                raise ResumeError(
                    f"the epoch's documents have {end} tokens or sequences after the place of the state, and "
                    f"{self.total} were counted; pass state_dict() unchanged"
                )
            block = self._block(number, end)
        return number, block

    def _block(self, number: int, first: int) -> _Block:
        if (known := self._blocks.get(number)) is not None:
            self._blocks.move_to_end(number)
            return known
        documents, row = self._walked(number)
        return self._keep(number, _Block(documents, first, row))

    def _walked(self, number: int) -> tuple[Ints, TokenRow | Slices]:
        start = number * self._size
        documents = self._take(np.arange(start, min(start + self._size, self._count), dtype=np.int64))
        return documents, self._row(documents)

    def _keep(self, number: int, block: _Block) -> _Block:
        at = bisect_right(self._numbers, number)
        if self._numbers[at - 1] != number:
            self._numbers.insert(at, number)
            self._firsts.insert(at, block.first)
        self._blocks[number] = block
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return block


class SequenceOrder:
    """The sequences of an epoch, by their place in its order. Threads that call it take turns.

    Args:
        windows: the sequences in the order of the row.
        row: has the documents.
        permutation: of the windows; None leaves them in the order of the row.
    """

    def __init__(self, windows: Windows, row: Walk | ListLengths, permutation: Permutation | None = None) -> None:
        """Look at no document yet."""
        self.windows = windows
        self._row = row
        self._permutation = permutation
        self.count = windows.count
        """Number of sequences."""

    @classmethod
    def of_documents(
        cls,
        packer: Packer,
        lengths: ListLengths,
        drawn: Drawn,
        *,
        units: int | None,
        ends: Ints | None = None,
        origin: int = 0,
    ) -> SequenceOrder:
        """Order documents, permuted and packed.

        Args:
            units: those of all documents, as the packer counts them.
            ends: see `Walk`.
            origin: units that no sequence has, since they came before.
        """
        known = units is not None and drawn.each_once
        walk = Walk(
            drawn.count,
            drawn.take,
            lambda documents: packer.row(lengths.take(documents)),
            cast("int", units) - packer.row(lengths.take(drawn.rows.gone)).total if known else None,
            ends,
            packer.block_docs or BLOCK_DOCUMENTS,
        )
        return cls(packer.windows(walk.total, origin), walk)

    @classmethod
    def of_windows(cls, packer: Packer, lengths: ListLengths, key: Key | None = None) -> SequenceOrder:
        """Order windows of the table's tokens, permuted if there is a key."""
        windows = packer.windows(lengths.total)
        return cls(windows, lengths, None if key is None else Permutation(windows.count, key))

    @property
    def ends(self) -> Ints | None:
        """The sequences up to the end of each block, if all documents were packed to count them."""
        if isinstance(self._row, Walk):
            return self._row.ends
        return None

    def slices(self, places: Ints) -> Slices:
        """Return the parts of documents in the sequences at given places."""
        numbers = places if self._permutation is None else self._permutation.take(places)
        return self._row.cut(*self.windows.spans(numbers))

    def anchor(self, place: int) -> Anchor | None:
        """Return what lets another process begin at a place without a walk; None if no walk is needed."""
        if isinstance(self._row, Walk):
            return self._row.anchor(self.windows.before(place))
        return None

    def begin_at(self, anchor: Anchor) -> None:
        """Take over what `anchor` returned in another process."""
        cast("Walk", self._row).begin_at(anchor)


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
    if costs[dealt].sum(axis=1).max() < costs[in_turn].sum(axis=1).max():
        return dealt
    return in_turn
