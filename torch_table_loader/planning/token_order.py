"""The tokens of documents in an order of the documents that need not be known before: it is walked block by block.

For each block that was walked, one number is kept: the tokens before it. A position in a saved state holds such a
number too, so that an epoch can continue in the middle without walking there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.token_windows import Slices, cut, in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

BLOCK_DOCUMENTS = 1 << 16
_KEPT_BLOCKS = 4


class DocumentOrder(Protocol):
    """The document at each place of the order."""

    def take(self, places: Ints) -> Ints:
        """Return the document at each place."""
        ...


class Anchor(NamedTuple):
    """A place in the order, and how many tokens come before it."""

    place: int
    tokens: int


class _Block(NamedTuple):
    """Consecutive documents of the order, and where their tokens begin in it."""

    documents: Ints
    offsets: Ints


class TokenOrder:
    """Finds tokens by their place in an order of documents. Threads that call it take turns.

    Args:
        lengths: returns the tokens of given documents.
        block: documents that are walked at a time.
    """

    def __init__(
        self,
        documents: int,
        order: DocumentOrder,
        lengths: Callable[[Ints], Ints],
        total: int,
        block: int = BLOCK_DOCUMENTS,
    ) -> None:
        self.total = total
        self._documents, self._order, self._lengths, self._size = documents, order, lengths, block
        self._numbers, self._firsts = [0], [0]
        """Known blocks: those whose number of earlier tokens is known, ascending."""
        self._blocks: OrderedDict[int, _Block] = OrderedDict()

    def begin_at(self, anchor: Anchor) -> None:
        """Take over a place from a saved state.

        Raises:
            ResumeError: the order has no such place.
        """
        place, tokens = anchor
        if not (0 <= place <= self._documents and 0 <= tokens <= self.total):
            raise ResumeError(
                f"the state stands at document {place} of the epoch's order, behind {tokens} tokens, and the epoch has "
                f"{self._documents} documents of {self.total} tokens; pass state_dict() unchanged"
            )
        number = min(place, max(self._documents - 1, 0)) // self._size
        documents, lengths = self._walked(number)
        first = tokens - int(lengths[: place - number * self._size].sum())
        if first < 0:
            raise ResumeError(
                f"the state says that {tokens} tokens come before document {place} of the epoch's order, and the "
                "documents before it have more; pass state_dict() unchanged"
            )
        self._keep(number, documents, lengths, first)

    def anchor(self, token: int) -> Anchor:
        """Return the last known place at or before a token; the token may be one past the last."""
        if token >= self.total:
            return Anchor(self._documents, self.total)
        number, block = self._block_of(token)
        at = int(np.searchsorted(block.offsets, token, side="right")) - 1
        return Anchor(number * self._size + at, int(block.offsets[at]))

    def slices(self, starts: Ints, stops: Ints) -> Slices:
        """Return the documents in stretches of the order.

        Args:
            starts: int64[n] the first token of each stretch, in any order.
            stops: int64[n] the token after its last; a stretch that begins later does not end sooner.
        """
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], stops[order]
        parts: list[Slices] = []
        whose: list[Ints] = []
        at = 0
        while at < len(order):
            _, block = self._block_of(int(starts[at]))
            end = int(block.offsets[-1])
            last = int(np.searchsorted(starts, end, side="left"))
            until = np.minimum(stops[at:last], end)
            found = cut(block.offsets, starts[at:last], until)
            parts.append(found._replace(document=block.documents[found.document]))
            whose.append(order[at:last])
            starts[at:last] = until
            at += int(np.count_nonzero(stops[at:last] <= end))
        return in_order(parts, whose, len(order))

    def _block_of(self, token: int) -> tuple[int, _Block]:
        """Return the block with a token, walking on from the nearest known block."""
        at = bisect_right(self._firsts, token) - 1
        number = self._numbers[at]
        block = self._block(number, self._firsts[at])
        while token >= block.offsets[-1]:
            number += 1
            if number * self._size >= self._documents:
                raise ResumeError(
                    f"the epoch's documents have {block.offsets[-1]} tokens behind the place of the state, and "
                    f"{self.total} were counted; pass state_dict() unchanged"
                )
            block = self._block(number, int(block.offsets[-1]))
        return number, block

    def _block(self, number: int, first: int) -> _Block:
        if (known := self._blocks.get(number)) is not None:
            self._blocks.move_to_end(number)
            return known
        return self._keep(number, *self._walked(number), first)

    def _walked(self, number: int) -> tuple[Ints, Ints]:
        start = number * self._size
        places = np.arange(start, min(start + self._size, self._documents), dtype=np.int64)
        documents = self._order.take(places)
        return documents, self._lengths(documents)

    def _keep(self, number: int, documents: Ints, lengths: Ints, first: int) -> _Block:
        offsets = np.empty(len(documents) + 1, dtype=np.int64)
        offsets[0] = first
        np.cumsum(lengths, out=offsets[1:])
        offsets[1:] += first
        at = bisect_right(self._numbers, number)
        if self._numbers[at - 1] != number:
            self._numbers.insert(at, number)
            self._firsts.insert(at, first)
        block = self._blocks[number] = _Block(documents, offsets)
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return block
