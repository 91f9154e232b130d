"""How documents become sequences: a packer turns the lengths of documents into slices, for streams and for items.

The sequences of documents are windows over a row of units. Where documents are cut anywhere, the units are tokens;
where documents stay whole, they are sequences, packed block by block. Best fit decreasing is a pure function of a
block's lengths: the longest document comes first, and goes into the fullest pack in which it fits; if it fits in none,
it opens one. Free space is looked up in a two-level bit set, so that a document costs under a microsecond whatever the
lengths. Packs are ordered by their longest documents: in a block of shuffled documents that is a random order of packs,
in which packs of few long documents and packs of many short ones are mixed.

Nothing here may change the result: the packs are part of the saved state's format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from typing_extensions import override

from torch_table_loader.errors import TableError
from torch_table_loader.planning.keys import keyed_hashes, u64
from torch_table_loader.planning.lists import Slices
from torch_table_loader.text.pack import IGNORED
from torch_table_loader.text.slices import TokenRow, Windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.keys import Key
    from torch_table_loader.planning.lists import ListLengths
    from torch_table_loader.text.pack import Pack

    Ints: TypeAlias = NDArray[np.int64]

_RADIX_LENGTHS = 1 << 16
"""numpy sorts 16-bit integers by counting."""

_BLURS = (4, 6, 8, 9, 63)
"""Exponents of 2: noise changes lengths by up to a 16th, a 64th, a 256th, a 512th, or nothing."""

_BLUR_BITS = 20


@dataclass(frozen=True, slots=True)
class Packer(ABC):
    """What a strategy makes of documents."""

    pack: Pack

    @property
    def block_docs(self) -> int | None:
        """How many documents are packed together, whose order decides how many sequences come; None: none are."""
        return None

    @abstractmethod
    def row(self, lengths: Ints) -> TokenRow | Slices:
        """Return the units of a block of documents of some lengths."""

    def windows(self, total: int, origin: int = 0) -> Windows:
        """Return the sequences over a row of so many units, from one of them on."""
        return Windows(total, 1, 1, origin)

    def units(self, lengths: ListLengths) -> int | None:
        """Return the units of all documents; None if their order decides that."""
        return sum(self.row(some).total for _, some in lengths.batches())

    def goes_on(self, slices: Slices, wholes: Ints) -> NDArray[np.bool_]:
        """Return of each slice of a document of so many tokens whether the token after it comes too, as a label."""
        return slices.start + slices.length < wholes

    def behind(self, goes_on: NDArray[np.bool_], stops: Ints, values: Callable[[int, Ints], NDArray[Any]]) -> Ints:
        """Return the token after each slice as a label: −100 where none comes, or the loss leaves it out.

        Args:
            goes_on: bool[n] whether one comes.
            stops: int64[n] its place.
            values: returns values of one of the columns that are cut, at some places.
        """
        found = np.full(len(goes_on), IGNORED, dtype=np.int64)
        cut = np.flatnonzero(goes_on)
        places, pack = stops[cut], self.pack
        found[cut] = values(0, places)
        if pack.loss_mask is not None:
            found[cut[values(pack.cut_columns.index(pack.loss_mask), places) == 0]] = IGNORED
        return found

    def dropped(self, lengths: Ints) -> int:  # noqa: ARG002 most drop none
        """Return how many documents are left out because they are too long."""
        return 0


class Joined(Packer):
    """Documents follow one another, and are cut where a sequence ends: "concat" and "windows"."""

    @override
    def row(self, lengths: Ints) -> TokenRow:
        return TokenRow.of(lengths)

    @override
    def windows(self, total: int, origin: int = 0) -> Windows:
        return Windows(total, self.pack.width, self.pack.stride or self.pack.width, origin)

    @override
    def units(self, lengths: ListLengths) -> int | None:
        return lengths.total


class Alone(Packer):
    """Each document is a sequence, or each piece of one that is too long: "pad"."""

    @override
    def row(self, lengths: Ints) -> Slices:
        """Return the sequences of documents. An empty document has none.

        A document of more than `seq_len` tokens gives sequences of `seq_len` and one of the rest, or its first
        `seq_len` tokens, or nothing, as `long_docs` says.

        Raises:
            TableError: a document is too long, and `long_docs` refuses that.

        >>> from torch_table_loader.text.pack import Pack
        >>> found = Alone(Pack(seq_len=5, strategy="pad")).row(np.array([5, 0, 12]))
        >>> found.document.tolist(), found.start.tolist(), found.length.tolist()
        ([0, 2, 2, 2], [0, 0, 5, 10], [5, 5, 5, 2])
        """
        seq_len, how, long = self.pack.width, self.pack.long_docs, lengths > self.pack.width
        if how == "error" and long.any():
            raise TableError(
                f"document {long.argmax()} has {lengths[long.argmax()]} tokens, more than seq_len={seq_len}; pass "
                "long_docs='split', 'truncate' or 'drop', or a larger seq_len"
            )
        if how == "drop":
            lengths = np.where(long, 0, lengths)
        elif how == "truncate":
            lengths = np.minimum(lengths, seq_len)
        counts = -(-lengths // seq_len)
        document = np.repeat(np.arange(len(lengths), dtype=np.int64), counts)
        start = (np.arange(len(document), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)) * seq_len
        length = np.minimum(lengths[document] - start, seq_len)
        return Slices(document, start, length, np.arange(len(document) + 1))

    def another(self, lengths: Ints, key: Key, sequences: int) -> Slices:  # noqa: ARG002 a document alone stays alone
        """Return as many sequences in another grouping under each key."""
        return self.row(lengths)

    @override
    def goes_on(self, slices: Slices, wholes: Ints) -> NDArray[np.bool_]:
        if self.pack.long_docs == "truncate":
            return np.zeros(len(wholes), dtype=np.bool_)
        return super().goes_on(slices, wholes)

    @override
    def dropped(self, lengths: Ints) -> int:
        if self.pack.long_docs == "drop":
            return int(np.count_nonzero(lengths > self.pack.width))
        return 0


class Fitted(Alone):
    """Whole documents, or pieces of them, are packed so that little space is empty: "best_fit"."""

    @property
    @override
    def block_docs(self) -> int:
        return self.pack.block_docs

    @override
    def row(self, lengths: Ints) -> Slices:
        pieces = super().row(lengths)
        return _packed(pieces, best_fit(pieces.length, self.pack.width, self.pack.max_docs_per_row))

    @override
    def another(self, lengths: Ints, key: Key, sequences: int) -> Slices:
        pieces, pack = super().row(lengths), self.pack
        return _packed(pieces, another_best_fit(pieces.length, pack.width, sequences, key, pack.max_docs_per_row))

    @override
    def units(self, lengths: ListLengths) -> int | None:
        return None


_PACKERS: dict[str, type[Joined | Alone]] = {"concat": Joined, "windows": Joined, "pad": Alone, "best_fit": Fitted}


def packer_of(pack: Pack) -> Packer:
    """Return what packs documents as asked.

    >>> from torch_table_loader.text.pack import Pack
    >>> row = packer_of(Pack(seq_len=10, strategy="best_fit")).row(np.array([3, 6, 2, 5, 4]))
    >>> row.total, row.cut(np.array([0]), np.array([1])).document.tolist()
    (2, [1, 4])
    """
    return _PACKERS[pack.strategy](pack)


class Packed(NamedTuple):
    """Documents in packs.

    Args:
        order: int64[n] the documents as they lie in the packs; inside a pack their numbers ascend.
        offsets: int64[packs + 1]; pack p holds the documents ``order[offsets[p]:offsets[p + 1]]``.
    """

    order: Ints
    offsets: Ints


def best_fit(lengths: Ints, seq_len: int, max_documents: int | None = None) -> Packed:
    """Pack documents without cutting any.

    Documents are placed from the longest to the shortest, and documents of equal length in the order of their numbers.
    Each goes into the fullest pack in which it fits; among equally full packs, into the one that was filled last. Packs
    are in the order of the numbers of their longest documents (the lowest number counts among equally long ones).

    So no two packs would fit into one, unless one has `max_documents` documents. The lengths in the packs depend only
    on the lengths in the block, not on their order.

    Args:
        lengths: int64[n] tokens of each document, in [1, seq_len].
        seq_len: the most tokens of a pack.
        max_documents: the most documents of a pack; None for any number.

    >>> packed = best_fit(np.array([3, 6, 2, 5, 4]), seq_len=10)
    >>> packed.order.tolist(), packed.offsets.tolist()
    ([1, 4, 0, 2, 3], [0, 2, 5])
    """
    missing = seq_len - lengths
    turns = np.argsort(missing.astype(np.uint16) if seq_len <= _RADIX_LENGTHS else missing, kind="stable")
    return _filled(lengths, turns, np.arange(len(lengths)), seq_len, max_documents)


def another_best_fit(lengths: Ints, seq_len: int, packs: int, key: Key, max_documents: int | None = None) -> Packed:
    """Pack documents into as many packs as `best_fit` does, with a different grouping under each key.

    Documents are placed from the longest to the shortest by lengths with a little noise. If that takes more packs, or
    fewer, the noise is reduced, finally to zero: then only documents of equal length change places.

    Args:
        lengths: int64[n] tokens of each document, in [1, seq_len].
        seq_len: the most tokens of a pack.
        packs: how many packs `best_fit` makes.
        max_documents: the most documents of a pack; None for any number.

    >>> from torch_table_loader.planning.keys import derive_key
    >>> another_best_fit(np.array([3, 1, 3, 1]), 4, 2, derive_key(0, 0, "packs")).order.tolist()
    [0, 1, 2, 3]
    """
    random = (keyed_hashes(len(lengths), key) >> u64(64 - _BLUR_BITS)).astype(np.int64)
    for blur in _BLURS:
        blurred = (lengths << _BLUR_BITS) - (lengths * random >> blur)
        turns = np.lexsort((random, -blurred))
        found = _filled(lengths, turns, random, seq_len, max_documents)
        if len(found.offsets) - 1 == packs:
            break
    return found


def _packed(pieces: Slices, packed: Packed) -> Slices:
    order = packed.order
    return Slices(pieces.document[order], pieces.start[order], pieces.length[order], packed.offsets)


def _filled(lengths: Ints, turns: Ints, ranks: Ints, seq_len: int, most: int | None) -> Packed:
    """Place documents in turn, and order packs by the ranks of their first documents."""
    pack_of_turn = np.array(_place(lengths[turns].tolist(), seq_len, most or len(lengths)), dtype=np.int64)
    # Packs are numbered as they are opened, in the order of the turns.
    opener = turns[np.unique(pack_of_turn, return_index=True)[1]]
    rank = np.empty_like(opener)
    rank[np.argsort(ranks[opener], kind="stable")] = np.arange(len(opener))
    pack = np.empty(len(lengths), np.int64)
    pack[turns] = rank[pack_of_turn]
    counts = np.bincount(pack, minlength=len(opener))
    return Packed(np.argsort(pack, kind="stable"), np.concatenate(([0], np.cumsum(counts, dtype=np.int64))))


def _place(lengths: list[int], seq_len: int, most: int) -> list[int]:
    """Return the pack of each document, for lengths in the order in which they are placed.

    Open packs are grouped by their free tokens: a stack for each number (`top`, and what is `below` each pack), and a
    bit set of the numbers whose stack is not empty. The bit set is cut into words of about ``sqrt(seq_len)`` bits, and
    `summary` has a bit for each non-zero word, so looking at two words finds the smallest number that is large enough.
    """
    shift = (seq_len.bit_length() + 1) // 2
    mask = (1 << shift) - 1
    words, summary = [0] * ((seq_len >> shift) + 1), 0
    top: dict[int, int] = {}
    below, documents, pack_of = [-1] * len(lengths), [0] * len(lengths), [0] * len(lengths)
    least, opened = min(lengths, default=1), 0
    for turn, length in enumerate(lengths):
        number = length >> shift
        enough = words[number] >> (length & mask) << (length & mask)
        if not enough and (further := summary >> (number + 1)):
            number += (further & -further).bit_length()
            enough = words[number]
        if enough:
            bit = enough & -enough
            free = (number << shift) + bit.bit_length() - 1
            pack = top[free]
            if below[pack] >= 0:
                top[free] = below[pack]
            else:
                del top[free]
                words[number] ^= bit
                if not words[number]:
                    summary ^= 1 << number
        else:
            free, pack, opened = seq_len, opened, opened + 1
        pack_of[turn] = pack
        documents[pack] += 1
        free -= length
        if free >= least and documents[pack] < most:
            below[pack], top[free] = top.get(free, -1), pack
            number = free >> shift
            words[number] |= 1 << (free & mask)
            summary |= 1 << number
    return pack_of
