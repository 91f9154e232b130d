"""The manifests and files that a filter keeps, by partition values and statistics.

What partition transforms say of their columns is in https://iceberg.apache.org/spec/#partition-transforms.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, parser
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import NestedField

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.iceberg.manifests import DATA
from torch_table_loader.iceberg.scan import bound, facts_of
from torch_table_loader.table_formats import Facts, did_you_mean, predicate_of

if TYPE_CHECKING:
    from torch_table_loader.iceberg.manifests import Entry, Manifest, Raw
    from torch_table_loader.iceberg.metadata import Schema as TableSchema
    from torch_table_loader.iceberg.metadata import SpecField

_WITH_NUMBER = re.compile(r"(bucket|truncate)\[(\d{1,9})\]")
_BUCKETED = frozenset({"int", "long", "date", "time", "timestamp", "timestamptz", "string", "binary"})
_Path = tuple[str, ...]
_DAY_ONE = dt.date(1970, 1, 1)
_HOURS = {"s": 3600, "ms": 3_600_000, "us": 3_600_000_000, "ns": 3_600_000_000_000}
"""Hours in the units of times."""


class Pruner:
    """Applies a filter to manifests and files; keeps those it cannot decide. Threads share it."""

    def __init__(
        self, filters: pc.Expression, schema: TableSchema, arrow: pa.Schema, specs: Mapping[int, Sequence[SpecField]]
    ) -> None:
        """Look up what the filter asks of columns, and which fields of each partition spec say something of it."""
        self._predicate = predicate_of(filters, arrow)
        known = {leaf.path: leaf for leaf in _leaves(schema.fields, arrow, ())}
        self._leaves = [known[path] for path in self._predicate.paths if path in known]
        by_id = {leaf.field_id: leaf for leaf in self._leaves}
        self._fields = {
            spec_id: [
                (place, by_id[field.source_id], field.transform)
                for place, field in enumerate(fields)
                if field.source_id in by_id
            ]
            for spec_id, fields in specs.items()
        }

    @property
    def undecided(self) -> Sequence[str]:
        """The parts of the filter that leave no file out."""
        return self._predicate.undecided

    def keeps_manifest(self, manifest: Manifest) -> bool:
        """Return whether a manifest may list a file that is wanted."""
        facts: dict[_Path, Facts] = {}
        for place, leaf, transform in self._fields.get(manifest.spec_id, ()):
            if place < len(manifest.partitions):
                _add(facts, leaf, leaf.of_summary(manifest.partitions[place], transform))
        return self._predicate.can_pass(facts)

    def keeps(self, entry: Entry, raw: Raw) -> bool:
        """Return whether a file may contain a row that is wanted, or a delete that applies to one."""
        facts: dict[_Path, Facts] = {}
        if entry.content == DATA:
            if entry.num_rows == 0:
                return False
            read = facts_of(raw)
            facts = {leaf.path: read(leaf.field_id, leaf.kind, leaf.required) for leaf in self._leaves}
        for place, leaf, transform in self._fields.get(entry.spec_id, ()):
            if place < len(entry.partition):
                _add(facts, leaf, leaf.of_value(entry.partition[place], transform))
        return self._predicate.can_pass(facts)


def _add(facts: dict[_Path, Facts], leaf: _Leaf, more: Facts | None) -> None:
    if more is None:
        return
    if leaf.path in facts:
        more = facts[leaf.path].also(more)
    facts[leaf.path] = more


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of a plain type, or a field inside one, with its types in Iceberg's words and Arrow's."""

    path: _Path
    field_id: int
    kind: str
    arrow: pa.DataType
    required: bool

    def of_value(self, value: Any, transform: str) -> Facts | None:
        """Return what a partition value says of the column; None if nothing."""
        if value is None:
            if transform == "void":
                return None
            return Facts.of_value(pa.scalar(None), self.arrow)
        if isinstance(value, float) and math.isnan(value):
            return Facts(nulls=False, values=False)
        if _is_of_the_column(transform):
            try:
                value = Facts.of_value(pa.scalar(value, self.arrow), self.arrow).low
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                value = None
            if value is None:
                return Facts(nulls=False, nans=False)
        elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            value = (value - _DAY_ONE).days
        return self._between(value, value, transform, Facts(nulls=False, nans=False))

    def of_summary(self, summary: Mapping[str, Any], transform: str) -> Facts | None:
        """Return what a manifest's summary of partition values says of the column; None if nothing."""
        if transform == "void":
            return None
        kind = self.kind if _is_of_the_column(transform) else "int"
        low, high = (bound(summary.get(name), kind) for name in ("lower_bound", "upper_bound"))
        nulls, nans = summary.get("contains_null") is not False, summary.get("contains_nan") is not False
        bounded = summary.get("lower_bound") is not None or summary.get("upper_bound") is not None
        empty = not bounded and (nulls or summary.get("contains_nan") is True)
        found = Facts(nulls=nulls, nans=nans, values=not empty)
        if low is None or high is None:
            return found
        return self._between(low, high, transform, found)

    def _between(self, low: Any, high: Any, transform: str, found: Facts) -> Facts:
        """Add to facts that what a transform makes of the column's values lies between two values."""
        if low > high:
            return found  # a writer broke the format
        if transform == "identity":
            return found._replace(low=low, high=high)
        if (match := _WITH_NUMBER.fullmatch(transform)) is None:
            return _of_period(transform, low, high, self.arrow, found)
        number = int(match[2])
        if match[1] == "truncate":
            return _truncated(number, low, high, self.arrow, found)
        buckets = _buckets(number, self.kind)
        if buckets is None:
            return found
        return found._replace(holds=lambda value: low <= buckets(value) <= high)


