"""The columns of a table that packing takes: checks of their types, and of what they say of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.messages import did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_MOST_ID = np.iinfo(np.int64).max


def cut_field(table: pa.Schema, name: str, *, text: bool = False, vectors: bool = False) -> pa.Field:
    """Return the field of the values of a list column, or of the ids that a tokenizer makes of a column of text.

    Args:
        vectors: whether a value may be a fixed-size list of numbers.

    Raises:
        ConfigError: the table has no such column, or it has another type.
    """
    kind = _type_of(table, name)
    is_text = pt.is_string(kind) or pt.is_large_string(kind)
    if text and is_text:
        return pa.field(name, pa.uint32(), nullable=False)
    if text:
        raise ConfigError(f"Pack: column {name!r} must be text for a tokenizer, got {kind}; leave tokenizer out")
    if is_text:
        raise ConfigError(
            f"Pack: column {name!r} is text, whose tokens are not counted; write a table of tokens once with "
            'torch-table-loader tokenize, and read that, or pass tokenizer= and shuffle="rows"'
        )
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    value = plain_type(kind.value_type) if is_list else None
    number = value.value_type if vectors and value is not None and pt.is_fixed_size_list(value) else value
    if number is None or not (pt.is_integer(number) or pt.is_floating(number) or pt.is_boolean(number)):
        forms = "numbers, or of fixed-size lists of numbers," if vectors else "numbers,"
        raise ConfigError(
            f"Pack: column {name!r} must be a list of {forms} one for each token, got {table.field(name).type}"
        )
    if number is not value and pt.is_boolean(number):
        raise ConfigError(f"Pack: column {name!r} has vectors of booleans; write them as int8")
    return pa.field(name, value, nullable=False)


def _type_of(table: pa.Schema, name: str) -> pa.DataType:
    if name not in table.names:
        raise ConfigError(f"Pack: the table has no column {name!r}{did_you_mean(name, table.names, spare=20)}")
    return plain_type(table.field(name).type)


def wide_enough(kind: pa.DataType, added: Sequence[int | None]) -> pa.DataType:
    """Return the type of the tokens, or int64 if one that is added does not fit."""
    info = np.iinfo(kind.to_pandas_dtype())
    fits = all(info.min <= token <= info.max for token in added if token is not None)
    return kind if fits else pa.int64()


def check_span_type(table: pa.Schema, name: str) -> None:
    """Refuse a column that does not have the type of spans."""
    kind = _type_of(table, name)
    inner = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else None
    if inner is None or not pt.is_struct(inner) or not {"start", "end"} <= {field.name for field in inner}:
        raise ConfigError(f"Pack: spans column {name!r} must be list<struct<start, end, ...>>, got {kind}")
    for edge in ("start", "end"):
        if not pt.is_integer(found := plain_type(inner.field(edge).type)):
            raise ConfigError(f"Pack: spans column {name!r} must have integers as {edge!r}, got {found}")


def check_count_type(table: pa.Schema, name: str) -> None:
    """Refuse a column that cannot hold the number of tokens of documents."""
    if not pt.is_integer(kind := _type_of(table, name)):
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
    own = lengths if name == tokens else lengths_of(column)
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


def lengths_of(lists: pa.Array) -> Ints:
    """Return how long each list is; a null has no length."""
    lengths = lists.value_lengths()
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    found: Ints = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
