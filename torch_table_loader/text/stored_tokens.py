"""Tokens of documents in a row store, and parts of them under sequences, as they are kept."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from torch_table_loader.arrow.arrays import number_type
from torch_table_loader.cached import cached_property
from torch_table_loader.store.gather import Spans
from torch_table_loader.text.packing import packer_of
from torch_table_loader.text.sequence_orders import SequenceOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.planning.lists import ListLengths, Slices
    from torch_table_loader.store.gather import ListValues, StoredRows
    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.packing import Packer
    from torch_table_loader.text.placed_documents import PlacedDocuments
    from torch_table_loader.text.sequence_orders import Drawn

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TakenParts:
    """Parts of documents under sequences.

    Args:
        goes_on: bool[parts] whether the token after a part belongs to its document, and is a label.
        spans: what the store is asked for, so that they can be made.
    """

    slices: Slices
    goes_on: NDArray[np.bool_]
    spans: Spans


class CutTokens(NamedTuple):
    """What is made of parts of documents.

    Args:
        columns: the values of each column that is cut, part after part.
        behind: int64[parts] the token behind each part as a label; see `Packer.behind`.
    """

    columns: Sequence[NDArray[Any]]
    behind: Ints


class StoredTokens:
    """The tokens of documents in a store. It pickles; what was opened stays in its process."""

    def __init__(self, store: RowStoreHandle, pack: Pack) -> None:
        """Open nothing yet; the store has the documents as `KeptDocuments` makes them."""
        self.store = store
        self.pack = pack

    def of_length(self, seq_len: int) -> StoredTokens:
        """Return the same tokens, cut to sequences of one length."""
        if (pack := self.pack.of_length(seq_len)) is self.pack:
            return self
        other = copy.copy(self)
        other.pack = pack
        return other

    def of_epoch(self, seed: int, epoch: int) -> StoredTokens:  # noqa: ARG002 what is kept is the same in every epoch
        """Return the tokens as they are in an epoch of a job with a seed."""
        return self

    @property
    def made(self) -> str:
        """What states call what is made of the table's documents."""
        return str(self.store.spec.made)

    @property
    def memory_bytes(self) -> int:
        """Bytes that are held beside the store."""
        return 0

    @property
    def longest(self) -> int:
        """The most tokens of a document of which a gather takes all, whatever its sequences have of it."""
        return 0

    @property
    def lengths(self) -> ListLengths:
        """The tokens of each document; the store is built and opened if it is not."""
        lengths = self.store.rows().lengths
        assert lengths is not None  # noqa: S101 stores of documents have them
        return lengths

    @property
    def packer(self) -> Packer:
        """What makes sequences of them."""
        return packer_of(self.pack)

    @cached_property
    def units(self) -> int | None:
        """The units of all documents, counted once; None if their order decides that."""
        return self.packer.units(self.lengths)

    def order(self, drawn: Drawn, ends: Ints | None = None, origin: int = 0) -> SequenceOrder:
        """Return an order of the sequences of some documents; see `SequenceOrder`."""
        if not self.pack.permutes_documents:
            return SequenceOrder.of_windows(self.packer, self.lengths, drawn.permutation.key)
        units = self.units if drawn.each_once else None
        return SequenceOrder.of_documents(self.packer, self.lengths, drawn, units=units, ends=ends, origin=origin)

    def parts(self, slices: Slices) -> TakenParts:
        """Return where the parts of documents under sequences are."""
        at = self.lengths.starts(slices.document) + slices.start
        goes_on = self.packer.goes_on(slices, self.lengths.take(slices.document))
        return TakenParts(slices, goes_on, Spans(at, at + slices.length + goes_on))

    def cut(self, parts: TakenParts, rows: StoredRows, documents: Ints, fields: Sequence[pa.Field]) -> CutTokens:  # noqa: ARG002 places say all
        """Return the tokens of parts of documents.

        Args:
            rows: has what `parts.spans` asks for.
            documents: the row there of each part's document.
            fields: the columns that are cut, as lists of what comes out.
        """
        slices, goes_on, at = parts.slices, parts.goes_on, parts.spans.start
        values = values_of(rows)
        kinds = [number_type(entry.type.value_type) for entry in fields]
        placed, stops = cast("PlacedDocuments | None", values.placed), at + slices.length
        whole = at, slices.length
        behind = stops[goes_on], np.ones(np.count_nonzero(goes_on), np.int64)
        if placed is not None:
            locations = placed.locate(slices.document)
            whole = placed.runs(locations, slices.start, slices.length)
            behind = placed.runs(locations.of(goes_on), (slices.start + slices.length)[goes_on], behind[1])
        cut = [taken(values, number, *whole, kind) for number, kind in enumerate(kinds)]
        labels = self.packer.behind(goes_on, stops, lambda column, _: taken(values, column, *behind, kinds[column]))
        return CutTokens(cut, labels)


def values_of(rows: StoredRows) -> ListValues:
    """Return the tokens that rows have."""
    values = rows.values
    assert values is not None  # noqa: S101 stores of documents have them
    return values


def taken(values: ListValues, column: int, at: Ints, length: Ints, kind: Any) -> NDArray[Any]:
    """Return values of parts of documents; those of a boolean column are kept as bytes."""
    if kind == np.bool_:
        return values.take(column, at, length, np.uint8).view(np.bool_)
    return values.take(column, at, length, kind)
