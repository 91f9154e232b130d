"""What a filter says, by the form in which pyarrow serializes it: a key that names it over a schema, and its tree.

pyarrow shows no structure of an Expression in Python, and what it prints may change and leaves out the middle of long
lists. It does write the structure when it pickles: an Arrow IPC file of one row, whose columns are the literals and the
options of functions, and whose metadata spells the expression in prefix order:

    call: less · field_ref: price · literal: 0 · end: less

Substrait, the other form, has no safe casts and no ``is_null`` with NaN, so that ``field("f") > 0.1`` over a float32
column has no Substrait form.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.flatbuffers import schema_pairs
from torch_table_loader.predicates.filter_text import is_written

_INNER_TYPES = ("storage_type", "index_type", "run_end_type", "key_type", "item_type", "value_type")


def _spelled(expression: Any) -> Iterator[tuple[str, Any]]:
    """Yield the words of an expression in prefix order; literals and options with an array of their one value."""
    _, (pickled,) = expression.__reduce__()
    row = pa.ipc.open_file(pickled).get_batch(0)
    for key, value in schema_pairs(bytes(pickled)):
        word = key.decode()
        yield word, row.column(int(value)) if word in ("literal", "options") else value.decode()


def filter_key(filters: Any, schema: pa.Schema) -> str:
    """Return 64 hexadecimal digits that name a checked filter (None for no filter) over a table's schema.

    They are the same under every version of pyarrow, and no value can be read in them.
    """
    hashed = hashlib.sha256(b"filter 2")
    expression = () if filters is None else _hashed_parts(filters)
    for part in (*expression, *(_field(field).encode() for field in schema)):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


def _hashed_parts(filters: Any) -> Iterator[bytes]:
    for word, content in _spelled(filters):
        yield word.encode()
        if isinstance(content, str):
            yield content.encode()
        else:
            if is_written(content.type):
                content = pa.array([float(content[0].as_py())])  # noqa: PLW2901 - the float that it is nearest to
            yield _type(content.type).encode()
            yield from _values(content)


def _field(field: pa.Field) -> str:
    return f"{len(field.name)} {field.name}{'' if field.nullable else ' not null'} {_type(field.type)}"


def _type(kind: pa.DataType) -> str:
    """Write a type; names inside lists and maps, which mean nothing and which versions choose, are left out.

    >>> _type(pa.list_(pa.field("element", pa.struct([("a", pa.int8())]))))
    'ListType<struct<1 a int8>>'
    """
    if inner := [_type(getattr(kind, name)) for name in _INNER_TYPES if hasattr(kind, name)]:
        name = getattr(kind, "extension_name", type(kind).__name__)
        return f"{name}{getattr(kind, 'list_size', '')}<{', '.join(inner)}>"
    if kind.num_fields:
        return f"struct<{', '.join(_field(kind.field(number)) for number in range(kind.num_fields))}>"
    return str(kind)


def _values(array: pa.Array) -> Iterator[bytes]:
    """Yield what an array holds: its length, which of its values are null, and those that are not."""
    if isinstance(array.type, pa.BaseExtensionType):
        yield from _values(array.storage)
        return
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    elif pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    yield len(array).to_bytes(8, "little")
    yield np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes()
    array = array.drop_null()
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _values(child)
    elif _is_list(array.type):
        yield pc.list_value_length(array).cast(pa.int64()).to_numpy().tobytes()
        yield from _values(array.flatten())
    elif width := _byte_width(array.type):
        yield array.buffers()[1][array.offset * width : (array.offset + len(array)) * width].to_pybytes()
    else:
        yield ascii(array.to_pylist()).encode()


def _is_list(kind: pa.DataType) -> bool:
    listed = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
    return isinstance(kind, listed)


def _byte_width(kind: pa.DataType) -> int:
    """Return the bytes of a value; 0 of bits, and where values differ in width."""
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


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
        words = _spelled(expression)
        return _node(*next(words), words)
    except (StopIteration, IndexError, KeyError, ValueError, TypeError, struct.error, pa.ArrowException) as error:
        raise UnknownFormError(f"{type(error).__name__}: {error}") from error


def write(tree: Node) -> pc.Expression:
    """Write a tree as an expression, which `parse` reads as the same tree.

    >>> print(write(parse(pc.field("a", "b") > 3)))
    (FieldRef.Nested(FieldRef.Name(a) FieldRef.Name(b)) > 3)
    """
    words: list[tuple[str, str]] = []
    values: list[pa.Array] = []
    _spell(tree, words, values)
    schema = pa.schema([pa.field("", value.type) for value in values], pa.KeyValueMetadata(words))
    if not values:  # a row of no columns has no row
        schema, values = pa.schema([pa.field("", pa.null())], schema.metadata), [pa.nulls(1)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(values, schema=schema))
    return pc.Expression._deserialize(sink.getvalue())


def _spell(node: Node, words: list[tuple[str, str]], values: list[pa.Array]) -> None:
    """Append the words of a node in prefix order, and the values that they count."""

    def of_value(word: str, value: pa.Scalar) -> None:
        words.append((word, str(len(values))))
        values.append(pa.repeat(value, 1))

    if isinstance(node, Literal):
        of_value("literal", node.value)
    elif isinstance(node, Field):
        if len(node.path) > 1:
            words.append(("nested_field_ref", str(len(node.path))))
        words.extend(("field_ref", name) for name in node.path)
    else:
        words.append(("call", node.function))
        for argument in node.arguments:
            _spell(argument, words, values)
        if node.options is not None:
            of_value("options", node.options)
        words.append(("end", node.function))


def extent_of(expression: pc.Expression) -> tuple[int, int]:
    """Return how many functions an expression calls, and how deep these calls nest.

    >>> extent_of((pc.field("a") > 3) & ~(pc.field("b") == 2))
    (4, 3)
    """
    calls = level = deepest = 0
    for word, _ in _spelled(expression):
        if word == "call":
            calls, level = calls + 1, level + 1
            deepest = max(deepest, level)
        elif word == "end":
            level -= 1
    return calls, deepest


def _node(word: str, content: Any, words: Iterator[tuple[str, Any]]) -> Node:
    if word == "literal":
        return Literal(content[0])
    if word == "field_ref":
        return Field((content,))
    if word == "nested_field_ref":
        return Field(tuple(_named(*next(words)) for _ in range(int(content))))
    if word != "call":
        raise ValueError(f"a node of the kind {word}")
    arguments: list[Node] = []
    options = None
    for inner, value in words:
        if inner == "end":
            return Call(content, tuple(arguments), options)
        if inner == "options":
            options = value[0]
        else:
            arguments.append(_node(inner, value, words))
    raise ValueError(f"the call of {content} does not end")


def _named(word: str, content: str) -> str:
    if word != "field_ref":
        raise ValueError(f"expected field_ref, got {word}")
    return content
