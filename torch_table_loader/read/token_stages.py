"""Documents of tokens become rows that batches are made of: tokens, or whole sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.arrow.token_rows import (
    Parts,
    rows_of_sequences,
    rows_of_tokens,
    schema_of_sequences,
    schema_of_tokens,
    sequences_of,
)
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.pack import IGNORED, Pack
from torch_table_loader.planning.packing import Packed, Pieces, best_fit, split_long
from torch_table_loader.read.lru_cache import LRUCache
from torch_table_loader.read.row_stage import RowStage, StagedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


_PACKS = LRUCache(8 * 1024 * 1024)
"""Packs of the blocks that were packed last, by the lengths of their documents."""


class Documents(NamedTuple):
    """The tokens of some documents, begin and end tokens included.

    Args:
        kept: int64[n], which rows of the batch the documents are.
        offsets: int64[n + 1], where the tokens of each begin.
        added: int64[n], tokens that were put before those that are stored.
        values: of each column that is cut, one a token.
    """

    kept: Ints
    offsets: Ints
    added: Ints
    values: Sequence[NDArray[Any]]


class TokenStage(RowStage):
    """Makes tokens or sequences of documents; a value.

    Args:
        pack: what the caller asked for.
        table: the table's schema.

    Raises:
        ConfigError: a column is missing, or has not the type that its use needs.
    """

    def __init__(self, pack: Pack, table: pa.Schema) -> None:
        """Check the columns."""
        self.pack = pack
        self._cut = [_cut_field(table, name) for name in pack.cut_columns]
        ids = self._cut[0]
        if not pt.is_integer(ids.type):
            raise ConfigError(f"Pack: tokens={pack.tokens!r} must be a list of integers, got a list of {ids.type}")
        self._cut[0] = ids.with_type(_wide_enough(ids.type, (pack.bos_id, pack.eos_id, pack.sep_id)))
        for name in pack.spans:
            _check_span_type(table, name)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tokens; with more, the columns that must be as long."""
        return self.pack.cut_columns

    @property
    def key(self) -> str:
        """A name of all that decides which rows come out."""
        pack = self.pack
        ends = (pack.bos_id, pack.eos_id, pack.sep_id)
        return f"{pack.strategy}-{'.'.join(pack.cut_columns)}-{ends}-{pack.min_length}"

    def _columns(self, given: pa.Schema) -> list[pa.Field]:
        """Return the other columns of documents."""
        return [field for field in given if field.name not in self.pack.cut_columns]

    @cached_property
    def _adds(self) -> bool:
        pack = self.pack
        return pack.bos_id is not None or pack.eos_id is not None or pack.sep_id is not None

    def _lengths(self, batch: pa.RecordBatch) -> tuple[Ints, list[pa.Array], Ints, Ints]:
        """Return the tokens of each row as stored, the lists, and which rows lack a begin or an end token.

        Raises:
            TableError: lists of one row have different lengths, or a null inside.
        """
        lists = [plain(batch.column(name)) for name in self.pack.cut_columns]
        lengths = _lengths_of(lists[0])
        for name, column in zip(self.pack.cut_columns, lists, strict=True):
            _check_aligned(self.pack.tokens, lengths, name, column)
        none = np.zeros(len(lengths), dtype=np.int64)
        if self.pack.bos_id is None and self.pack.eos_id is None:
            return lengths, lists, none, none
        values, ends = _values(lists[0]), np.cumsum(lengths)
        some = lengths > 0
        lacks_begin, lacks_end = none.copy(), none.copy()
        if self.pack.bos_id is not None:
            lacks_begin[some] = values[(ends - lengths)[some]] != self.pack.bos_id
        if self.pack.eos_id is not None:
            lacks_end[some] = values[ends[some] - 1] != self.pack.eos_id
        return lengths, lists, lacks_begin, lacks_end

    def documents(self, batch: pa.RecordBatch) -> Documents:
        """Return the tokens of the rows that are long enough, begin and end tokens included."""
        lengths, lists, begin, end = self._lengths(batch)
        whole = self._token_counts(lengths, begin, end)
        kept = np.flatnonzero(whole)
        offsets = np.concatenate(([0], np.cumsum(whole[kept])))
        stored = [_values(column) for column in lists]
        if len(kept) < np.count_nonzero(lengths):
            long_enough = np.repeat(whole > 0, lengths)
            stored = [values[long_enough] for values in stored]
        stored = [
            values.astype(field.type.to_pandas_dtype(), copy=False)
            for values, field in zip(stored, self._cut, strict=True)
        ]
        if self._adds:
            stored = self._with_ends(stored, offsets, begin[kept] > 0, end[kept] > 0)
        for name in self.pack.spans:
            _check_spans(name, batch.column(name), lengths)
        return Documents(kept, offsets, begin[kept], stored)

    def _with_ends(
        self, stored: Sequence[NDArray[Any]], offsets: Ints, begin: NDArray[np.bool_], end: NDArray[np.bool_]
    ) -> list[NDArray[Any]]:
        """Put begin and end tokens in; the loss learns to end a document, and not what separates two."""
        pack = self.pack
        places: list[tuple[Ints, int, int]] = []
        if pack.bos_id is not None:
            places.append((offsets[:-1][begin], pack.bos_id, 0))
        if pack.eos_id is not None:
            places.append((offsets[1:][end] - (1 if pack.sep_id is None else 2), pack.eos_id, 1))
        if pack.sep_id is not None:
            places.append((offsets[1:] - 1, pack.sep_id, 0))
        is_stored = np.ones(int(offsets[-1]), dtype=np.bool_)
        for at, _, _ in places:
            is_stored[at] = False
        found = []
        for number, values in enumerate(stored):
            out = np.zeros(len(is_stored), dtype=values.dtype)
            out[is_stored] = values
            for at, token, trained in places:
                if number == 0:
                    out[at] = token
                elif pack.cut_columns[number] == pack.loss_mask:
                    out[at] = trained
            found.append(out)
        return found

    def _token_counts(self, lengths: Ints, begin: Ints, end: Ints) -> Ints:
        """Return the tokens of each row as they come out; 0 for rows that are too short."""
        whole = lengths + begin + end + (self.pack.sep_id is not None)
        return np.where(lengths >= self.pack.min_length, whole, 0)

    def parts(self, batch: pa.RecordBatch, rows: Ints, start: Ints, length: Ints, behind: Ints) -> Parts:
        """Return parts with the other columns of their rows."""
        names = [name for name in batch.schema.names if name not in self.pack.cut_columns]
        columns = None
        if names:
            taken = batch.select(names)
            if len(rows) != batch.num_rows or (np.diff(rows) != 1).any():
                taken = taken.take(pa.array(rows))
            columns = pa.StructArray.from_arrays(taken.columns, fields=list(taken.schema))
        return Parts(np.cumsum(length) - length, length, start, behind, columns)

    def targets(self, values: Sequence[NDArray[Any]], places: Ints) -> Ints:
        """Return the tokens at some places as labels."""
        found = values[0][places].astype(np.int64)
        if self.pack.loss_mask is not None:
            found[values[self.pack.cut_columns.index(self.pack.loss_mask)][places] == 0] = IGNORED
        return found


