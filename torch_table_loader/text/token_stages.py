"""Documents of tokens become rows that batches are made of: tokens, or whole sequences.

A function of the caller's may change documents before they are cut.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow.arrays import number_type, numbers_of, plain
from torch_table_loader.arrow.copied_runs import runs_of
from torch_table_loader.arrow.datatypes import ElementType, opened_type, plain_type, width_of
from torch_table_loader.cached import cached_property
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.planning.keys import EpochKey, hashes_of
from torch_table_loader.read.row_stage import Counted, Made, RowStage
from torch_table_loader.records import ROW_ID
from torch_table_loader.text.changed_documents import DocumentChange, lengths_of
from torch_table_loader.text.pack import Pack
from torch_table_loader.text.packing import packer_of
from torch_table_loader.text.slices import TokenRow
from torch_table_loader.text.token_rows import Parts, rows_of_tokens, schema_of_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.keys import Key
    from torch_table_loader.planning.lists import Slices

    Ints = NDArray[np.int64]

IDS = "input_ids"
"""What the column of tokens is called once documents are read."""

_TENSOR_BYTES = 24
"""Of a token's id, label and position in a batch."""

_ANY_ID = np.iinfo(np.int32).max
"""A function of the caller's may give tokens that need wider integers than the stored ones."""

_MOST_ID = np.iinfo(np.int64).max


def bytes_of_token(cut: Iterable[pa.Field]) -> int:
    """Return the bytes of a token in a batch, and in the columns that are cut, of which these are the values."""
    return _TENSOR_BYTES + sum(width_of(entry.type) for entry in cut)


class Documents(NamedTuple):
    """The tokens of some documents, begin and end tokens included.

    Args:
        kept: int64[n], the documents' rows in the batch.
        offsets: int64[n + 1], where the tokens of each begin.
        added: int64[n], tokens that were put before the stored ones.
        values: of each column that is cut, one for each token.
    """

    kept: Ints
    offsets: Ints
    added: Ints
    values: Sequence[NDArray[Any]]


