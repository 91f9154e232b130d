"""The Arrow form of tokenized documents on their way to sequences: stages and stores write it, batching reads it.

Both forms have a column for each column that is cut like the tokens, the tokens first, and `documents`:

* **Tokens as rows**, when documents are cut anywhere: flat values, and `documents` as run-ends of a struct, one run
  for each part of a document.
* **Sequences as rows**: lists of values, none longer than a sequence (values after the last part are padding), and
  `documents` as lists of the struct.

The struct is ``<length: int64, start: int64, next: int64, columns: struct<...>>``: tokens of the part, the place of its
first token among those that its document stores, the token after its last (−100 if it ends the document, or if
the loss ignores that token), and the other columns of the document, if any are requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import array_of
from torch_table_loader.arrow.copied_runs import runs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

DOCUMENTS = "documents"
"""The column of packed rows that describes the parts of documents in them."""


class Parts(NamedTuple):
    """Parts of documents, in the order of their tokens.

    Args:
        at: int64[n], the place of each part's first token among the tokens, ascending.
        length: int64[n], its tokens, at least one. Places that no part covers are padding.
        start: int64[n], the place of its first token among those that its document stores; −1 for a begin token that
            was added.
        next: int64[n], the token after its last, or −100.
        columns: the other columns of its document, a StructArray[n]; or None.
    """

    at: Ints
    length: Ints
    start: Ints
    next: Ints
    columns: pa.StructArray | None

    @property
    def columns_bytes(self) -> int:
        """Bytes of the other columns."""
        if self.columns is None:
            return 0
        return int(self.columns.nbytes)

    def columns_of(self, numbers: Ints | slice) -> pa.StructArray | None:
        """Return the other columns of some parts."""
        if self.columns is None:
            return None
        if isinstance(numbers, slice):
            return self.columns[numbers]
        return self.columns.take(pa.array(numbers))


def part_type(columns: Sequence[pa.Field]) -> pa.StructType:
    """Return the type of a part, including the other columns of its document."""
    numbers = [pa.field(name, pa.int64(), nullable=False) for name in ("length", "start", "next")]
    if columns:
        numbers.append(pa.field("columns", pa.struct(columns)))
    return pa.struct(numbers)


def schema_of_tokens(cut: Sequence[pa.Field], columns: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of tokens as rows; columns that are cut have the type of one token's value."""
    return pa.schema([*cut, pa.field(DOCUMENTS, pa.run_end_encoded(pa.int64(), part_type(columns)))])


