"""The caller's filters, joined for rows, and the manifests and files they keep, by partition values and statistics.

A row filter becomes a pyiceberg expression that is true wherever the filter is. pyarrow and Iceberg treat NaN and null
differently: ``~(x < 3)`` passes NaN, which upper bounds do not include, and ``~x.isin([1])`` passes null. So negation
is pushed down to the leaves, and each leaf says what passes there.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression, parser
from pyiceberg.expressions.literals import LongLiteral
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.predicates.filter_key import Call, Field, Literal, Node, UnknownFormError, parse
from torch_table_loader.source.iceberg.manifests import DATA, by_id

if TYPE_CHECKING:
    from torch_table_loader.source.iceberg.manifests import Entry, Manifest, Raw
    from torch_table_loader.source.iceberg.metadata import SpecField
    from torch_table_loader.source.iceberg.schema import Schema as TableSchema

_UNDECIDED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    NotImplementedError,
    struct.error,
    OverflowError,
)
"""Errors of an evaluator if statistics are missing, or of another type than the column (it was promoted)."""

_VALUE_TYPES: dict[type[IcebergType], tuple[type, ...]] = {
    BooleanType: (bool,),
    FloatType: (float,),
    DoubleType: (float,),
    DecimalType: (Decimal,),
    StringType: (str,),
    BinaryType: (bytes,),
    FixedType: (bytes,),
    UUIDType: (bytes, UUID),
}
"""Types of partition values; those of all other types are integers."""

ice: Any = expressions
"""Its predicates accept names and values, although their annotations do not say so."""

_SWAPPED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_PREDICATES: dict[str, Any] = {
    "equal": ice.EqualTo,
    "not_equal": ice.NotEqualTo,
    "less": ice.LessThan,
    "less_equal": ice.LessThanOrEqual,
    "greater": ice.GreaterThan,
    "greater_equal": ice.GreaterThanOrEqual,
}
_EXACT = 2**53
"""Integers up to this are exact as doubles."""

_MATCH_NULLS = 0
_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}


class Pruner:
    """Applies a filter to manifests and files; keeps those it cannot decide. Threads share it."""

    def __init__(self, expression: BooleanExpression, schema: Schema, specs: Mapping[int, Sequence[SpecField]]) -> None:
        """Bind a filter that is true for every row that is wanted, with the fields of each partition spec."""
        self._types = {field_id: schema.find_field(field_id).field_type for field_id in schema.field_ids}
        self._metrics = _InclusiveMetricsEvaluator(schema, expression)
        self._manifest: dict[int, Any] = {}
        self._partition: dict[int, tuple[Any, tuple[tuple[type, ...], ...]]] = {}
        self._lock = threading.Lock()  # pyiceberg's evaluators store what they look at in themselves
        for spec_id, fields in specs.items():
            try:
                spec = PartitionSpec(*map(_spec_field, fields), spec_id=spec_id)
                projected = inclusive_projection(schema, spec)(expression)
                self._manifest[spec_id] = manifest_evaluator(spec, schema, projected)
                partition = Schema(*spec.partition_type(schema).fields)
                types = tuple(_VALUE_TYPES.get(type(field.field_type), (int,)) for field in partition.fields)
                self._partition[spec_id] = expression_evaluator(partition, projected, case_sensitive=True), types
            except _UNDECIDED:  # a spec over a column that was dropped
                continue

    def keeps_manifest(self, manifest: Manifest) -> bool:
        """Return whether a manifest may list a file that is wanted."""
        if manifest.spec_id not in self._manifest or not manifest.partitions:
            return True
        summaries = [SimpleNamespace(**{"contains_nan": None, **each}) for each in manifest.partitions]
        try:
            return bool(self._manifest[manifest.spec_id](SimpleNamespace(partitions=summaries)))
        except _UNDECIDED:
            return True

    def keeps(self, entry: Entry, raw: Raw) -> bool:
        """Return whether a file may contain a row that is wanted, or a delete that applies to one."""
        try:
            with self._lock:
                by_partition, types = self._partition.get(entry.spec_id, (None, ()))
                if by_partition is not None and not by_partition(_Values(entry.partition, types)):
                    return False
        except _UNDECIDED:
            pass
        if entry.content != DATA:
            return True
        try:
            with self._lock:
                return bool(self._metrics.eval(_statistics(raw, self._types)))
        except _UNDECIDED:
            return True


class _Values:
    """Partition values in the form of pyiceberg's evaluators: dates and times as numbers."""

    def __init__(self, values: Sequence[Any], types: Sequence[tuple[type, ...]]) -> None:
        self._values = values
        self._types = types

    def __getitem__(self, place: int) -> Any:
        value = _internal(self._values[place])
        if value is not None and not isinstance(value, self._types[place]):
            raise TypeError(f"a partition value of the type {type(value).__name__}")
        return value


