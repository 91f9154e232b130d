"""The value ranges of files' key columns: an equality delete applies to no file whose values lie outside its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_table_loader.source.iceberg.manifests import EQUALITY_DELETES, Span, by_id

if TYPE_CHECKING:
    from torch_table_loader.source.iceberg.manifests import Raw
    from torch_table_loader.source.iceberg.schema import Schema

_LENGTHS = {"boolean": (1,), "int": (4, 8), "long": (4, 8), "date": (4,)}
_TIMES = ("time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")


@dataclass(frozen=True, slots=True)
class KeySpans:
    """Reads the statistics of key columns from manifests.

    Args:
        types: Iceberg types of the schema's top-level columns, by id.
        required: the columns that are never null.
        ids: the columns that are keys of some delete, needed for data files.
    """

    types: Mapping[int, str]
    required: frozenset[int]
    ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, schema: Schema) -> KeySpans:
        """Build from a schema."""
        plain = {field["id"]: field["type"] for field in schema.fields if isinstance(field["type"], str)}
        return cls(plain, frozenset(field["id"] for field in schema.fields if field["required"]))

    def read(self, raw: Raw) -> tuple[Span, ...]:
        """Read a file's statistics: an equality delete's of its keys, a data file's of the columns in `ids`."""
        wanted = raw.get("equality_ids") or () if raw.get("content") == EQUALITY_DELETES else self.ids
        known = sorted(field_id for field_id in wanted if field_id in self.types)
        if not known:
            return ()
        lows, highs = by_id(raw, "lower_bounds"), by_id(raw, "upper_bounds")
        nulls, counts = by_id(raw, "null_value_counts"), by_id(raw, "value_counts")
        # If the file lacks the column, no count can be trusted: its rows have null there, or the default.
        there = {field_id for field_id in known if counts.get(field_id) == raw["record_count"]}
        return tuple(
            Span(
                field_id,
                bound(lows.get(field_id), self.types[field_id]),
                bound(highs.get(field_id), self.types[field_id]),
                nulls=field_id not in self.required and not (field_id in there and nulls.get(field_id) == 0),
                values=not (field_id in there and nulls.get(field_id) == counts[field_id]),
            )
            for field_id in known
        )


def bound(data: bytes | None, kind: str) -> int | bytes | None:
    r"""Read a bound as a value that sorts in the column's order.

    Bounds of floating-point numbers leave out NaN, and writers order UUIDs in two ways: these give None. The encoding
    is https://iceberg.apache.org/spec/#binary-single-value-serialization.

    >>> bound(b"\x05\0\0\0", "long"), bound(b"\xff", "decimal(9, 2)"), bound(b"ab", "string")
    (5, -1, b'ab')
    """
    if data is None:
        return None
    if kind in _LENGTHS or kind in _TIMES:
        # A promoted column has bounds of its former width; days that became instants cannot be compared with them.
        return int.from_bytes(data, "little", signed=True) if len(data) in _LENGTHS.get(kind, (8,)) else None
    if kind.startswith("decimal"):
        return int.from_bytes(data, "big", signed=True)
    return bytes(data) if kind in ("string", "binary") or kind.startswith("fixed") else None


def may_meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Return whether a row of one file may have the same key as a row of another; null counts as a key.

    A column of which one file has no statistics decides nothing.

    >>> may_meet([Span(1, 0, 5, False, True)], [Span(1, 6, 9, True, True)])
    False
    """
    theirs = {span.field_id: span for span in others}
    return all(_meet(mine, theirs[mine.field_id]) for mine in some if mine.field_id in theirs)


def _meet(mine: Span, other: Span) -> bool:
    if mine.nulls and other.nulls:
        return True
    if not (mine.values and other.values):
        return False
    apart = (_below(mine.high, other.low), _below(other.high, mine.low))
    return not any(apart)


def _below(high: int | bytes | None, low: int | bytes | None) -> bool:
    return high is not None and low is not None and type(high) is type(low) and high < low  # type: ignore[operator]
