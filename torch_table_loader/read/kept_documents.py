"""Documents of tokens as a row store keeps them: as they come out, whatever sequences are cut of them later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.read.token_stages import TokenStage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class KeptDocuments(TokenStage):
    """Makes one row of each: the columns that are cut as lists without nulls, then the other columns.

    Begin and end tokens are put in. A document that is too short, or null, is an empty list: rows are what they were.
    """

    @property
    def key(self) -> str:
        """A name of all that decides what is kept; how it is cut into sequences is no part of it."""
        pack = self.pack
        ends = (pack.bos_id, pack.eos_id, pack.sep_id)
        loss = None if pack.loss_mask is None else pack.cut_columns.index(pack.loss_mask)
        return f"documents-{len(pack.cut_columns)}-{loss}-{ends}-{pack.min_length}"

    @property
    def token_fields(self) -> list[pa.Field]:
        """The columns that are cut, of the type of one token's value."""
        return list(self._cut)

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of what is kept."""
        lists = [pa.field(field.name, pa.large_list(kept_type(field.type)), nullable=False) for field in self._cut]
        return pa.schema([*lists, *self._columns(given)])

    def counts(self, batch: pa.RecordBatch) -> Ints:
        """Return one for each row."""
        return np.ones(batch.num_rows, dtype=np.int64)

    def apply(self, batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
        """Return some of the rows."""
        batch = batch.slice(start, stop - start)
        found = self._documents(batch)
        lengths = np.zeros(batch.num_rows, dtype=np.int64)
        lengths[found.kept] = np.diff(found.offsets)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))))
        schema = self.schema(batch.schema)
        lists = [
            pa.LargeListArray.from_arrays(offsets, pa.array(_bytes(values), field.type.value_type))
            for values, field in zip(found.values, schema, strict=False)
        ]
        rest = [batch.column(name) for name in schema.names[len(lists) :]]
        return pa.RecordBatch.from_arrays([*lists, *rest], schema=schema)


def kept_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are kept: booleans as bytes, so that a part of them is a view."""
    return pa.uint8() if pt.is_boolean(kind) else kind


def _bytes(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(np.uint8) if values.dtype == np.bool_ else values
