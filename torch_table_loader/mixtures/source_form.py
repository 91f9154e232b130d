"""How what is read of a source of a mixture of streams becomes items of the mixture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.read.conform import batch_of

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows, RowsCodec


class SourceForm(Protocol):
    """Makes items of what is read of one source. It pickles."""

    def reads(self) -> RowsCodec[Any]:
        """Return what joins and permutes the rows that are read."""
        ...

    def decode(self, batch: pa.RecordBatch, *, padding: bool) -> Rows:
        """Return what was read as the mixture has it; padding only fills up the rank's last batch."""
        ...

    def items(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Return the items of rows that follow one another, from the begin of an item on."""
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class PlainForm(SourceForm):
    """Each row is an item.

    Args:
        columns: for each column of the mixture, its place among the source's.
    """

    number: int
    codec: RowsCodec[Any]
    schema: pa.Schema
    columns: tuple[int, ...]
    marks_padding: bool

    def reads(self) -> RowsCodec[Any]:
        """Return the mixture's own."""
        return self.codec

    def decode(self, batch: pa.RecordBatch, *, padding: bool) -> Rows:
        """Return the columns in the mixture's order, and those that it adds."""
        columns: list[Any] = [batch.column(column) for column in self.columns]
        columns.append(pa.array(np.full(batch.num_rows, self.number, dtype=np.int64)))
        if self.marks_padding:
            columns.append(pa.array(np.full(batch.num_rows, padding)))
        return cast("Rows", self.codec.decode(batch_of(columns, self.schema)))
