"""The Arrow form of a tensor column.

| shapes | Arrow type |
|---|---|
| all the same | the element type inside fixed-size lists, one for each dimension |
| they differ in the first dimension alone | a list of that |
| they differ in another dimension | a struct: `values`, a list in row-major order, and `shape`, a fixed-size list |
| they differ in how many dimensions they have | the same, with `shape` a list |

Arrow has no fixed-size lists of no value: shapes with a 0 behind the first dimension are written as a struct.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import lists_of
from torch_table_loader.arrow.elements import ElementType
from torch_table_loader.read.tensorproto.protos import byte_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Pattern: TypeAlias = "tuple[int | None, ...] | None"
"""For each dimension its length in all shapes, or None; None if shapes differ in their number of dimensions."""

VALUES, SHAPE = "values", "shape"
"""The fields of a struct."""


def joint(one: Pattern, other: Pattern) -> Pattern:
    """Return what the shapes of two patterns have in common.

    >>> joint((3, 4), (5, 4)), joint((3,), (3, 4))
    ((None, 4), None)
    """
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(length if length == theirs else None for length, theirs in zip(one, other, strict=True))


def column_type(element: pa.DataType, pattern: Pattern) -> pa.DataType:
    """Return the Arrow type of a tensor column.

    >>> column_type(pa.int8(), (None, 4))
    ListType(list<item: fixed_size_list<item: int8>[4]>)
    """
    if pattern is None:
        return pa.struct([(VALUES, pa.list_(element)), (SHAPE, pa.list_(pa.int64()))])
    if not all(pattern[1:]):
        return pa.struct([(VALUES, pa.list_(element)), (SHAPE, pa.list_(pa.int64(), len(pattern)))])
    kind = element
    for length in reversed(pattern[1:]):
        kind = pa.list_(kind, length)
    if not pattern:
        return kind
    return pa.list_(kind, pattern[0]) if pattern[0] else pa.list_(kind)


class Column:
    """Collects the tensors of a column, and makes an Arrow array of them in memory of its own."""

    def __init__(self, element: pa.DataType, kind: pa.DataType) -> None:
        self._element = element
        self._kind = kind
        self._parts: list[bytes | NDArray[np.uint8]] = []
        self._counts: list[int] = []
        self._shapes: list[tuple[int, ...]] = []

    def add(self, values: bytes | NDArray[np.uint8], count: int, dims: tuple[int, ...]) -> None:
        """Add tensors of one shape by the bytes of their values."""
        self._parts.append(values)
        self._counts.append(count)
        self._shapes.append(dims)

    def array(self) -> pa.Array:
        """Return the tensors."""
        values = self._values()
        kind, rows = self._kind, sum(self._counts)
        if pt.is_struct(kind):
            lists = lists_of(pa.list_(self._element), self._lengths(0), values)
            shape = self._shape(kind.field(SHAPE).type)
            return pa.StructArray.from_arrays([lists, shape], fields=[kind.field(VALUES), kind.field(SHAPE)])
        inside = []
        while pt.is_fixed_size_list(kind):
            inside.append(kind)
            kind = kind.value_type
        if not pt.is_list(kind):
            return _nested(inside, values).slice(0, rows)
        items = kind.value_type
        while pt.is_fixed_size_list(items):
            inside.append(items)
            items = items.value_type
        return lists_of(self._kind, self._lengths(len(inside)), _nested(inside, values))

    def _lengths(self, fixed: int) -> NDArray[np.int64]:
        """Return how many items each tensor's list has, if each item has `fixed` dimensions."""
        sizes = {dims: prod(dims[: len(dims) - fixed]) for dims in set(self._shapes)}
        return np.repeat(np.array([sizes[dims] for dims in self._shapes], np.int64), self._counts)

    def _shape(self, kind: pa.DataType) -> pa.Array:
        flat = [length for count, dims in zip(self._counts, self._shapes, strict=True) for length in dims * count]
        values = pa.array(flat, pa.int64())
        if pt.is_fixed_size_list(kind):
            return _fixed(kind, values)
        return lists_of(kind, np.repeat(np.array([len(dims) for dims in self._shapes], np.int64), self._counts), values)

    def _values(self) -> pa.Array:
        parts: list[Any] = self._parts
        alone = len(parts) == 1 and isinstance(parts[0], np.ndarray)  # in memory of its own, then
        data: Any = parts[0] if alone else bytearray().join(parts)
        if pt.is_boolean(self._element):
            return pa.array(np.frombuffer(data, np.uint8) != 0, pa.bool_())
        buffer = pa.py_buffer(data)
        return _wrapped(self._element, buffer.size // byte_width(self._element), buffer)


def _wrapped(element: pa.DataType, count: int, data: pa.Buffer) -> pa.Array:
    storage = element.storage_type if isinstance(element, ElementType) else element
    array = pa.Array.from_buffers(storage, count, [None, data], null_count=0)
    return pa.ExtensionArray.from_storage(element, array) if isinstance(element, ElementType) else array


def _nested(kinds: Sequence[pa.DataType], values: pa.Array) -> pa.Array:
    """Put values into fixed-size lists, given the outermost first."""
    for kind in reversed(kinds):
        values = _fixed(kind, values)
    return values


def _fixed(kind: pa.DataType, values: pa.Array) -> pa.Array:
    count = len(values) // kind.list_size
    return pa.Array.from_buffers(kind, count, [None], null_count=0, children=[values])