class TokensAsRows(TokenStage):
    """Each token is a row, so that documents are cut wherever a batch or a lane ends."""

    @property
    def counted_by(self) -> str | None:
        """The tokens, unless it takes a look at each document to know whether something is added or left out."""
        pack = self.pack
        looks = pack.bos_id is not None or pack.eos_id is not None or pack.min_length > 1
        return None if looks else pack.tokens

    def known_count(self, values: int, lists: int) -> int:
        """Return the tokens of documents."""
        return values + lists * (self.pack.sep_id is not None)

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of what comes out; see `arrow.token_rows`."""
        return schema_of_tokens(self._cut, self._columns(given))

    def count(self, batch: pa.RecordBatch) -> int:
        """Return the tokens of the documents."""
        lengths, _, begin, end = self._lengths(batch)
        return int(self._token_counts(lengths, begin, end).sum())

    def rows(self, batch: pa.RecordBatch) -> TokenRows:
        """Return the tokens of the documents."""
        return TokenRows(self, batch, self.documents(batch))


class TokenRows(StagedRows):
    """The tokens of some documents.

    Args:
        stage: that makes them.
        batch: the rows that have the documents.
        found: the documents.
    """

    def __init__(self, stage: TokensAsRows, batch: pa.RecordBatch, found: Documents) -> None:
        """Keep them."""
        self._stage, self._batch, self._found = stage, batch, found

    @property
    def num_rows(self) -> int:
        """The tokens."""
        return int(self._found.offsets[-1])

    def slice(self, start: int, stop: int) -> pa.RecordBatch:
        """Return some of the tokens, and the parts of documents that they are."""
        found = self._found
        first = int(np.searchsorted(found.offsets, start, side="right")) - 1
        last = int(np.searchsorted(found.offsets, stop, side="left"))
        begins, ends = found.offsets[first:last], found.offsets[first + 1 : last + 1]
        at, until = np.maximum(begins, start), np.minimum(ends, stop)
        behind = np.full(len(at), IGNORED, dtype=np.int64)
        if len(at) and until[-1] < ends[-1]:
            behind[-1] = self._stage.targets(found.values, until[-1:])[0]
        begun = at - begins - found.added[first:last]
        parts = self._stage.parts(self._batch, found.kept[first:last], begun, until - at, behind)
        values = [column[start:stop] for column in found.values]
        return rows_of_tokens(values, parts, self._stage.schema(self._batch.schema))


class SequencesAsRows(TokenStage):
    """Each sequence is a row, since documents are not cut anywhere."""

    @property
    def key(self) -> str:
        """A name of all that decides which rows come out."""
        pack = self.pack
        blocks = "" if self.block_rows is None else f"-{self.block_rows}-{pack.max_docs_per_row}"
        return f"{super().key}-{pack.seq_len}-{pack.long_docs}{blocks}"

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of what comes out; see `arrow.token_rows`."""
        return schema_of_sequences(self._cut, self._columns(given))

    def _pieces(self, lengths: Ints) -> Pieces:
        """Return the pieces of documents that are not longer than a sequence.

        Raises:
            TableError: a document is longer, and the caller wants that to be an error.
        """
        return split_long(lengths, self.pack.seq_len, self.pack.long_docs)

    @abstractmethod
    def packed(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Return the order of some pieces, and where each sequence begins in it."""

    def count(self, batch: pa.RecordBatch) -> int:
        """Return how many sequences come out of a batch."""
        lengths, _, begin, end = self._lengths(batch)
        whole = self._token_counts(lengths, begin, end)
        return len(self.packed(self._pieces(whole[whole > 0]).length)[1]) - 1

    def rows(self, batch: pa.RecordBatch) -> SequenceRows:
        """Return the sequences that come out of a batch."""
        found = self.documents(batch)
        return SequenceRows(self, batch, found, self._pieces(np.diff(found.offsets)))


class SequenceRows(StagedRows):
    """The sequences that come of some documents.

    Args:
        stage: that makes them.
        batch: the rows that have the documents.
        found: the documents.
        pieces: of the documents.
    """

    def __init__(self, stage: SequencesAsRows, batch: pa.RecordBatch, found: Documents, pieces: Pieces) -> None:
        """Pack."""
        self._stage, self._batch, self._found, self._pieces = stage, batch, found, pieces
        self._order, self._firsts = stage.packed(pieces.length)

    @property
    def num_rows(self) -> int:
        """The sequences."""
        return len(self._firsts) - 1

    def slice(self, start: int, stop: int) -> pa.RecordBatch:
        """Return some of the sequences, and the parts of documents under them."""
        found, pieces, firsts = self._found, self._pieces, self._firsts
        part_offsets = firsts[start : stop + 1] - firsts[start]
        chosen = self._order[firsts[start] : firsts[stop]]
        document, begun, length = pieces.document[chosen], pieces.start[chosen], pieces.length[chosen]
        at = found.offsets[document] + begun
        behind = np.full(len(at), IGNORED, dtype=np.int64)
        if self._stage.pack.long_docs == "split":
            cut = np.flatnonzero(begun + length < np.diff(found.offsets)[document])
            behind[cut] = self._stage.targets(found.values, at[cut] + length[cut])
        parts = self._stage.parts(self._batch, found.kept[document], begun - found.added[document], length, behind)
        width = self._stage.pack.seq_len
        values = [sequences_of(column, at, length, part_offsets, width) for column in found.values]
        offsets = np.arange(len(part_offsets)) * width
        return rows_of_sequences(values, offsets, parts, part_offsets, self._stage.schema(self._batch.schema))


class DocumentsAsRows(SequencesAsRows):
    """Each document, or each piece of one that is too long, is a sequence."""

    def packed(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Leave each piece alone."""
        return np.arange(len(lengths)), np.arange(len(lengths) + 1)


class BestFitAsRows(SequencesAsRows):
    """Whole documents are packed into sequences, block by block of the rows of a split's row group."""

    @property
    def block_rows(self) -> int:
        """The documents that are packed together."""
        return self.pack.block_docs

    def packed(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Pack by best fit; blocks come again, since they are counted before they are read, and read in each epoch."""

        def make() -> tuple[Packed, int]:
            packed = best_fit(lengths, self.pack.seq_len, self.pack.max_docs_per_row)
            return packed, len(given) + packed.order.nbytes + packed.offsets.nbytes

        given = lengths.astype(np.int32).tobytes()  # none is longer than a sequence
        packed: Packed = _PACKS.get((given, self.pack.seq_len, self.pack.max_docs_per_row), make)
        return packed.order, packed.offsets


def stage_of(pack: Pack, table: pa.Schema) -> TokenStage:
    """Return the stage that a stream of a table's rows passes.

    Raises:
        ConfigError: the columns do not fit, or the strategy is one of ``shuffle="rows"``.
    """
    stages: dict[str, type[TokensAsRows | SequencesAsRows]] = {
        "concat": TokensAsRows,
        "pad": DocumentsAsRows,
        "best_fit": BestFitAsRows,
    }
    if pack.strategy not in stages:
        raise ConfigError(f'Pack: strategy={pack.strategy!r} needs shuffle="rows"; or take strategy="concat"')
    return stages[pack.strategy](pack, table)


def _lengths_of(lists: pa.Array) -> Ints:
    found: Ints = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _values(lists: pa.Array) -> NDArray[Any]:
    found: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False)
    return found


def _check_aligned(tokens: str, lengths: Ints, name: str, column: pa.Array) -> None:
    """Refuse lists of another length than the tokens', and nulls among the values."""
    own = _lengths_of(column)
    if name != tokens and not np.array_equal(own, lengths):
        row = int(np.flatnonzero(own != lengths)[0])
        raise TableError(
            f"columns {tokens!r} and {name!r} must be lists of one length in each row, got {int(lengths[row])} and "
            f"{int(own[row])} in row {row} of this batch; leave {name!r} out of aligned, or mend the table"
        )
    values = column.flatten()
    if values.null_count:
        place = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        row = int(np.searchsorted(np.cumsum(own), place, side="right"))
        raise TableError(
            f"column {name!r} has a null inside the list of row {row} of this batch; a token must have a value: leave "
            "such rows out with filters=, or mend the table"
        )


def _cut_field(table: pa.Schema, name: str) -> pa.Field:
    """Return a list column as the field of one of its values."""
    if name not in table.names:
        raise ConfigError(f"Pack: the table has no column {name!r}{did_you_mean(name, table.names, spare=20)}")
    kind = plain_type(table.field(name).type)
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    value = plain_type(kind.value_type) if is_list else None
    if value is None or not (pt.is_integer(value) or pt.is_floating(value) or pt.is_boolean(value)):
        raise ConfigError(
            f"Pack: column {name!r} must be a list of numbers, one for each token, got {table.field(name).type}"
        )
    return pa.field(name, value, nullable=False)


def _wide_enough(kind: pa.DataType, added: Sequence[int | None]) -> pa.DataType:
    """Return the type of the tokens, or int64 where one that is added does not fit."""
    info = np.iinfo(kind.to_pandas_dtype())
    fits = all(info.min <= token <= info.max for token in added if token is not None)
    return kind if fits else pa.int64()


def _check_spans(name: str, lists: pa.Array, lengths: Ints) -> None:
    """Refuse spans that are not inside their document."""
    lists = plain(lists)
    inside = lists.flatten()
    row = np.repeat(np.arange(len(lengths)), _lengths_of(lists))
    start, end = (inside.field(field).fill_null(-1).to_numpy(zero_copy_only=False) for field in ("start", "end"))
    wrong = np.flatnonzero((start < 0) | (end < start) | (end > lengths[row]))
    if len(wrong):
        first = wrong[0]
        raise TableError(
            f"column {name!r}: a span must lie inside its document, from 0 to its number of tokens, got {start[first]} "
            f"to {end[first]} in row {row[first]} of this batch, which has {lengths[row[first]]} tokens"
        )


def _check_span_type(table: pa.Schema, name: str) -> None:
    if name not in table.names:
        raise ConfigError(f"Pack: the table has no column {name!r}{did_you_mean(name, table.names, spare=20)}")
    kind = plain_type(table.field(name).type)
    inner = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else None
    if inner is None or not pt.is_struct(inner) or not {"start", "end"} <= {field.name for field in inner}:
        raise ConfigError(f"Pack: spans column {name!r} must be list<struct<start, end, ...>>, got {kind}")
