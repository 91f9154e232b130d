"""A pyarrow expression as a tree, read from the expression's serialized form.

pyarrow shows no structure of an Expression in Python. It does write one when it pickles: an Arrow IPC file whose
columns are the literals and options, and whose schema metadata lists the nodes, in order. Substrait, the other form,
has no safe casts and no ``is_null`` with NaN, so that ``field("f") > 0.1`` over a float32 column has no Substrait form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.flatbuffers import schema_pairs


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
        pairs = ((key.decode(), value.decode()) for key, value in schema_pairs(bytes(buffer)))
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
