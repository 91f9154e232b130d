"""Writes tensor shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.arrow.elements import ElementType, innermost
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.format_contracts import FormatWriter
from torch_table_loader.read.tensorproto.protos import CODES, LENGTH, TensorProto, byte_width
from torch_table_loader.read.tensorproto.tensor_reader import SHAPE, VALUES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensors = tuple[list[tuple[int, ...]], list[int], NDArray[np.uint8]]

_MOST_BYTES = 2**31 - 1


class TensorProtoWriter(FormatWriter):
    """Writes rows as samples, and each column as a feature with `raw_data`."""

    name = "tensorproto"
    suffix = ".pb"

    @override
    def check(self, schema: pa.Schema) -> None:
        if not schema.names:
            raise ConfigError("a sample needs at least one feature, but the table has no columns")
        for field in schema:
            kind = plain_type(field.type) if not isinstance(field.type, ElementType) else field.type
            if _is_tensor_struct(kind):
                kind = kind.field(VALUES).type
            if innermost(kind) not in CODES:
                raise ConfigError(
                    f"column {field.name!r} is of type {field.type}, which a tensor shard cannot hold; leave it out "
                    "with --columns"
                )

    @override
    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
        done = 0
        for batch in batches:
            columns = [_features(name, column, done) for name, column in zip(schema.names, batch.columns, strict=True)]
            for features in zip(*columns, strict=True):
                length = sum(LENGTH.size + len(feature) for feature in features)
                if length > _MOST_BYTES:
                    raise TableError(f"row {done} has {length} bytes, but a sample has at most {_MOST_BYTES}")
                file.write(LENGTH.pack(length))
                for feature in features:
                    file.write(LENGTH.pack(len(feature)))
                    file.write(feature)
                done += 1


def _features(name: str, column: pa.Array, done: int) -> list[bytes]:
    """Return a column's rows as serialized TensorProtos."""
    if not isinstance(column.type, ElementType):
        column = plain(column)
    kind, shapes = column.type, None
    if _is_tensor_struct(kind):
        _refuse_nulls(column, name, done)
        values, lengths = column.flatten()
        _refuse_nulls(lengths, name, done)
        shapes = [tuple(shape) for shape in lengths.to_pylist()]
        column, kind = values, values.type
    element = innermost(kind)
    rows, data = _bytes_of(column, name, done)
    made: list[bytes] = []
    message = TensorProto(name=name, data_type=CODES[element])
    width = byte_width(element)
    for row, (start, stop, own) in enumerate(rows):
        dims = own if shapes is None else shapes[row]
        if int(np.prod(dims, dtype=np.int64)) != stop - start or min(dims, default=0) < 0:
            raise TableError(
                f"row {done + row} of column {name!r} has {stop - start} values, and the shape {list(dims)}"
            )
        message.dims[:] = dims
        message.raw_data = data[start * width : stop * width].tobytes()
        made.append(message.SerializeToString())
    return made


def _bytes_of(
    column: pa.Array, name: str, done: int
) -> tuple[list[tuple[int, int, tuple[int, ...]]], NDArray[np.uint8]]:
    """Return for each row where its values are, and its shape; and the bytes of all values."""
    rows, lengths, inside = len(column), None, []
    _refuse_nulls(column, name, done)
    while pt.is_nested(column.type):
        if pt.is_fixed_size_list(column.type):
            inside.append(column.type.list_size)
            column = column.flatten()
        elif lengths is None and not inside:
            lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
            column = column.flatten()
        else:
            raise TableError(
                f"column {name!r} has lists inside lists, which cannot become tensors; leave it out with --columns"
            )
        column = column if isinstance(column.type, ElementType) else plain(column)
        _refuse_nulls(column, name, done)
    each = int(np.prod(inside, dtype=np.int64))
    counts = np.full(rows, each) if lengths is None else lengths * each
    ends = np.cumsum(counts).tolist()
    firsts = [()] * rows if lengths is None else [(length,) for length in lengths.tolist()]
    places = [
        (end - count, end, (*first, *inside)) for end, count, first in zip(ends, counts.tolist(), firsts, strict=True)
    ]
    return places, _flat_bytes(column)


def _flat_bytes(values: pa.Array) -> NDArray[np.uint8]:
    if isinstance(values.type, ElementType):
        width = byte_width(values.type)
        return np.frombuffer(values.buffers()[1] or b"", np.uint8)[values.offset * width :][: len(values) * width]
    return np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).view(np.uint8)


def _is_tensor_struct(kind: pa.DataType) -> bool:
    return bool(pt.is_struct(kind)) and [field.name for field in kind] == [VALUES, SHAPE]


def _refuse_nulls(array: pa.Array, name: str, done: int) -> None:
    if array.null_count:
        at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise TableError(
            f"column {name!r} has a null, which a tensor cannot hold: value {at} of those from row {done} on; "
            "filter such rows out, or leave the column out with --columns"
        )
