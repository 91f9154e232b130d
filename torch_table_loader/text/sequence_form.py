"""How packed streams become sources of a mixture: their columns, and sequences of what is read of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.records import SOURCE_COLUMN
from torch_table_loader.text.packed import PackedRows
from torch_table_loader.text.token_rows import (
    DOCUMENTS,
    columns_of_parts,
    schema_of_sequences,
    schema_of_tokens,
    tokens_are_rows,
)

if TYPE_CHECKING:
    from torch_table_loader.batching.policy import TypePolicy
    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.packed import PackedCodec


def flat_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are cut, of the type of one token's value, and the other columns of the documents."""
    cut = [field for field in schema if field.name != DOCUMENTS]
    kinds = [field.type if tokens_are_rows(schema) else field.type.value_type for field in cut]
    flat = [pa.field(field.name, kind, nullable=False) for field, kind in zip(cut, kinds, strict=True)]
    return pa.schema([*flat, *columns_of_parts(schema)])


def columns_of_mixture(pack: Pack, flat: Sequence[pa.Field], source: pa.Field) -> pa.Schema:
    """Return the columns of sequences that have some flat columns, and a column of their documents beside."""
    cut = len(pack.cut_columns)
    return schema_of_sequences(flat[:cut], [*flat[cut:], source])


def sequence_form(
    number: int, codec: RowsCodec[Any], mixed: pa.Schema, own: pa.Schema, policy: TypePolicy
) -> SequenceForm:
    """Return what makes sequences of the mixture from those, or the tokens, of a packed stream with columns `own`."""
    fields, read = columns_of_parts(mixed), codec
    if tokens_are_rows(own):
        cut = list(flat_columns(mixed))[: -len(fields)]
        read = make_codec(schema_of_tokens(cut, fields), policy)
    parts = pa.schema(columns_of_parts(own))
    places = tuple(parts.get_field_index(field.name) for field in fields if field.name != SOURCE_COLUMN)
    decodes, takes, gives = (cast("PackedCodec", each) for each in (make_codec(own, policy), read, codec))
    return SequenceForm(number, decodes, takes, gives, tuple(fields), places)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceForm:
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

    def reads(self) -> RowsCodec[Any]:
        """Return the codec of what is read."""
        return self.read

    def decode(self, batch: pa.RecordBatch, *, padding: bool) -> Rows:
        """Say of each document which source it is of; padding has no documents."""
        rows = self.own.decode(batch)
        parts = self.own.padded(rows, np.full(rows.num_rows, padding)).parts
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