def _truncated(width: int, low: Any, high: Any, kind: pa.DataType, found: Facts) -> Facts:
    """Add to facts that values, truncated to a width, lie between two."""
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        wraps = pa.types.is_integer(kind) and _may_wrap(low, high, width)
        if wraps:
            return found
        return found._replace(low=low, high=high + width - 1)
    if not isinstance(low, str):
        return found._replace(low=low)
    return found._replace(low=low, high=_after_prefix(high), holds=lambda value: low <= value[:width] <= high)


def _may_wrap(low: int, high: int, width: int) -> bool:
    """Return whether truncated integers may be those of the least ones, which overflow in Java.

    Java also adds the width to a remainder of 32 bits. A long may have been an int when it was written.

    >>> _may_wrap(2**31 - 2, 2**31 - 2, 10), _may_wrap(0, 2**31 - 10, 10), _may_wrap(0, 0, 2**30 + 1)
    (True, False, True)
    """
    return width > 1 << 30 or any(low < end and high > end - width for end in (1 << 31, 1 << 63))


def _is_of_the_column(transform: str) -> bool:
    """Return whether a transform gives values of the column's own type."""
    return transform == "identity" or transform.startswith("truncate")


def _of_period(transform: str, low: Any, high: Any, kind: pa.DataType, found: Facts) -> Facts:
    """Add to facts that dates or times lie between two years, months, days or hours, counted from 1970."""
    if transform not in ("year", "month", "day", "hour") or not (isinstance(low, int) and isinstance(high, int)):
        return found
    low -= low <= 0  # older writers rounded times before 1970 towards it
    hours = days = 1
    if not pa.types.is_date32(kind):
        hours, days = _HOURS[kind.unit], 24 * _HOURS[kind.unit]
    if transform == "hour":
        return found._replace(low=low * hours, high=(high + 1) * hours - 1)
    try:
        first, after = (_first_day(transform, number) for number in (low, high + 1))
    except (ValueError, OverflowError):  # beyond the range of calendars
        return found
    return found._replace(low=first * days, high=after * days - 1)


def _first_day(transform: str, number: int) -> int:
    """Return the day with which a year, month or day begins, all counted from 1970.

    >>> _first_day("month", 1), _first_day("year", -1)
    (31, -365)
    """
    if transform == "day":
        return number
    if transform == "year":
        number *= 12
    year, month = divmod(number, 12)
    return (dt.date(1970 + year, month + 1, 1) - _DAY_ONE).days


def _buckets(number: int, kind: str) -> Callable[[Any], int] | None:
    """Return what gives a column's values their buckets; None for types of which it is not known here."""
    if kind not in _BUCKETED:
        return None
    field = NestedField.model_validate({"id": 1, "name": "x", "required": False, "type": kind})
    return cast("Callable[[Any], int]", BucketTransform(number).transform(field.field_type))


def _after_prefix(prefix: str) -> str | None:
    """Return a text after all that begin with a prefix; None if there is none.

    >>> _after_prefix("ab"), _after_prefix(chr(0x10FFFF))
    ('ac', None)
    """
    if prefix[-1:] in ("", chr(0x10FFFF)):
        return None
    last = ord(prefix[-1]) + 1
    if last == 0xD800:  # the first of the surrogates, which no text holds
        last = 0xE000
    return prefix[:-1] + chr(last)


def _leaves(fields: Sequence[Mapping[str, Any]], arrow: Any, above: _Path, *, required: bool = True) -> Iterator[_Leaf]:
    """Yield the columns of plain types, and the fields of plain types in structs."""
    for field in fields:
        name, kind = field["name"], field["type"]
        if arrow.get_field_index(name) < 0:
            continue
        path, inner, always = (*above, name), arrow.field(name).type, required and field["required"]
        if isinstance(kind, str):
            yield _Leaf(path, field["id"], kind, inner, always)
        elif kind["type"] == "struct":
            yield from _leaves(kind["fields"], inner, path, required=always)


def row_filter(filters: pc.Expression | None, scan_filter: Any, schema: TableSchema) -> pc.Expression | None:
    """Join ``filters`` and ``scan_filter``, a pyiceberg expression or text in its grammar."""
    if scan_filter is None:
        return filters
    if not isinstance(scan_filter, str | BooleanExpression):
        raise ConfigTypeError(
            'scan_filter must be a pyiceberg expression or text such as "x > 3", got '
            f"{type(scan_filter).__name__}; a pyarrow Expression goes into filters="
        )
    ice = iceberg_schema(schema)
    try:
        if isinstance(scan_filter, str):
            scan_filter = parser.parse(scan_filter)
        bound_filter = bind(ice, scan_filter, case_sensitive=True)
    except Exception as error:
        names = [field.name for field in ice.fields]
        hints = (did_you_mean(word.strip("'\""), names) for word in str(error).split())
        raise ConfigError(
            f"scan_filter {scan_filter!s} does not fit the table ({error}); its columns are {', '.join(names[:20])}"
            + next(filter(None, hints), "")
        ) from error
    rows = expression_to_pyarrow(bound_filter, ice)
    if isinstance(rows, bool) or not isinstance(rows, pc.Expression):
        rows = pc.scalar(bool(rows))
    if filters is None:
        return rows
    return filters & rows


def iceberg_schema(schema: TableSchema) -> Schema:
    """Return pyiceberg's schema of the columns that can be read."""
    fields = [field for field in schema.fields if field["name"] not in schema.unreadable]
    plain = [{key: value for key, value in field.items() if not key.endswith("-default")} for field in fields]
    return Schema.model_validate({"type": "struct", "schema-id": schema.id, "fields": plain})