class TokenStage(RowStage):
    """Makes tokens or sequences of documents; a value.

    Raises:
        ConfigError: a column is missing, or does not have the type that its use needs.
    """

    def __init__(self, pack: Pack, table: pa.Schema, asked: Sequence[str] = ()) -> None:
        self.pack = pack
        self.packer = packer_of(pack)
        counted = {pack.lengths}
        if self.takes_ids:
            counted.add(ROW_ID)
        self._not_delivered = {*pack.cut_columns, *pack.stored_columns, *counted.difference(asked)}
        self._cut = self._cut_fields(table)
        ids = self._cut[0]
        if not pt.is_integer(ids.type):
            raise ConfigError(f"Pack: tokens={pack.ids!r} must be a list of integers, got a list of {ids.type}")
        added: tuple[int | None, ...] = (pack.bos_id, pack.eos_id, pack.sep_id)
        if pack.documents is not None:
            added = (*added, _ANY_ID)
        # Whatever the table calls its tokens, so that sources of a mixture may differ in that.
        self._cut[0] = pa.field(IDS, wide_enough(ids.type, added), nullable=False)
        self._seeds = EpochKey.of(0, 0, "documents")
        self._change = None
        if pack.documents is not None:
            self._change = DocumentChange(pack, [field.type for field in self._cut])
        self._order_key: Key | None = None
        for name in pack.spans:
            check_span_type(table, name)
        if pack.lengths is not None:
            check_count_type(table, pack.lengths)

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        if self.pack.lengths is None:
            return self.pack.stored_columns
        return (self.pack.lengths,)

    def _cut_fields(self, table: pa.Schema) -> list[pa.Field]:
        """Return the columns that are cut, each with the type of its values."""
        return [cut_field(table, name, vectors=name in self.pack.aligned) for name in self.pack.cut_columns]

    @property
    @override
    def takes_ids(self) -> bool:
        return self.pack.documents is not None

    @property
    @override
    def made_by(self) -> str | None:
        if self._change is None:
            return None
        return f"Pack: documents={self._change.name}"

    @property
    @override
    def must(self) -> str:
        if self._change is None:
            return super().must
        return self._change.must

    @property
    @override
    def counts_by_epoch(self) -> bool:
        return self._change is not None and self._change.by_epoch and self.measured_by is None

    @override
    def of_epoch(self, key: EpochKey, *, shuffle: bool) -> TokenStage:
        other = copy.copy(self)
        other._seeds = key
        other._order_key = None
        if shuffle and self.orders_blocks:
            other._order_key = key
        return other

    @property
    @override
    def row_bytes(self) -> int:
        return bytes_of_token(self._cut)

    @property
    @override
    def held_bytes(self) -> int:
        return sum(width_of(entry.type) for entry in self._cut)

    @property
    @override
    def measured_by(self) -> str | None:
        changes = self.pack.documents is not None and not self.pack.same_lengths
        if self._may_lack_ends or changes:
            return None
        return self.pack.ids

    @override
    def counted(self, batch: pa.RecordBatch) -> Counted:
        if self.pack.lengths is not None:
            return self.count_of(counts_of(self.pack.lengths, batch.column(self.pack.lengths)))
        return self._made_of(self.whole_lengths(batch))

    def whole_lengths(self, batch: pa.RecordBatch) -> Ints:
        """Return how many tokens of each row come out; the caller's function is called again for some of them."""
        lengths, _, begin, end = self._lengths(batch, twice=self.counts_by_epoch)
        return self._token_counts(lengths, begin, end)

    @override
    def count_of(self, lengths: Ints) -> Counted:
        none = np.zeros(len(lengths), dtype=np.int64)
        return self._made_of(self._token_counts(lengths, none, none))

    @abstractmethod
    def _made_of(self, whole: Ints) -> Counted:
        """Return what `counted` does, from the number of tokens of each document that come out."""

    @property
    @override
    def key(self) -> str:
        pack = self.pack
        ends = (pack.bos_id, pack.eos_id, pack.sep_id)
        return f"{pack.strategy}-{'.'.join(pack.cut_columns)}-{ends}-{pack.min_length}{self._changed_by}"

    @property
    def _changed_by(self) -> str:
        """What a key says of the caller's function: its name."""
        if self._change is None:
            return ""
        return f"-{self._change.name}-{self.pack.same_lengths}{'-by epoch' if self._change.by_epoch else ''}"

    def _columns(self, given: pa.Schema) -> list[pa.Field]:
        """Return the other columns of documents."""
        return [field for field in given if field.name not in self._not_delivered]

    @property
    def _may_lack_ends(self) -> bool:
        return self.pack.bos_id is not None or self.pack.eos_id is not None

    @cached_property
    def _adds(self) -> bool:
        pack = self.pack
        return pack.bos_id is not None or pack.eos_id is not None or pack.sep_id is not None

    def _lists(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns that are cut, before the caller's function changes them."""
        return [plain(batch.column(name)) for name in self.pack.cut_columns]

    def _lengths(self, batch: pa.RecordBatch, *, twice: bool = False) -> tuple[Ints, list[pa.Array], Ints, Ints]:
        """Return the number of stored tokens of each row, the lists, and which rows lack a begin or an end token.

        With `twice`, the caller's function is called again for some rows; see `DocumentChange.columns`.

        Raises:
            TableError: lists of one row have different lengths, or a null inside.
        """
        lists = self._lists(batch)
        if self._change is not None:
            lists = self._change.columns(batch, lists, self._seeds, twice=twice)
        lengths = lengths_of(lists[0])
        for name, column in zip(self.pack.cut_columns, lists, strict=True):
            check_aligned(self.pack.ids, lengths, name, column)
        none = np.zeros(len(lengths), dtype=np.int64)
        if not self._may_lack_ends:
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
        if self.pack.lengths is not None:
            check_counted(self.pack.lengths, batch.column(self.pack.lengths), lengths)
        whole = self._token_counts(lengths, begin, end)
        kept = np.flatnonzero(whole)
        offsets = np.concatenate(([0], np.cumsum(whole[kept])))
        stored = [_values(column) for column in lists]
        check_ids_fit(self.pack.ids, stored[0], lengths)
        if len(kept) < np.count_nonzero(lengths):
            long_enough = np.repeat(whole > 0, lengths)
            stored = [values[long_enough] for values in stored]
        stored = [
            values.astype(number_type(field.type).base, copy=False)
            for values, field in zip(stored, self._cut, strict=True)
        ]
        if self._adds:
            stored = self._with_ends(stored, offsets, begin[kept] > 0, end[kept] > 0)
        for name in self.pack.spans:
            check_spans(name, batch.column(name), lengths)
        return Documents(kept, offsets, begin[kept], stored)

    def _with_ends(
        self, stored: Sequence[NDArray[Any]], offsets: Ints, begin: NDArray[np.bool_], end: NDArray[np.bool_]
    ) -> list[NDArray[Any]]:
        """Put in begin, end and separator tokens; of these the loss mask keeps the end token alone."""
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
            out = np.zeros((len(is_stored), *values.shape[1:]), dtype=values.dtype)
            out[is_stored] = values
            for at, token, trained in places:
                if number == 0:
                    out[at] = token
                elif pack.cut_columns[number] == pack.loss_mask:
                    out[at] = trained
            found.append(out)
        return found

    def _token_counts(self, lengths: Ints, begin: Ints, end: Ints) -> Ints:
        """Return how many tokens of each row come out; 0 for rows that are too short."""
        whole = lengths + begin + end + (self.pack.sep_id is not None)
        return np.where(lengths >= self.pack.min_length, whole, 0)

    def parts(self, batch: pa.RecordBatch, found: Documents, slices: Slices) -> Parts:
        """Return slices of the documents in a batch, with the token after each and the other columns of its row."""
        document, offsets = slices.document, found.offsets
        at, rows = offsets[document] + slices.start, found.kept[document]
        goes_on = self.packer.goes_on(slices, offsets[document + 1] - offsets[document])
        values = found.values
        behind = self.packer.behind(goes_on, at + slices.length, lambda column, places: values[column][places])
        names = [field.name for field in self._columns(batch.schema)]
        columns = None
        if names:
            taken = batch.select(names)
            if len(rows) != batch.num_rows or (np.diff(rows) != 1).any():
                taken = taken.take(pa.array(rows))
            columns = pa.StructArray.from_arrays(taken.columns, fields=list(taken.schema))
        length = slices.length
        return Parts(np.cumsum(length) - length, length, slices.start - found.added[document], behind, columns)


class TokensAsRows(TokenStage):
    """Each token is a row, so that documents are cut wherever a batch or a lane ends."""

    makes = "tokens"
    _window: int | None = None
    """How many documents of a row group are shuffled together; None: none are."""

    @override
    def in_blocks(self, size: int | None) -> TokensAsRows:
        other = copy.copy(self)
        other._window = size
        return other

    @property
    @override
    def block_rows(self) -> int | None:
        return self._window

    @override
    def of_epoch(self, key: EpochKey, *, shuffle: bool) -> TokenStage:
        return super().of_epoch(key, shuffle=True)  # a window is asked for by its size, whether splits are shuffled

    @property
    @override
    def key(self) -> str:
        if self._window is None:
            return super().key
        return f"{super().key}-windows of {self._window}"

    @override
    def known_count(self, values: int, lists: int) -> int | None:
        if self.pack.min_length > 1:
            return None
        return values + lists * (self.pack.sep_id is not None)

    @override
    def schema(self, given: pa.Schema) -> pa.Schema:
        return schema_of_tokens(self._cut, self._columns(given))

    @override
    def _made_of(self, whole: Ints) -> Counted:
        # How many sequences the tokens fill depends on ranks and lanes.
        return int(whole.sum()), None

    @override
    def rows(self, batch: pa.RecordBatch) -> Made:
        found = self.documents(batch)
        if self._order_key is not None:
            found = _shuffled(found, self._order_key)
        return int(found.offsets[-1]), partial(self._tokens, batch, found)

    def _tokens(self, batch: pa.RecordBatch, found: Documents, start: int, stop: int) -> pa.RecordBatch:
        """Return some tokens of the documents in a batch, and the parts of documents that they are."""
        slices = TokenRow(found.offsets).cut(np.array([start]), np.array([stop]))
        values = [column[start:stop] for column in found.values]
        return rows_of_tokens(values, self.parts(batch, found, slices), self.schema(batch.schema))


def _shuffled(found: Documents, key: Key) -> Documents:
    """Return the documents of a block in an order of the key's and of the block's, which its documents decide."""
    begins, lengths = found.offsets[:-1], np.diff(found.offsets)
    block = blake2b(lengths.tobytes() + found.values[0][begins].tobytes(), digest_size=8).digest()
    numbers = np.arange(len(lengths), dtype=np.uint64) + np.frombuffer(block, dtype="<u8")
    order = np.argsort(hashes_of(numbers, key), kind="stable")
    values = [runs_of([column], begins[order], lengths[order]) for column in found.values]
    offsets = np.concatenate(([0], np.cumsum(lengths[order])))
    return Documents(found.kept[order], offsets, found.added[order], values)


def _values(lists: pa.Array) -> NDArray[Any]:
    return numbers_of(lists.flatten())


def cut_field(table: pa.Schema, name: str, *, vectors: bool = False) -> pa.Field:
    """Return the field of the values of a list column.

    Args:
        vectors: whether a value may be a fixed-size list of numbers.

    Raises:
        ConfigError: the table has no such column, or it has another type.
    """
    kind = type_of(table, name)
    if pt.is_string(kind) or pt.is_large_string(kind):
        raise ConfigError(
            f"Pack: column {name!r} is text, whose tokens are not counted; write a table of tokens once with "
            'torch-table-loader tokenize, and read that, or pass tokenizer= and shuffle="rows"'
        )
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    value = number = None
    if is_list:
        value = number = opened_type(kind.value_type)
        if vectors and pt.is_fixed_size_list(value):
            number = value.value_type
    is_number = number is not None and (pt.is_integer(number) or pt.is_floating(number) or pt.is_boolean(number))
    if not is_number and not (vectors and isinstance(number, ElementType)):
        forms = "numbers,"
        if vectors:
            forms += " or of fixed-size lists of numbers,"
        raise ConfigError(
            f"Pack: column {name!r} must be a list of {forms} one for each token, got {table.field(name).type}"
        )
    if number is not value and pt.is_boolean(number):
        raise ConfigError(f"Pack: column {name!r} has vectors of booleans; write them as int8")
    return pa.field(name, value, nullable=False)


def type_of(table: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column, without what only encodes it."""
    if name not in table.names:
        raise ConfigError(f"Pack: the table has no column {name!r}{did_you_mean(name, table.names, spare=20)}")
    return plain_type(table.field(name).type)


def wide_enough(kind: pa.DataType, added: Sequence[int | None]) -> pa.DataType:
    """Return the type of the tokens, or int64 if one that is added does not fit."""
    info = np.iinfo(number_type(kind))
    fits = all(info.min <= token <= info.max for token in added if token is not None)
    if fits:
        return kind
    return pa.int64()


def check_span_type(table: pa.Schema, name: str) -> None:
    """Refuse a column that does not have the type of spans."""
    kind = type_of(table, name)
    inner = None
    if pt.is_list(kind) or pt.is_large_list(kind):
        inner = kind.value_type
    if inner is None or not pt.is_struct(inner) or not {"start", "end"} <= {field.name for field in inner}:
        raise ConfigError(f"Pack: spans column {name!r} must be list<struct<start, end, ...>>, got {kind}")
    for edge in ("start", "end"):
        if not pt.is_integer(found := plain_type(inner.field(edge).type)):
            raise ConfigError(f"Pack: spans column {name!r} must have integers as {edge!r}, got {found}")


def check_count_type(table: pa.Schema, name: str) -> None:
    """Refuse a column that cannot hold the number of tokens of documents."""
    if not pt.is_integer(kind := type_of(table, name)):
        raise ConfigError(f"Pack: lengths={name!r} must be a column of integers, got {kind}")


def counts_of(name: str, column: pa.Array) -> Ints:
    """Return the values of a column that has the number of tokens of each document; a null is 0.

    Raises:
        TableError: a number below 0.
    """
    counts: Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if counts.min(initial=0) < 0:
        row = int(counts.argmin())
        raise TableError(
            f"column {name!r} must say how many tokens a document has, got {counts[row]} in row {row} of this batch; "
            "fix the table, or leave lengths out"
        )
    return counts


def check_counted(name: str, column: pa.Array, lengths: Ints) -> None:
    """Refuse documents whose number of tokens is not that in the column by which they were counted."""
    counts = counts_of(name, column)
    if len(wrong := np.flatnonzero(counts != lengths)):
        row = int(wrong[0])
        raise TableError(
            f"column {name!r} says {counts[row]} tokens in row {row} of this batch, and the document has "
            f"{lengths[row]}; fix the table, or leave lengths out"
        )


def check_spans(name: str, lists: pa.Array, lengths: Ints) -> None:
    """Refuse spans that are not inside their document."""
    lists = plain(lists)
    inside = lists.flatten()
    row = np.repeat(np.arange(len(lengths)), lengths_of(lists))
    start, end = (_edges_of(inside.field(field)) for field in ("start", "end"))
    wrong = np.flatnonzero((start < 0) | (end < start) | (end > lengths[row]))
    if len(wrong):
        first = wrong[0]
        raise TableError(
            f"column {name!r}: a span must lie inside its document, from 0 to its number of tokens, got {start[first]} "
            f"to {end[first]} in row {row[first]} of this batch, which has {lengths[row[first]]} tokens"
        )


def _edges_of(numbers: pa.Array) -> Ints:
    """Return where spans begin or end; a null is before every document."""
    found: Ints = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if numbers.null_count:
        found[numbers.is_null().to_numpy(zero_copy_only=False)] = -1
    return found


def check_ids_fit(name: str, ids: NDArray[Any], lengths: Ints) -> None:
    """Refuse token ids that do not fit into int64, the type in which they come out."""
    if ids.dtype == np.uint64 and len(ids) and (most := int(ids.max())) > _MOST_ID:
        row = int(np.searchsorted(np.cumsum(lengths), int(ids.argmax()), side="right"))
        raise TableError(
            f"column {name!r} has the token id {most} in row {row} of this batch, which does not fit into int64; leave "
            "such rows out with filters=, or fix the table"
        )


def check_aligned(tokens: str, lengths: Ints, name: str, column: pa.Array) -> None:
    """Refuse lists of another length than the tokens', and nulls among the values."""
    own = lengths
    if name != tokens:
        own = lengths_of(column)
    if not np.array_equal(own, lengths):
        row = int(np.flatnonzero(own != lengths)[0])
        raise TableError(
            f"columns {tokens!r} and {name!r} must be lists of one length in each row, got {int(lengths[row])} and "
            f"{int(own[row])} in row {row} of this batch; leave {name!r} out of aligned, or fix the table"
        )
    values, size = column.flatten(), 1
    if pt.is_fixed_size_list(values.type) and not values.null_count:
        values, size = values.flatten(), values.type.list_size
    if values.null_count:
        place = int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // size
        row = int(np.searchsorted(np.cumsum(own), place, side="right"))
        raise TableError(
            f"column {name!r} has a null inside the list of row {row} of this batch; a token must have a value: leave "
            "such rows out with filters=, or fix the table"
        )