def schema_of_sequences(cut: Sequence[pa.Field], columns: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of sequences as rows, with the arguments of `schema_of_tokens`."""
    lists = [pa.field(field.name, pa.large_list(field.type), nullable=False) for field in cut]
    return pa.schema([*lists, pa.field(DOCUMENTS, pa.large_list(part_type(columns)), nullable=False)])


def columns_of_parts(schema: pa.Schema) -> list[pa.Field]:
    """Return the other columns of documents, from a schema of either form."""
    kind = schema.field(DOCUMENTS).type
    kind = kind.value_type
    if kind.num_fields > 3:
        return list(kind.field("columns").type)
    return []


def tokens_are_rows(schema: pa.Schema) -> bool:
    """Return whether a schema is of tokens as rows rather than sequences."""
    return bool(pt.is_run_end_encoded(schema.field(DOCUMENTS).type))


def rows_of_tokens(values: Sequence[NDArray[Any]], parts: Parts, schema: pa.Schema) -> pa.RecordBatch:
    """Build rows of single tokens: of each column that is cut, one value for each token."""
    runs = pa.RunEndEncodedArray.from_arrays(
        pa.array(parts.at + parts.length), _parts_array(parts), type=schema.field(DOCUMENTS).type
    )
    cut = [array_of(column, field.type) for column, field in zip(values, schema, strict=False)]
    return pa.RecordBatch.from_arrays([*cut, runs], schema=schema)


def rows_of_sequences(
    values: Sequence[NDArray[Any]], offsets: Ints, parts: Parts, part_offsets: Ints, schema: pa.Schema
) -> pa.RecordBatch:
    """Build rows of sequences.

    Args:
        values: values of each column that is cut, one for each token; padding after a sequence may be there or left
            out.
        offsets: int64[rows + 1], where the tokens of each sequence begin.
        parts: parts of all sequences; `at` does not matter.
        part_offsets: int64[rows + 1], where the parts of each sequence begin.
    """
    tokens = pa.array(offsets)
    cut = [
        pa.LargeListArray.from_arrays(tokens, array_of(column, field.type.value_type))
        for column, field in zip(values, schema, strict=False)
    ]
    documents = pa.LargeListArray.from_arrays(pa.array(part_offsets), _parts_array(parts))
    arrays = [array.cast(field.type) for array, field in zip([*cut, documents], schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def parts_of_tokens(documents: pa.RunEndEncodedArray) -> Parts:
    """Return the parts of tokens that are rows; for a whole array, since a slice may cut a part."""
    ends = documents.run_ends.to_numpy()
    at = np.zeros(len(ends), dtype=np.int64)
    at[1:] = ends[:-1]
    return _parts(documents.values, at, ends - at)


def parts_of_sequences(documents: pa.LargeListArray, width: int) -> Parts:
    """Return the parts of sequences that are rows, each of which begins at a multiple of `width`."""
    if not len(documents):
        none = np.empty(0, dtype=np.int64)
        return Parts(none, none, none, none, None)
    offsets = documents.offsets.to_numpy()
    struct = documents.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    length = struct.field("length").to_numpy()
    counts = np.diff(offsets)
    ends = np.cumsum(length)
    before = np.concatenate(([0], ends))[offsets[:-1] - offsets[0]]
    row = np.repeat(np.arange(len(documents)) * width - before, counts)
    return _parts(struct, ends - length + row, length)


def repeated(values: NDArray[Any], ends: Ints) -> NDArray[Any]:
    """Repeat each value up to the end of its run. Arrow does it without Python's lock, which `np.repeat` holds.

    `ends` is int64[n], ascending: the place after each run's last.

    >>> repeated(np.array([7, 9]), np.array([1, 3])).tolist()
    [7, 9, 9]
    """
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends), pa.array(values))
    return np.frombuffer(pc.run_end_decode(runs).buffers()[1], values.dtype, int(ends[-1]))


def sequences_of(values: NDArray[Any], at: Ints, length: Ints, offsets: Ints, width: int) -> NDArray[Any]:
    """Return runs of values (see `runs_of`) as sequences of one width, each padded with arbitrary values.

    Args:
        offsets: int64[sequences + 1], where the runs of each sequence begin.
        width: values of a sequence, at least as many as its runs have.
    """
    ends = np.concatenate(([0], np.cumsum(length)))[offsets]
    missing = width - np.diff(ends)
    if missing.any():
        at, length = np.insert(at, offsets[1:], 0), np.insert(length, offsets[1:], missing)
        if len(values) < width:
            values = np.concatenate([values, np.zeros((width, *values.shape[1:]), dtype=values.dtype)])
    return runs_of([values], at, length)


def _parts(struct: pa.StructArray, at: Ints, length: Ints) -> Parts:
    columns = None
    if struct.type.num_fields > 3:
        columns = struct.field("columns")
    return Parts(at, length, struct.field("start").to_numpy(), struct.field("next").to_numpy(), columns)


def _parts_array(parts: Parts) -> pa.StructArray:
    names = ["length", "start", "next"]
    arrays = [pa.array(parts.length), pa.array(parts.start), pa.array(parts.next)]
    fields = [pa.field(name, pa.int64(), nullable=False) for name in names]
    if parts.columns is not None:
        arrays.append(parts.columns)
        fields.append(pa.field("columns", parts.columns.type))
    return pa.StructArray.from_arrays(arrays, fields=fields)
