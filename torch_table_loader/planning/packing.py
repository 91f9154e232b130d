"""Pack documents into packs of at most so many tokens: best fit decreasing, a pure function of a block's lengths.

The longest document comes first, and goes into the fullest pack in which it fits; if it fits in none, it opens one.
Free space is looked up in a two-level bit set, so that a document costs under a microsecond whatever the lengths.
Packs are ordered by their longest documents: in a block of shuffled documents that is a random order of packs, in
which packs of few long documents and packs of many short ones are mixed.

Nothing here may change the result: the packs are part of the saved state's format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, get_args

import numpy as np

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.pack import LongDocs
from torch_table_loader.planning.keys import as_int, keyed_hashes, u64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.keys import Key

    Ints: TypeAlias = NDArray[np.int64]

_RADIX_LENGTHS = 1 << 16
"""numpy sorts 16-bit integers by counting."""

_BLURS = (4, 6, 8, 9, 63)
"""Exponents of 2: noise changes lengths by up to a 16th, a 64th, a 256th, a 512th, or nothing."""

_BLUR_BITS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Documents in packs.

    Args:
        order: int64[n] the documents as they lie in the packs; inside a pack their numbers ascend.
        offsets: int64[packs + 1]; pack p holds the documents ``order[offsets[p]:offsets[p + 1]]``.
    """

    order: Ints
    offsets: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Parts of documents, in the order of the documents.

    Args:
        document: int64[n] the document of each.
        start: int64[n] its first token in the document.
        length: int64[n] its tokens, at least 1.
    """

    document: Ints
    start: Ints
    length: Ints


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

    Raises:
        ConfigError: a length is outside [1, seq_len], or a bound is below 1.

    >>> packed = best_fit(np.array([3, 6, 2, 5, 4]), seq_len=10)
    >>> packed.order.tolist(), packed.offsets.tolist()
    ([1, 4, 0, 2, 3], [0, 2, 5])
    """
    lengths, seq_len = np.asarray(lengths, dtype=np.int64), _at_least_one("seq_len", seq_len)
    most = len(lengths) if max_documents is None else _at_least_one("max_documents", max_documents)
    if wrong := np.flatnonzero((lengths < 1) | (lengths > seq_len))[:1].tolist():
        raise ConfigError(
            f"documents to pack must have 1 to seq_len={seq_len} tokens, got {lengths[wrong[0]]} of document "
            f"{wrong[0]}; split or drop longer ones, and leave out empty ones"
        )
    missing = seq_len - lengths
    turns = np.argsort(missing.astype(np.uint16) if seq_len <= _RADIX_LENGTHS else missing, kind="stable")
    return _filled(lengths, turns, np.arange(len(lengths)), seq_len, most)


def _filled(lengths: Ints, turns: Ints, ranks: Ints, seq_len: int, most: int) -> Packed:
    """Place documents in turn, and order packs by the ranks of their first documents."""
    pack_of_turn = np.array(_place(lengths[turns].tolist(), seq_len, most), dtype=np.int64)
    # Packs are numbered as they are opened, in the order of the turns.
    opener = turns[np.unique(pack_of_turn, return_index=True)[1]]
    rank = np.empty_like(opener)
    rank[np.argsort(ranks[opener], kind="stable")] = np.arange(len(opener))
    pack = np.empty_like(lengths)
    pack[turns] = rank[pack_of_turn]
    counts = np.bincount(pack, minlength=len(opener))
    return Packed(np.argsort(pack, kind="stable"), np.concatenate(([0], np.cumsum(counts, dtype=np.int64))))


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
    most = len(lengths) if max_documents is None else max_documents
    random = (keyed_hashes(len(lengths), key) >> u64(64 - _BLUR_BITS)).astype(np.int64)
    for blur in _BLURS:
        blurred = (lengths << _BLUR_BITS) - (lengths * random >> blur)
        turns = np.lexsort((random, -blurred))
        found = _filled(lengths, turns, random, seq_len, most)
        if len(found.offsets) - 1 == packs:
            break
    return found


def split_long(lengths: Ints, seq_len: int, how: LongDocs) -> Pieces:
    """Cut documents into pieces of at most `seq_len` tokens. An empty document has no piece.

    Args:
        how: for a longer document, "split" makes pieces of `seq_len` tokens and one of the rest, "truncate" keeps the
            first `seq_len` tokens, "drop" keeps nothing, and "error" refuses it.

    Raises:
        ConfigError: `how` is unknown, `seq_len` is below 1, or a length below 0.
        TableError: `how` is "error", and a document is longer than `seq_len`.

    >>> pieces = split_long(np.array([5, 0, 12]), seq_len=5, how="split")
    >>> pieces.document.tolist(), pieces.start.tolist(), pieces.length.tolist()
    ([0, 2, 2, 2], [0, 0, 5, 10], [5, 5, 5, 2])
    """
    lengths, seq_len = np.asarray(lengths, dtype=np.int64), _at_least_one("seq_len", seq_len)
    if how not in get_args(LongDocs):
        raise ConfigError(f"long documents must be one of {', '.join(map(repr, get_args(LongDocs)))}, got {how!r}")
    if lengths.min(initial=0) < 0:
        raise ConfigError(f"a document has at least 0 tokens, got {lengths.min()} of document {lengths.argmin()}")
    long = lengths > seq_len
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
    return Pieces(document, start, np.minimum(lengths[document] - start, seq_len))


def _at_least_one(name: str, value: int) -> int:
    number = as_int(name, value)
    if number < 1:
        raise ConfigError(f"{name} must be at least 1, got {number}")
    return number


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
