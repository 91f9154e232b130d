"""Checks what decoders take on trust: offsets, indices, text, and times that Python has objects for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.arrays import offsets_of, plain
from torch_table_loader.arrow.datatypes import children_of, is_string, is_text, plain_type
from torch_table_loader.arrow.python_values import is_nanoseconds
from torch_table_loader.errors import TableError

_Check = Callable[[pa.Array], None]
_Batch = TypeVar("_Batch", pa.RecordBatch, pa.Table)


def sound(batch: pa.RecordBatch, *, text: bool = True) -> pa.RecordBatch:
    """Validate all of a batch from Arrow IPC, whose offsets and indices are those of the file, before anything uses it.

    Without `text`, columns of text need not be UTF-8: only their offsets are read.

    Raises:
        pa.ArrowInvalid: an offset, an index, a length or a text is wrong; says which column.

    >>> sound(pa.record_batch({"a": ["x"]})).num_rows
    1
    """
    batch.validate()
    for column in batch.columns:
        if not text and is_text(column.type):
            _check_offsets(column)
        else:
            _checks(column.type)(column)
    return batch


def sound_text(batch: _Batch, places: Sequence[int] | None = None) -> _Batch:
    """Check the text and the dictionaries of a batch whose decoder made the offsets, but does not look at text.

    Args:
        places: those of the columns with text, for who has many batches of one schema; None looks for them.

    Raises:
        pa.ArrowInvalid: a text is not UTF-8, or an index is not in its dictionary.
    """
    for place in text_places(batch.schema) if places is None else places:
        column = batch.column(place)
        kind = column.type
        check = _check_text if pt.is_string(kind) or pt.is_large_string(kind) else _checks(kind)
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
            check(chunk)
    return batch


def text_places(schema: pa.Schema) -> list[int]:
    """Return the places of columns with text in them, at whatever depth; no other one need become an object of Python.

    >>> text_places(pa.schema([("a", pa.int8()), ("b", pa.list_(pa.string()))]))
    [1]
    """
    return [place for place, kind in enumerate(schema.types) if not pt.is_primitive(kind) and _holds_text(kind)]


def check_names(fields: Iterable[pa.Field]) -> None:
    """Look at all names of a schema, also of nested fields: pyarrow looks at some only where a row becomes a dict."""
    for field in fields:
        field.name  # noqa: B018 - it decodes
        check_names(field.type.field(place) for place in range(field.type.num_fields))


@lru_cache(maxsize=1024)
def _holds_text(kind: pa.DataType) -> bool:
    if is_string(kind) or pt.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_text(kind.storage_type)
    return any(_holds_text(child.type) for child in children_of(kind))


@lru_cache(maxsize=1024)
def _checks(kind: pa.DataType) -> _Check:
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _check_offsets_and_text
    if pt.is_dictionary(kind):
        return _check_dictionary
    return lambda array: array.validate(full=True)


def _check_dictionary(array: pa.DictionaryArray) -> None:
    """Validate indices and dictionary separately: batches share a dictionary, whose text is checked like other text."""
    array.validate()
    _checks(array.dictionary.type)(array.dictionary)
    bounds = pc.min_max(array.indices)
    if bounds["min"].is_valid and not 0 <= bounds["min"].as_py() <= bounds["max"].as_py() < len(array.dictionary):
        array.validate(full=True)


def _check_offsets_and_text(array: pa.Array) -> None:
    _check_offsets(array)
    _check_text(array)


def _check_offsets(array: pa.Array) -> None:
    """Validate text as bytes."""
    kind = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(array.type, array.type)
    array.view(kind).validate(full=True)


def _check_text(array: pa.Array) -> None:
    """Check text whose offsets are right; skip ASCII, since pyarrow looks at each string, which takes long."""
    data = array.buffers()[2]
    if data is None or not len(array):
        return
    first, last = offsets_of(array)[[0, -1]]
    # As signed bytes, all but ASCII is negative.
    if first < last and np.frombuffer(data, np.int8, last - first, first).min() < 0:
        array.validate(full=True)


def holds_times(kind: pa.DataType) -> bool:
    """Return whether there are dates, times or durations in values of a type.

    >>> holds_times(pa.list_(pa.date32())), holds_times(pa.int64())
    (True, False)
    """
    kind = plain_type(kind)
    return _is_time(kind) or any(holds_times(child.type) for child in children_of(kind))


def check_times(name: str, column: pa.Array) -> None:
    """Refuse a column with a time that Python has no object for."""
    for times in _times(column):
        try:
            for extreme in pc.min_max(times.view(_number(times.type))).values():
                extreme.cast(times.type).as_py()
        except (ValueError, OverflowError) as error:
            raise TableError(
                f"each value of column {name!r} must be one that Python has an object for, got {error}; fix the "
                "values, leave the column out, or use output_format='arrow'"
            ) from error


def _is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_date(kind) or pt.is_timestamp(kind) or pt.is_time(kind) or pt.is_duration(kind))


def _number(kind: pa.DataType) -> pa.DataType:
    if kind.bit_width == 32:
        return pa.int32()
    return pa.int64()


def _times(array: pa.Array) -> Iterator[pa.Array]:
    if not holds_times(array.type):
        return
    array = plain(array)
    kind = array.type
    if _is_time(kind):
        if not is_nanoseconds(kind):
            yield array
    elif pt.is_union(kind):
        for child in range(kind.num_fields):
            yield from _times(array.field(child))
    elif pt.is_struct(kind):
        for child in array.flatten():
            yield from _times(child)
    elif pt.is_map(kind):
        first, last = offsets_of(array)[[0, -1]].tolist()
        for child in (array.keys, array.items):
            yield from _times(child.slice(first, last - first))
    else:
        yield from _times(array.flatten())
