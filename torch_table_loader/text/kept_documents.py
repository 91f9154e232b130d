"""Documents of tokens as a row store keeps them: with the tokens that are added, but not cut into sequences."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import array_of, number_type, plain, relisted
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.forks import OfProcess
from torch_table_loader.format_contracts import PLACE
from torch_table_loader.records import ROW_ID
from torch_table_loader.text.placed_documents import LACKS_BEGIN, LACKS_END
from torch_table_loader.text.token_stages import TokenStage, type_of
from torch_table_loader.text.tokenizers import RowFaultError, load_tokenizer

_TEXTS = 256
"""Texts in one call of a tokenizer: enough to keep it busy, and few enough if they are books."""

KEPT, LACKS = "kept", "lacks"
"""The columns of `MeasuredDocuments`: the tokens that are kept of a document, and which of its ends it lacks."""

_AT_ONCE = 1 << 20
"""Documents whose lengths are made together."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_table_loader.read.row_stage import Counted, Made
    from torch_table_loader.text.pack import Pack

    Ints = NDArray[np.int64]


class KeptDocuments(TokenStage):
    """Makes a row of each document: the columns that are cut as lists without nulls, then the other columns.

    Begin and end tokens are put in, and spans are moved by them, so that offsets count the tokens that are kept. A
    document that is too short, or null, becomes an empty list, so that there are as many rows as before.

    Args:
        bounds: the least and the greatest number that a stored token can be; None if they are not known.
    """

    def __init__(
        self, pack: Pack, table: pa.Schema, asked: Sequence[str] = (), bounds: tuple[int, int] | None = None
    ) -> None:
        self._lock = OfProcess(threading.Lock)
        self._tokenizer = None if pack.tokenizer is None else load_tokenizer(pack.tokenizer)
        super().__init__(pack, table, (*asked, ROW_ID))  # a store keeps ids that are not the places of its rows
        if self._tokenizer is not None:
            most = self._tokenizer.vocabulary
            bounds = None if most is None else (0, most - 1)
        self._kept_as = [kept_type(field.type) for field in self._cut]
        if bounds is not None and pack.documents is None:
            added = [token for token in (pack.bos_id, pack.eos_id, pack.sep_id) if token is not None]
            self._kept_as[0] = _narrowest(self._cut[0].type, min(bounds[0], *added, bounds[1]), max(*bounds, *added))

    @property
    @override
    def key(self) -> str:
        # How documents are cut into sequences is not part of it.
        pack = self.pack
        ends = (pack.bos_id, pack.eos_id, pack.sep_id)
        moved = "" if pack.bos_id is None else ".".join(pack.spans)
        made = "" if self._tokenizer is None else f"-{self._tokenizer.name}"
        made += self._changed_by
        return f"documents-{'.'.join(pack.cut_columns)}-{pack.loss_mask}-{ends}-{pack.min_length}-{moved}{made}"

    @property
    @override
    def flat_lists(self) -> int:
        return len(self.token_fields)

    @property
    def token_fields(self) -> list[pa.Field]:
        """The columns that are cut, each with the type of its values."""
        return list(self._cut)

    @property
    def keeps_as_stored(self) -> bool:
        """Whether a document is kept as its stored tokens, with begin and end tokens put in, and nothing else."""
        pack = self.pack
        alone = pack.cut_columns == (pack.ids,) and not pack.spans and pack.lengths is None
        return alone and pack.documents is None and pack.tokenizer is None

    @property
    def changes_lengths(self) -> bool:
        """Whether documents have other lengths than their stored tokens."""
        return self._adds or self.pack.min_length > 1

    def kept_lengths(self, stored: NDArray[Any]) -> NDArray[np.uint32]:
        """Return how many tokens are kept of documents from those stored, if none may lack a begin or end token."""
        kept = np.empty(len(stored), np.uint32)
        for first in range(0, len(stored), _AT_ONCE):
            some = stored[first : first + _AT_ONCE].astype(np.int64)
            kept[first : first + len(some)] = self._token_counts(some, *np.zeros((2, len(some)), np.int64))
        return kept

    @override
    def schema(self, given: pa.Schema) -> pa.Schema:
        lists = [
            pa.field(field.name, pa.large_list(kind), nullable=False)
            for field, kind in zip(self._cut, self._kept_as, strict=True)
        ]
        return pa.schema([*lists, *self._columns(given)])

    @override
    def _cut_fields(self, table: pa.Schema) -> list[pa.Field]:
        if self._tokenizer is None:
            return super()._cut_fields(table)
        ids, *masks = self.pack.cut_columns
        if (refused := self._tokenizer.refuses(kind := type_of(table, ids))) is not None:
            raise ConfigError(f"Pack: column {ids!r} {refused}, got {kind}; leave tokenizer out")
        kinds = [(ids, pa.uint32()), *((name, pa.uint8()) for name in masks)]
        return [pa.field(name, kind, nullable=False) for name, kind in kinds]

    @override
    def _lists(self, batch: pa.RecordBatch) -> list[pa.Array]:
        if self._tokenizer is None:
            return super()._lists(batch)
        given = [plain(batch.column(name)).to_pylist() for name in self.pack.stored_columns]
        parts = [self._tokens_of(given, first) for first in range(0, batch.num_rows, _TEXTS) or [0]]
        lists = [pa.concat_arrays(each) for each in zip(*parts, strict=True)]
        return lists[: len(self.pack.cut_columns)]

    def _tokens_of(self, given: Sequence[Sequence[Any]], first: int) -> list[pa.LargeListArray]:
        """Return the tokens of some rows as lists, and what the tokenizer makes beside them."""
        tokenizer = self._tokenizer
        assert tokenizer is not None  # noqa: S101 asked only then
        try:
            with self._lock.own:  # few tokenizers bear two threads at once
                some = [values[first : first + _TEXTS] for values in given]
                return tokenizer.columns(some, "uint32", "use another tokenizer")
        except RowFaultError as error:
            row = first + error.row
            raise TableError(f"column {self.pack.ids!r}, row {row} of this batch: {error.message}") from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave out a tokenizer that is given by name, which each process makes for itself."""
        named = not callable(self.pack.tokenizer)
        return {**vars(self), **({"_tokenizer": None} if named else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the tokenizer."""
        vars(self).update(state)
        if self.pack.tokenizer is not None and not callable(self.pack.tokenizer):
            self._tokenizer = load_tokenizer(self.pack.tokenizer)

    @override
    def _made_of(self, whole: Ints) -> Counted:
        return len(whole), None

    @override
    def rows(self, batch: pa.RecordBatch) -> Made:
        found = self.documents(batch)
        lengths, added = np.zeros((2, batch.num_rows), dtype=np.int64)
        lengths[found.kept] = np.diff(found.offsets)
        added[found.kept] = found.added
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))))
        schema = self.schema(batch.schema)
        lists = [
            pa.LargeListArray.from_arrays(offsets, _kept(values, field))
            for values, field in zip(found.values, schema, strict=False)
        ]
        names = schema.names[len(lists) :]
        others = [
            _moved(batch.column(name), added) if name in self.pack.spans and added.any() else batch.column(name)
            for name in names
        ]
        made = pa.RecordBatch.from_arrays([*lists, *others], schema=schema)
        return made.num_rows, lambda start, stop: made.slice(start, stop - start)


