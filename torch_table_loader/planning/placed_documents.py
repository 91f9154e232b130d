"""Documents that lie in files as they were written: where the tokens of each are, and what is put in around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.slices import DocumentLengths

    Ints: TypeAlias = NDArray[np.int64]

LACKS_BEGIN, LACKS_END = 1, 2
"""Bits of a document without the begin or the end token that is put in."""


class Inside(NamedTuple):
    """The stored tokens of parts of documents.

    Args:
        at: int64[n] the first of each part in the files.
        length: int64[n] how many; 0 where all tokens of a part are put in.
        start: int64[n] the first token of the part in its document, those put in counted.
        lacks: uint8[n] what its document lacks.
        whole: int64[n] the tokens of its document, those put in counted.
    """

    at: Ints
    length: Ints
    start: Ints
    lacks: NDArray[np.uint8]
    whole: Ints


class PutIn(NamedTuple):
    """Tokens that are put in: before documents that lack it, behind those that lack it, and behind all."""

    begin: int | None
    end: int | None
    behind: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PlacedDocuments:
    """Documents by their tokens as they come out, and where the stored ones lie among those of all files.

    Args:
        lengths: the tokens of each document that come out; 0 for one that is left out.
        strides: tokens of the files from where a document begins to where the next does.
        lacks: for each document `LACKS_BEGIN` and `LACKS_END`; None if none lacks anything.
        first: where the first document begins.
    """

    lengths: DocumentLengths
    strides: DocumentLengths
    lacks: NDArray[np.uint8] | None
    put_in: PutIn
    first: int = 0

    def inside(self, at: Ints, length: Ints, document: Ints | None = None) -> Inside:
        """Return where the stored tokens of parts of documents are.

        Args:
            at: int64[n] the first token of each part, counted over the tokens of all documents that come out.
            length: int64[n] its tokens, those put in counted.
            document: int64[n] the document of each part; None: it is looked up.
        """
        document = self.lengths.find(at) if document is None else document
        start, whole = at - self.lengths.starts(document), self.lengths.take(document)
        lacks = np.zeros(len(at), np.uint8) if self.lacks is None else self.lacks.take(document)
        before = (lacks & LACKS_BEGIN).astype(np.int64)
        stored = whole - before - (lacks // LACKS_END) - (self.put_in.behind is not None)
        low = np.clip(start - before, 0, stored)
        high = np.clip(start + length - before, 0, stored)
        return Inside(self.strides.starts(document) + (low + self.first), high - low, start, lacks, whole)

    def complete(self, stored: NDArray[Any], length: Ints, inside: Inside, out: NDArray[Any]) -> None:
        """Write parts of documents with what is put in, from their stored tokens; `out` has room for all of them."""
        is_stored = np.ones(len(out), np.bool_)
        ends = np.cumsum(length)
        first = ends - length - inside.start
        last = inside.whole - (1 if self.put_in.behind is None else 2)
        every = np.ones(len(length), np.bool_)
        for token, has, place in (
            (self.put_in.begin, inside.lacks & LACKS_BEGIN > 0, np.zeros_like(last)),
            (self.put_in.end, inside.lacks & LACKS_END > 0, last),
            (self.put_in.behind, every, inside.whole - 1),
        ):
            if token is None:
                continue
            here = (first + place)[has & (place >= inside.start) & (place < inside.start + length)]
            out[here], is_stored[here] = token, False
        out[is_stored] = stored