def _internal(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return datetime_to_micros(value)
    if isinstance(value, dt.date):
        return date_to_days(value)
    return time_to_micros(value) if isinstance(value, dt.time) else value


def _spec_field(field: SpecField) -> PartitionField:
    transform: Any = field.transform  # which pyiceberg parses
    return PartitionField(field.source_id, field.field_id or 1000, transform, field.name)


def _statistics(raw: Raw, types: Mapping[int, IcebergType]) -> Any:
    return SimpleNamespace(
        record_count=raw["record_count"],
        value_counts=by_id(raw, "value_counts"),
        null_value_counts=by_id(raw, "null_value_counts"),
        nan_value_counts=by_id(raw, "nan_value_counts"),
        lower_bounds=_bounds(by_id(raw, "lower_bounds"), types),
        upper_bounds=_bounds(by_id(raw, "upper_bounds"), types),
    )


def _bounds(bounds: dict[int, bytes], types: Mapping[int, IcebergType]) -> dict[int, bytes]:
    """Widen the bounds of columns that were promoted since; leave out those that cannot be widened."""
    found: dict[int, bytes] = {}
    for field_id, bound in bounds.items():
        kind = types.get(field_id)
        if isinstance(kind, LongType) and len(bound) == 4:
            bound = struct.pack("<q", struct.unpack("<i", bound)[0])  # noqa: PLW2901
        elif isinstance(kind, DoubleType) and len(bound) == 4:
            bound = struct.pack("<d", struct.unpack("<f", bound)[0])  # noqa: PLW2901
        elif isinstance(kind, TimestampType | TimestamptzType) and len(bound) != 8:
            continue
        found[field_id] = bound
    return found


def row_filter(filters: pc.Expression | None, scan_filter: Any, schema: Schema) -> pc.Expression | None:
    """Join ``filters`` and ``scan_filter``, a pyiceberg expression or text in its grammar.

    Raises:
        ConfigError: a filter does not parse, or does not fit the table.
    """
    if scan_filter is None:
        return filters
    if not isinstance(scan_filter, str | BooleanExpression):
        raise ConfigTypeError(
            'scan_filter must be a pyiceberg expression or text such as "x > 3", got '
            f"{type(scan_filter).__name__}; a pyarrow Expression goes into filters="
        )
    try:
        wanted = parser.parse(scan_filter) if isinstance(scan_filter, str) else scan_filter
        bound = bind(schema, wanted, case_sensitive=True)
    except Exception as error:
        names = [field.name for field in schema.fields]
        hints = (did_you_mean(word.strip("'\""), names) for word in str(error).split())
        raise ConfigError(
            f"scan_filter {scan_filter!s} does not fit the table ({error}); its columns are {', '.join(names[:20])}"
            + next(filter(None, hints), "")
        ) from error
    rows = expression_to_pyarrow(bound, schema)
    if isinstance(rows, bool) or not isinstance(rows, pc.Expression):
        rows = pc.scalar(bool(rows))
    return rows if filters is None else filters & rows


def make_pruner(
    filters: pc.Expression | None,
    schema: Schema,
    arrow: pa.Schema,
    specs: Mapping[int, Sequence[SpecField]],
) -> tuple[Pruner | None, list[str]]:
    """Return a pruner, None if no file can be left out; and the parts of the filter that do not prune."""
    if filters is None:
        return None, []
    expression, untranslated = translate(filters, schema, arrow)
    return None if expression is None else Pruner(expression, schema, specs), untranslated


def iceberg_schema(schema: TableSchema) -> Schema:
    """Return pyiceberg's schema of the columns that can be read."""
    fields = [field for field in schema.fields if field["name"] not in schema.unreadable]
    plain = [{key: value for key, value in field.items() if not key.endswith("-default")} for field in fields]
    return Schema.model_validate({"type": "struct", "schema-id": schema.id, "fields": plain})


class _Untranslatable(Exception):  # noqa: N818 - never leaves this module
    """A part of a filter that says nothing about files."""


def translate(
    filters: pc.Expression, schema: Schema, arrow: pa.Schema
) -> tuple[expressions.BooleanExpression | None, list[str]]:
    """Translate a row filter for files.

    Returns:
        An expression that is true for every row that passes the filter, None if nothing is known about files; and the
        parts of the filter that say nothing about files.
    """
    translator = _Translator(schema, arrow)
    try:
        return translator.passing(parse(filters), negated=False), translator.untranslated
    except UnknownFormError as error:
        return None, [f"{filters} ({error})"]


class _Translator:
    def __init__(self, schema: Schema, arrow: pa.Schema) -> None:
        self._schema = schema
        self._arrow = arrow
        self.untranslated: list[str] = []

    def passing(self, node: Node, *, negated: bool) -> expressions.BooleanExpression | None:
        """Return an expression for the rows where a node is true (negated: false); None for possibly all rows."""
        if isinstance(node, Call):
            if node.function == "invert":
                return self.passing(node.arguments[0], negated=not negated)
            if node.function in ("and_kleene", "and", "or_kleene", "or"):
                left, right = (self.passing(each, negated=negated) for each in node.arguments)
                if node.function.startswith("and") != negated:
                    return left if right is None else right if left is None else ice.And(left, right)
                return None if left is None or right is None else ice.Or(left, right)
        try:
            leaf: expressions.BooleanExpression = self._leaf(node, negated=negated)
            bind(self._schema, leaf, True)
        except (_Untranslatable, ValueError, TypeError, KeyError, OverflowError, InvalidOperation) as error:
            self.untranslated.append(f"{_shown(node)} ({error})")
            return None
        return leaf

    def _leaf(self, node: Node, *, negated: bool) -> Any:
        if isinstance(node, Literal):
            passes = node.value.is_valid and pa.types.is_boolean(node.value.type) and node.value.as_py() != negated
            return ice.AlwaysTrue() if passes else ice.AlwaysFalse()
        if isinstance(node, Field):
            name, kind = self._column(node)
            if not pa.types.is_boolean(kind):
                raise _Untranslatable("no truth value")
            return ice.EqualTo(name, not negated)
        if node.function in _PREDICATES:
            return self._comparison(node, negated=negated)
        if node.function == "is_in":
            return self._is_in(node, negated=negated)
        found = self._test(node)
        return ~found if negated else found

    def _comparison(self, node: Call, *, negated: bool) -> Any:
        left, right = node.arguments
        function = node.function
        if not isinstance(left, Field):
            left, right, function = right, left, _SWAPPED[function]
        name, kind = self._column(left)
        literal = _folded(right)
        if not literal.is_valid:
            return ice.AlwaysFalse()  # null compares to nothing
        predicate: expressions.BooleanExpression = _PREDICATES[function](name, _value(literal, kind))
        predicate = ~predicate if negated else predicate
        if pa.types.is_floating(kind) and (negated or function == "not_equal"):
            return ice.Or(predicate, ice.IsNaN(name))  # bounds do not include NaN, which passes here
        return predicate

    def _is_in(self, node: Call, *, negated: bool) -> Any:
        name, kind = self._column(node.arguments[0])
        options = _options(node)
        if options["null_matching_behavior"].as_py() != _MATCH_NULLS:
            raise _Untranslatable("is_in with another way to match nulls")
        members = list(options["value_set"].values)
        known = [member for member in members if member.is_valid]
        nan = [member for member in known if pa.types.is_floating(member.type) and math.isnan(member.as_py())]
        values = [_value(member, kind) for member in known if member not in nan]
        if negated:
            parts: list[expressions.BooleanExpression] = [ice.NotIn(name, values), ice.IsNull(name)]
        else:
            parts = [ice.In(name, values)]
            parts += [ice.IsNull(name)] if len(known) < len(members) else []
        if pa.types.is_floating(kind) and (nan or negated):
            parts.append(ice.IsNaN(name))
        return reduce(ice.Or, parts)

    def _test(self, node: Call) -> Any:
        """Return the predicate for a function that asks something of a column."""
        if node.function not in ("is_null", "is_valid", "is_nan", "starts_with"):
            raise _Untranslatable(f"the function {node.function}")
        name, kind = self._column(node.arguments[0])
        is_float = pa.types.is_floating(kind)
        if node.function == "is_valid":
            return ice.NotNull(name)
        if node.function == "is_null":
            nan = is_float and node.options is not None and _options(node)["nan_is_null"].as_py()
            return ice.Or(ice.IsNull(name), ice.IsNaN(name)) if nan else ice.IsNull(name)
        if node.function == "is_nan":
            if not is_float:
                raise _Untranslatable("no float column")
            return ice.IsNaN(name)
        options = _options(node)
        if options["ignore_case"].as_py() or not pa.types.is_string(kind):
            raise _Untranslatable("a prefix in any case")
        return ice.StartsWith(name, options["pattern"].as_py())

    def _column(self, node: Node) -> tuple[str, pa.DataType]:
        if not isinstance(node, Field):
            raise _Untranslatable("not a column alone")
        if any("." in part for part in node.path):
            raise _Untranslatable("a name with a dot")
        kind = self._arrow.field(node.path[0]).type
        for part in node.path[1:]:
            kind = kind.field(part).type
        return ".".join(node.path), kind


def _options(node: Call) -> pa.StructScalar:
    if node.options is None:
        raise _Untranslatable(f"{node.function} without options")
    return node.options


def _folded(node: Node) -> pa.Scalar:
    """Return the value of a literal, or of a cast of a literal."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Call) and node.function == "cast":
        options = _options(node)
        try:
            return _folded(node.arguments[0]).cast(options.type.field("to_type").type)
        except pa.ArrowException as error:
            raise _Untranslatable(f"a cast that fails ({error})") from error
    raise _Untranslatable("not a column and a value")


def _value(literal: pa.Scalar, kind: pa.DataType) -> Any:
    """Return a literal as a value of a column's type if that is exact: a rounded one would leave out rows."""
    types, own = pa.types, literal.type
    if types.is_integer(kind) or types.is_floating(kind):
        return _number(literal, kind)
    if types.is_decimal(kind) and (types.is_integer(own) or types.is_decimal(own)):
        value = Decimal(literal.as_py())
        exact = value.quantize(Decimal(1).scaleb(-kind.scale))
        if exact != value:
            raise _Untranslatable("a decimal of more places than the column's")
        return exact
    if types.is_timestamp(kind) and types.is_timestamp(own) and (kind.tz is None) == (own.tz is None):
        if kind.unit != "us" or own.unit not in _UNITS:
            raise _Untranslatable("nanoseconds")
        return LongLiteral(literal.cast(pa.timestamp(own.unit)).value * _UNITS[own.unit])
    if types.is_time(kind) and types.is_time64(own) and own.unit == "us":
        return LongLiteral(literal.value)
    same = (types.is_boolean, types.is_date32, _is_text, _is_bytes)
    if any(test(kind) and test(own) for test in same):
        return literal.as_py()
    raise _Untranslatable(f"a {own} for a column of {kind}")


def _number(literal: pa.Scalar, kind: pa.DataType) -> int | float:
    if not pa.types.is_integer(literal.type) and not pa.types.is_floating(literal.type):
        raise _Untranslatable(f"a {literal.type} for a column of {kind}")
    value = literal.as_py()
    mixed = pa.types.is_integer(literal.type) != pa.types.is_integer(kind)
    if math.isnan(value) or (mixed and not -_EXACT <= value <= _EXACT):
        raise _Untranslatable(f"{value} for a column of {kind}")
    if pa.types.is_integer(kind):
        if value != int(value):
            raise _Untranslatable(f"{value} for a column of {kind}")
        return int(value)
    if pa.types.is_float32(kind) and float(np.float32(value)) != value:
        raise _Untranslatable(f"{value}, which no float32 is")
    return float(value)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _shown(node: Node) -> str:
    if isinstance(node, Field):
        return ".".join(node.path)
    if isinstance(node, Literal):
        return str(pc.scalar(node.value))
    return f"{node.function}({', '.join(map(_shown, node.arguments))})"
