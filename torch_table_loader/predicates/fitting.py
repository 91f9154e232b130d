"""A filter with its literals in the types of their columns.

pyarrow finds a type that both sides of a comparison have, and may round both on the way, or find none. Here a literal
becomes a value of the column's type. If the type has no such value, the comparison changes: ``x > 1.5`` over ints is
``x >= 2``, and ``x = 1.5`` is false, but null where x is null. Whoever evaluates a filter or prunes by it takes what
`fitted` returns; the key of a filter is of what the caller wrote.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import NoReturn

import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.errors import ConfigError
from torch_table_loader.predicates.evaluation import bound_type, without_run_ends
from torch_table_loader.predicates.filter_form import Call, Field, Literal, Node, UnknownFormError, parse, write
from torch_table_loader.predicates.literals import Fit, MisfitError, fit, members_of

SWAPPED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
"""Comparisons, and what they are with their sides exchanged."""

_ANY_TYPE = frozenset({"", "cast", "is_null", "is_valid"})
"""Functions that take values however they are encoded; and none."""


def fitted(filters: pc.Expression, schema: pa.Schema) -> pc.Expression:
    """Return a filter with each literal in the type of what it is compared with, exact for every value.

    What names no column of the schema, and functions that this module does not know, stay as they are.

    Raises:
        ConfigError: a column and a value cannot be compared.

    >>> schema = pa.schema([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    >>> print(fitted(pc.field("x") > 1.5, schema))
    (x >= 2)
    >>> print(fitted(pc.field("x").isin([1, 2.5]), schema))
    is_in(x, {value_set=int32:[
      1
    ], null_matching_behavior=MATCH})
    """
    try:
        tree = parse(filters)
    except UnknownFormError:
        return filters
    found = _Rewriting(without_run_ends(schema)).node(tree)
    if found is tree:
        return filters
    return write(found)


class _Rewriting:
    """Rewrites the nodes of a filter over a schema; a node that stays as it is is returned itself."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def node(self, node: Node, function: str = "") -> Node:
        """Return a node with exact comparisons; `function` is what takes it."""
        if isinstance(node, Field):
            return self._readable(node, function)
        if not isinstance(node, Call):
            return node
        arguments: list[Node] = []
        for each in node.arguments:  # no comprehension: filters nest, and each level takes few frames
            arguments.append(self.node(each, node.function))  # noqa: PERF401
        if any(map(operator.is_not, arguments, node.arguments)):
            node = replace(node, arguments=tuple(arguments))
        if node.function in SWAPPED:
            return self._comparison(node)
        if node.function == "is_in":
            return self._is_in(node)
        return node

    def _readable(self, node: Field, function: str) -> Node:
        kind = None if function in _ANY_TYPE else self._type(node)
        if kind is None or isinstance(kind, pa.BaseExtensionType) or (readable := _readable(kind, function)) == kind:
            return node
        return _cast(node, readable)

    def _type(self, node: Node) -> pa.DataType | None:
        """Return the type of what is compared; None if it cannot be told, which is refused elsewhere."""
        try:
            if isinstance(node, Call) and node.function == "cast" and node.options is not None:
                return node.options.type.field("to_type").type
            if not isinstance(node, Field):
                return bound_type(write(node), self._schema)
            kind = self._schema.field(node.path[0]).type
            for part in node.path[1:]:
                kind = kind.field(part).type
        except (KeyError, ValueError, TypeError, AttributeError, pa.ArrowException):
            return None
        return kind

    def _comparison(self, node: Call) -> Node:
        (left, right), function = node.arguments, node.function
        value = _constant(right)
        if value is None:
            left, right, function, value = right, left, SWAPPED[function], _constant(left)
        if value is None or _constant(left) is not None or (kind := self._type(left)) is None:
            return node
        if pt.is_null(kind):
            return Call(function, (left, Literal(pa.scalar(None, pa.int8()))), None)
        if not value.is_valid:
            return node if value.type == kind else Call(function, (left, Literal(pa.scalar(None, kind))), None)
        if value.type == kind or (found := self._fit(value, kind, left)) is None:
            return node
        if found.low is not None and found.low is found.high:
            return Call(function, (left, Literal(found.low)), None)
        return _between(function, left, found)

    @staticmethod
    def _fit(value: pa.Scalar, kind: pa.DataType, argument: Node) -> Fit | None:
        try:
            return fit(value, kind)
        except MisfitError as error:
            _refuse(error, argument, kind)

    def _is_in(self, node: Call) -> Node:
        argument, kind = node.arguments[0], self._type(node.arguments[0])
        if kind is None or node.options is None or pt.is_null(kind):
            return node
        members = node.options["value_set"].values
        try:
            new = members_of(members, kind)
        except MisfitError as error:
            _refuse(error, argument, kind)
        if new is members:
            return node
        options = [
            pa.ListArray.from_arrays(pa.array([0, len(new)], pa.int32()), new)
            if name == "value_set"
            else pa.repeat(node.options[name], 1)
            for name in node.options
        ]
        return replace(node, options=pa.StructArray.from_arrays(options, names=list(node.options))[0])


def _between(function: str, argument: Node, found: Fit) -> Node:
    """Return a comparison with a literal that lies between two values of a type, or beside all of them."""
    if function in ("equal", "not_equal"):
        return _always(argument, holds=function == "not_equal")
    alike, near, far = "greater_equal", found.high, found.low
    if function.startswith("less"):
        alike, near, far = "less_equal", found.low, found.high
    if near is None:
        return _always(argument, holds=False)
    if far is None:
        return _always(argument, holds=True)
    return Call(alike, (argument, Literal(near)), None)


def _always(argument: Node, *, holds: bool) -> Node:
    """Return what is true, or false, wherever a value is not null, and else null."""
    is_null = replace(_call("is_null"), arguments=(argument,))
    never = Call("and_kleene", (is_null, Literal(pa.scalar(None, pa.bool_()))), None)
    if holds:
        return Call("invert", (never,), None)
    return never


def _cast(node: Node, kind: pa.DataType) -> Node:
    return replace(_call("cast", kind), arguments=(node,))


@cache
def _call(function: str, kind: pa.DataType | None = None) -> Call:
    """Return a call of is_null or cast with its usual options."""
    found = parse(pc.field("x").is_null() if function == "is_null" else pc.field("x").cast(kind))
    assert isinstance(found, Call)  # noqa: S101 a function was written
    return found


def _readable(kind: pa.DataType, function: str) -> pa.DataType:
    """Return the type that a column is cast to for a function of pyarrow, which has none for the column's own."""
    if not pt.is_nested(kind):
        kind = plain_type(kind)
    if pt.is_float16(kind):
        return pa.float32()
    if function == "is_in" and (pt.is_decimal32(kind) or pt.is_decimal64(kind)):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _constant(node: Node) -> pa.Scalar | None:
    """Return the value of a literal, or of a cast of one; None for any other node."""
    if isinstance(node, Literal):
        value = node.value
        if pt.is_dictionary(value.type):
            return pa.scalar(value.as_py(), plain_type(value.type))
        return value
    if isinstance(node, Call) and node.function == "cast" and node.options is not None:
        inner = _constant(node.arguments[0])
        if inner is not None:
            with suppress(pa.ArrowException):
                return inner.cast(node.options.type.field("to_type").type)
    return None


def _refuse(error: MisfitError, argument: Node, kind: pa.DataType) -> NoReturn:
    column = ".".join(argument.path) if isinstance(argument, Field) else str(write(argument))
    raise ConfigError(f"filters must fit the table's types, and {column} is {kind}, which {error}") from error
