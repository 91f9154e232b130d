"""The caller's filters, joined for rows, and the manifests and files they keep, by partition values and statistics."""

from __future__ import annotations

import datetime as dt
import struct
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
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
from torch_table_loader.source.iceberg.manifests import DATA, by_id
from torch_table_loader.source.iceberg.translate import translate

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
        wanted = parse(scan_filter) if isinstance(scan_filter, str) else scan_filter
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
