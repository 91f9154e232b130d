"""Documents of tokens as a row store keeps them: as they come out, whatever sequences are cut of them later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import plain, relisted
from torch_table_loader.read.row_stage import StagedRows
from torch_table_loader.read.token_stages import TokenStage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.planning.pack_counts import PackCounts

    Ints = NDArray[np.int64]


class KeptDocuments(TokenStage):
    """Makes one row of each: the columns that are cut as lists without nulls, then the other columns.

    Begin and end tokens are put in, and spans moved by them, so that offsets count what is kept. A document that is
    too short, or null, is an empty list: rows are what they were.
    """

    @property
    def key(self) -> str:
        """A name of all that decides what is kept; how it is cut into sequences is no part of it."""
        pack = self.pack
        ends = (pack.bos_id, pack.eos_id, pack.sep_id)
        moved = "" if pack.bos_id is None else ".".join(pack.spans)
        return f"documents-{'.'.join(pack.cut_columns)}-{pack.loss_mask}-{ends}-{pack.min_length}-{moved}"

    @property
    def token_fields(self) -> list[pa.Field]:
        """The columns that are cut, of the type of one token's value."""
        return list(self._cut)

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of what is kept."""
        lists = [pa.field(field.name, pa.large_list(kept_type(field.type)), nullable=False) for field in self._cut]
        return pa.schema([*lists, *self._columns(given)])

    def _made_of(self, whole: Ints) -> tuple[int, PackCounts | None]:
        """Return how many rows there are."""
        return len(whole), None

    def rows(self, batch: pa.RecordBatch) -> KeptRows:
        """Return the rows as they are kept."""
        found = self.documents(batch)
        lengths, added = np.zeros((2, batch.num_rows), dtype=np.int64)
        lengths[found.kept] = np.diff(found.offsets)
        added[found.kept] = found.added
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))))
        schema = self.schema(batch.schema)
        lists = [
            pa.LargeListArray.from_arrays(offsets, pa.array(_bytes(values), field.type.value_type))
            for values, field in zip(found.values, schema, strict=False)
        ]
        names = schema.names[len(lists) :]
        others = [
            _moved(batch.column(name), added) if name in self.pack.spans and added.any() else batch.column(name)
            for name in names
        ]
        return KeptRows(pa.RecordBatch.from_arrays([*lists, *others], schema=schema))


class KeptRows(StagedRows):
    """Rows as they are kept.

    Args:
        batch: all of them.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Keep them."""
        self._batch = batch

    @property
    def num_rows(self) -> int:
        """How many."""
        return int(self._batch.num_rows)

    def slice(self, start: int, stop: int) -> pa.RecordBatch:
        """Return some of them."""
        return self._batch.slice(start, stop - start)


def kept_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are kept: booleans as bytes, so that a part of them is a view."""
    return pa.uint8() if pt.is_boolean(kind) else kind


def _bytes(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(np.uint8) if values.dtype == np.bool_ else values


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
