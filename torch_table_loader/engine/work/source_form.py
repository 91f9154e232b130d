"""How what is read of a source of a mixture of streams becomes items of the mixture: rows, or sequences of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.packed import PackedRows
from torch_table_loader.read.conform import batch_of

if TYPE_CHECKING:
    from torch_table_loader.batching.packed import PackedCodec
    from torch_table_loader.batching.rows import Rows, RowsCodec


class SourceForm(ABC):
    """Makes items of what is read of one source. It pickles."""

    @abstractmethod
    def decode(self, batch: pa.RecordBatch, *, padding: bool) -> Rows:
        """Return what was read as the mixture has it; padding only fills up the rank's last batch."""

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

    def decode(self, batch: pa.RecordBatch, *, padding: bool) -> Rows:
        """Return the columns in the mixture's order, and those that it adds."""
        columns: list[Any] = [batch.column(column) for column in self.columns]
        columns.append(pa.array(np.full(batch.num_rows, self.number, dtype=np.int64)))
        if self.marks_padding:
            columns.append(pa.array(np.full(batch.num_rows, padding)))
        return cast("Rows", self.codec.decode(batch_of(columns, self.schema)))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceForm(SourceForm):
    """Each sequence is an item, whether sequences are read, or tokens of which a fixed number make one.

    Args:
        number: what the column `source` of documents says.
        read: the codec of what is read, with the mixture's columns of documents.
        columns: for each of them but `source`, its place among the source's.
    """

    number: int
    own: PackedCodec
    read: PackedCodec
    codec: PackedCodec
    fields: tuple[pa.Field, ...]
    columns: tuple[int, ...]

    def decode(self, batch: pa.RecordBatch, *, padding: bool) -> Rows:
        """Say of each document which source it is of; padding has no documents."""
        rows = self.own.decode(batch)
        parts = self.own.without_padding(rows, np.full(rows.num_rows, padding)).parts
        columns: list[Any] = [] if parts.columns is None else [parts.columns.field(column) for column in self.columns]
        columns.append(pa.array(np.full(len(parts.at), self.number, dtype=np.int64)))
        documents = pa.StructArray.from_arrays(columns, fields=list(self.fields))
        return PackedRows(self.read, rows.num_rows, rows.tokens, parts._replace(columns=documents))

    def items(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        """Cut tokens into sequences; of the last, what is left is padding."""
        if self.read.width == self.codec.width:
            yield from rows
            return
        waiting: list[PackedRows] = []
        for more in rows:
            waiting.append(cast("PackedRows", more))
            tokens = sum(each.num_rows for each in waiting)
            if tokens >= self.codec.width:
                joined, whole = self.read.concat(waiting), tokens - tokens % self.codec.width
                yield self.codec.of_tokens(joined.slice(0, whole))
                waiting = [joined.slice(whole, tokens)] if whole < tokens else []
        if waiting:
            yield self.codec.of_tokens(self.read.concat(waiting))
