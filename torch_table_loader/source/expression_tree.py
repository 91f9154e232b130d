"""A pyarrow expression as a tree, read from the expression's serialized form.

pyarrow shows no structure of an Expression in Python. It does write one when it pickles: an Arrow IPC file whose
columns are the literals and options, and whose schema metadata lists the nodes, in order. Keys repeat in that list,
so that it is read from the message's flatbuffer (https://arrow.apache.org/docs/format/Columnar.html, Message.fbs and
Schema.fbs); a Python dict would lose all but the last. Substrait, the other form, has no safe casts and no ``is_null``
with NaN, so that ``field("f") > 0.1`` over a float32 column has no Substrait form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from torch_table_loader.arrow import compute as pc

_MAGIC = b"ARROW1\0\0"


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or the path to a field inside one."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A value."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function applied to other nodes; `options` is a struct of its settings, or None."""

    function: str
    arguments: tuple[Node, ...]
    options: pa.StructScalar | None


Node = Field | Literal | Call


class UnknownFormError(ValueError):
    """pyarrow wrote an expression in a form that this module does not know."""


def parse(expression: pc.Expression) -> Node:
    """Parse an expression into a tree.

    Raises:
        UnknownFormError: the expression cannot be read; a newer pyarrow may write another form.

    >>> parse(pc.field("a") > 3)
    Call(function='greater', arguments=(Field(path=('a',)), Literal(value=<pyarrow.Int64Scalar: 3>)), options=None)
    """
    try:
        (buffer,) = expression.__reduce__()[1]
        pairs = iter(_pairs(buffer))
        batch = pa.ipc.open_file(buffer).get_batch(0)
        key, value = next(pairs)
        return _node(key, value, pairs, batch)
    except (StopIteration, IndexError, KeyError, ValueError, TypeError, struct.error, pa.ArrowException) as error:
        raise UnknownFormError(f"{type(error).__name__}: {error}") from error


def _node(key: str, value: str, pairs: Iterator[tuple[str, str]], batch: pa.RecordBatch) -> Node:
    if key == "literal":
        return Literal(batch.column(int(value))[0])
    if key == "field_ref":
        return Field((value,))
    if key == "nested_field_ref":
        return Field(tuple(_expected("field_ref", *next(pairs)) for _ in range(int(value))))
    if key != "call":
        raise ValueError(f"a node of the kind {key}")
    arguments: list[Node] = []
    options = None
    for inner, content in pairs:
        if inner == "end":
            return Call(value, tuple(arguments), options)
        if inner == "options":
            options = batch.column(int(content))[0]
        else:
            arguments.append(_node(inner, content, pairs, batch))
    raise ValueError(f"the call of {value} does not end")


def _expected(wanted: str, key: str, value: str) -> str:
    if key != wanted:
        raise ValueError(f"expected {wanted}, got {key}")
    return value


def _pairs(buffer: pa.Buffer) -> list[tuple[str, str]]:
    """Return the schema's metadata with repeated keys, in order."""
    if buffer.slice(0, 8).to_pybytes() != _MAGIC:
        raise ValueError("no Arrow IPC file")
    message = pa.ipc.read_message(buffer.slice(8))
    data = message.metadata.to_pybytes()
    root = _Table(data, _offset(data, 0))
    schema = root.table(2)
    return [(pair.text(0), pair.text(1)) for pair in schema.tables(2)]


def _offset(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer (https://flatbuffers.dev/internals/); fields are found by their number."""

    data: bytes
    at: int

    def _field(self, number: int) -> int:
        vtable = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        (size,) = struct.unpack_from("<H", self.data, vtable)
        entry = 4 + 2 * number
        (place,) = struct.unpack_from("<H", self.data, vtable + entry) if entry < size else (0,)
        if not place:
            raise ValueError(f"field {number} is not there")
        return _offset(self.data, self.at + int(place))

    def table(self, number: int) -> _Table:
        return _Table(self.data, self._field(number))

    def tables(self, number: int) -> list[_Table]:
        start = self._field(number)
        (count,) = struct.unpack_from("<I", self.data, start)
        return [_Table(self.data, _offset(self.data, start + 4 + 4 * index)) for index in range(count)]

    def text(self, number: int) -> str:
        start = self._field(number)
        (length,) = struct.unpack_from("<I", self.data, start)
        return self.data[start + 4 : start + 4 + length].decode("utf-8")