class MeasuredDocuments(KeptDocuments):
    """Makes a row of each document that says what `KeptDocuments` would keep of it: how long it is, and what it lacks.

    The columns `PLACE` and `ROW_ID` come as they are.
    """

    @property
    @override
    def key(self) -> str:
        return f"measured-{super().key}"

    @property
    @override
    def token_fields(self) -> list[pa.Field]:
        return []  # no lists are kept

    @override
    def schema(self, given: pa.Schema) -> pa.Schema:
        fields = [pa.field(KEPT, pa.uint32(), nullable=False), pa.field(LACKS, pa.uint8(), nullable=False)]
        return pa.schema([*fields, *(field for field in given if field.name in (PLACE, ROW_ID))])

    @override
    def rows(self, batch: pa.RecordBatch) -> Made:
        stored, _, begin, end = self._lengths(batch)
        schema = self.schema(batch.schema)
        kept, lacks = self._token_counts(stored, begin, end), begin * LACKS_BEGIN + end * LACKS_END
        arrays = [pa.array(each, field.type) for each, field in zip((kept, lacks), schema, strict=False)]
        arrays += [batch.column(name) for name in schema.names[len(arrays) :]]
        made = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return made.num_rows, lambda start, stop: made.slice(start, stop - start)


def kept_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are kept: booleans as bytes, so that a part of them is a view."""
    if pt.is_boolean(kind):
        return pa.uint8()
    return kind


def _narrowest(kind: pa.DataType, low: int, high: int) -> pa.DataType:
    """Return the smallest unsigned type that holds a range of numbers, if it is smaller than `kind`; else `kind`.

    >>> _narrowest(pa.int32(), 0, 50_000), _narrowest(pa.int32(), -1, 9), _narrowest(pa.uint16(), 0, 70_000)
    (DataType(uint16), DataType(int32), DataType(uint16))
    """
    for small in (pa.uint8(), pa.uint16(), pa.uint32()):
        if low >= 0 and high < 2**small.bit_width and small.bit_width < kind.bit_width:
            return small
    return kind


def _kept(values: NDArray[Any], field: pa.Field) -> pa.Array:
    """Return values in the type in which they are kept."""
    kind = field.type.value_type
    if values.dtype == np.bool_:
        return pa.array(values.view(np.uint8), kind)
    if pt.is_integer(kind) and values.dtype.itemsize * 8 > kind.bit_width and len(values):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= 2**kind.bit_width:
            raise TableError(
                f"column {field.name!r} has tokens from {low} to {high}, and by the statistics of its files all are "
                f"below {2**kind.bit_width} and none is below 0; the files are damaged: write them again"
            )
    return array_of(values.astype(number_type(kind).base, copy=False), kind)


def _moved(spans: pa.Array, by: Ints) -> pa.Array:
    """Move the spans of each row by a number of tokens."""
    lists = plain(spans)
    counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    inside, shift = lists.flatten(), pa.array(np.repeat(by, counts))
    fields = list(inside.type)
    values = [
        pc.add(inside.field(field.name).cast(pa.int64()), shift).cast(field.type)
        if field.name in ("start", "end")
        else inside.field(field.name)
        for field in fields
    ]
    return relisted(lists, pa.StructArray.from_arrays(values, fields=fields)).cast(spans.type)
