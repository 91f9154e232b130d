"""Documents that lie in files as they were written: where the tokens of each are, and what is put in around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from torch_table_loader.planning.lists import PUT_IN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.lists import ListLengths

    Ints: TypeAlias = NDArray[np.int64]

LACKS_BEGIN, LACKS_END = 1, 2
"""Bits of a document without the begin or the end token that is put in."""


class Locations(NamedTuple):
    """Where documents are in files.

    Args:
        at: int64[n] the first stored token of each.
        stored: int64[n] how many tokens of it are stored.
        lacks: int64[n] `LACKS_BEGIN` and `LACKS_END`.
    """

    at: Ints
    stored: Ints
    lacks: Ints

    def of(self, some: NDArray[np.bool_]) -> Locations:
        """Return some of the documents."""
        return Locations(self.at[some], self.stored[some], self.lacks[some])


class PutIn(NamedTuple):
    """Tokens that are put in: before documents that lack it, after those that lack it, and after all."""

    begin: int | None
    end: int | None
    behind: int | None

    @property
    def tokens(self) -> list[int]:
        """The tokens in the order in which they come between two documents: there they are one run."""
        return [token for token in (self.end, self.behind, self.begin) if token is not None]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedDocuments:
    """Documents by their tokens as they come out, and where the stored ones lie among those of all files.

    Args:
        lengths: the tokens of each document that come out; 0 for one that is left out.
        strides: tokens of the files from where a document begins to where the next does.
        lacks: for each document `LACKS_BEGIN` and `LACKS_END`; None if none lacks anything.
        first: where the first document begins.
    """

    lengths: ListLengths
    strides: ListLengths
    lacks: NDArray[np.uint8] | None
    put_in: PutIn
    first: int = 0

    @property
    def added(self) -> list[int]:
        """The tokens that are put in, as one run that begins at `PUT_IN`."""
        return self.put_in.tokens

    def locate(self, documents: Ints) -> Locations:
        """Return where documents are."""
        none = np.zeros(len(documents), np.int64)
        lacks = none if self.lacks is None else self.lacks.take(documents).astype(np.int64)
        stored = self.lengths.take(documents) - (lacks & LACKS_BEGIN) - lacks // LACKS_END
        return Locations(self.strides.starts(documents) + self.first, stored - (self.put_in.behind is not None), lacks)

    def runs(self, locations: Locations, start: Ints, length: Ints) -> tuple[Ints, Ints]:
        """Return what parts of documents are made of: runs of tokens of the files, and of those at `PUT_IN`.

        Args:
            locations: where the document of each part is.
            start: int64[n] the first token of each part in its document, those put in counted.
            length: int64[n] its tokens, those put in counted.

        Returns:
            int64[runs] the first token of each run, and int64[runs] how many it has, at least one.
        """
        put_in = self.put_in
        if self.lacks is None and put_in.behind is None:
            return locations.at + start, length
        stop, begins, ends = start + length, locations.lacks & LACKS_BEGIN, locations.lacks // LACKS_END
        low, high = _inside(start - begins, stop - begins, locations.stored)
        pieces = [(locations.at + low, high - low)]
        if put_in.end is not None or put_in.behind is not None:
            behind = begins + locations.stored
            low, high = _inside(start - behind, stop - behind, ends + (put_in.behind is not None))
            skipped = 0 if put_in.end is None else 1 - ends
            pieces.append((low + skipped + PUT_IN, high - low))
        if put_in.begin is not None:
            place = np.full(len(start), PUT_IN + len(put_in.tokens) - 1)
            pieces.insert(0, (place, (start < begins).astype(np.int64)))
        at, count = (np.stack(each, axis=1).ravel() for each in zip(*pieces, strict=True))
        some = count > 0
        return at[some], count[some]

    def stored(self, at: Ints, length: Ints) -> tuple[Ints, Ints]:
        """Return the runs of the files, as `runs` does, from where parts begin among the tokens that come out."""
        documents = self.lengths.find(at)
        at, length = self.runs(self.locate(documents), at - self.lengths.starts(documents), length)
        some = at < PUT_IN
        return at[some], length[some]


def _inside(start: Ints, stop: Ints, room: Ints) -> tuple[Ints, Ints]:
    return np.minimum(np.maximum(start, 0), room), np.minimum(np.maximum(stop, 0), room)
